"""An open store: flush, checkpoint and close, and what a failure of each leaves."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.errors import StoreClosed, StoreReadOnly
from reput_broker.store.base.file_io import is_able_to_flush
from reput_broker.store.base.results import PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import BoundaryType
from support.inside import queue_of
from support.stores import T0, FakeClock, bodies, dispatch_all, killed, opened, put, small_options


def test_a_store_that_is_not_open(tmp_path: Path) -> None:
    store = MessageStore(small_options(tmp_path), clock_ms=FakeClock())
    assert not store.is_open
    assert not store.is_writable
    assert put(store, b"x").status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreClosed):
        store.get_message("T", 0, 0, 1, 100)
    with pytest.raises(StoreClosed):
        store.delete_topic("T")
    store.open()
    assert store.is_writable
    assert put(store, b"x").status is PutStatus.PUT_OK
    assert store.close()
    assert store.close(), "closing twice does no harm"
    assert put(store, b"x").status is PutStatus.SERVICE_NOT_AVAILABLE
    store.open()
    assert bodies(store) == [b"x"]


def test_closing_flushes_and_dispatches_what_is_left(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    for number in range(20):
        put(store, b"%02d" % number + bytes(600))
    assert store.close()
    assert not (tmp_path / "abort").exists()
    store = opened(store.options)
    assert len(bodies(store)) == 20


def test_a_failed_flush_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    store = opened(small_options(tmp_path, on_event=lambda event, _: events.append(event)))
    put(store, b"a")
    dispatch_all(store)
    put(store, b"b")
    flushed = store.flushed_offset

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(StoreReadOnly):
            store.flush_commit_log()
    with pytest.raises(StoreReadOnly):
        store.flush_commit_log()
    assert store.flushed_offset == flushed
    assert store.stats.flush_failures == 1
    assert put(store, b"c").status is PutStatus.READ_ONLY
    assert "restart the broker" in (store.read_only_reason or "")
    assert events == ["store_read_only"]
    assert bodies(store) == [b"a"]
    with pytest.raises(StoreReadOnly):
        store.delete_topic("T")
    assert store.close() is False
    assert (tmp_path / "abort").exists()
    store = opened(store.options)
    assert store.read_only_reason is None
    assert bodies(store) == [b"a", b"b"]


def test_a_failed_flush_of_the_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a")
    dispatch_all(store)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(StoreReadOnly):
            store.flush_consume_queues()
    assert put(store, b"b").status is PutStatus.READ_ONLY


def test_a_failed_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a")
    store.flush_commit_log()

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(StoreReadOnly):
            store.write_checkpoint()
    assert not store.is_writable


def test_the_checkpoint_never_claims_more_than_is_synced(tmp_path: Path) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock)

    def mark() -> tuple[int, int, int, int]:
        checkpoint = StoreCheckpoint(tmp_path / "checkpoint")
        checkpoint.load()
        assert checkpoint.mark is not None
        return (
            checkpoint.mark.flushed_offset,
            checkpoint.mark.queues_offset,
            checkpoint.physic_msg_timestamp_ms,
            checkpoint.logics_msg_timestamp_ms,
        )

    assert mark() == (0, 0, 0, 0)
    end = put(store, b"a").end_offset
    clock.now_ms += 1
    store.flush_commit_log()
    assert mark() == (end, 0, T0, 0), "written at once, so that a killed process leaves it"
    store.reput_step()
    put(store, b"b")
    store.write_checkpoint()
    assert mark() == (end, 0, T0, 0)
    store.flush_consume_queues()
    store.write_checkpoint()
    assert mark() == (end, end, T0, T0)


def test_flushing_in_a_thread_while_putting(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    stop = threading.Event()
    failures: list[BaseException] = []

    def flush() -> None:
        try:
            while not stop.is_set():
                store.flush_commit_log()
                store.flush_consume_queues()
                store.write_checkpoint()
                if store.should_prepare_next_file():
                    store.prepare_next_file()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    for number in range(2000):
        put(store, b"%04d" % number + bytes(200), queue_id=number % 3)
        store.reput_step()
    stop.set()
    thread.join()
    assert failures == []
    dispatch_all(store)
    assert sum(len(bodies(store, "T", queue)) for queue in range(3)) == 2000
    assert store.close()


def test_offsets_and_times(tmp_path: Path) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock)
    for _ in range(15):
        clock.now_ms += 100
        put(store, b"x")
    dispatch_all(store)
    assert (store.min_offset_in_queue("T", 0), store.max_offset_in_queue("T", 0)) == (0, 15)
    assert (store.min_offset_in_queue("T", 1), store.max_offset_in_queue("T", 1)) == (0, 0)
    assert store.earliest_message_time("T", 0) == T0 + 100
    assert store.earliest_message_time("T", 1) == -1
    assert store.store_timestamp("T", 0, 14) == T0 + 1500
    assert store.store_timestamp("T", 0, 15) == -1
    assert store.offset_by_timestamp("T", 0, T0 + 1050) == 10
    assert store.offset_by_timestamp("T", 0, T0 + 1050, BoundaryType.UPPER) == 9
    assert store.offset_by_timestamp("T", 0, T0 + 9999) == 15
    assert store.offset_by_timestamp("T", 1, T0) == 0
    assert store.min_physical_offset == 0


def test_a_topic_deleted_with_messages_still_to_be_dispatched(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "live"))
    put(store, b"old")
    dispatch_all(store)
    put(store, b"undispatched")
    put(store, b"other", topic="U")
    assert store.delete_topic("T") == 1
    assert put(store, b"new").queue_offset == 0
    dispatch_all(store)
    assert (bodies(store, "T"), bodies(store, "U")) == ([b"new"], [b"other"])
    assert set(store.queues()) == {("T", 0), ("U", 0)}
    again = opened(killed(store, tmp_path / "image"))
    assert (bodies(again, "T"), bodies(again, "U")) == ([b"new"], [b"other"])


def _queue_files(store: MessageStore) -> list[str]:
    root = store.options.consume_queue_dir
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_the_files_of_a_deleted_topic_are_moved_away_and_removed_queue_by_queue(tmp_path: Path) -> None:
    """However many files there are, deleting a topic moves one directory."""
    store = opened(small_options(tmp_path / "live"))
    for queue_id in range(3):
        put(store, *[b"old"] * 15, queue_id=queue_id)
    put(store, b"other", topic="U")
    dispatch_all(store)
    assert len(_queue_files(store)) == 7
    assert store.delete_topic("T") == 3
    assert [name for name in _queue_files(store) if name.startswith("T/")] == []
    assert len(_queue_files(store)) == 7, "they are still there, but not of the topic"
    put(store, b"new", queue_id=1)
    dispatch_all(store)
    store.flush_consume_queues()
    assert (bodies(store, "T", 1), bodies(store, "U")) == ([b"new"], [b"other"])

    # A killed broker leaves them; for the next one they are no queues, and it removes them.
    again = opened(killed(store, tmp_path / "image"))
    assert set(again.queues()) == {("T", 1), ("U", 0)}
    left = [len(_queue_files(again))]
    while again.remove_deleted():
        left.append(len(_queue_files(again)))
    assert left == [8, 6, 4, 2, 2], "one queue in each step, and then the directory"
    assert [path.name for path in sorted(again.options.consume_queue_dir.iterdir())] == ["T", "U"]
    assert (bodies(again, "T", 1), bodies(again, "U")) == ([b"new"], [b"other"])


def test_a_topic_that_cannot_be_moved_away_is_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(small_options(tmp_path))
    put(store, *[b"old"] * 15)
    dispatch_all(store)

    def full(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "mkdir", full)
        assert store.delete_topic("T") == 1
    assert _queue_files(store) == []
    assert not store.remove_deleted()
    assert put(store, b"new").queue_offset == 0


def test_entries_of_deleted_topics_do_not_count(tmp_path: Path) -> None:
    """A start after a kill compares the count with the entries that it finds."""
    store = opened(small_options(tmp_path / "live"))
    put(store, *[b"a"] * 12)
    put(store, b"b", b"b", topic="U")
    dispatch_all(store)
    assert store._dispatch.dispatched.entries == 14
    store.delete_topics(["T", "none"])
    assert store._dispatch.dispatched.entries == 2
    put(store, b"c")
    dispatch_all(store)
    store.flush_commit_log()
    store.flush_consume_queues()
    store.write_checkpoint()
    again = opened(killed(store, tmp_path / "image"))
    assert again._dispatch.dispatched.entries == 3
    assert (bodies(again), bodies(again, "U")) == ([b"c"], [b"b", b"b"])


def test_counts(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"a", b"b")
    put(store, b"c")
    dispatch_all(store)
    bodies(store)
    stats = store.stats
    assert (stats.put_blocks, stats.put_messages, stats.put_bytes) == (2, 3, store.max_physical_offset)
    assert (stats.flushes, stats.flushed_bytes) == (1, store.max_physical_offset)
    assert (stats.dispatched_messages, stats.get_found, stats.get_messages) == (3, 1, 3)


def test_the_thresholds_of_a_flush_count_pages_and_full_files() -> None:
    """(RocketMQ: DefaultMappedFile.isAbleToFlush)."""
    size = 10_000
    assert not is_able_to_flush(5, 5, size, 0)
    assert is_able_to_flush(5, 6, size, 0)
    assert not is_able_to_flush(5, 4095, size, 1)
    assert is_able_to_flush(4095, 4096, size, 1), "pages begun, not bytes"
    assert not is_able_to_flush(4096, 8191, size, 1)
    assert is_able_to_flush(9_990, 10_000, size, 4), "the file is full"
    assert is_able_to_flush(9_990, 10_001, size, 4)
    assert not is_able_to_flush(10_000, 14_095, size, 1), "pages count from the start of the file"
    assert is_able_to_flush(10_000, 14_096, size, 1)


def test_queues_with_few_pages_wait_and_hold_the_mark_back(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, consume_queue_entries=1_000, commit_log_file_size=1 << 20))
    for number in range(500):
        put(store, b"x", queue_id=0)
        if number < 100:
            put(store, b"y", queue_id=1)
    dispatch_all(store)
    busy, quiet = queue_of(store, "T", 0), queue_of(store, "T", 1)
    assert busy is not None
    assert quiet is not None
    before = store._checkpoint.mark
    assert not store.flush_consume_queues(least_pages=2)
    assert (busy.bytes_to_flush, quiet.bytes_to_flush) == (0, 2_000)
    assert store._checkpoint.mark is not None
    assert before is not None
    assert store._checkpoint.mark.queues_offset == before.queues_offset
    assert store.flush_consume_queues(least_pages=0)
    assert quiet.bytes_to_flush == 0
    assert store._checkpoint.mark.queues_offset == store.dispatched_offset == store.max_physical_offset
    assert store.flush_consume_queues(least_pages=2), "nothing is left out"
