"""All queues at once: many are synced concurrently, and a failed sync is reported."""

from __future__ import annotations

import errno
import os
import threading
from array import array
from pathlib import Path

import pytest

from reput_broker.store.base.errors import FlushFailed
from reput_broker.store.queue import files as sparse_file_queue
from reput_broker.store.queue.table import ConsumeQueueTable
from support.stores import small_options

QUEUES = 200


def filled(tmp_path: Path) -> ConsumeQueueTable:
    """A table whose open files are far fewer than its queues, one unit in each queue."""
    table = ConsumeQueueTable(
        tmp_path / "consumequeue", small_options(tmp_path, queue_files_open_max=4, consume_queue_entries=10)
    )
    for queue_id in range(QUEUES):
        queue = table.find_or_create("T", queue_id)
        queue.put_batch(array("q", [queue_id * 100]), array("q", [100]), array("q", [7]), 0)
    return table


def test_many_queues_are_all_synced_with_their_names_and_more_than_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path)
    files: list[int] = []
    directories: set[str] = set()
    both = threading.Barrier(2, timeout=20)

    def sync_data(fd: int) -> None:
        files.append(os.fstat(fd).st_ino)
        if len(files) <= 2:
            both.wait()  # for ever, were there one thread

    monkeypatch.setattr(sparse_file_queue, "sync_data", sync_data)
    monkeypatch.setattr(sparse_file_queue, "sync_directory", lambda path: directories.add(str(path)))
    assert table.flush()
    assert table.bytes_to_flush == 0
    assert len(set(files)) == len(files) == QUEUES
    assert {str(queue.directory) for queue in table} <= directories
    assert table.flush()
    assert len(files) == QUEUES  # nothing was left to sync
    table.close()


def test_queues_with_few_pages_are_left_out_and_reported(tmp_path: Path) -> None:
    table = filled(tmp_path)
    assert not table.flush(least_pages=2)
    assert table.bytes_to_flush == QUEUES * 20
    assert table.flush()
    table.close()


def test_a_sync_that_fails_among_many_is_reported_and_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path)
    broken = os.stat(tmp_path / "consumequeue" / "T" / "150" / f"{0:020}").st_ino

    def sync_data(fd: int) -> None:
        if os.fstat(fd).st_ino == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sparse_file_queue, "sync_data", sync_data)
    with pytest.raises(FlushFailed, match="/150/"):
        table.flush()
    monkeypatch.undo()
    queue = table.get(("T", 150))
    assert queue is not None
    assert queue.bytes_to_flush == 20
    with pytest.raises(FlushFailed, match="/150/"):
        table.flush()
    table.close()
