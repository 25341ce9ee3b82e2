"""What the requests of POP share, with the counts of messages in flight and the waking of ordered pops."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import trio

from reput_broker.pop.order_info import OrderInfos
from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PoppedQueue, PopPositions
from reput_broker.pop.queues import PopQueues
from reput_broker.pop.revive_log import ReviveLog

_POLL_S = 1.0


class FreeQueues:
    """Knows until when queues are blocked by messages in flight."""

    def __init__(self, orders: OrderInfos, polling: PopPolling, clock_ms: Callable[[], int]) -> None:
        self._orders = orders
        self._polling = polling
        self._clock_ms = clock_ms
        self._free_at = [(orders.blocked_until(place), place) for place in orders.blocked()]
        heapq.heapify(self._free_at)
        self._free_changed = trio.Event()

    def blocked(self, place: PoppedQueue, until_ms: int) -> None:
        """Note that an ordered pop blocks a queue until a time."""
        heapq.heappush(self._free_at, (until_ms, place))
        if self._free_at[0] == (until_ms, place):
            self._free_changed.set()

    def changed(self, place: PoppedQueue) -> None:
        """Wake pops of a queue that is free now, or at another time."""
        until_ms = self._orders.blocked_until(place)
        if until_ms > self._clock_ms():
            self.blocked(place, until_ms)
        else:
            self._polling.wake_group(place.topic, place.group, place.queue_id)

    async def run(self) -> None:
        """Wake pops of queues whose messages have become visible again (RocketMQ: ConsumerOrderInfoLockManager)."""
        while True:
            self._free_changed = trio.Event()
            now_ms = self._clock_ms()
            while self._free_at and self._free_at[0][0] <= now_ms:
                _, place = heapq.heappop(self._free_at)
                if not self._orders.is_blocked(place, None):
                    self._polling.wake_group(place.topic, place.group, place.queue_id)
            wait_s = _POLL_S
            if self._free_at:
                wait_s = min(_POLL_S, max(0.001, (self._free_at[0][0] - now_ms) / 1000))
            with trio.move_on_after(wait_s if self._free_at else float("inf")):
                await self._free_changed.wait()


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
