"""Look-ups by time against a linear scan: equal times, gaps, pre-blank units, deleted first files, records gone."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.files import QueueFileCache

FILE_UNITS = 5
RECORD_BYTES = 100
BASE_MS = 1_000


@dataclass
class Case:
    """Messages `first` to `first + len(times)`, of which the log has lost those before `gone`."""

    first: int
    times: list[int]
    gone: int
    corrected: bool
    """Whether the queue's expired files were deleted and its minimum moved."""

    @property
    def live(self) -> list[tuple[int, int]]:
        """(queue offset, store time) of the messages that the log still has."""
        return [(self.first + number, time) for number, time in enumerate(self.times) if number >= self.gone]

    @property
    def end(self) -> int:
        return self.first + len(self.times)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    steps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 7, 500]), min_size=1, max_size=40))
    times = list(accumulate(steps, initial=BASE_MS))[1:]
    gone = draw(st.integers(0, len(times) - 1))
    return Case(draw(st.integers(0, 12)), times, gone, draw(st.booleans()))


@contextmanager
def queue_of(case: Case) -> Iterator[ConsumeQueue]:
    cache = QueueFileCache(4)
    with tempfile.TemporaryDirectory() as directory:
        queue = ConsumeQueue("T", 0, Path(directory) / "T" / "0", FILE_UNITS, cache)
        count = len(case.times)
        offsets = [number * RECORD_BYTES for number in range(count)]
        queue.put_batch(array("q", offsets), array("q", [RECORD_BYTES] * count), array("q", [0] * count), case.first)
        if case.corrected:
            queue.delete_expired(case.gone * RECORD_BYTES, 1 << 62)
        yield queue
        cache.close()


def timestamps(case: Case) -> list[int]:
    around = {time + near for time in case.times for near in (-1, 0, 1)}
    return sorted(around | {0, BASE_MS - 10, max(case.times) + 10_000})


def store_time_of(case: Case, physical_offset: int) -> int:
    number = physical_offset // RECORD_BYTES
    assert case.gone <= number, "records that have left the log are not asked about"
    return case.times[number]


@given(cases())
def test_both_boundaries_find_what_a_scan_finds(case: Case) -> None:
    with queue_of(case) as queue:
        for wanted in timestamps(case):
            lower, upper = (
                queue.offset_by_timestamp(
                    wanted, boundary, lambda offset, _: store_time_of(case, offset), case.gone * RECORD_BYTES
                )
                for boundary in ("lower", "upper")
            )
            assert lower == next((offset for offset, time in case.live if time >= wanted), case.end)
            at_or_before = [offset for offset, time in case.live if time <= wanted]
            if at_or_before:
                assert upper == at_or_before[-1]
            else:
                assert queue.min_queue_offset <= upper <= case.live[0][0]
                assert not case.corrected or upper == queue.min_queue_offset
