"""Dispatch of the log: what becomes visible when, and what stops it."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reput_broker.store.base.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.base.dispatch import DispatchBatch, QueueRows
from reput_broker.store.base.errors import DiskFull, StoreReadOnly
from reput_broker.store.base.results import PutStatus
from reput_broker.store.queue.reput import DISPATCH_RETRY_MS
from reput_protocol.record.layout import tags_code
from reput_protocol.record.record import Record
from support.stores import T0, FakeClock, bodies, dispatch_all, flip_bit, opened, put, small_options


@dataclass
class Arrivals:
    calls: list[tuple[str, int, int, list[int], int]] = field(default_factory=list)

    def arriving(self, rows: QueueRows, batch: DispatchBatch) -> None:
        codes = [int(code) for code in rows.tags_codes]
        self.calls.append((rows.topic, rows.queue_id, rows.end_queue_offset, codes, rows.store_timestamp_ms))


@dataclass
class Batches:
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    failing: Exception | None = None

    def dispatch(self, batch: DispatchBatch) -> None:
        if self.failing is not None:
            raise self.failing
        self.seen.append((batch.start_offset, batch.end_offset, len(batch.rows)))


def test_under_sync_flush_nothing_is_seen_before_it_is_flushed(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a")
    assert store.reput_step() == 0
    assert store.dispatch_is_idle()
    assert store.dispatch_behind_bytes == 0
    assert store.flush_behind_bytes > 0
    end = store.flush_commit_log()
    assert end == store.flushed_offset == store.max_physical_offset
    put(store, b"b")
    assert not store.dispatch_is_idle()
    assert store.dispatch_behind_bytes == end
    assert store.reput_step() == 1
    assert bodies(store) == [b"a"]
    assert store.flush_commit_log() > end


def test_under_async_flush_everything_appended_is_seen(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, flush_sync=False))
    put(store, b"a", b"b")
    assert store.reput_step() == 2
    assert bodies(store) == [b"a", b"b"]


def test_arrivals_are_announced_once_per_queue_and_step(tmp_path: Path) -> None:
    arrivals = Arrivals()
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock, listener=arrivals)
    put(store, b"a", b"b", tag="x")
    clock.now_ms += 7
    put(store, b"c", queue_id=1)
    put(store, b"d", tag="y")
    store.flush_commit_log()
    assert store.reput_step() == 4
    assert arrivals.calls == [
        ("T", 0, 3, [tags_code("x"), tags_code("x"), tags_code("y")], T0 + 7),
        ("T", 1, 1, [0], T0 + 7),
    ]


def test_many_records_of_many_queues_in_one_step(tmp_path: Path) -> None:
    """Enough for arrays: queues that alternate, transactions in between, a roll of the queue files."""
    arrivals = Arrivals()
    store = opened(small_options(tmp_path, commit_log_file_size=1 << 16), listener=arrivals)
    for number in range(150):
        queue = number % 3
        put(store, b"%d" % number, queue_id=queue, tag=f"t{queue}")
        if number % 10 == 0:
            store.put_record(Record("T", b"half", queue_id=queue, sys_flag=4))
            store.put_record(Record("T", b"commit-%d" % number, queue_id=2, sys_flag=8))
    store.flush_commit_log()
    assert store.reput_step() == 180
    assert [len(bodies(store, "T", queue)) for queue in range(3)] == [50, 50, 65]
    assert b"half" not in b"".join(bodies(store, "T", 0))
    assert sorted(call[:3] for call in arrivals.calls) == [("T", 0, 50), ("T", 1, 50), ("T", 2, 65)]


def test_a_step_takes_about_the_given_number(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    for _ in range(6):
        put(store, bytes(400))
    put(store, bytes(1500))
    store.flush_commit_log()
    assert store.reput_step(1000) == 2
    assert store.reput_step(1) == 1, "one record is always taken, however large"
    assert store.reput_step(1000) == 2
    assert store.reput_step(1000) == 1
    assert store.reput_step(10) == 1
    assert store.reput_step() == 0
    assert len(bodies(store)) == 7


def test_steps_follow_the_log_over_files(tmp_path: Path) -> None:
    batches = Batches()
    store = opened(small_options(tmp_path), dispatchers=[batches])
    for number in range(12):
        put(store, b"%02d" % number + bytes(700))
    assert dispatch_all(store) == 12
    assert [count for _, _, count in batches.seen] == [5, 5, 2]
    assert [start for start, _, _ in batches.seen] == [0, 4096, 8192]
    assert store.dispatch_is_idle()
    assert store.stats.dispatched_messages == 12


def test_a_damaged_record_stops_dispatch_and_the_store_says_so(tmp_path: Path) -> None:
    events: list[str] = []
    store = opened(small_options(tmp_path, on_event=lambda event, _: events.append(event)))
    put(store, b"a")
    bad = put(store, b"b")
    put(store, b"c")
    store.flush_commit_log()
    path = store.options.commit_log_dir / f"{0:020d}"
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"\xff", bad.physical_offset + 4)  # seen through the mapping, too
    os.close(fd)
    assert store.reput_step() == 1
    assert store.reput_step() == 0
    assert store.reput_step() == 0
    assert store.stats.dispatch_damage == 1
    assert f"{path} is damaged at byte {bad.physical_offset}" in (store.read_only_reason or "")
    assert "reput store repair" in (store.read_only_reason or "")
    assert events == ["store_read_only"]
    assert store.dispatch_is_idle(), "no one waits for what will not come"
    assert put(store, b"d").status is PutStatus.READ_ONLY
    assert bodies(store) == [b"a"], "what is sound is served"
    assert store.close() is False
    assert (tmp_path / "abort").exists()


def test_a_dispatcher_without_room_gets_the_same_batch_again(tmp_path: Path) -> None:
    batches = Batches(failing=DiskFull(tmp_path / "x", 1))
    clock = FakeClock()
    arrivals = Arrivals()
    store = opened(small_options(tmp_path), clock, dispatchers=[batches], listener=arrivals)
    put(store, b"a")
    store.flush_commit_log()
    assert store.reput_step() == 0
    assert not store.dispatch_is_idle()
    assert arrivals.calls == []
    assert put(store, b"b").status is PutStatus.DISK_FULL
    batches.failing = None
    assert store.reput_step() == 0, "not at once"
    clock.now_ms += DISPATCH_RETRY_MS
    assert store.reput_step() == 1
    assert batches.seen == [(0, store.max_physical_offset, 1)]
    assert store.disk_full_reason is None
    assert put(store, b"b").status is PutStatus.PUT_OK
    dispatch_all(store)
    assert bodies(store) == [b"a", b"b"], "the queue's entry was written twice and is there once"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_descriptors_dispatch_waits_and_puts_continue(tmp_path: Path, code: int) -> None:
    events: list[str] = []
    clock = FakeClock()
    batches = Batches(failing=OSError(code, os.strerror(code)))
    options = small_options(tmp_path, on_event=lambda event, _: events.append(event))
    store = opened(options, clock, dispatchers=[batches])
    put(store, b"a")
    store.flush_commit_log()
    for _ in range(3):
        assert store.reput_step() == 0
        clock.now_ms += DISPATCH_RETRY_MS
    assert put(store, b"b").status is PutStatus.PUT_OK
    assert events == ["store_out_of_open_files"]
    batches.failing = None
    assert store.reput_step() == 1
    dispatch_all(store)
    assert bodies(store) == [b"a", b"b"]


def test_a_disk_that_fails_under_the_queues_stops_the_store_and_not_the_process(tmp_path: Path) -> None:
    batches = Batches(failing=OSError(errno.EIO, os.strerror(errno.EIO)))
    store = opened(small_options(tmp_path), dispatchers=[batches])
    put(store, b"a")
    store.flush_commit_log()
    assert store.reput_step() == 0
    assert "Input/output error" in (store.read_only_reason or "")
    assert put(store, b"b").status is PutStatus.READ_ONLY
    assert store.dispatch_is_idle()


@pytest.mark.parametrize("jump_ms", [-3_600_000, -1, 86_400_000])
def test_a_wall_clock_that_is_set_does_not_keep_dispatch_waiting(tmp_path: Path, jump_ms: int) -> None:
    batches = Batches(failing=DiskFull(tmp_path / "x", 1))
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock, dispatchers=[batches])
    put(store, b"a")
    store.flush_commit_log()
    assert store.reput_step() == 0
    batches.failing = None
    clock.now_ms += jump_ms
    assert store.reput_step() == 1
    assert put(store, b"b").status is PutStatus.PUT_OK


def test_a_failed_sync_is_final_even_if_the_disk_was_full_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = Batches(failing=DiskFull(tmp_path / "x", 1))
    clock = FakeClock()
    store = opened(small_options(tmp_path, flush_sync=False), clock, dispatchers=[batches])
    put(store, b"a")
    assert store.reput_step() == 0
    assert put(store, b"b").status is PutStatus.DISK_FULL

    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        with pytest.raises(StoreReadOnly):
            store.flush_commit_log()
    batches.failing = None
    clock.now_ms += DISPATCH_RETRY_MS
    assert store.reput_step() == 1, "there is space again"
    assert put(store, b"c").status is PutStatus.READ_ONLY


def test_syncs_of_log_and_queues_never_move_the_mark_back(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a")
    dispatch_all(store)
    store.flush_consume_queues()
    store.write_checkpoint()
    end = store.max_physical_offset
    checkpoint = StoreCheckpoint(tmp_path / "checkpoint")
    checkpoint.load()
    assert checkpoint.mark == FlushMark(end, end, 1)

    def move_flushed() -> None:
        for n in range(20_000):
            checkpoint.move_mark(flushed_offset=n)

    def move_queues() -> None:
        for n in range(20_000):
            checkpoint.move_mark(queues_offset=n, entries=n)

    threads = [threading.Thread(target=move_flushed), threading.Thread(target=move_queues)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checkpoint.mark == FlushMark(19_999, 19_999, 19_999)
    checkpoint.close()


def test_a_full_disk_under_the_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock)
    put(store, b"a")
    store.flush_commit_log()

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", no_space)
        assert store.reput_step() == 0
        assert put(store, b"b").status is PutStatus.DISK_FULL
        assert store.close() is False
    assert (tmp_path / "abort").exists()
    store = opened(store.options)
    assert bodies(store) == [b"a"]


def test_a_flip_that_dispatch_cannot_see_is_left_to_the_reader(tmp_path: Path) -> None:
    """Dispatch trusts bodies that the put path has checked; a reader checks the body again."""
    store = opened(small_options(tmp_path))
    put(store, b"abc")
    store.flush_commit_log()
    flip_bit(store.options.commit_log_dir / f"{0:020d}", 88)
    assert store.reput_step() == 1


def test_a_queue_file_that_cannot_be_synced_before_the_next_one_stops_dispatch_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only three files of a queue may hold unsynced entries; the oldest one's sync was once tried again in silence."""
    store = opened(small_options(tmp_path, consume_queue_entries=2))
    for number in range(12):
        put(store, b"%d" % number)
    store.flush_commit_log()

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        while store.reput_step(1):
            pass
    assert "syncing" in (store.read_only_reason or "")
    assert store.reput_step() == 0
    assert put(store, b"x").status is PutStatus.READ_ONLY
    assert not store.close()


def test_a_checkpoint_that_finds_no_descriptor_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a")
    dispatch_all(store)

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            store.write_checkpoint()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            store.flush_consume_queues()
    assert store.is_writable
    synced: list[str] = []
    real = os.fsync

    def sync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    store.flush_consume_queues()
    store.write_checkpoint()
    assert [str(tmp_path / name) for name in ("consumequeue/T/0", "consumequeue/T", "consumequeue")] == synced[:3]
    assert synced[3] == str(tmp_path), "the name of consumequeue is as new as what is in it"
