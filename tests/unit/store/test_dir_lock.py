"""One broker a directory: in this process, in another, and beside a program that locks as Java does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reput_broker.store.abort_marker import AbortMarker
from reput_broker.store.checkpoint import StoreCheckpoint
from reput_broker.store.dir_lock import DirectoryLock
from reput_broker.store.errors import StoreLocked

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
    assert lock.is_held
    lock.release()


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
