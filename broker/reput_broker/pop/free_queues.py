"""Wakes ordered pops of queues that are free again (RocketMQ: ConsumerOrderInfoLockManager)."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import trio

from reput_broker.pop.order_info import OrderInfos
from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PoppedQueue

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
