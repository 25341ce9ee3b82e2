"""Ordered queues that wait for acknowledgements (RocketMQ: ConsumerOrderInfoManager).

After an ordered pop its queue is blocked until all its messages are acknowledged or visible again. The group's offset
stays at the first one that is not acknowledged, so the log and the offset tell what is left after a crash; this table
only tells until when it is blocked, and how often messages were popped. It is in `config/consumerOrderInfo.json`, in
RocketMQ's format.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from typing_extensions import override

from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PoppedQueue
from reput_broker.tables.config_file import ConfigTable

_TABLE = "table"
_SUSPENDED = "reputSuspended"
"""RocketMQ reads over this member."""
_KEPT_MS = 24 * 3600 * 1000
"""A queue that was not popped for so long is forgotten."""
_POLL_S = 1.0


@dataclass(slots=True)
class OrderInfo:
    """The last ordered pop of one queue. Times are in ms."""

    attempt_id: str | None
    pop_time: int
    invisible_time: int
    offsets: tuple[int, ...]
    acknowledged: int = 0
    """A bit for each message."""
    visible_at: dict[int, int] = field(default_factory=dict)
    """Changed times, by offset."""
    counts: dict[int, int] = field(default_factory=dict)
    """How often messages were popped before, by offset; without those that were not."""
    suspended: set[int] = field(default_factory=set)
    """Offsets of messages whose next pop is no further attempt."""

    def unacknowledged(self) -> list[int]:
        """Return the offsets that are not acknowledged."""
        return [offset for bit, offset in enumerate(self.offsets) if not self.acknowledged >> bit & 1]

    def blocked_until(self) -> int:
        """Return when all messages that are not acknowledged are visible again; 0 if there is none."""
        default = self.pop_time + self.invisible_time
        return max((self.visible_at.get(offset, default) for offset in self.unacknowledged()), default=0)

    def next_offset(self) -> int:
        """Return the first offset that is not acknowledged, or the one after the last."""
        return next(iter(self.unacknowledged()), self.offsets[-1] + 1)


class OrderInfos(ConfigTable):
    """The table. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../consumerOrderInfo.json`; not read yet.
    """

    def __init__(self, path: Path, clock_ms: Callable[[], int]) -> None:
        super().__init__(path)
        self._clock_ms = clock_ms
        self._table: dict[PoppedQueue, OrderInfo] = {}

    def load(self) -> None:
        """Read the file. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup can be used; nothing was changed.
            OSError: a file cannot be read.
        """
        members = self.file.load().members.get(_TABLE)
        for name, queues in (members if isinstance(members, dict) else {}).items():
            topic, separator, group = name.partition("@")
            if not separator or not isinstance(queues, dict):
                continue
            for queue_id, found in queues.items():
                info = _read(found)
                if info is not None:
                    self._table[PoppedQueue(group, topic, int(queue_id))] = info

    def is_blocked(self, place: PoppedQueue, attempt_id: str | None) -> bool:
        """Whether a pop must wait; not if it repeats the last one under the same attempt id."""
        info = self._table.get(place)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return False
        return self._clock_ms() < info.blocked_until()

    def blocked_until(self, place: PoppedQueue) -> int:
        """Return when a queue is free at the latest; 0 if it is not blocked."""
        info = self._table.get(place)
        return 0 if info is None else info.blocked_until()

    def popped(
        self, place: PoppedQueue, attempt_id: str | None, pop_time: int, invisible_time: int, offsets: Sequence[int]
    ) -> dict[int, int]:
        """Block a queue for popped messages; return how often each was popped before, if it was."""
        before = self._table.get(place)
        counts: dict[int, int] = {}
        if before is not None:
            if before.attempt_id is not None and before.attempt_id == attempt_id:
                counts = before.counts
            else:
                attempts = dict.fromkeys(before.offsets, 1) | dict.fromkeys(before.suspended, 0)
                counts = {
                    offset: count
                    for offset in offsets
                    if (count := before.counts.get(offset, 0) + attempts.get(offset, 0))
                }
        self._table[place] = OrderInfo(attempt_id, pop_time, invisible_time, tuple(offsets), counts=dict(counts))
        self._unsaved = True
        return counts

    def can_be_acknowledged(self, place: PoppedQueue, offset: int, pop_time: int) -> bool:
        """Whether a message can be one of the pop that its handle names: not if that was the last one, without it."""
        info = self._table.get(place)
        return info is None or pop_time != info.pop_time or offset in info.offsets

    def acknowledge(self, place: PoppedQueue, offset: int, pop_time: int) -> int | None:
        """Note an acknowledgement that can be (RocketMQ: commitAndNext); return what to commit, None: nothing."""
        info = self._table.get(place)
        if info is None:
            return offset + 1
        if pop_time != info.pop_time:
            return None  # popped again meanwhile
        info.acknowledged |= 1 << info.offsets.index(offset)
        self._unsaved = True
        return info.next_offset()

    def change_time(
        self, place: PoppedQueue, offset: int, pop_time: int, visible_at: int, *, is_suspended: bool
    ) -> None:
        """Set when a message becomes visible again, if it was part of the last pop.

        Args:
            is_suspended: whether the next pop is no further attempt.
        """
        info = self._table.get(place)
        if info is not None and info.pop_time == pop_time and offset in info.offsets:
            info.visible_at[offset] = visible_at
            if is_suspended:
                info.suspended.add(offset)
            else:
                info.suspended.discard(offset)
            self._unsaved = True

    def clear(self, place: PoppedQueue) -> None:
        """Unblock a queue."""
        if self._table.pop(place, None) is not None:
            self._unsaved = True

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget a deleted group or topic."""
        for place in [place for place in self._table if group == place.group or topic == place.topic]:
            self.clear(place)

    def places(self) -> list[PoppedQueue]:
        """Return the queues of the table, blocked or not."""
        return list(self._table)

    @override
    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        oldest = self._clock_ms() - _KEPT_MS
        self._table = {place: info for place, info in self._table.items() if info.pop_time > oldest}
        members: dict[str, dict[str, Any]] = {}
        for (group, topic, queue_id), info in self._table.items():
            members.setdefault(f"{topic}@{group}", {})[str(queue_id)] = _members(info)
        return lambda: {_TABLE: members}


def _members(info: OrderInfo) -> dict[str, Any]:
    first = info.offsets[0]
    members: dict[str, Any] = {
        "popTime": info.pop_time,
        "i": info.invisible_time,
        "o": [first, *(offset - first for offset in info.offsets[1:])],
        "ot": {str(offset): at for offset, at in info.visible_at.items()},
        "oc": {str(offset): count for offset, count in info.counts.items()},
        "l": info.pop_time,
        "cm": info.acknowledged,
    }
    if info.suspended:
        members[_SUSPENDED] = sorted(info.suspended)
    if info.attempt_id is not None:
        members["a"] = info.attempt_id
    return members


def _read(found: Any) -> OrderInfo | None:
    try:
        first, *steps = found["o"]
        attempt_id = found.get("a")
        return OrderInfo(
            None if attempt_id is None else str(attempt_id),
            int(found["popTime"]),
            int(found.get("i") or 0),
            (int(first), *(int(first) + int(step) for step in steps)),
            int(found.get("cm") or 0),
            {int(offset): int(at) for offset, at in (found.get("ot") or {}).items()},
            {int(offset): int(count) for offset, count in (found.get("oc") or {}).items()},
            {int(offset) for offset in found.get(_SUSPENDED) or ()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


class FreeQueues:
    """Wakes pops of queues that are free again."""

    def __init__(self, orders: OrderInfos, polling: PopPolling, clock_ms: Callable[[], int]) -> None:
        self._orders = orders
        self._polling = polling
        self._clock_ms = clock_ms
        self._free_at = [(orders.blocked_until(place), place) for place in orders.places()]
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
