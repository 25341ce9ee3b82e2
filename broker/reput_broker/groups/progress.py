"""What the broker has delivered to each group, and when the group last committed. In memory only.

These figures are for monitoring and unknown after a restart until members pull and commit again. (RocketMQ keeps only
the pull offsets: ConsumerOffsetManager.pullOffsetTable.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping


class QueueProgress:
    """One group in one queue.

    `pull_offset` is the next offset that the group will pull, -1 before its first pull; `peer` is the connection that
    pulled last; `committed_at_ms` is the time of the last commit, 0 before the first.
    """

    __slots__ = ("committed_at_ms", "peer", "pull_offset")

    def __init__(self) -> None:
        self.pull_offset = -1
        self.peer = ""
        self.committed_at_ms = 0


class GroupProgress:
    """All groups in all queues. Only for existing groups and queues: the table grows with every name."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, QueueProgress]] = {}

    def pulled(self, group: str, topic: str, queue_id: int, next_offset: int, peer: str) -> None:
        """Record where a member pulls next."""
        progress = self._of(group, topic, queue_id)
        progress.pull_offset = next_offset
        progress.peer = peer

    def committed(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """Record a commit."""
        self._of(group, topic, queue_id).committed_at_ms = now_ms

    def get(self, group: str, topic: str, queue_id: int) -> QueueProgress | None:
        """Return a group's progress in a queue, if known."""
        queues = self._table.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def items(self) -> Iterator[tuple[str, str, Mapping[int, QueueProgress]]]:
        """Iterate over (group, topic, queue id -> progress); concurrent changes may or may not be
        seen."""
        for (group, topic), queues in list(self._table.items()):
            yield group, topic, queues

    def in_flight(self, group: str, topic: str, queue_id: int, committed: int) -> int:
        """Return how many messages the group has pulled and not committed."""
        progress = self.get(group, topic, queue_id)
        return 0 if progress is None else max(0, progress.pull_offset - committed)

    def forget_queues(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """Forget the progress of queues whose offsets were reset."""
        queues = self._table.get((group, topic), {})
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

    def _of(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        queues = self._table.get((group, topic))
        if queues is None:
            queues = self._table[group, topic] = {}
        progress = queues.get(queue_id)
        if progress is None:
            progress = queues[queue_id] = QueueProgress()
        return progress
