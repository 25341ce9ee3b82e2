"""Rates of topics, groups and the whole broker, from totals that are read at intervals (RocketMQ: BrokerStatsManager,
StatsItem, StoreStatsService, BrokerStats).

Every ten seconds the difference of each total to the round before is noted, if there is one: idle topics cost no
memory. The last minute has six such rounds, the last hour six of ten minutes, the last day 24 of an hour.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from reput_broker.observe.counters import PUT_TIMES, Counters
from reput_broker.store.base.results import StoreStats
from reput_protocol.commands.statistics import BrokerStats, BrokerStatsItem

ROUND_S: Final = 10
"""Interval at which totals are read."""
_RATE_SPANS_S: Final = (10, 60, 600)
_KEPT_ROUNDS: Final = _RATE_SPANS_S[-1] // ROUND_S + 1
_TOTALS_A_TURN: Final = 128
"""Topics and groups after which other tasks run."""

Key: TypeAlias = Hashable


class Totals(NamedTuple):
    """Messages and bytes of one topic or one group, and by how many requests."""

    messages: int = 0
    size_b: int = 0
    requests: int = 0

    def since(self, before: Totals) -> Totals:
        """Return the difference. Totals that were forgotten meanwhile begin again at 0."""
        if before.messages > self.messages:
            return self
        return Totals(self.messages - before.messages, self.size_b - before.size_b, self.requests - before.requests)

    def plus(self, other: Totals) -> Totals:
        """Return the sum."""
        return Totals(self.messages + other.messages, self.size_b + other.size_b, self.requests + other.requests)


_NONE: Final = Totals()


class Window:
    """What was counted in the last rounds.

    Args:
        rounds: how many rounds it has.
        every: how many rounds of `ROUND_S` seconds one of its rounds lasts.
    """

    def __init__(self, rounds: int, every: int) -> None:
        self.every = every
        self._rounds: deque[tuple[int, dict[Key, Totals]]] = deque(maxlen=rounds)
        self._growing: dict[Key, Totals] = {}
        self._begun_ms: int | None = None

    def add(self, key: Key, more: Totals) -> None:
        """Count `more` in the round that is not complete yet."""
        before = self._growing.get(key)
        self._growing[key] = more if before is None else before.plus(more)

    def end_round(self, now_ms: int, previous_ms: int) -> None:
        """Complete a round; `previous_ms` is where the first one began."""
        begun_ms = previous_ms if self._begun_ms is None else self._begun_ms
        self._rounds.append((max(1, now_ms - begun_ms), self._growing))
        self._growing, self._begun_ms = {}, now_ms

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget deleted topics and groups."""
        for counted in (self._growing, *(counted for _, counted in self._rounds)):
            for key in keys:
                counted.pop(key, None)

    def totals(self, key: Key) -> Totals:
        """Return what was counted in the complete rounds."""
        total = _NONE
        for _, counted in self._rounds:
            if key in counted:
                total = total.plus(counted[key])
        return total

    @property
    def span_ms(self) -> int:
        """Duration of the complete rounds; 0 without one."""
        return sum(duration for duration, _ in self._rounds)


class _Read(NamedTuple):
    """Totals of the store at one time."""

    at_ms: int
    put_messages: int
    get_messages: int
    get_calls: int
    get_found: int
    timers_accepted: int
    timers_delivered: int
    puts_by_time: tuple[int, ...]


class Statistics:
    """Statistics since the broker started, of one role.

    Args:
        clock_ms: milliseconds since the epoch.
        local_day: the number of the day at a time in milliseconds, in the local time zone.
    """

    def __init__(
        self,
        counters: Counters,
        store: StoreStats,
        clock_ms: Callable[[], int],
        local_day: Callable[[int], int] = lambda ms: time.localtime(ms / 1000).tm_yday,
    ) -> None:
        self._counters = counters
        self._store = store
        self._clock_ms = clock_ms
        self._local_day = local_day
        self.timer_totals: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns how many messages with a deliver time were accepted, and how many delayed ones delivered."""
        self._before: dict[Key, Totals] = dict(self._all())
        self._minute, self._hour, self._day = Window(6, 1), Window(6, 60), Window(24, 360)
        self._rounds = 0
        self._began_ms = clock_ms()
        self._reads: deque[_Read] = deque([self._read()], maxlen=_KEPT_ROUNDS)
        self._today = local_day(self._began_ms)
        self._yesterday_morning = self._this_morning = (0, 0)

    def _all(self) -> Iterator[tuple[Key, Totals]]:
        for topic, traffic in list(self._counters.topics.items()):
            messages = sum(sizes.count for sizes in traffic.sizes.values())
            yield topic, Totals(messages, traffic.bytes_in, traffic.puts)
        for (topic, group), out in list(self._counters.groups.items()):
            yield (topic, group), Totals(out.messages_out, out.bytes_out, out.pulls)

    def _read(self) -> _Read:
        store = self._store
        return _Read(
            self._clock_ms(),
            store.put_messages,
            store.get_messages,
            store.get_calls,
            store.get_found,
            *self.timer_totals(),
            tuple(self._counters.put_seconds.buckets),
        )

    async def run(self) -> None:
        """Read the totals every ten seconds, until cancelled."""
        next_at = trio.current_time()
        while True:
            next_at = max(next_at + ROUND_S, trio.current_time())
            await trio.sleep_until(next_at)
            await self.end_round()

    async def end_round(self) -> None:
        """Read all totals once; other tasks run in between."""
        totals: dict[Key, Totals] = {}
        for number, (key, total) in enumerate(self._all(), start=1):
            if number % _TOTALS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            totals[key] = total
            more = total.since(self._before.get(key, _NONE))
            if more.messages:
                for window in (self._minute, self._hour, self._day):
                    window.add(key, more)
        if gone := self._before.keys() - totals.keys():
            for window in (self._minute, self._hour, self._day):
                window.forget(gone)
        self._before = totals
        now = self._read()
        self._reads.append(now)
        self._rounds += 1
        for window in (self._minute, self._hour, self._day):
            if self._rounds % window.every == 0:
                window.end_round(now.at_ms, self._began_ms)
        self._note_day(now)

    def _note_day(self, now: _Read) -> None:
        day = self._local_day(now.at_ms)
        if day != self._today:
            self._today = day
            self._yesterday_morning = self._this_morning
            self._this_morning = (now.put_messages, now.get_messages)

    # -- of topics and groups --------------------------------------------------------------------------------

    def view(self, name: str, key: str) -> BrokerStats | None:
        """Return the statistics that RocketMQ knows under a name and a key; None if there are none."""
        found = self._found(name, key)
        if found is None:
            return None
        own_key, part = found
        return BrokerStats(*(_item(window, own_key, part) for window in (self._minute, self._hour, self._day)))

    def _found(self, name: str, key: str) -> tuple[Key, int] | None:
        part = 1 if name.endswith("_SIZE") else 0
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            return (key, part) if key in self._counters.topics else None
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            topic, at, group = key.rpartition("@")
            return ((topic, group), part) if at and (topic, group) in self._counters.groups else None
        return None

    def topic_put_tps(self, topic: str) -> float:
        """Return the messages a second that a topic received in the last minute."""
        return _item(self._minute, topic, 0).tps

    def group_get_tps(self, topic: str, group: str) -> float:
        """Return the messages a second of a topic that a group received in the last minute."""
        return _item(self._minute, (topic, group), 0).tps

    def get_tps_by_topic(self) -> dict[str, float]:
        """Return the messages a second of each topic that all groups received in the last minute."""
        rates: dict[str, float] = {}
        for topic, group in list(self._counters.groups):
            rates[topic] = rates.get(topic, 0.0) + self.group_get_tps(topic, group)
        return rates

    # -- of the broker ---------------------------------------------------------------------------------------

    def figures(self) -> dict[str, object]:
        """Return RocketMQ's runtime figures: rates over 10, 60 and 600 seconds, put times, and totals of days.

        A rate over a longer time than the broker runs is that since its start.
        """
        now = self._read()
        spans = [(now, self._read_before(now.at_ms - 1000 * span_s)) for span_s in _RATE_SPANS_S]

        def rates(total: Callable[[_Read], int], spans: Sequence[tuple[_Read, _Read]] = spans) -> str:
            return " ".join(
                str(round((total(now) - total(then)) * 1000 / max(1000, now.at_ms - then.at_ms), 2))
                for now, then in spans
            )

        now, minute_ago = spans[1]
        times = zip(PUT_TIMES, now.puts_by_time, minute_ago.puts_by_time, strict=False)
        return {
            "putMessageDistributeTime": " ".join(f"{name}:{count - then}" for name, count, then in times),
            "putTps": rates(lambda read: read.put_messages),
            "getTransferredTps": rates(lambda read: read.get_messages),
            "getFoundTps": rates(lambda read: read.get_found),
            "getMissTps": rates(lambda read: read.get_calls - read.get_found),
            "getTotalTps": rates(lambda read: read.get_calls),
            "timerEnqueueTps": rates(lambda read: read.timers_accepted, spans[:1]),
            "timerDequeueTps": rates(lambda read: read.timers_delivered, spans[:1]),
            "msgPutTotalYesterdayMorning": self._yesterday_morning[0],
            "msgPutTotalTodayMorning": self._this_morning[0],
            "msgPutTotalTodayNow": now.put_messages,
            "msgGetTotalYesterdayMorning": self._yesterday_morning[1],
            "msgGetTotalTodayMorning": self._this_morning[1],
            "msgGetTotalTodayNow": now.get_messages,
        }

    def _read_before(self, at_ms: int) -> _Read:
        """Return the last totals that were read at or before a time, or the first."""
        found = self._reads[0]
        for read in self._reads:
            if read.at_ms > at_ms:
                break
            found = read
        return found


def _item(window: Window, key: Key, part: int) -> BrokerStatsItem:
    totals, span_ms = window.totals(key), window.span_ms
    total = totals[part]
    return BrokerStatsItem(
        total,
        round(total * 1000 / span_ms, 4) if span_ms else 0.0,
        round(total / totals.requests, 4) if totals.requests else 0.0,
    )
