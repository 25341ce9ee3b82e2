"""Notifies services of new messages: of their own topics, or of all that is dispatched. Long polling has its own way,
`MessageArrivingListener`.
"""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.store.base.dispatch import DispatchBatch


class Arrivals:
    """A dispatcher that wakes services for new messages of their topics, and passes batches on to others."""

    def __init__(self) -> None:
        self._wake: dict[str, Callable[[], None]] = {}
        self._followers: list[Callable[[DispatchBatch], None]] = []

    def follow(self, call: Callable[[DispatchBatch], None]) -> None:
        """Call `call` with every batch."""
        self._followers.append(call)

    def watch(self, topic: str, wake: Callable[[], None]) -> None:
        """Call `wake` whenever messages have been stored in a topic."""
        self._wake[topic] = wake

    def end(self) -> None:
        """Call no follower any more: the end of the store may dispatch a last batch."""
        self._followers.clear()
        self._wake.clear()

    def dispatch(self, batch: DispatchBatch) -> None:
        """Call the followers, and the watchers of the topics in the batch."""
        for call in self._followers:
            call(batch)
        for rows in batch.queues:
            wake = self._wake.get(rows.topic)
            if wake is not None:
                wake()
