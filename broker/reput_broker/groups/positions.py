"""Where each group is in each queue: the next message that it has not finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.progress import GroupProgress
from reput_broker.tables.offsets import ConsumerOffsetManager


class GroupPositions:
    """The committed offsets, and, of queues without one, where the members that are online have pulled first.

    A member that hangs in its first message has committed nothing, and would not be seen without the latter. Groups
    that broadcast keep their offsets themselves.
    """

    def __init__(
        self, offsets: ConsumerOffsetManager, progress: GroupProgress, online: ConsumerGroups
    ) -> None:
        self._offsets = offsets
        self._progress = progress
        self._online = online

    def items(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Iterate over (group, topic, queue id -> offset), as `ConsumerOffsetManager.items`."""
        seen = set()
        for group, topic, queues in self._offsets.items():
            seen.add((group, topic))
            yield group, topic, {**self._pulled(group, topic), **queues}
        for group, topic, _ in self._progress.items():
            if (group, topic) not in seen and (pulled := self._pulled(group, topic)):
                yield group, topic, pulled

    def for_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return the positions of `group`: topic -> queue id -> offset."""
        found = self._offsets.for_group(group)
        online = self._online.get(group)
        for topic in () if online is None else online.subscriptions:
            if pulled := self._pulled(group, topic):
                found[topic] = {**pulled, **found.get(topic, {})}
        return found

    def _pulled(self, group: str, topic: str) -> dict[int, int]:
        online = self._online.get(group)
        if online is None or online.is_broadcasting or topic not in online.subscriptions:
            return {}
        return {
            queue_id: progress.first_offset
            for queue_id, progress in self._progress.of_topic(group, topic).items()
            if progress.first_offset >= 0
        }
