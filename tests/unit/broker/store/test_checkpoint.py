"""The checkpoint is synced by one thread at a time."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.errors import FlushFailed


def test_a_sync_that_fails_under_two_at_a_time_is_final_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells of lost pages once: the second sync would succeed, and prove nothing."""
    checkpoint = StoreCheckpoint(tmp_path / "checkpoint")
    checkpoint.physic_msg_timestamp_ms = 1
    checkpoint.flush()
    entered, go_on = threading.Event(), threading.Event()
    running: list[int] = []
    most: list[int] = []
    told: list[int] = []

    def sync(fd: int) -> None:
        running.append(fd)
        most.append(len(running))
        entered.set()
        assert go_on.wait(30)
        running.remove(fd)
        if not told:
            told.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", sync)
    outcomes: list[str] = []

    def flush() -> None:
        try:
            checkpoint.flush()
        except FlushFailed:
            outcomes.append("failed")
        else:
            outcomes.append("flushed")

    checkpoint.physic_msg_timestamp_ms = 2
    first = threading.Thread(target=flush)
    first.start()
    assert entered.wait(30)
    checkpoint.logics_msg_timestamp_ms = 3
    checkpoint.write()  # a write alone need not wait for the disk
    second = threading.Thread(target=flush)
    second.start()
    second.join(0.05)
    go_on.set()
    first.join()
    second.join()
    assert outcomes == ["failed", "failed"]
    assert max(most) == 1
    checkpoint.close()
