"""Appending blocks: the fields that the broker fills in, boundaries of files, blocks that are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from reput_broker.store.base.errors import DiskFull, FileMissing
from reput_broker.store.base.results import Block, Extent, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.record.layout import encode_blank, record_bytes
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, decode_record
from support.inside import log_of
from support.stores import T0, FakeClock, opened, put, small_options


def log_bytes(store: MessageStore, file: int = 0) -> bytes:
    return (store.options.commit_log_dir / f"{file:020d}").read_bytes()


def test_a_block_is_stored_with_the_fields_the_broker_owns(tmp_path: Path) -> None:
    clock = FakeClock(T0 + 5)
    store = opened(small_options(tmp_path), clock)
    first = put(store, b"a")
    second = put(store, b"b", b"c")
    assert (first.queue_offset, first.physical_offset) == (0, 0)
    assert (second.queue_offset, second.physical_offset, second.count) == (1, first.end_offset, 2)
    record = decode_record(log_bytes(store), second.physical_offset + len(b"b") + 91 + 1)
    assert (record.body, record.queue_offset, record.physical_offset) == (b"c", 2, second.physical_offset + 93)
    assert record.store_timestamp_ms == second.store_timestamp_ms == T0 + 5
    assert record.born_timestamp_ms == T0
    assert (record.born_host, record.store_host) == (Host("10.0.0.1", 40_000), Host("10.0.0.2", 10911))


def test_queue_offsets_count_per_queue(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    assert [put(store, b"x", queue_id=queue).queue_offset for queue in (0, 1, 0, 1, 0)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("slack", [7, 8, 9])
def test_a_record_needs_eight_bytes_behind_it(tmp_path: Path, slack: int) -> None:
    """`L + 8 <= remaining`, to the byte: with 7 bytes left behind it the record goes to the next file."""
    store = opened(small_options(tmp_path))
    first = put(store, bytes(1000))
    remaining = 4096 - first.end_offset
    body = bytes(remaining - slack - record_bytes(0, "T", 0))
    result = put(store, body)
    data = log_bytes(store)
    if slack >= 8:
        assert result.physical_offset == first.end_offset
        assert put(store, b"x").physical_offset == 4096
        blank_at = result.end_offset
    else:
        assert result.physical_offset == 4096
        blank_at = first.end_offset
    data = log_bytes(store)
    assert data[blank_at : blank_at + 8] == (4096 - blank_at).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert not any(data[blank_at + 8 :])


def test_a_block_is_in_one_file(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, bytes(3000))
    result = put(store, *[bytes(300)] * 3)
    assert result.physical_offset == 4096
    assert result.queue_offset == 1


def test_a_block_that_fits_into_no_file_is_refused(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    assert put(store, bytes(2000), bytes(2000)).status is PutStatus.MESSAGE_ILLEGAL
    assert put(store, bytes(4096 - 8 - 91 - 1)).status is PutStatus.PUT_OK
    assert put(store, bytes(4096 - 8 - 91)).status is PutStatus.MESSAGE_ILLEGAL
    assert store.stats.put_refused == 2


def test_a_malformed_block_changes_nothing(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"x")
    before = log_bytes(store)
    with pytest.raises(RecordMalformed):
        store.put_one(Block(bytearray(b"\0" * 100), "T", 0, 1, bytes(8)))
    assert log_bytes(store) == before
    assert put(store, b"y").queue_offset == 1


def test_a_block_appears_with_its_first_eight_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the commit point the file holds no record, even if other bytes were copied."""
    store = opened(small_options(tmp_path))
    put(store, b"x")
    file = log_of(store).files.last_file
    assert file is not None
    position = file.wrote_position
    seen: list[bytes] = []

    class Watching:
        def __init__(self, view: memoryview) -> None:
            self.view = view

        def __setitem__(self, key: slice, value: bytes) -> None:
            seen.append(bytes(self.view[position : position + 8]))
            self.view[key] = value

    monkeypatch.setattr(file, "_sink", Watching(file._sink), raising=True)
    put(store, b"y", b"z")
    assert len(seen) == 2
    assert seen[-1] == bytes(8)


@pytest.mark.parametrize(
    ("record", "status"),
    [
        (Record("T", bytes(1001), queue_id=0), PutStatus.MESSAGE_ILLEGAL),
        (Record("T", bytes(1000), queue_id=0), PutStatus.PUT_OK),
        (Record("T" * 128, b"", queue_id=0), PutStatus.MESSAGE_ILLEGAL),
        (Record("%RETRY%" + "g" * 121, b"", queue_id=0), PutStatus.PUT_OK),
        (Record("%RETRY%" + "g" * 249, b"", queue_id=0), PutStatus.MESSAGE_ILLEGAL),
        (Record("T", b"", queue_id=-1), PutStatus.MESSAGE_ILLEGAL),
        (Record("T", b"", queue_id=0, properties=b"a" * 32_768), PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_limits_of_a_single_record(tmp_path: Path, record: Record, status: PutStatus) -> None:
    store = opened(small_options(tmp_path, message_bytes_max=1000))
    assert store.put_record(record).status is status


def test_a_topic_over_127_bytes_is_stored_as_version_2(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    topic = "%RETRY%" + "g" * 121
    store.put_record(Record(topic, b"x", queue_id=0))
    record = decode_record(log_bytes(store))
    assert (record.version, record.topic) == (2, topic)


def test_a_block_for_a_topic_that_no_record_holds(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    with pytest.raises((InvalidMessage, RecordMalformed)):
        store.put_one(Block(bytearray(100), "", 0, 1, bytes(8)))


def test_the_whole_record_checksum_is_written_and_holds(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, record_crc=True))
    store.put_record(Record("T", b"x", queue_id=3, properties=b"TAGS\x01a\x02"))
    data = log_bytes(store)
    record = decode_record(data)
    assert record.properties.startswith(b"TAGS\x01a\x02__CRC32#\x01")
    broken = bytearray(data)
    broken[20] ^= 1  # the queue offset, which the body's checksum does not cover
    with pytest.raises(RecordMalformed):
        decode_record(broken)


def test_transactions_take_no_place_in_the_queue(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    offsets = [store.put_record(Record("T", b"x", queue_id=0, sys_flag=flag)).queue_offset for flag in (0, 4, 12, 8, 0)]
    assert offsets == [0, 0, 0, 1, 2]


def test_apache_batches_are_contiguous(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, bytes(3500))
    result = store.put_records([Record("T", bytes(150), queue_id=0)] * 3)
    assert (result.physical_offset, result.queue_offset, result.count) == (4096, 1, 3)


def test_message_at_returns_only_whole_records(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, flush_sync=False))
    first = put(store, b"a")
    second = put(store, b"b" * 200)
    found = [at for at in range(5000) if store.message_at(at) is not None]
    assert found == [0, second.physical_offset]
    assert store.message_at(-1) is None
    record = store.message_at(second.physical_offset)
    assert record is not None
    assert decode_record(record).body == b"b" * 200
    assert first.end_offset == second.physical_offset


def test_under_sync_flush_message_at_shows_what_is_flushed(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a")
    assert store.message_at(0) is None
    store.flush_commit_log()
    assert store.message_at(0) is not None


def test_the_last_file_is_read_though_it_is_full_and_rests(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    result = put(store, b"x")
    before = log_bytes(store)
    (file,) = log_of(store).files.files
    file.seal(encode_blank(file.size - file.wrote_position))
    file.flush()
    assert file.rest()
    assert log_of(store).read(0, result.end_offset) == before[: result.end_offset]


def test_reading_what_has_been_deleted(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a")
    with pytest.raises(FileMissing):
        store.read_extents([Extent(-4096, 10)], cold=True)
    with pytest.raises(FileMissing):
        store.read_extents([Extent(-4096, 10)])


def test_a_full_disk_refuses_and_recovers_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock)
    put(store, bytes(3000))
    calls: list[int] = []

    def no_space(fd: int, start: int, size: int) -> None:
        calls.append(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_space)
        assert put(store, bytes(2000)).status is PutStatus.DISK_FULL
        assert put(store, bytes(2000)).status is PutStatus.DISK_FULL
        assert len(calls) == 1, "the disk is not asked for every put"
        assert "no space left" in (store.disk_full_reason or "")
        assert not store.is_writable
        assert put(store, bytes(500)).status is PutStatus.PUT_OK, "what has room is still taken"
        clock.now_ms += 1000
        assert put(store, bytes(2000)).status is PutStatus.DISK_FULL
        assert len(calls) == 2
    clock.now_ms += 1000
    result = put(store, bytes(2000))
    assert (result.status, result.queue_offset, result.physical_offset) == (PutStatus.PUT_OK, 2, 4096)
    assert store.disk_full_reason is None
    assert store.is_writable
    assert store.close()


def test_a_full_disk_when_the_next_file_is_made_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock)
    put(store, bytes(3000))
    calls: list[int] = []

    def no_space(fd: int, start: int, size: int) -> None:
        calls.append(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_space)
        for _ in range(3):
            with pytest.raises(DiskFull):
                store.prepare_next_file()
        assert len(calls) == 1
        assert store.disk_full_reason is not None
    assert put(store, bytes(500)).status is PutStatus.PUT_OK
    clock.now_ms += 1000
    store.prepare_next_file()
    assert put(store, bytes(2000)).physical_offset == 4096
    assert store.disk_full_reason is None
    assert len(list(store.options.commit_log_dir.iterdir())) == 2
