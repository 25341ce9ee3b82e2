"""A file with holes that a start finds gets its disk space before anything is appended to it.

Written through its mapping, a hole would kill the process of SIGBUS once the disk is full;
`tests/faults/sparse_files.py` tries that on a disk that really is.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput_broker.store.base.errors import DiskFull, FileNotMade
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutStatus
from reput_broker.store.index import file as index_file
from reput_broker.store.index import service as index_backlog
from reput_broker.store.log import mapped_file
from reput_broker.store.message_store import MessageStore
from support.stores import FakeClock, bodies, dispatch_all, is_reserved, killed, make_sparse, opened, put, small_options

FILE = 64 << 10
INDEX = {"index_slots": 2000, "index_entries": 5000}
OLD_NS = 1_600_000_000_000_000_000


def stored(tmp_path: Path, *, is_killed: bool = False, **changes: object) -> StoreOptions:
    """A directory with ten messages, all its last files sparse and last written long ago."""
    options = small_options(tmp_path / "made", commit_log_file_size=FILE, **{**INDEX, **changes})
    store = opened(options)
    for number in range(10):
        put(store, b"%d" % number, keys=[f"k{number}"])
    dispatch_all(store)
    image = killed(store, tmp_path / "image") if is_killed else options
    assert store.close()
    for path in last_files(image):
        make_sparse(path)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        assert not is_reserved(path)
    return image


def last_files(options: StoreOptions) -> list[Path]:
    """The newest file of the log, and of the index if there is one."""
    found = [max(options.commit_log_dir.iterdir())]
    if options.index_dir.is_dir():
        found += sorted(options.index_dir.iterdir())[-1:]
    return found


class FullDisk:
    """A disk on which nothing more can be set aside, and what was tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, code: int = errno.ENOSPC) -> None:
        self.is_full = True
        self.tried: list[str] = []
        self._name = name
        self._code = code
        self._real = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self._allocate)

    def _allocate(self, fd: int, start: int, size: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if self.is_full and path.parent.name == self._name:
            self.tried.append(path.name)
            raise OSError(self._code, os.strerror(self._code))
        self._real(fd, start, size)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_start_reserves_the_last_files_space_and_changes_nothing_else_in_it(tmp_path: Path, is_killed: bool) -> None:
    options = stored(tmp_path, is_killed=is_killed)
    before = {path: path.read_bytes() for path in last_files(options)[:1]}
    store = opened(options)
    for path in last_files(options):
        assert is_reserved(path)
    for path, data in before.items():
        assert path.read_bytes() == data
        assert path.stat().st_mtime_ns == OLD_NS, "it says when the file was last written, and so when it expires"
    assert put(store, b"10").status is PutStatus.PUT_OK
    dispatch_all(store)
    assert bodies(store) == [b"%d" % number for number in range(11)]
    assert store.close()


def test_the_space_of_a_log_truncated_by_hand_is_reserved(tmp_path: Path) -> None:
    """Setting a length, as a repair does, leaves a hole after the truncation."""
    options = stored(tmp_path)
    (path, _) = last_files(options)
    with open(path, "r+b") as file:
        file.truncate(3000)
        file.truncate(FILE)
    (options.data_dir / "checkpoint").unlink()
    (options.data_dir / "abort").write_text("1")
    store = opened(options)
    assert is_reserved(path)
    assert store.close()


@pytest.mark.parametrize("how", ["missing", "unsupported"])
def test_holes_are_filled_by_writing_where_the_system_cannot_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    options = stored(tmp_path)
    before = [path.read_bytes() for path in last_files(options)]

    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if how == "missing":
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    store = opened(options)
    for path, data in zip(last_files(options), before, strict=True):
        assert is_reserved(path)
        assert path.read_bytes() == data
    assert store.close()


def test_without_room_puts_are_refused_until_there_is_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    clock = FakeClock()
    options = stored(tmp_path)
    disk = FullDisk(monkeypatch, "commitlog")
    store = MessageStore(
        small_options(options.data_dir, commit_log_file_size=FILE, on_event=lambda e, _: events.append(e), **INDEX),
        clock_ms=clock,
    )
    store.open()
    assert not store.is_writable, "it says so before anybody has put anything"
    assert store.disk_full_reason is not None
    assert store.needs_new_file(100), "a put must not set it aside where others wait for it"
    assert put(store, b"10").status is PutStatus.DISK_FULL
    with pytest.raises(DiskFull, match=r"commitlog/0+; free disk space"):
        store.make_log_file()
    assert len(disk.tried) == 1, "a moment ago there was no room"
    assert bodies(store) == [b"%d" % number for number in range(10)], "pulls are served"
    clock.now_ms += 1000
    assert put(store, b"10").status is PutStatus.DISK_FULL
    assert len(disk.tried) == 2
    disk.is_full = False
    clock.now_ms += 1000
    assert put(store, b"10").status is PutStatus.PUT_OK
    assert store.is_writable
    assert store.disk_full_reason is None
    assert events == ["store_disk_full", "store_has_space_again"]
    dispatch_all(store)
    assert bodies(store) == [b"%d" % number for number in range(11)]
    assert len(list(options.commit_log_dir.iterdir())) == 1
    assert store.close()


def test_a_store_that_waits_for_room_resumes_without_a_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    options = stored(tmp_path)
    disk = FullDisk(monkeypatch, "commitlog")
    store = opened(options, clock)
    assert store.file_refusal is not None
    assert store.should_prepare_next_file(), "whoever makes files ahead sees to it"
    disk.is_full = False
    clock.now_ms += 1000
    store.prepare_next_file()
    assert store.is_writable
    assert store.file_refusal is None
    assert not store.should_prepare_next_file()
    assert not store.needs_new_file(100)
    assert put(store, b"10").status is PutStatus.PUT_OK
    assert len(list(options.commit_log_dir.iterdir())) == 1, "no file more than needed"
    assert store.close()


def test_a_put_that_is_larger_than_the_rest_of_the_file_goes_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    options = stored(tmp_path)
    disk = FullDisk(monkeypatch, "commitlog")
    store = opened(options, clock)
    disk.is_full = False
    clock.now_ms += 1000
    result = put(store, bytes(FILE - 1000))
    assert result.status is PutStatus.PUT_OK
    assert result.physical_offset == FILE
    dispatch_all(store)
    assert len(bodies(store)) == 11
    assert store.close()


def test_any_other_reason_is_logged_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    options = stored(tmp_path)
    disk = FullDisk(monkeypatch, "commitlog", errno.EIO)
    store = opened(options, clock)
    assert not store.is_writable
    assert store.disk_full_reason is None
    assert isinstance(store.file_refusal, FileNotMade)
    assert put(store, b"10").status is PutStatus.CREATE_MAPPED_FILE_FAILED
    disk.is_full = False
    clock.now_ms += 1000
    assert put(store, b"10").status is PutStatus.PUT_OK
    assert store.is_writable
    assert store.close()


def test_with_a_pool_of_buffers_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    options = stored(tmp_path, transient_store_pool=True, transient_store_pool_size=2)
    disk = FullDisk(monkeypatch, "commitlog")
    store = opened(options, clock)
    assert put(store, b"10").status is PutStatus.DISK_FULL
    disk.is_full = False
    clock.now_ms += 1000
    assert put(store, b"10").status is PutStatus.PUT_OK
    store.commit_buffers()
    dispatch_all(store)
    assert len(bodies(store)) == 11
    assert store.close()


def test_room_that_is_not_there_is_not_tried_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt would take all that is left, and leave nothing for queues, tables and checkpoint."""
    options = stored(tmp_path)
    disk = FullDisk(monkeypatch, "commitlog")
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_frsize=4096, f_bfree=FILE // 4096 - 2, f_bavail=0))
    store = opened(options)
    assert put(store, b"10").status is PutStatus.DISK_FULL
    assert disk.tried == []
    assert store.close()


def test_an_index_file_without_room_stops_dispatch_until_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_backlog, "KEYS_AT_ONCE", 0)  # else they are inserted a thousand at a time
    clock = FakeClock()
    options = stored(tmp_path)
    disk = FullDisk(monkeypatch, "index")
    store = opened(options, clock)
    assert store.is_writable, "nothing is to be indexed yet"
    for number in (10, 11):
        assert put(store, b"%d" % number, keys=[f"k{number}"]).status is PutStatus.PUT_OK
        store.flush_commit_log()
        store.reput_step()
    assert not store.is_writable
    assert put(store, b"12").status is PutStatus.DISK_FULL
    assert bodies(store)[:11] == [b"%d" % number for number in range(11)], "pulls are served"
    disk.is_full = False
    clock.now_ms += 1000
    dispatch_all(store)
    assert store.is_writable
    assert is_reserved(last_files(options)[-1])
    assert len(bodies(store)) == 12
    for key in ("k3", "k10", "k11"):
        assert len(store.query_message("T", key, 9).records) == 1
    assert store.close()


def test_a_new_files_space_is_not_reserved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    for module in (mapped_file, index_file):
        monkeypatch.setattr(module, "reserve_space", lambda *arguments: calls.append(arguments[-1]))
    store = opened(small_options(tmp_path / "new", commit_log_file_size=FILE))
    for _ in range(3):
        put(store, bytes(FILE // 2), keys=["k"])
        dispatch_all(store)
    assert calls == []
    assert store.close()
