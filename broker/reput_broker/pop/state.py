"""What the requests of POP share, with the counts of messages in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from reput_broker.pop.order_info import FreeQueues, OrderInfos
from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PopPositions
from reput_broker.pop.queues import PopQueues
from reput_broker.pop.revive_log import ReviveLog


class InFlightMessages:
    """Counts of this run, by group, topic and queue; messages popped before the start are not counted.

    Args:
        started_ms: pops before that time were not counted.
    """

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def popped(self, group: str, topic: str, queue_id: int, count: int) -> None:
        """Count popped messages."""
        self._counts[group, topic, queue_id] += count

    def done(self, group: str, topic: str, queue_id: int, pop_time: int, count: int = 1) -> None:
        """Count messages that were acknowledged or redelivered."""
        key = group, topic, queue_id
        if pop_time < self._started_ms or key not in self._counts:
            return
        left = self._counts[key] - count
        if left > 0:
            self._counts[key] = left
        else:
            del self._counts[key]

    def begins_again(self, group: str, topic: str, queue_id: int) -> None:
        """Count nothing as popped: ordered messages of a queue are popped again from the first."""
        self._counts.pop((group, topic, queue_id), None)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget a deleted group or topic."""
        for key in [key for key in self._counts if group == key[0] or topic == key[1]]:
            del self._counts[key]

    def by_place(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Yield the number of messages by group and topic."""
        places: Counter[tuple[str, str]] = Counter()
        for (group, topic, _), count in self._counts.items():
            places[group, topic] += count
        yield from places.items()


@dataclass(slots=True, kw_only=True)
class PopState:
    """The state of POP in one tenure.

    Attributes:
        positions: how far groups have popped.
        orders: what groups that pop in order have in flight, which blocks its queue.
        free_queues: wakes pops of queues that are not blocked any more.
    """

    queues: PopQueues
    positions: PopPositions
    orders: OrderInfos
    in_flight: InFlightMessages
    revive_log: ReviveLog
    polling: PopPolling
    free_queues: FreeQueues
