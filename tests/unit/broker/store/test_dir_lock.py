"""One broker a directory: in this process, in another, and with a program that locks as Java does."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.errors import (
    ForeignFile,
    LogDirectoryLocked,
    LogDirectoryUnusable,
    StoreDamaged,
    StoreLocked,
)
from reput_broker.store.opening import lock
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock, LogDirectoryLocks
from support.store_samples import hashes
from support.stores import dispatch_all, flip_bit, opened, put, small_options

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def lock_of(directory: Path) -> DirectoryLock:
    return DirectoryLock(directory / "lock", AbortMarker(directory / "abort"))


def test_a_second_lock_in_the_same_process_is_refused(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    first.acquire()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    AbortMarker(tmp_path / "abort").create()
    with pytest.raises(StoreLocked, match="in this process") as refused:
        second.acquire()
    assert refused.value.pid == os.getpid()
    first.release()
    second.acquire()
    second.release()


def test_a_record_lock_of_another_process_collides(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"lock")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(StoreLocked):
            lock_of(tmp_path).acquire()
    finally:
        holder.communicate()
    lock = lock_of(tmp_path)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("has_own_locks", [True, False])
def test_who_only_asks_for_an_owner_keeps_none_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own_locks: bool
) -> None:
    if not has_own_locks:
        monkeypatch.setattr(lock, "_SET_LOCK", None)
    owner, reader, asking = lock_of(tmp_path), lock_of(tmp_path), lock_of(tmp_path)
    assert not asking.is_owned()
    owner.acquire()
    assert asking.is_owned()
    owner.release()
    assert not asking.is_owned()
    if has_own_locks:
        reader.acquire_shared()
        assert not asking.is_owned()
        reader.release()
    owner.acquire()
    owner.release()


def test_a_reservation_leaves_no_trace(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "a" / "lock", AbortMarker(tmp_path / "a" / "abort"), [tmp_path / "log"])
    lock.reserve()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_reserve_a_new_directory_the_faster_one_gets_it(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    first.reserve()
    second.reserve()
    second.acquire()
    with pytest.raises(StoreLocked):
        first.acquire()
    with pytest.raises(StoreLocked):
        lock_of(tmp_path).acquire()
    second.release()
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_a_directory_changed_since_its_reservation_is_refused(tmp_path: Path) -> None:
    """What was read of the directory before may be outdated, though no process has it now."""
    log = tmp_path / "disk" / "log"
    slow = DirectoryLock(tmp_path / "a" / "lock", AbortMarker(tmp_path / "a" / "abort"), [log], [log])
    other = DirectoryLock(tmp_path / "b" / "lock", AbortMarker(tmp_path / "b" / "abort"), [log], [log])
    slow.reserve()
    other.acquire()
    (log / f"{0:020d}").write_bytes(b"x")
    other.release()
    with pytest.raises(LogDirectoryLocked):
        slow.acquire()
    assert not (tmp_path / "a").exists()
    assert (log / f"{0:020d}").exists()
    slow = lock_of(tmp_path)
    slow.reserve()
    lock_of(tmp_path).acquire()
    with pytest.raises(StoreLocked):
        slow.acquire()


def test_a_log_directory_removed_by_a_refused_start_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a removed directory would protect nothing."""
    log = tmp_path / "log"
    real, left = fcntl.flock, [True]

    def flock(fd: int, operation: int) -> None:
        if left:
            left.clear()
            log.rmdir()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    log.mkdir()
    locks = LogDirectoryLocks([log], [log])
    locks.lock_existing()
    locks.lock_new()
    assert log.is_dir()
    with pytest.raises(LogDirectoryLocked):
        LogDirectoryLocks([log]).lock_existing()
    locks.release()


@pytest.mark.parametrize("why", ["foreign", "damaged", "no log"])
def test_a_refused_start_leaves_a_directory_as_it_was_found(tmp_path: Path, why: str) -> None:
    root = tmp_path / "store"
    new = tmp_path / "disk" / "log"
    store = opened(small_options(root))
    put(store, b"x")
    dispatch_all(store)
    assert store.close()
    (root / "lock").unlink()
    if why == "foreign":
        (root / "commitlog" / "notes.txt").write_text("x")
    elif why == "damaged":
        flip_bit(root / "commitlog" / f"{0:020d}", 90)
    else:
        shutil.rmtree(root / "commitlog")
    before = hashes(tmp_path), sorted(tmp_path.rglob("*"))
    with pytest.raises((ForeignFile, StoreDamaged)):
        opened(small_options(root, commit_log_dirs=(new, root / "commitlog")))
    assert (hashes(tmp_path), sorted(tmp_path.rglob("*"))) == before


def test_the_abort_marker_holds_the_process_id(tmp_path: Path) -> None:
    marker = AbortMarker(tmp_path / "abort")
    assert not marker.exists
    marker.create()
    assert marker.exists
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    assert marker.pid == os.getpid()
    marker.remove()
    assert not marker.exists


def test_the_checkpoint_is_five_numbers_in_4096_bytes(tmp_path: Path) -> None:
    checkpoint = StoreCheckpoint(tmp_path / "checkpoint")
    checkpoint.physic_msg_timestamp_ms = checkpoint.logics_msg_timestamp_ms = 1_700_000_000_123
    checkpoint.confirm_physical_offset = 4096
    checkpoint.flush()
    data = (tmp_path / "checkpoint").read_bytes()
    checkpoint.close()
    golden = "0000018bcfe5687b0000018bcfe5687b000000000000000000000000000000000000000000001000"
    assert len(data) == 4096
    assert data[:40].hex() == golden
    again = StoreCheckpoint(tmp_path / "checkpoint")
    assert again.load()
    assert again.min_timestamp_ms == 1_700_000_000_123 - 3_000
    again.close()


# What cannot be locked


@pytest.mark.parametrize("what", ["file", "below a file", "dangling link", "loop", "named twice"])
def test_an_invalid_log_directory_is_named(tmp_path: Path, what: str) -> None:
    odd = tmp_path / "odd"
    names = [odd]
    if what in ("file", "below a file"):
        odd.touch()
        names = [odd / "log" if what == "below a file" else odd]
    elif what == "named twice":
        (tmp_path / "log").mkdir()
        odd.symlink_to(tmp_path / "log")
        names = [tmp_path / "log", odd]
    else:
        odd.symlink_to(odd if what == "loop" else tmp_path / "nowhere" / "log")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LogDirectoryUnusable, match=r"store\.commit_log_dirs.*; name") as refused:
        opened(small_options(tmp_path / "store", commit_log_dirs=tuple(names)))
    assert refused.value.path == names[-1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF])
def test_a_file_system_without_locks_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    events: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(fcntl, "flock", refusing(code))
    options = small_options(tmp_path, on_event=lambda event, facts: events.append((event, dict(facts))))
    assert opened(options).close()
    facts = {"path": str(tmp_path / "commitlog"), "reason": os.strerror(code)}
    assert events == [("commit_log_dir_not_locked", facts)]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOLCK])
def test_a_lock_that_fails_otherwise_refuses_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(code))
    with pytest.raises(LogDirectoryUnusable, match=r"cannot be locked: .*; check its file system"):
        opened(small_options(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def refusing(code: int) -> Callable[[int, int], None]:
    def flock(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    return flock


def test_a_start_refused_after_a_killed_rebuild_removes_what_it_made(tmp_path: Path) -> None:
    """It needs the whole lock to put the queues back, before the log is judged."""
    names = (tmp_path / "a", tmp_path / "b")
    options = small_options(tmp_path / "store", commit_log_dirs=names)
    store = opened(options)
    put(store, b"x")
    dispatch_all(store)
    assert store.close()
    (options.data_dir / "consumequeue").rename(options.data_dir / "consumequeue.replaced")
    (names[0] / "notes.txt").touch()
    names[1].rmdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ForeignFile):
        opened(options)
    assert sorted(tmp_path.rglob("*")) == before
