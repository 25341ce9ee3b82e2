"""What has become of messages in hand: their times were changed, or they were acknowledged.

Both are known in memory only, until the times of their check points are over. After a restart or a failover the broker
takes a message by the handle that the client gives.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from sys import intern
from typing import Final, NamedTuple

from reput_broker.pop.checkpoints import CheckPointKey

_LATE_MS: Final = 30_000
"""How long after a check point's time its handle may still come, in a request that was held up."""
_ACKNOWLEDGED_MAX: Final = 100_000
_BITS: Final = 64


class InHand(NamedTuple):
    """One message by the check point that it is in."""

    key: CheckPointKey
    offset: int
    deliver_ms: int
    """When it becomes visible, unless it is acknowledged."""


class ChangedTimes:
    """Which check points have replaced others, since a message's invisible time was changed. One owner.

    A client whose connection was lost does not know whether its change was made, and repeats it with the old handle, or
    acknowledges with that. Either is then about the check point that counts: otherwise the message would have two, and
    be redelivered by the one that its consumer does not know. After a restart such a message may come twice.

    The first handle of a message is known for as long as its time is changed: a proxy renews it for a client, which
    goes on to use that, through whichever proxy.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._later: dict[tuple[CheckPointKey, int], InHand] = {}
        self._first: dict[tuple[CheckPointKey, int], tuple[CheckPointKey, int]] = {}
        """By the check point that counts: the one that the message had first."""
        self._ends: list[tuple[int, CheckPointKey, int]] = []

    def latest(self, one: InHand) -> InHand:
        """Return what has replaced a check point, or the same if nothing has."""
        while later := self._later.get((one.key, one.offset)):
            one = later
        return one

    def replaced(self, before: InHand, after: InHand) -> None:
        """Note that a check point is replaced."""
        place = before.key, before.offset
        at_once = self._later.get(place)  # of two changes at a time, the later one counts
        first = self._first.pop(place if at_once is None else (at_once.key, at_once.offset), place)
        self._first[after.key, after.offset] = first
        self._later[first] = self._later[place] = after
        now_ms = self._clock_ms()
        self._forget_at(max(now_ms, before.deliver_ms), place)
        while self._ends[0][0] <= now_ms:
            _, key, offset = heapq.heappop(self._ends)
            last = self._later.pop((key, offset), None)
            if last is None or self._first.get((last.key, last.offset)) != (key, offset):
                continue
            if last.deliver_ms + _LATE_MS > now_ms:
                self._later[key, offset] = last
                self._forget_at(last.deliver_ms, (key, offset))
            else:
                del self._first[last.key, last.offset]

    def _forget_at(self, time_ms: int, place: tuple[CheckPointKey, int]) -> None:
        heapq.heappush(self._ends, (time_ms + _LATE_MS, *place))


class Acknowledged:
    """Which messages are acknowledged. One owner.

    The handle of a message may be known in two places: a proxy renews it for a client that has acknowledged it through
    another proxy. Its new check point would redeliver it. After a restart that is possible.

    The messages of a check point share entries, one for each 64 offsets; those whose times end in the same second are
    forgotten together. With more entries than `entries_max` those that end first are forgotten, since a client that
    does not know of the acknowledgement is likely to have the most of its time left. The default is about 30 MB, and
    enough for 1,000 pops per second of messages that are invisible for a minute.
    """

    def __init__(self, clock_ms: Callable[[], int], entries_max: int = _ACKNOWLEDGED_MAX) -> None:
        self._clock_ms = clock_ms
        self._entries_max = entries_max
        self._ending: dict[int, dict[tuple[CheckPointKey, int], int]] = {}
        """By the second in which the times end: the offsets of a check point, as bits of a number."""
        self._seconds: list[int] = []
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def __contains__(self, one: InHand) -> bool:
        entries = self._ending.get(one.deliver_ms // 1000)
        if entries is None:
            return False
        block, bit = divmod(one.offset, _BITS)
        return bool(entries.get((one.key, block), 0) >> bit & 1)

    def add(self, one: InHand) -> None:
        """Note an acknowledgement."""
        second = one.deliver_ms // 1000
        entries = self._ending.get(second)
        if entries is None:
            self._forget_over()
            entries = self._ending[second] = {}
            heapq.heappush(self._seconds, second)
        block, bit = divmod(one.offset, _BITS)
        place = one.key, block
        bits = entries.get(place)
        if bits is not None:
            entries[place] = bits | 1 << bit
            return
        topic, group, queue_id, start, pop_time, broker_name = one.key
        # Each request has texts of its own.
        key = CheckPointKey(intern(topic), intern(group), queue_id, start, pop_time, intern(broker_name))
        entries[key, block] = 1 << bit
        self._entries += 1
        while self._entries > self._entries_max:
            self._forget_first()

    def _forget_over(self) -> None:
        over = (self._clock_ms() - _LATE_MS) // 1000
        while self._seconds and self._seconds[0] < over:
            self._forget_first()

    def _forget_first(self) -> None:
        self._entries -= len(self._ending.pop(heapq.heappop(self._seconds)))
