"""One queue's units: appending by RocketMQ's rules, minimum offset, recovery, truncation, look-up by time."""

from __future__ import annotations

import errno
import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from reput_broker.store.base.errors import DiskFull
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.files import QueueFileCache

ENTRIES = 10
UNIT = struct.Struct(">qiq")


@pytest.fixture
def cache() -> Iterator[QueueFileCache]:
    files = QueueFileCache(4)
    yield files
    files.close()


def make(tmp_path: Path, cache: QueueFileCache) -> ConsumeQueue:
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", ENTRIES, cache)
    queue.load()
    return queue


def put(queue: ConsumeQueue, first: int, count: int, physical: int | None = None, size: int = 100) -> None:
    for k in range(first, first + count):
        base = k * size if physical is None else physical + (k - first) * size
        put_unit(queue, base, size, k, k)


def put_unit(queue: ConsumeQueue, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> None:
    queue.put_batch(array("q", [physical_offset]), array("q", [size]), array("q", [tags_code]), queue_offset)


def units(queue: ConsumeQueue) -> list[tuple[int, int, int]]:
    found = []
    for k in range(queue.min_queue_offset, queue.max_queue_offset):
        unit = queue.get_unit(k)
        assert unit is not None
        found.append((unit.physical_offset, unit.size, unit.tags_code))
    return found


def test_a_file_has_a_fixed_number_of_units(tmp_path: Path, cache: QueueFileCache) -> None:
    queue = make(tmp_path, cache)
    put(queue, 0, 25)
    assert (queue.min_queue_offset, queue.max_queue_offset, queue.max_physical_offset) == (0, 25, 2500)
    assert [path.name for path in sorted(queue.directory.iterdir())] == [f"{n * 200:020}" for n in range(3)]
    assert all(path.stat().st_size == 200 for path in queue.directory.iterdir())
    assert (queue.directory / f"{200:020}").read_bytes()[:20] == UNIT.pack(1000, 100, 10)
    assert queue.roll_next_file(3) == 10
    assert queue.roll_next_file(10) == 20


def test_existing_units_are_skipped(tmp_path: Path, cache: QueueFileCache) -> None:
    queue = make(tmp_path, cache)
    put(queue, 0, 5)
    before = units(queue)
    put(queue, 2, 3)
    assert units(queue) == before
    assert queue.duplicates == 3


def test_a_wrong_order_is_counted_and_appended_at_the_end(tmp_path: Path, cache: QueueFileCache) -> None:
    queue = make(tmp_path, cache)
    put(queue, 0, 3)
    put_unit(queue, 900, 100, 7, 9)
    assert queue.order_errors == 1
    assert units(queue)[3] == (900, 100, 7)


def test_a_queue_that_begins_late_is_filled_with_pre_blanks(tmp_path: Path, cache: QueueFileCache) -> None:
    queue = make(tmp_path, cache)
    for k in range(25, 31):
        put_unit(queue, 8192 + (k - 25) * 100, 100, 0, k)
    first = (queue.directory / f"{400:020}").read_bytes()
    assert first[:100] == UNIT.pack(0, 0x7FFFFFFF, 0) * 5
    assert first[100:120] == UNIT.pack(8192, 100, 0)
    assert sorted(path.name for path in queue.directory.iterdir()) == [f"{400:020}", f"{600:020}"]
    assert (queue.min_queue_offset, queue.max_queue_offset) == (25, 31)
    again = make(tmp_path, cache)
    again.recover()
    again.correct_min_offset(8192)
    assert (again.min_queue_offset, again.max_queue_offset) == (25, 31)


def test_a_batch_is_what_its_units_are(tmp_path: Path, cache: QueueFileCache) -> None:
    one, many = make(tmp_path / "a", cache), make(tmp_path / "b", cache)
    for start, count in ((0, 7), (7, 20), (20, 9), (29, 1)):
        put(one, start, count)
        numbers = range(start, start + count)
        many.put_batch(
            array("q", [100 * number for number in numbers]), array("q", [100]) * count, array("q", numbers), start
        )
    assert units(one) == units(many)
    files = sorted(path.name for path in one.directory.iterdir())
    assert files == sorted(path.name for path in many.directory.iterdir())
    assert all((one.directory / n).read_bytes() == (many.directory / n).read_bytes() for n in files)


def test_a_full_disk_changes_nothing(tmp_path: Path, cache: QueueFileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(tmp_path, cache)
    put(queue, 0, 3)

    def refuse(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(DiskFull):
            put_unit(queue, 300, 100, 3, 3)
    assert (queue.max_queue_offset, queue.max_physical_offset) == (3, 300)
    put(queue, 3, 1)
    assert queue.max_queue_offset == 4


def test_the_minimum_follows_the_log(tmp_path: Path, cache: QueueFileCache) -> None:
    queue = make(tmp_path, cache)
    put(queue, 0, 25)
    queue.correct_min_offset(1_234)
    assert queue.min_queue_offset == 13
    assert queue.delete_expired(1_234, durable_offset=1_099) == 0, "nothing durable says where the queue goes on"
    assert queue.delete_expired(1_234, durable_offset=1_100) == 1
    assert [path.name for path in sorted(queue.directory.iterdir())] == [f"{200:020}", f"{400:020}"]
    queue.correct_min_offset(99_999)
    assert queue.min_queue_offset == queue.max_queue_offset == 25


def test_recovery_finds_the_end_and_truncates_there(tmp_path: Path, cache: QueueFileCache) -> None:
    put(make(tmp_path, cache), 0, 25)
    queue = make(tmp_path, cache)
    queue.recover()
    assert (queue.max_queue_offset, queue.max_physical_offset) == (25, 2500)
    queue.truncate_dirty(1_500)
    assert queue.max_queue_offset == 15
    assert (queue.directory / f"{200:020}").read_bytes()[100:] == bytes(100)
    put(queue, 15, 2)
    assert queue.max_queue_offset == 17


def test_destroy_leaves_nothing(tmp_path: Path, cache: QueueFileCache) -> None:
    queue = make(tmp_path, cache)
    put(queue, 0, 12)
    queue.destroy()
    assert not queue.directory.exists()
    assert (queue.max_physical_offset, queue.min_queue_offset, queue.max_queue_offset) == (-1, 0, 0)


TIMES = [100, 100, 100, 300, 300, 500, 600, 700, 800, 900, 1000, 1000, 1200]
LOOKUPS = [
    (0, 0, 0), (99, 0, 0), (100, 0, 2), (101, 3, 2), (200, 3, 2), (300, 3, 4), (301, 5, 4),
    (500, 5, 5), (550, 6, 5), (900, 9, 9), (950, 10, 9), (1000, 10, 11), (1100, 12, 11), (1300, 13, 12),
]  # fmt: skip


@pytest.mark.parametrize(("timestamp", "lower", "upper"), LOOKUPS)
def test_offsets_by_time(tmp_path: Path, cache: QueueFileCache, timestamp: int, lower: int, upper: int) -> None:
    """RocketMQ's own table of answers (RocketMQ: ConsumeQueue.getOffsetInQueueByTime)."""
    queue = make(tmp_path, cache)
    put(queue, 0, len(TIMES))

    def time_of(physical_offset: int, size: int = 0) -> int:
        return TIMES[physical_offset // 100]

    def look_up(boundary: Literal["lower", "upper"]) -> int:
        return queue.offset_by_timestamp(timestamp, boundary, time_of, min_physical_offset=0)

    assert (look_up("lower"), look_up("upper")) == (lower, upper)


def test_equal_times_are_halved_and_not_walked_over(tmp_path: Path, cache: QueueFileCache) -> None:
    """A batch gives thousands of messages one store time; a look-up must not read them all."""
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", 10_000, cache)
    queue.put_batch(array("q", range(0, 900_000, 100)), array("q", [100]) * 9_000, array("q", [0]) * 9_000, 0)
    asked = 0

    def time_of(physical_offset: int, size: int) -> int:
        nonlocal asked
        asked += 1
        return min(max(physical_offset // 100, 999), 8_000)

    assert queue.offset_by_timestamp(999, "upper", time_of) == 999
    assert queue.offset_by_timestamp(8_000, "lower", time_of) == 8_000
    assert asked < 100
