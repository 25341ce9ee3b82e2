"""How far each group is: what the broker has delivered to it, when it last committed, and its position in each queue.

What was delivered, and when a group committed, is for monitoring, in memory only, and unknown after a restart until
members pull and commit again. (RocketMQ keeps only the pull offsets: ConsumerOffsetManager.pullOffsetTable.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.tables.offsets import ConsumerOffsetManager


class QueueProgress:
    """One group in one queue.

    `first_offset` is where the group pulled first, `pull_offset` the next offset that it will pull, both -1 before its
    first pull; `peer` is the connection that pulled last; `committed_at_ms` is the time of the last commit, 0 before
    the first.
    """

    __slots__ = ("committed_at_ms", "first_offset", "peer", "pull_offset")

    def __init__(self) -> None:
        self.first_offset = self.pull_offset = -1
        self.peer = ""
        self.committed_at_ms = 0


_NONE: Final[Mapping[int, QueueProgress]] = {}


class GroupProgress:
    """All groups in all queues. Only for existing groups and queues: the table grows with every name."""

    def __init__(self) -> None:
        self._table: defaultdict[tuple[str, str], defaultdict[int, QueueProgress]]
        self._table = defaultdict(lambda: defaultdict(QueueProgress))

    def pulled(self, group: str, topic: str, queue_id: int, offset: int, next_offset: int, peer: str) -> int:
        """Record a pull at `offset`, and where the member pulls next; return how many messages it pulls again."""
        progress = self._table[group, topic][queue_id]
        before = progress.pull_offset
        if before < 0:
            progress.first_offset = before = offset
        progress.pull_offset = next_offset
        progress.peer = peer
        return max(0, min(before, next_offset) - offset)

    def committed(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """Record a commit."""
        self._table[group, topic][queue_id].committed_at_ms = now_ms

    def get(self, group: str, topic: str, queue_id: int) -> QueueProgress | None:
        """Return a group's progress in a queue, if known."""
        queues = self._table.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def items(self) -> Iterator[tuple[str, str, Mapping[int, QueueProgress]]]:
        """Iterate over (group, topic, queue id -> progress); concurrent changes may or may not be
        seen."""
        for (group, topic), queues in list(self._table.items()):
            yield group, topic, queues

    def of_topic(self, group: str, topic: str) -> Mapping[int, QueueProgress]:
        """Return a group's progress in a topic by queue, as far as known."""
        return self._table.get((group, topic), _NONE)

    def forget_queues(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """Forget the progress of queues whose offsets were reset."""
        queues: dict[int, QueueProgress] = self._table.get((group, topic), {})
        for queue_id in queue_ids:
            queues.pop(queue_id, None)

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        for key in [key for key in self._table if key[0] == group]:
            del self._table[key]

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        for key in [key for key in self._table if key[1] == topic]:
            del self._table[key]


class GroupPositions:
    """Where each group is in each queue: its committed offset, or where the members that are online have pulled first.

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
