"""The messages of a measurement: made while they are sent, all different, and checked when they are read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reput_cli.bench_clients import HEAD_BYTES, POOL_BYTES, Payloads, made_at_ns, number_of
from reput_client.consume.columns import CodedValues

TAGS = tuple(f"t{number}" for number in range(16))
_LOOK_AT_CLOCK = 64


class Bodies:
    """Makes messages until the time is over. A message is a body and a tag, which both depend on its number."""

    def __init__(self, size: int, first: int, seconds: float) -> None:
        self._payloads = Payloads(size)
        self._first = first
        self._seconds = seconds
        self._ends_at = 0.0
        self.number = first

    @property
    def made(self) -> int:
        """The number of messages made."""
        return self.number - self._first

    def start(self) -> None:
        """Start the time."""
        self._ends_at = time.perf_counter() + self._seconds

    def chunk(self, count: int) -> list[tuple[bytes, str]]:
        """Return the next `count` messages, none when the time is over."""
        if time.perf_counter() >= self._ends_at:
            return []
        start = self.number
        self.number += count
        make = self._payloads.make
        return [(make(number), TAGS[number & 15]) for number in range(start, start + count)]

    def one(self) -> tuple[bytes, str] | None:
        """Return the next message, None when the time is over."""
        if time.perf_counter() >= self._ends_at:
            return None
        number = self.number
        self.number += 1
        return self._payloads.make(number), TAGS[number & 15]

    def each(self) -> Iterator[tuple[bytes, str]]:
        """Yield messages until the time is over, which is checked now and then."""
        make = self._payloads.make
        while time.perf_counter() < self._ends_at:
            for _ in range(_LOOK_AT_CLOCK):
                number = self.number
                self.number += 1
                yield make(number), TAGS[number & 15]

    def due(self, rate: int, started_ns: int) -> list[tuple[bytes, str]]:
        """Return the messages that are due by now at `rate` per second.

        Each has the time it was due, not the time it was made, so that a late sender counts as late (no coordinated
        omission).
        """
        wanted = min(int((time.time_ns() - started_ns) * rate / 1e9), int(self._seconds * rate))
        start, self.number = self.number, max(self.number, self._first + wanted)
        make = self._payloads.make
        step_ns = 1e9 / rate
        return [
            (make(number, started_ns + int((number - self._first) * step_ns)), TAGS[number & 15])
            for number in range(start, self.number)
        ]

    def all_due(self, rate: int) -> bool:
        """Return whether a paced producer has made all its messages."""
        return self.made >= int(self._seconds * rate)


class Tally:
    """Checks that a consumer reads every message once, unchanged, with its tag."""

    def __init__(self, size: int, messages: int, *, timed: bool) -> None:
        self._payloads = Payloads(size)
        self._wanted = messages
        self._timed = timed
        self._seen: set[int] = set()
        self._wrong = 0
        self.count = 0
        self.latencies_us: list[int] = []

    @property
    def is_complete(self) -> bool:
        """Whether the expected number of messages was read."""
        return self.count >= self._wanted

    def add(self, body: bytes, tag: str) -> None:
        """Add a message."""
        self.count += 1
        number = number_of(body)
        self._seen.add(number)
        if tag != TAGS[number & 15] or not self._payloads.check(body):
            self._wrong += 1
        if self._timed:
            self.latencies_us.append((time.time_ns() - made_at_ns(body)) // 1000)

    def add_table(self, bodies: NDArray[np.uint8], tags: CodedValues) -> None:
        """Add messages: the bodies as rows of a table, and their tags."""
        count = len(bodies)
        heads = np.ascontiguousarray(bodies[:, :HEAD_BYTES]).view(">u8")
        numbers = heads[:, 0].astype(np.int64)
        self.count += count
        self._seen.update(numbers.tolist())
        fill = bodies[:, HEAD_BYTES:]
        pool = np.frombuffer(self._payloads.pool, np.uint8)
        same: NDArray[np.bool_] = np.zeros(count, np.bool_)
        if len(pool) == POOL_BYTES + fill.shape[1]:
            windows = np.lib.stride_tricks.sliding_window_view(pool, fill.shape[1])
            same = (windows[numbers * 4099 % POOL_BYTES] == fill).all(axis=1)
        labels = np.array([TAGS.index(tag) if tag in TAGS else -1 for tag in tags.values])[tags.codes]
        self._wrong += count - int((same & (labels == numbers & 15)).sum())

    def fault(self) -> str:
        """Return the fault of what was read; empty if there is none."""
        if self._wrong:
            return f"{self._wrong} of {self.count} messages were changed"
        if len(self._seen) != self.count:
            return f"{self.count - len(self._seen)} of {self.count} messages were repeated"
        if self.count != self._wanted:
            return f"{self.count} messages were read, {self._wanted} were acknowledged"
        return ""
