"""The live numbers: sampled once a second, kept for five minutes, and streamed to all open pages.

Nothing here depends on the number of topics, groups or queues, and an event is encoded once for all pages.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import trio

from reput_broker.observe.counters import REQUEST_SECONDS
from reput_broker.observe.metrics import MetricsSources

INTERVAL_S: Final = 1.0
HISTORY: Final = 300
"""Samples: five minutes."""

SERIES: Final = (
    "at_ms",
    "messages_in_per_s",
    "messages_out_per_s",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "put_p50_s",
    "put_p99_s",
    "loop_delay_s",
    "cpu_ratio",
    "connections",
    "flush_behind_b",
    "dispatch_behind_b",
)
"""The columns of a sample. Durations and rates are of the second before it, None if nothing was measured."""

_PAGE_SIZE: Final = resource.getpagesize()


class LiveFigures:
    """Samples the figures and streams them."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        self._history: deque[list[float | int | None]] = deque(maxlen=HISTORY)
        self._event = b""
        self._woken = trio.Event()
        self._totals = _Totals(sources)
        self.watchers = 0

    async def run(self) -> None:
        """Take a sample each second, until cancelled."""
        while True:
            await trio.sleep(INTERVAL_S)
            self._history.append(self._sample())
            if self.watchers:
                self._event = _event("sample", {"row": self._history[-1], "facts": facts(self._sources)})
            woken, self._woken = self._woken, trio.Event()
            woken.set()

    @contextmanager
    def watched(self) -> Iterator[Watcher]:
        """Count a page that watches, until the block ends."""
        self.watchers += 1
        try:
            yield Watcher(self)
        finally:
            self.watchers -= 1

    def history(self) -> bytes:
        """Return the past five minutes as an event."""
        history = {"series": SERIES, "interval_s": INTERVAL_S, "rows": list(self._history)}
        return b"retry: 2000\n" + _event("history", {**history, "facts": facts(self._sources)})

    async def next(self) -> bytes:
        """Wait for the next sample and return it as an event."""
        await self._woken.wait()
        return self._event

    def _sample(self) -> list[float | int | None]:
        before, now = self._totals, _Totals(self._sources)
        self._totals = now
        span_s = max(1e-3, now.at_s - before.at_s)

        def per_s(then: float, current: float) -> float:
            return round(max(0.0, current - then) / span_s, 3)

        puts = [max(0, b - a) for a, b in zip(before.put_buckets, now.put_buckets, strict=True)]
        store = self._sources.store
        return [
            self._sources.clock_ms(),
            per_s(before.messages_in, now.messages_in),
            per_s(before.messages_out, now.messages_out),
            per_s(before.bytes_in, now.bytes_in),
            per_s(before.bytes_out, now.bytes_out),
            quantile(REQUEST_SECONDS, puts, 0.5),
            quantile(REQUEST_SECONDS, puts, 0.99),
            _mean(before.loop_delay, now.loop_delay),
            per_s(before.cpu_s, now.cpu_s),
            sum(listener.open for listener in self._sources.counters.listeners.values()),
            0 if store is None else store.flush_behind_bytes,
            0 if store is None else store.dispatch_behind_bytes,
        ]


class Watcher:
    """What one page gets: the past five minutes, then each sample. A slow one misses samples."""

    def __init__(self, figures: LiveFigures) -> None:
        self._figures = figures
        self._has_begun = False

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> bytes:
        if self._has_begun:
            return await self._figures.next()
        self._has_begun = True
        return self._figures.history()


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
            sum(counts)
            for counts in zip(*(h.buckets for h in counters.produce_seconds.values()), strict=True)
        ]
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
        "memory_b": _memory_bytes(),
        "disk_used_ratio": round(disk.used_ratio, 4),
        "disk_free_b": disk.free_bytes,
        "delayed": 0 if delays is None else max(0, sum(delays.stats.waiting.values())),
    }


def quantile(bounds: Sequence[float], buckets: Sequence[int], share: float) -> float | None:
    """Return the value below which `share` of the observations are, linear within its bucket; None without any.

    Values above the last bound count as that bound.
    """
    total = sum(buckets)
    if not total:
        return None
    wanted, seen, low = share * total, 0, 0.0
    for bound, count in zip(bounds, buckets, strict=False):
        if count and seen + count >= wanted:
            return round(low + (bound - low) * (wanted - seen) / count, 6)
        seen += count
        low = bound
    return bounds[-1]


def _mean(before: tuple[int, float], now: tuple[int, float]) -> float | None:
    count = now[0] - before[0]
    return None if count <= 0 else round((now[1] - before[1]) / count, 6)


def _memory_bytes() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_SIZE
    except (OSError, ValueError, IndexError):
        return None


def _event(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
