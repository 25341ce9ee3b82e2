"""The broker's history: samples its figures each second, and has a worker thread write them to the file and read them.

The file belongs to the directory's lock: it is open while a tenure has the store. Samples wait meanwhile, for ten
minutes at most. A file that cannot be used never keeps a broker from starting: it is set aside, or the history is in
memory until the next tenure.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog
import trio

from reput_broker.observe.history.file import (
    NAME,
    NAME_BYTES_MAX,
    NAMES_MAX,
    NOTHING,
    PUT_COUNTS,
    RINGS,
    Event,
    HistoryFile,
    Kind,
    NotAHistory,
    Stretch,
    What,
    no_named,
    place_of,
)
from reput_broker.observe.metrics import MetricsSources
from reput_broker.store.base.file_io import set_aside
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

log = structlog.get_logger(__name__)

T = TypeVar("T")
Measured = Mapping[str, tuple[float, ...]]
"""Figures of groups or topics, by name."""

_NAMED_STEP_S: Final = RINGS[1].step_s
_WAITING_MAX: Final = RINGS[0].rows
_QUIET_S: Final = 3600
"""A name gives its place to another one when nothing was measured for it for so long."""
_PAGE_SIZE: Final = resource.getpagesize()


class Sample(NamedTuple):
    """The figures of a second, in the order of COLUMNS."""

    at_s: int
    figures: tuple[float, ...]


class _Waiting(NamedTuple):
    """A sample that is not written yet, and what was measured of groups and topics if a step of 10 s ends with it."""

    sample: Sample
    named: Mapping[Kind, Measured] | None


@dataclass(slots=True)
class _Written:
    """How much of what waited is written."""

    events: int = 0
    samples: int = 0


class History:
    """The figures of the past days.

    Attributes:
        is_kept: whether they are recorded: `run` was started.
        on_sample: called with each sample; must neither wait nor raise.
    """

    def __init__(self, sources: MetricsSources) -> None:
        self.is_kept = False
        self.on_sample: Callable[[Sample], None] = lambda _sample: None
        self._sources = sources
        self._file: HistoryFile | None = None
        self._places: dict[Kind, NamePlaces] = {}
        self._waiting: deque[_Waiting] = deque(maxlen=_WAITING_MAX)
        self._events: list[Event] = []
        self._has_sample = trio.Event()
        self._using = trio.Lock()
        self._totals = _Totals(sources)
        self._topic_totals: dict[str, tuple[int, int]] = {}
        self._named_at_s = time.monotonic()
        self._last_s: int | None = None
        self._has_failed = False

    async def run(self) -> None:
        """Take a sample each second, until cancelled. A disk that hangs delays no sample."""
        self.is_kept = True
        self.note(What.STARTED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_samples)
            while True:
                await trio.sleep(1.0 - self._sources.clock_ms() % 1000 / 1000)
                self._step(self._sources.clock_ms() // 1000)

    def _step(self, now_s: int) -> None:
        if now_s == self._last_s:
            return
        ends_step = self._last_s is not None and self._last_s // _NAMED_STEP_S != now_s // _NAMED_STEP_S
        self._last_s = now_s
        sample = Sample(now_s, self._measured())
        self._waiting.append(_Waiting(sample, self._measured_by_name() if ends_step else None))
        self._has_sample.set()
        self.on_sample(sample)

    async def _write_samples(self) -> None:
        while True:
            await self._has_sample.wait()
            self._has_sample = trio.Event()
            async with self._using:
                await self._write()

    def note(self, what: What, epoch: int = 0) -> None:
        """Note something that happened now; it is written with the next sample."""
        self._events.append(Event(self._sources.clock_ms(), what, epoch))

    # The file

    async def open(self, data_dir: Path) -> None:
        """Open the file in a directory that this broker has locked; a file that is none is set aside. Never fails."""
        async with self._using:
            self._file = await trio.to_thread.run_sync(_opened, data_dir / NAME)
            self._has_failed = False
            self._places = {kind: NamePlaces(self._file, kind) for kind in Kind}

    async def close(self) -> None:
        """Write what waits, and close the file; samples wait again."""
        async with self._using:
            if self._file is not None:
                await self._write()
                file, self._file = self._file, None
                await trio.to_thread.run_sync(file.close)

    async def _write(self) -> None:
        """Write what waits. What cannot be written waits for the next attempt."""
        file = self._file
        if file is None:
            return
        events, waiting = [*self._events], [*self._waiting]
        done = _Written()
        try:
            await trio.to_thread.run_sync(partial(self._write_to, file, waiting, events, done))
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning(
                    "history_not_written",
                    reason=error.strerror,
                    hint="the console's plots have a gap until it can be written again",
                )
            self._has_failed = True
        del self._events[: done.events]
        written = {id(one) for one in waiting[: done.samples]}
        while self._waiting and id(self._waiting[0]) in written:  # not those that left for lack of room
            self._waiting.popleft()

    def _write_to(
        self, file: HistoryFile, waiting: Iterable[_Waiting], events: Iterable[Event], done: _Written
    ) -> None:
        for event in events:
            file.note(event)
            done.events += 1
        for (at_s, figures), measured in waiting:
            named = None
            if measured is not None:
                named = no_named()
                for kind, of_kind in measured.items():
                    for place, values in self._places[kind].take(of_kind, at_s):
                        first = place_of(kind, place)
                        named[first : first + len(values)] = values
            file.append(at_s, figures, named)
            done.samples += 1

    async def read(
        self, begin_s: int, end_s: int, rows_max: int, convert: Callable[[Stretch], T], *, has_names: bool = False
    ) -> T:
        """Return what `convert` makes of a stretch, in a worker thread; see `HistoryFile.read`."""
        now_s = self._sources.clock_ms() // 1000

        def work() -> T:
            if self._file is None:
                return convert(self._read_waiting(begin_s, end_s))
            return convert(self._file.read(begin_s, end_s, rows_max, now_s, has_names=has_names))

        async with self._using:
            return await trio.to_thread.run_sync(work)

    def _read_waiting(self, begin_s: int, end_s: int) -> Stretch:
        """Return the seconds that wait for the file, while there is none."""
        rows = {sample.at_s: sample.figures for sample, _ in [*self._waiting]}
        begin_s = max(begin_s, end_s - _WAITING_MAX)
        return Stretch(begin_s, 1, [rows.get(at_s) for at_s in range(begin_s, max(end_s, begin_s + 1))])

    # Figures

    def _measured(self) -> tuple[float, ...]:
        sources = self._sources
        before, now = self._totals, _Totals(sources)
        self._totals = now
        span_s = max(1e-3, now.at_s - before.at_s)

        def per_s(then: float, current: float) -> float:
            return max(0.0, current - then) / span_s

        puts = [max(0, b - a) for a, b in zip(before.put_buckets, now.put_buckets, strict=True)]
        store, disk, delays = sources.store, sources.disk, sources.delays
        replication = None if sources.replication is None else sources.replication()
        is_master = replication is not None and replication.slave is None
        lag, lag_age_s = self._lag() if is_master else (NOTHING, NOTHING)
        memory = memory_bytes()
        is_known = disk.looked_up_at_s > 0
        return (
            per_s(before.messages_in, now.messages_in),
            per_s(before.messages_out, now.messages_out),
            per_s(before.bytes_in, now.bytes_in),
            per_s(before.bytes_out, now.bytes_out),
            per_s(before.cpu_s, now.cpu_s),
            _mean(before.loop_delay, now.loop_delay),
            sum(listener.open for listener in sources.counters.listeners.values()),
            NOTHING if store is None else store.flush_behind_bytes,
            NOTHING if store is None else store.dispatch_behind_bytes,
            NOTHING if memory is None else memory,
            disk.used_ratio if is_known else NOTHING,
            disk.free_bytes if is_known else NOTHING,
            sum(disk.size_bytes.values()) if is_known else NOTHING,
            NOTHING if delays is None or not is_master else max(0, sum(delays.stats.waiting.values())),
            lag,
            lag_age_s,
            NOTHING if replication is None or replication.slave is None else replication.slave.lag_bytes,
            NOTHING if replication is None else float(is_master),
            *puts,
        )

    def _lag(self) -> tuple[float, float]:
        groups = self._sources.groups
        if groups is None or not groups.lag.looked_up_at_s:
            return NOTHING, NOTHING
        return groups.lag.all_of_users

    def _measured_by_name(self) -> dict[Kind, Measured]:
        """Return the lag of each group, and the rates of each topic since the last time."""
        return {Kind.GROUP: self._lag_of_groups(), Kind.TOPIC: self._rates_of_topics()}

    def _lag_of_groups(self) -> Measured:
        groups = self._sources.groups
        replication = None if self._sources.replication is None else self._sources.replication()
        if groups is None or replication is None or replication.slave is not None:
            return {}
        return {
            group: (float(lag.messages), lag.age_s)
            for group, lag in groups.lag.of_group.items()
            if not is_system_group(group)
        }

    def _rates_of_topics(self) -> Measured:
        counters, before = self._sources.counters, self._topic_totals
        now_s = time.monotonic()
        span_s, self._named_at_s = max(1e-3, now_s - self._named_at_s), now_s
        out: dict[str, int] = {}
        for (topic, _), delivered in counters.groups.items():
            out[topic] = out.get(topic, 0) + delivered.messages_out
        self._topic_totals = {
            topic: (sum(sizes.count for sizes in traffic.sizes.values()), out.get(topic, 0))
            for topic, traffic in counters.topics.items()
            if not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        }
        return {
            topic: tuple(
                max(0, total - old) / span_s for total, old in zip(totals, before.get(topic, (0, 0)), strict=True)
            )
            for topic, totals in self._topic_totals.items()
        }


class NamePlaces:
    """Which names have a place in the file.

    A place is given when something is measured for a name without one: a free place, else that of a name that is gone
    or for which nothing was measured for an hour. If there is none, the name is left out.
    """

    def __init__(self, file: HistoryFile, kind: Kind) -> None:
        self._file = file
        self._kind = kind
        self._of = {held[0]: place for place, held in enumerate(file.names[kind]) if held is not None}
        self._active_s: dict[str, int] = {}

    def take(self, measured: Measured, now_s: int) -> list[tuple[int, tuple[float, ...]]]:
        """Return the place of each name that has one, with its figures. Raises OSError."""
        for name in self._of:
            if any(measured.get(name, ())) or name not in self._active_s:
                self._active_s[name] = now_s
        wanting = (name for name, values in measured.items() if name not in self._of and any(values))
        for name in sorted(wanting, key=lambda name: measured[name], reverse=True):
            if len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
                continue
            place = self._free_place(measured, now_s)
            if place is None:
                break
            self._file.set_name(self._kind, place, name, now_s - _NAMED_STEP_S)
            self._of[name], self._active_s[name] = place, now_s
        return [(place, measured[name]) for name, place in self._of.items() if name in measured]

    def _free_place(self, measured: Measured, now_s: int) -> int | None:
        if len(self._of) < NAMES_MAX:
            return next(place for place in range(NAMES_MAX) if place not in self._of.values())
        quietest = min(self._of, key=lambda name: (name in measured, self._active_s[name]))
        if quietest in measured and now_s - self._active_s[quietest] < _QUIET_S:
            return None
        del self._active_s[quietest]
        return self._of.pop(quietest)


class _Totals:
    """What a sample is the difference of."""

    def __init__(self, sources: MetricsSources) -> None:
        counters, store = sources.counters, sources.store
        stats = None if store is None else store.stats
        self.at_s = time.monotonic()
        self.cpu_s = time.process_time()
        self.messages_in = 0 if stats is None else stats.put_messages
        self.messages_out = 0 if stats is None else stats.get_messages
        self.bytes_in = 0 if stats is None else stats.put_bytes
        self.bytes_out = 0 if stats is None else stats.get_bytes
        self.put_buckets = [
            sum(counts) for counts in zip(*(h.buckets for h in counters.produce_seconds.values()), strict=True)
        ]
        assert len(self.put_buckets) == len(PUT_COUNTS), "one column a bucket"
        delay = counters.loop_delay_seconds
        self.loop_delay = (delay.count, delay.total)


def facts(sources: MetricsSources) -> dict[str, Any]:
    """Return what every page shows of the broker: its state and what is wrong."""
    health, disk, delays = sources.health, sources.disk, sources.delays
    return {
        "state": str(health.state),
        "ready": health.ready,
        "problems": {name: check.detail for name, check in health.checks.items() if not check.ok},
        "uptime_s": max(0, round(time.time() - health.started_at_s)),
        "memory_bytes": memory_bytes(),
        "disk_used_ratio": round(disk.used_ratio, 4),
        "disk_free_bytes": disk.free_bytes,
        "delayed": 0 if delays is None else max(0, sum(delays.stats.waiting.values())),
    }


def memory_bytes() -> int | None:
    """Return the resident memory of this process; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_SIZE
    except (OSError, ValueError, IndexError):
        return None


def _mean(before: tuple[int, float], now: tuple[int, float]) -> float:
    count = now[0] - before[0]
    return NOTHING if count <= 0 else (now[1] - before[1]) / count


def _opened(path: Path) -> HistoryFile:
    """Return the file; what is no history is set aside. If there can be none, the history is in memory."""
    try:
        try:
            return HistoryFile(path)
        except NotAHistory as error:
            aside = set_aside(path, "foreign")
            log.warning(
                "history_set_aside",
                path=str(path),
                kept_as=str(aside),
                reason=str(error),
                hint="the console's plots begin again; delete it if it is not needed",
            )
            return HistoryFile(path)
    except (OSError, NotAHistory) as error:
        log.warning(
            "history_in_memory",
            path=str(path),
            reason=str(error),
            hint="the console's plots begin again with the next start",
        )
        return HistoryFile(None)
