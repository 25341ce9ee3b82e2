"""A pool of buffers: nothing is read before it is committed, all is there afterwards, and the bytes are the same."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.errors import DiskFull, StoreReadOnly
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutStatus
from reput_broker.store.log import pool as transient_store_pool
from reput_broker.store.log.pool import TransientStorePool
from reput_broker.store.message_store import MessageStore
from support.inside import log_of
from support.stores import FakeClock, bodies, dispatch_all, killed, opened, put, small_options, tree


def pooled(data_dir: Path, **changes: object) -> StoreOptions:
    return small_options(data_dir, transient_store_pool=True, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = opened(pooled(tmp_path / "store", flush_sync=False))
    yield store
    store.close()


def log_bytes(store: MessageStore, file: int = 0) -> bytes:
    return (store.options.commit_log_dir / f"{file:020d}").read_bytes()


def failing_pwrite(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Let every write to a log file fail."""
    real = os.pwrite

    def pwrite(fd: int, data: Any, position: int) -> int:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(error, os.strerror(error))
        return real(fd, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)


def test_uncommitted_messages_are_invisible(store: MessageStore) -> None:
    result = put(store, b"1", b"2")
    assert result.status is PutStatus.PUT_OK
    assert store.commit_behind_bytes == store.flush_behind_bytes == result.end_offset
    assert (store.max_physical_offset, store.committed_offset) == (0, 0)
    assert store.reput_step() == 0
    assert store.dispatch_is_idle()
    assert store.message_at(result.physical_offset) is None
    assert not any(log_bytes(store))
    assert store.is_able_to_commit(0)
    assert not store.is_able_to_commit(1)
    assert store.commit_buffers() == result.end_offset
    assert store.commit_behind_bytes == 0
    assert store.flushed_offset == 0
    assert store.reput_step() == 2
    assert bodies(store) == [b"1", b"2"]
    assert store.message_at(result.physical_offset) is not None


def test_a_flush_commits_first(store: MessageStore) -> None:
    result = put(store, b"1")
    assert store.flush_commit_log() == result.end_offset
    assert store.committed_offset == store.flushed_offset == result.end_offset
    assert put(store, b"2").queue_offset == 1
    assert store.committed_offset == result.end_offset


@pytest.mark.parametrize("committed", [False, True])
def test_a_kill_loses_what_is_not_committed_and_nothing_else(
    tmp_path: Path, store: MessageStore, committed: bool
) -> None:
    put(store, b"before")
    store.commit_buffers()
    put(store, b"after", b"too")
    if committed:
        store.commit_buffers()
    again = opened(killed(store, tmp_path / "image"))
    assert bodies(again) == ([b"before", b"after", b"too"] if committed else [b"before"])
    assert put(again, b"next").queue_offset == (3 if committed else 1)
    assert again.close()


def test_a_commit_that_is_killed_midway_leaves_nothing_of_it(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, b"before")
    store.commit_buffers()
    put(store, bytes(300))
    put(store, bytes(300))
    images: list[StoreOptions] = []
    real = os.pwrite

    def pwrite(fd: int, data: Any, position: int) -> int:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            images.append(killed(store, tmp_path / f"image-{len(images)}"))
        return real(fd, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        store.commit_buffers()
    assert len(images) == 2, "the bytes, and then the first eight of them"
    for image in images:
        again = opened(image)
        assert bodies(again) == [b"before"]
        assert again.close()


def test_the_directory_is_the_same_as_without_a_pool(tmp_path: Path) -> None:
    """Byte for byte, over many files, also where a buffer still holds what the file before had there."""
    rng = random.Random(1)
    sizes = [rng.choice((1, 50, 400, 900)) for _ in range(150)]
    trees = []
    for name, size in (("plain", 0), ("pool", 2)):
        changes: dict[str, object] = {"transient_store_pool_size": size} if size else {}
        options = small_options(tmp_path / name, transient_store_pool=bool(size), **changes)
        store = opened(options)
        steps = random.Random(2)
        for number, body_size in enumerate(sizes):
            put(store, bytes([number % 251 + 1]) * body_size, queue_id=number % 3)
            if steps.random() < 0.3:
                store.commit_buffers()
            if steps.random() < 0.1:
                dispatch_all(store)
        assert store.close()
        trees.append(tree(options.data_dir))
    assert len([path for path in trees[0] if path.startswith("commitlog/")]) > 10
    assert trees[0].keys() == trees[1].keys()
    assert trees[0] == trees[1]


def test_closing_commits_everything(tmp_path: Path) -> None:
    store = opened(pooled(tmp_path, flush_sync=False))
    for number in range(30):
        put(store, b"%03d" % number + bytes(300))
    assert store.close()
    again = opened(pooled(tmp_path, flush_sync=False))
    assert len(bodies(again)) == 30
    assert again.close()


def test_a_log_continues_in_the_middle_of_a_file(tmp_path: Path) -> None:
    for number in range(3):
        store = opened(pooled(tmp_path))
        put(store, b"%d" % number)
        assert store.commit_behind_bytes > 0, "the file that was found is written through a buffer too"
        dispatch_all(store)
        assert bodies(store) == [b"%d" % n for n in range(number + 1)]
        assert store.close()


def test_buffers_go_round(store: MessageStore) -> None:
    assert store.buffers_available == 5
    for number in range(3):
        put(store, bytes(3000))
        assert store.buffers_available == 4 - number
    for _ in range(9):
        store.commit_buffers()
        assert store.buffers_available == 4, "the file in use has one"
        put(store, bytes(3000))
        assert store.buffers_available == 3, "the file before has not given its own back"


def test_without_a_free_buffer_puts_go_into_the_file_and_are_seen_in_order(tmp_path: Path) -> None:
    store = opened(pooled(tmp_path, flush_sync=False, transient_store_pool_size=2))
    for number in range(4):
        put(store, b"%d" % number + bytes(3000))
    assert store.buffers_available == 0
    assert log_bytes(store, 3 * 4096)[:4] != bytes(4), "the fourth went into its file"
    assert not any(log_bytes(store, 4096))
    assert store.committed_offset == 0, "but the first is not there yet, and so nobody sees the fourth"
    assert store.flushed_offset == 0
    assert dispatch_all(store) == 4
    assert [body[:1] for body in bodies(store)] == [b"0", b"1", b"2", b"3"]
    assert store.buffers_available == 2
    assert store.close()


def test_a_sync_does_not_skip_what_is_not_committed(tmp_path: Path) -> None:
    store = opened(pooled(tmp_path, flush_sync=False, transient_store_pool_size=1))
    first = put(store, bytes(3000))
    put(store, bytes(3000))
    assert log_of(store).files.flush() == 0, "only what is committed can be synced"
    assert store.flush_commit_log() > first.end_offset
    assert store.close()


def test_failing_fast_without_a_free_buffer(tmp_path: Path) -> None:
    """(RocketMQ: fastFailIfNoBufferInStorePool.)"""
    options = pooled(tmp_path, transient_store_pool_size=2, fast_fail_if_no_buffer=True)
    store = opened(options)
    put(store, bytes(3000))
    put(store, bytes(3000))
    before = store.wrote_offset
    for _ in range(3):
        result = put(store, bytes(3000))
        assert (result.status, result.queue_offset) == (PutStatus.OS_PAGE_CACHE_BUSY, -1)
    assert store.wrote_offset == before
    assert store.stats.put_refused == 3
    assert put(store, b"small").status is PutStatus.PUT_OK, "there is room in the file in use"
    store.commit_buffers()
    assert put(store, bytes(3000)).queue_offset == 3
    dispatch_all(store)
    assert len(bodies(store)) == 4
    assert store.close()


def test_a_commit_without_room_is_tried_again_and_loses_nothing(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, b"1")
    with monkeypatch.context() as patch:
        failing_pwrite(patch, errno.ENOSPC)
        with pytest.raises(DiskFull):
            store.commit_buffers()
        assert put(store, b"refused").status is PutStatus.DISK_FULL
        assert not store.is_writable
        assert "no space" in (store.disk_full_reason or "")
        assert store.flush_commit_log() == 0, "there is nothing to sync yet, which is no failure"
        assert store.read_only_reason is None
    store.commit_buffers()
    assert put(store, b"2").status is PutStatus.PUT_OK
    assert store.is_writable
    dispatch_all(store)
    assert bodies(store) == [b"1", b"2"]


def test_a_close_that_cannot_commit_is_not_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(pooled(tmp_path))
    put(store, b"1")
    dispatch_all(store)
    put(store, b"2")
    with monkeypatch.context() as patch:
        failing_pwrite(patch, errno.ENOSPC)
        assert not store.close()
    assert (tmp_path / "abort").exists()
    again = opened(pooled(tmp_path))
    assert bodies(again) == [b"1"]
    assert again.close()


def test_a_file_that_cannot_be_written_makes_the_store_read_only(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, b"1")
    dispatch_all(store)
    end = store.committed_offset
    put(store, b"2")
    with monkeypatch.context() as patch:
        failing_pwrite(patch, errno.EIO)
        with pytest.raises(StoreReadOnly):
            store.commit_buffers()
    for call in (store.commit_buffers, store.flush_commit_log):
        with pytest.raises(StoreReadOnly):
            call()
    assert store.committed_offset == end
    assert put(store, b"3").status is PutStatus.READ_ONLY
    assert bodies(store) == [b"1"]


def test_a_deleted_topic_takes_its_uncommitted_messages_with_it(tmp_path: Path, store: MessageStore) -> None:
    put(store, b"1", topic="gone")
    dispatch_all(store)
    put(store, b"2", topic="gone")
    store.delete_topic("gone")
    put(store, b"kept")
    dispatch_all(store)
    assert store.queues() == [("T", 0)]
    again = opened(killed(store, tmp_path / "image"))
    assert again.queues() == [("T", 0)]
    assert again.close()


def test_memory_that_cannot_be_locked_is_logged_once_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    calls: list[object] = []

    def refuse(mapped: object) -> OSError:
        calls.append(mapped)
        return refusal

    monkeypatch.setattr(transient_store_pool, "lock_pages", refuse)
    events: list[tuple[str, dict[str, object]]] = []
    store = opened(pooled(tmp_path, on_event=lambda event, facts: events.append((event, dict(facts)))))
    assert len(calls) == 1
    assert [event for event, _ in events] == ["memory_not_locked"]
    assert events[0][1]["size_bytes"] == 5 * 4096
    put(store, b"1")
    dispatch_all(store)
    assert bodies(store) == [b"1"]
    assert store.close()


def test_a_closed_pool_frees_returned_buffers() -> None:
    pool = TransientStorePool(4096, 2)
    pool.open()
    first, second = pool.borrow(), pool.borrow()
    assert first is not None
    assert second is not None
    assert pool.borrow() is None
    first.give_back()
    assert pool.borrow() is first, "the one that was used last"
    first.give_back()
    pool.close()
    second.give_back()
    assert pool.available == 0
    with pytest.raises(ValueError, match="released"):
        second.view[0]


def test_timestamps_of_the_checkpoint_speak_of_what_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = opened(pooled(tmp_path), clock)
    put(store, b"1")
    store.flush_commit_log()
    synced_ms = clock.now_ms
    clock.now_ms += 10_000
    put(store, b"2")
    with monkeypatch.context() as patch:
        failing_pwrite(patch, errno.ENOSPC)
        store.flush_commit_log()
    assert store._checkpoint.physic_msg_timestamp_ms == synced_ms
    store.flush_commit_log()
    assert store._checkpoint.physic_msg_timestamp_ms == clock.now_ms
    assert store.close()
