"""No file can be opened for a while: nothing fails permanently, and postponed work is done afterwards.

How the log's own files are made then is in `test_log_directories.py`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.results import PutStatus
from reput_broker.store.index import service as index_backlog
from reput_broker.store.log.mapped_file_queue import MappedFileQueue
from reput_broker.store.queue.files import QueueFileCache, SparseFileQueue
from reput_broker.store.queue.reput import DISPATCH_RETRY_MS
from support.stores import FakeClock, bodies, dispatch_all, killed, opened, put, small_options


def none_left(*_: object, **__: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_sync_of_the_log_counts_though_the_checkpoint_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = small_options(tmp_path / "store")
    store = opened(options)
    put(store, b"a")
    dispatch_all(store)
    store._checkpoint.close()  # it is opened again when there is something to write
    put(store, b"b")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        assert store.flush_commit_log() == store.max_physical_offset, "it is on the disk"
        assert put(store, b"c").status is PutStatus.PUT_OK
        with pytest.raises(OSError, match="Too many open files"):
            store.write_checkpoint()
    assert store.read_only_reason is None
    image = opened(killed(store, tmp_path / "image"))
    assert bodies(image) == [b"a", b"b", b"c"], "a checkpoint that says too little is safe"
    assert image.close()
    store.flush_commit_log()
    store.write_checkpoint()
    checkpoint = StoreCheckpoint(options.data_dir / "checkpoint")
    assert checkpoint.load()
    assert checkpoint.mark is not None
    assert checkpoint.mark.flushed_offset == store.max_physical_offset
    dispatch_all(store)
    assert store.close()


@pytest.mark.parametrize("missing", ["file", "directory", "mapping"])
def test_an_index_file_that_cannot_be_made_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(index_backlog, "KEYS_AT_ONCE", 0)
    clock = FakeClock()
    store = opened(small_options(tmp_path / "store", index_entries=4), clock)
    put(store, b"the first file of the log is there")
    real = os.open

    def open_(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        wanted = "directory" if flags & os.O_DIRECTORY else "file"
        if "/index" in str(path) and missing == wanted:
            none_left()
        return real(path, flags, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_)
        if missing == "mapping":
            patched.setattr("reput_broker.store.base.file_io.mmap.mmap", none_left)
        for number in range(3):
            assert put(store, b"%d" % number, keys=[f"k{number}"]).status is PutStatus.PUT_OK
            store.flush_commit_log()
            store.reput_step()
            clock.now_ms += DISPATCH_RETRY_MS
    assert store.read_only_reason is None
    assert not list(store.options.index_dir.glob("*")), "nothing is left of the attempts"
    for number in range(3, 9):
        assert put(store, b"%d" % number, keys=[f"k{number}"]).status is PutStatus.PUT_OK
        dispatch_all(store)
    for number in range(9):
        (record,) = store.query_message("T", f"k{number}", 9).records
        assert b"k%d" % number in record
    store.flush_index()
    assert store.close()


def test_an_index_file_made_ahead_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(small_options(tmp_path / "store", commit_log_file_size=1 << 20, index_entries=8))
    for number in range(5):
        put(store, b"%d" % number, keys=[f"k{number}"])
    dispatch_all(store)
    assert store.should_prepare_next_file()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            store.prepare_next_file()
    store.prepare_next_file()
    assert not store.should_prepare_next_file()
    assert len(list(store.options.index_dir.iterdir())) == 2
    assert store.close()


class Synced:
    """Which directories were synced, in which order; for a while none can be opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.is_out = False
        real_open, real_sync = os.open, os.fsync

        def open_(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            return none_left() if self.is_out else real_open(path, flags, *arguments, **more)

        def sync(fd: int) -> None:
            self.seen.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            real_sync(fd)

        patch.setattr(os, "open", open_)
        patch.setattr(os, "fsync", sync)


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_removal_that_is_not_durable_yet_comes_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Were they to reach the disk in the other order, a power cut would leave a gap."""
    delete: Callable[[], bool]
    directory = tmp_path / "files"
    if kind == "log":
        log = MappedFileQueue(directory, 4096)
        for _ in range(4):
            file = log.last_file_for()
            assert file is not None
            file.append(bytes(4096))
        delete = log.delete_first
    else:
        queue = SparseFileQueue(directory, 4096, QueueFileCache(10))
        queue.write(0, bytes(4 * 4096))
        queue.flush()
        delete = queue.drop_first
    synced = Synced(monkeypatch)
    synced.is_out = True
    with pytest.raises(OSError, match="Too many open files"):
        delete()
    assert len(list(directory.iterdir())) == 3
    with pytest.raises(OSError, match="Too many open files"):
        delete()
    assert len(list(directory.iterdir())) == 3, "no other goes before that is certain"
    synced.is_out = False
    assert delete()
    assert synced.seen == ["files", "files"]
    assert len(list(directory.iterdir())) == 2
