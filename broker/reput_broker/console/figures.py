"""What pages show of the history: live numbers, streamed to all open pages, plots, and answers that pages share.

Nothing here depends on the number of topics, groups or queues, and an event is encoded once for all pages.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import trio

from reput_broker.observe.counters import REQUEST_SECONDS
from reput_broker.observe.history.file import COLUMNS, NOTHING, PUT_COUNTS
from reput_broker.observe.history.recorder import History, Sample, facts
from reput_broker.observe.metrics import MetricsSources

_QUANTILES: Final = {"put_p50_s": 0.5, "put_p99_s": 0.99}
_PAGES_AT_ONCE: Final = 4
"""Pages that are computed at the same time."""
_SHARE: Final = 20
"""An answer is reused for this multiple of the time that computing it took. However many browsers poll a page,
computing it takes at most this part of the time."""
_KEPT_MIN_S: Final = 1.0
_KEPT_MAX: Final = 64


class LiveFigures:
    """Streams samples."""

    def __init__(self, sources: MetricsSources, history: History) -> None:
        self._sources = sources
        self._event = b""
        self._woken = trio.Event()
        self.watchers = 0
        history.on_sample = self._sampled

    def _sampled(self, sample: Sample) -> None:
        if self.watchers:
            values = dict(zip((column.name for column in COLUMNS), sample.figures, strict=True))
            row = {
                name: _plain(value)
                for name, value in (*values.items(), *_quantiles(values).items())
                if name not in PUT_COUNTS
            }
            shown = {"at_s": sample.at_s, "values": row, "facts": facts(self._sources)}
            self._event = _event("sample", shown)
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

    async def next(self) -> bytes:
        """Wait for the next sample and return it as an event."""
        await self._woken.wait()
        return self._event

    def facts(self) -> bytes:
        """Return the state of the broker as an event, before the first sample."""
        return b"retry: 2000\n" + _event("facts", {"facts": facts(self._sources)})


@dataclass(eq=False, repr=False)
class Watcher:
    """What one page gets: the state, then each sample. A slow one misses samples."""

    _figures: LiveFigures
    _has_begun: bool = field(default=False, init=False)

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> bytes:
        if self._has_begun:
            return await self._figures.next()
        self._has_begun = True
        return self._figures.facts()


def shown(columns: Mapping[str, Sequence[float | None]], rows: int) -> dict[str, list[float | None]]:
    """Return the columns of a history as plots show them; counts of puts become quantiles."""
    found = {name: [*values] for name, values in columns.items() if name not in PUT_COUNTS}
    if any(name in columns for name in PUT_COUNTS):
        counts = [columns.get(name, ()) for name in PUT_COUNTS]
        quantiles = [
            _quantiles(dict(zip(PUT_COUNTS, (_at(column, row) for column in counts), strict=True)))
            for row in range(rows)
        ]
        for name in _QUANTILES:
            found[name] = [_plain(row[name]) for row in quantiles]
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _at(column: Sequence[float | None], row: int) -> float:
    value = column[row] if row < len(column) else None
    return 0.0 if value is None else value


def _quantiles(values: Mapping[str, float]) -> dict[str, float]:
    counts = [values[name] for name in PUT_COUNTS]
    return {name: quantile(REQUEST_SECONDS, counts, share) for name, share in _QUANTILES.items()}


def quantile(bounds: Sequence[float], buckets: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the observations are, linear within its bucket; NOTHING without any.

    Values above the last bound count as that bound.
    """
    total = sum(buckets)
    if not total:
        return NOTHING
    wanted, seen, low = share * total, 0.0, 0.0
    for bound, count in zip(bounds, buckets, strict=False):
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen += count
        low = bound
    return bounds[-1]


def _plain(value: float) -> float | None:
    return None if value != value else round(value, 6)


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


class SharedAnswers:
    """Computes answers, each once at a time, and keeps them for a moment, so that ten browsers that poll a page cost as
    much as one.

    Args:
        at_once: how many are computed at the same time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, at_once: int = _PAGES_AT_ONCE) -> None:
        self._clock = clock
        self._at_once = trio.CapacityLimiter(at_once)
        self._answers: dict[Hashable, _Answer] = {}
        self._changes = 0

    def expire(self) -> None:
        """Reuse no answer that was computed, or begun, before now: something was changed."""
        self._changes += 1
        for answer in self._answers.values():
            answer.until = -1.0

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer of this key, computed now if there is no fresh one. Errors are not kept."""
        answer = self._answers.get(key)
        if answer is None:
            self._make_room()
            answer = self._answers[key] = _Answer()
        answer.waiting += 1
        try:
            async with answer.turn:
                if self._clock() >= answer.until:
                    async with self._at_once:
                        began_at, changes = self._clock(), self._changes
                        answer.body = await compute()
                        now = self._clock()
                    if changes == self._changes:
                        answer.until = now + max(_KEPT_MIN_S, _SHARE * (now - began_at))
                return answer.body
        finally:
            answer.waiting -= 1

    def _make_room(self) -> None:
        """Forget the oldest answers that no request waits for."""
        for key in [key for key, answer in self._answers.items() if not answer.waiting]:
            if len(self._answers) < _KEPT_MAX:
                return
            del self._answers[key]


class _Answer:
    def __init__(self) -> None:
        self.turn = trio.Lock()
        self.body = b""
        self.until = -1.0
        self.waiting = 0
