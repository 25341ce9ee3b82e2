"""Gets: every status, and where a result ends."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from reput_broker.store import message_reader
from reput_broker.store.base.results import GetMessageResult, GetStatus, TransferLimits
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.message_store import MessageStore
from reput_protocol.filter.tags import TagFilter
from support.inside import log_of, queue_of
from support.stores import PLENTY, dispatch_all, numbers, opened, outline, put, small_options, store_of_25


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return store_of_25(tmp_path)


def get(store: MessageStore, offset: int, **arguments: object) -> GetMessageResult:
    arguments = {"max_messages": 32, "max_bytes": 1 << 20} | arguments
    return store.get_message("T", 0, offset, **arguments)  # type: ignore[call-overload, no-any-return]


def test_found(store: MessageStore) -> None:
    result = get(store, 3, max_messages=4)
    assert outline(result) == (GetStatus.FOUND, 7, 0, 25)
    assert numbers(store, result) == [3, 4, 5, 6]
    assert len(result.extents) == 1


def test_an_unknown_queue(store: MessageStore) -> None:
    assert outline(store.get_message("T", 7, 3, 1, 100)) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    assert outline(store.get_message("U", 0, 0, 1, 100)) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)


def test_a_queue_without_messages(store: MessageStore) -> None:
    store._queues.find_or_create("E", 0)
    assert outline(store.get_message("E", 0, 3, 1, 100)) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)


def test_offsets_outside(store: MessageStore) -> None:
    assert outline(get(store, 25)) == (GetStatus.OFFSET_OVERFLOW_ONE, 25, 0, 25)
    assert outline(get(store, 26)) == (GetStatus.OFFSET_OVERFLOW_BADLY, 25, 0, 25)
    assert outline(get(store, -1)) == (GetStatus.OFFSET_TOO_SMALL, 0, 0, 25)
    queue = queue_of(store, "T", 0)
    assert queue is not None
    queue.min_logic_offset = 4 * 20
    assert outline(get(store, 3)) == (GetStatus.OFFSET_TOO_SMALL, 4, 4, 25)


def test_a_queue_file_that_cannot_be_read(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(store, "T", 0)
    assert queue is not None
    monkeypatch.setattr(type(queue), "read_units", lambda *_: b"")
    assert outline(get(store, 3)) == (GetStatus.OFFSET_FOUND_NULL, 10, 0, 25)


def test_records_that_left_the_log(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = queue_of(store, "T", 0).get_unit(5)
    assert unit is not None
    monkeypatch.setattr(type(log_of(store)), "min_offset", property(lambda _: unit.physical_offset))
    assert outline(get(store, 0, max_messages=5)) == (GetStatus.MESSAGE_WAS_REMOVING, 5, 0, 25)
    result = get(store, 2)
    assert outline(result) == (GetStatus.FOUND, 10, 0, 25)
    assert numbers(store, result) == [5, 6, 7, 8, 9]


def test_one_call_reads_one_queue_file(store: MessageStore) -> None:
    result = get(store, 7)
    assert (numbers(store, result), result.next_begin_offset) == ([7, 8, 9], 10)
    result = get(store, 10)
    assert numbers(store, result) == list(range(10, 20))


def test_filter_by_tag(store: MessageStore) -> None:
    result = get(store, 0, message_filter=TagFilter.parse("b"))
    assert (numbers(store, result), result.next_begin_offset) == ([1, 3, 5, 7, 9], 10)
    assert len(result.extents) == 5
    result = get(store, 0, message_filter=TagFilter.parse("a || b"))
    assert numbers(store, result) == list(range(10))
    result = get(store, 11, message_filter=TagFilter.parse("b"), max_messages=2)
    assert (numbers(store, result), result.next_begin_offset) == ([11, 13], 14)
    assert outline(get(store, 4, message_filter=TagFilter.parse("none"))) == (GetStatus.NO_MATCHED_MESSAGE, 10, 0, 25)
    assert get(store, 0, message_filter=TagFilter.parse("*"), max_messages=3).count == 3


def test_the_first_message_is_returned_whatever_its_size(store: MessageStore) -> None:
    result = get(store, 0, max_bytes=1)
    assert (numbers(store, result), result.next_begin_offset) == ([0], 1)
    result = get(store, 0, max_messages=0)
    assert numbers(store, result) == [0]


def test_limits_of_bytes(store: MessageStore) -> None:
    size = get(store, 0, max_messages=1).size
    assert get(store, 0, max_bytes=3 * size).count == 3
    assert get(store, 0, max_bytes=3 * size - 1).count == 2
    limits = TransferLimits(4 * size, 32, size, 8, 16_000)
    assert get(store, 0, limits=limits).count == 4


def test_rocketmq_limits_of_memory_and_disk(tmp_path: Path) -> None:
    """32 messages or 256 KiB from memory, 8 messages or 64 KiB from disk; one queue of both kinds."""
    options = small_options(tmp_path, commit_log_file_size=1 << 20, consume_queue_entries=1000, memory_bytes=25_000)
    store = opened(options)
    for _ in range(100):
        put(store, bytes(109))  # 200 + 1 bytes a record; 40 % of memory hold some 49 of them
    dispatch_all(store)
    on_disk = get(store, 0)
    assert (on_disk.count, on_disk.cold) == (8, True)
    in_memory = get(store, 60)
    assert (in_memory.count, in_memory.cold) == (32, False)
    assert store.is_in_memory("T", 0, 60)
    assert not store.is_in_memory("T", 0, 0)
    assert not store.is_in_memory("T", 0, 100)
    assert get(store, 0, max_messages=1000, limits=PLENTY).count == 100
    assert len(store.read_extents(on_disk.extents, cold=True)) == on_disk.size


def test_at_most_800_entries_are_scanned_for_a_filter(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, commit_log_file_size=1 << 20, consume_queue_entries=2000))
    for _ in range(20):
        put(store, *[b""] * 50, tag="a")
    dispatch_all(store)
    rare = TagFilter.parse("rare")
    assert get(store, 0, message_filter=rare).next_begin_offset == 800
    assert get(store, 0, message_filter=rare, max_messages=900).next_begin_offset == 900
    assert get(store, 0, message_filter=rare, limits=PLENTY).next_begin_offset == 1000


def test_records_outside_the_page_cache_are_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(small_options(tmp_path, commit_log_file_size=1 << 20))
    for _ in range(20):
        put(store, bytes(5000))
    dispatch_all(store)
    asked: list[int] = []

    def is_resident(file: MappedFile, position: int, size: int, scratch: bytearray) -> bool:
        asked.append(size)
        return False

    monkeypatch.setattr(MappedFile, "is_resident", is_resident)
    assert not get(store, 0, max_messages=3).cold  # just written: not checked
    monkeypatch.setattr(message_reader, "NEAR_BYTES", 0)
    found = get(store, 0, max_messages=3)
    assert found.cold
    assert asked == [found.extents[0].size]
    assert not store.is_resident(found.extents)
    monkeypatch.undo()
    monkeypatch.setattr(message_reader, "NEAR_BYTES", 0)
    assert not get(store, 0, max_messages=3).cold
    assert store.is_resident(get(store, 0, max_messages=20).extents)


def test_many_scattered_records_are_read_in_a_thread_without_a_check_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking takes a system call for each place, which for thousands is longer than the loop may stand still."""
    store = opened(small_options(tmp_path, commit_log_file_size=1 << 20, consume_queue_entries=100))
    for _ in range(40):
        put(store, b"here")
        put(store, b"elsewhere", queue_id=1)
    dispatch_all(store)
    asked: list[int] = []

    def is_resident(file: MappedFile, position: int, size: int, scratch: bytearray) -> bool:
        asked.append(size)
        return True

    monkeypatch.setattr(MappedFile, "is_resident", is_resident)
    monkeypatch.setattr(message_reader, "CHECKED_EXTENTS_MAX", 20)
    assert not get(store, 0, max_messages=30).cold  # just written
    monkeypatch.setattr(message_reader, "NEAR_BYTES", 0)
    assert not get(store, 0, max_messages=20).cold
    assert len(asked) == 20
    assert get(store, 0, max_messages=21).cold
    assert len(asked) == 20


def test_a_file_that_the_system_has_dropped_is_not_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4096)
    file = MappedFile(path, 1 << 20, 0, create=False)
    scratch = bytearray(8192)
    try:
        assert file.is_resident(0, 1 << 20, scratch)
        assert file.is_resident(5, 100, scratch)
        with path.open("rb") as same:
            os.fsync(same.fileno())
            os.posix_fadvise(same.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if first_page_in_memory(path):
            pytest.skip("this file system keeps its files in memory")
        # The question makes the kernel read ahead; a fast disk may answer before it returns.
        assert not file.is_resident(1000, 10, scratch) or first_page_in_memory(path)
        assert file.read_at(0, 256) == bytes(range(256))
        assert file.is_resident(0, 256, scratch)  # now it has been read
    finally:
        file.close()


def first_page_in_memory(path: Path) -> bool:
    """As `mincore` tells it, which reads nothing."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_COPY) as pages:
        start = ctypes.c_char.from_buffer(pages)
        states = ctypes.create_string_buffer(1)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(mmap.PAGESIZE), states)
        del start  # lets the mapping be closed
        assert not failed, os.strerror(ctypes.get_errno())
        return bool(states.raw[0] & 1)
