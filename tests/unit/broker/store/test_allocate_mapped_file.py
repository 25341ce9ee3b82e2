"""Files of the log made ahead of need: when, how many, what happens to those that are never used, and warm-up."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_broker.store.base.errors import DiskFull, FileNotMade
from reput_broker.store.base.file_io import create_file
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutStatus
from reput_broker.store.log import commit_log as warming
from reput_broker.store.log import mapped_file, mapped_file_queue
from reput_broker.store.log.commit_log import HURRY_FACTOR
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.message_store import MessageStore
from support.inside import log_of
from support.stores import FakeClock, bodies, dispatch_all, killed, opened, put, small_options

FILE = 4096
PUTS_A_FILE = 7
BODY = bytes(460)
"""So large that seven messages fill a file, and four of them more than half of it."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[MessageStore]:
    store = opened(small_options(tmp_path / "store"), clock)
    yield store
    store.close()


def names(store: MessageStore) -> list[int]:
    return sorted(int(path.name) // FILE for path in store.options.commit_log_dir.iterdir())


def put_some(store: MessageStore, clock: FakeClock, count: int, every_ms: int) -> None:
    """Put messages at a steady pace, and make files as soon as they are wanted, as the service does."""
    for _ in range(count):
        clock.now_ms += every_ms
        assert put(store, BODY).status is PutStatus.PUT_OK
        while store.should_prepare_next_file():
            store.prepare_next_file()


def test_at_ease_the_next_file_is_made_at_half(store: MessageStore, clock: FakeClock) -> None:
    for file in range(4):
        put_some(store, clock, 1, 10_000)
        assert names(store) == [*range(file + 1)], "none before it is needed"
        put_some(store, clock, 2, 10_000)
        assert names(store) == [*range(file + 1)]
        put_some(store, clock, 4, 10_000)
        assert names(store) == [*range(file + 2)]
    assert store.file_waits == 0
    assert store.stats.files_prepared == 4


def test_two_are_ready_if_files_fill_quickly(store: MessageStore, clock: FakeClock) -> None:
    put_some(store, clock, PUTS_A_FILE, 1)
    assert names(store) == [0, 1], "the first file says nothing yet"
    put_some(store, clock, 1, 1)
    assert names(store) == [0, 1, 2], "the next is made as soon as one is begun"
    put_some(store, clock, 3, 1)
    assert names(store) == [0, 1, 2, 3], "and the one after it at half"
    put_some(store, clock, 3 * PUTS_A_FILE, 1)
    assert names(store) == [*range(7)]
    assert store.file_waits == 0
    put_some(store, clock, PUTS_A_FILE, 10_000)
    before = names(store)
    put_some(store, clock, PUTS_A_FILE - 1, 10_000)
    assert names(store) == before, "at ease again, those that lie ready are used up first"
    assert store.file_waits == 0


def test_filling_quickly_depends_on_how_long_a_file_takes_to_create(
    store: MessageStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = create_file
    making_ms = 3_000

    def slow(path: Path, size: int) -> int:
        clock.now_ms += making_ms
        return real(path, size)

    monkeypatch.setattr(mapped_file, "create_file", slow)
    half_ms = HURRY_FACTOR * making_ms
    put_some(store, clock, 2 * PUTS_A_FILE + 1, half_ms // 3)
    assert names(store) == [0, 1, 2]
    put_some(store, clock, PUTS_A_FILE, half_ms // 12)
    assert names(store) == [0, 1, 2, 3, 4]


def test_a_clock_that_is_set_back_does_not_count_as_filling_quickly(store: MessageStore, clock: FakeClock) -> None:
    put_some(store, clock, PUTS_A_FILE, 10_000)
    clock.now_ms -= 3_600_000
    put_some(store, clock, 1, 10_000)
    assert names(store) == [0, 1]


def test_an_append_says_when_a_file_is_wanted(store: MessageStore, clock: FakeClock) -> None:
    """Whatever dispatch and sync are doing: nothing is flushed here, and so nothing dispatched."""
    calls: list[int] = []
    store.when_file_wanted(lambda: calls.append(store.wrote_offset))
    for _ in range(2 * PUTS_A_FILE):
        clock.now_ms += 1
        put(store, BODY)
        if store.should_prepare_next_file():
            store.prepare_next_file()
    assert [offset // 2048 for offset in calls] == [1, 2, 3], "at half, at the start in a hurry, at half"


def test_a_put_does_not_wait_for_the_file_after_the_next(
    store: MessageStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_some(store, clock, PUTS_A_FILE + 4, 1)
    assert names(store) == [0, 1, 2, 3]
    put_some(store, clock, PUTS_A_FILE - 4, 1)
    entered, go_on = threading.Event(), threading.Event()
    real = create_file

    def slow(path: Path, size: int) -> int:
        entered.set()
        assert go_on.wait(30)
        return real(path, size)

    monkeypatch.setattr(mapped_file, "create_file", slow)
    for _ in range(4):
        clock.now_ms += 1
        put(store, BODY)
    assert store.should_prepare_next_file()
    worker = threading.Thread(target=store.prepare_next_file)
    worker.start()
    assert entered.wait(30)
    for _ in range(PUTS_A_FILE):  # rolls into the file that is ready, while the worker makes the one behind it
        assert not store.needs_new_file(len(BODY) + 200)
        assert put(store, BODY).status is PutStatus.PUT_OK
    go_on.set()
    worker.join()
    assert store.file_waits == 0
    dispatch_all(store)
    assert len(bodies(store)) == 3 * PUTS_A_FILE + 4


def test_a_put_that_finds_no_file_is_counted(store: MessageStore) -> None:
    for number in range(3 * PUTS_A_FILE):
        put(store, BODY)
        assert store.file_waits == number // PUTS_A_FILE, "the first of an empty log is made when it is needed"


def test_no_room_for_the_file_after_the_next_is_harmless(
    store: MessageStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_some(store, clock, PUTS_A_FILE + 3, 1)
    put(store, BODY)

    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        assert store.should_prepare_next_file()
        with pytest.raises(DiskFull):
            store.prepare_next_file()
        assert store.is_writable
        assert store.disk_full_reason is None
        for _ in range(PUTS_A_FILE):
            assert put(store, BODY).status is PutStatus.PUT_OK
        clock.now_ms += 1_000
        with pytest.raises(DiskFull):
            store.prepare_next_file()
        assert store.disk_full_reason is not None
        assert "free disk space" not in store.disk_full_reason, "each request adds its own remedy"


def test_an_orderly_close_removes_what_was_not_used_newest_first(
    store: MessageStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_some(store, clock, PUTS_A_FILE + 5, 1)
    assert names(store) == [0, 1, 2, 3]
    dispatch_all(store)
    seen: list[str] = []
    real_unlink, real_fsync = os.unlink, os.fsync

    def unlink(path: Path, **options: int) -> None:
        real_unlink(path, **options)
        if Path(path).parent.name == "commitlog":
            seen.append(f"remove {int(Path(path).name) // FILE}")

    def fsync(fd: int) -> None:
        real_fsync(fd)
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/commitlog"):
            seen.append("sync")

    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(os, "fsync", fsync)
    assert store.close()
    assert seen == ["remove 3", "sync", "remove 2", "sync"]
    assert names(store) == [0, 1]


def test_a_close_that_cannot_remove_them_leaves_them_to_the_next_start(
    store: MessageStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_some(store, clock, PUTS_A_FILE + 5, 1)
    dispatch_all(store)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _fail)
        log_of(store).files.close()
    store._release()
    again = opened(store.options, clock)
    assert len(bodies(again)) == PUTS_A_FILE + 5
    assert names(again) == [0, 1]
    assert again.close()


def _fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("unfinished", [False, True])
def test_after_a_crash_empty_files_ahead_are_removed(
    tmp_path: Path, store: MessageStore, clock: FakeClock, unfinished: bool
) -> None:
    put_some(store, clock, PUTS_A_FILE + 5, 1)
    options = killed(store, tmp_path / "image")
    if unfinished:
        os.truncate(options.commit_log_dir / f"{3 * FILE:020d}", 1000)
    again = opened(options, clock)
    assert names(again) == [0, 1]
    assert len(bodies(again)) == PUTS_A_FILE + 5
    put_some(again, clock, 3 * PUTS_A_FILE, 1)
    dispatch_all(again)
    assert len(bodies(again)) == 4 * PUTS_A_FILE + 5
    assert again.close()


def test_a_start_in_the_second_half_of_a_file_wants_the_next(
    tmp_path: Path, store: MessageStore, clock: FakeClock
) -> None:
    put_some(store, clock, 6, 10_000)
    dispatch_all(store)
    assert store.close()
    assert names(store) == [0]
    shutil.copytree(store.options.data_dir, tmp_path / "copy")
    again = opened(small_options(tmp_path / "copy"), clock)
    assert again.should_prepare_next_file()
    again.prepare_next_file()
    assert names(again) == [0, 1]
    assert again.close()


# Warm-up


def warm(tmp_path: Path, **changes: object) -> StoreOptions:
    return small_options(tmp_path / "warm", warm_mapped_file=True, **changes)


@pytest.mark.parametrize("flush_sync", [True, False])
def test_warm_up_makes_every_page_ready_and_syncs_in_between(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, flush_sync: bool
) -> None:
    monkeypatch.setattr(warming, "STEP_PAGES", 2)
    ready: list[tuple[int, int]] = []
    synced: list[int] = []
    monkeypatch.setattr(warming, "populate_pages", lambda _, start, size: ready.append((start, size)))
    store = opened(warm(tmp_path, commit_log_file_size=5 * 4096, flush_sync=flush_sync), clock)
    put(store, bytes(900), bytes(900), bytes(900))
    for _ in range(4):
        put(store, bytes(900), bytes(900))
    with monkeypatch.context() as patch:
        patch.setattr(warming, "sync_data", synced.append)
        store.prepare_next_file()
    assert ready == [(0, 8192), (8192, 8192), (16384, 4096)]
    assert len(synced) == (3 if flush_sync else 0)
    assert store.close()


def test_a_warm_file_may_be_written_while_it_is_warmed(tmp_path: Path) -> None:
    """A put that needs it gets it as soon as it exists."""
    file = MappedFile(tmp_path / "file", 64 * 4096, 0, create=True)
    data = bytes(range(1, 251)) * 400
    file.append(data)
    warming.warm_up(file, sync=True)
    assert file.read_at(0, len(data)) == data
    warming.unlock(file)
    file.close()
    assert warming.warm_up(file, sync=True) is None, "a closed file is left alone"
    warming.unlock(file)


def test_pages_are_touched_one_by_one_where_the_system_cannot_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput_broker.store.log.pool._MADV_POPULATE_WRITE", -1)
    file = MappedFile(tmp_path / "file", 200 * 4096 + 1000, 0, create=True)
    data = os.urandom(150 * 4096)
    file.append(data)
    warming.warm_up(file, sync=False)
    assert file.read_at(0, len(data)) == data
    assert not any((tmp_path / "file").read_bytes()[len(data) :])
    file.close()


def test_pages_that_cannot_be_locked_are_logged_once(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "lock_pages", lambda _: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    events: list[str] = []
    store = opened(warm(tmp_path, on_event=lambda event, _: events.append(event)), clock)
    put_some(store, clock, 3 * PUTS_A_FILE, 10_000)
    assert store.stats.files_prepared == 3
    assert events == ["memory_not_locked"]
    assert not store.has_files_to_unlock
    assert store.close()


def test_locked_files_are_unlocked_when_they_are_full(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlocked: list[int] = []
    monkeypatch.setattr(warming, "lock_pages", lambda _: None)
    monkeypatch.setattr(warming, "unlock_pages", lambda mapped: unlocked.append(len(mapped)))
    store = opened(warm(tmp_path), clock)
    calls: list[bool] = []
    store.when_file_wanted(lambda: calls.append(store.has_files_to_unlock))
    put_some(store, clock, PUTS_A_FILE, 10_000)
    put_some(store, clock, PUTS_A_FILE, 10_000)
    assert not any(calls), "the first file was not warmed, the second is in use"
    put_some(store, clock, 1, 10_000)
    assert calls[-1]
    assert store.has_files_to_unlock
    store.unlock_full_files()
    assert unlocked == [FILE]
    assert not store.has_files_to_unlock
    assert store.close()


# After a refusal


def failing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(mapped_file_queue, "MappedFile", fail)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("asked_first", [True, False])
@pytest.mark.parametrize("puts_before", [0, 1])
def test_a_file_that_a_put_could_not_have_is_wanted_from_then_on(
    store: MessageStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    asked_first: bool,
    puts_before: int,
) -> None:
    """Though the file in use is not half full, so that none was wanted ahead."""
    wanted: list[bool] = []
    store.when_file_wanted(lambda: wanted.append(store.should_prepare_next_file()))
    put_some(store, clock, puts_before, 10_000)
    assert not store.should_prepare_next_file()
    large = bytes(FILE - 500)
    with monkeypatch.context() as patched:
        failing(patched, code)
        if asked_first and puts_before:
            with pytest.raises((DiskFull, FileNotMade)):
                store.make_log_file()
            store.want_file()
        else:
            assert put(store, large).status in (PutStatus.CREATE_MAPPED_FILE_FAILED, PutStatus.DISK_FULL)
    assert not store.is_writable
    assert wanted == [True]
    clock.now_ms += 1000
    store.prepare_next_file()
    assert store.is_writable
    assert store.file_refusal is None
    assert not store.should_prepare_next_file()
    assert put(store, large).status is PutStatus.PUT_OK
    assert names(store) == list(range(puts_before + 1))
    dispatch_all(store)
    assert store.close()
