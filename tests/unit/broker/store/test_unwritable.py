"""An unwritable directory: the start is refused by path and remedy, nothing has changed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput_broker.compose.open_files import shares_of
from reput_broker.compose.storage import Storage, store_options
from reput_broker.config.model import BrokerConfig
from reput_broker.store.base.errors import DataDirUnusable, StoreNotWritable
from reput_broker.store.message_store import MessageStore
from support.mounts import as_nobody, mounted
from support.stores import FakeClock, dispatch_all, opened, put, small_options, tree


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that all users can reach, unlike those of pytest."""
    directory = Path(tempfile.mkdtemp(prefix="reput-test-"))
    directory.chmod(0o755)
    yield directory
    for path, names, _ in os.walk(directory):
        for name in names:
            Path(path, name).chmod(0o755)
    shutil.rmtree(directory)


def make(directory: Path) -> None:
    """A store with some messages, stopped in order."""
    store = opened(small_options(directory))
    for number in range(12):
        put(store, b"%d" % number + bytes(700), keys=["k"])
    dispatch_all(store)
    assert store.close()


def everything(directory: Path) -> dict[str, object]:
    """Every name with its permissions, and what the files hold."""
    modes = {str(path): path.stat().st_mode for path in sorted(directory.rglob("*"))}
    return {**modes, **tree(directory)}


def refused(directory: Path) -> StoreNotWritable:
    store = MessageStore(small_options(directory), clock_ms=FakeClock())
    with pytest.raises(StoreNotWritable) as raised:
        store.open()
    assert not store.is_open
    return raised.value


def read_only(path: Path) -> None:
    """Nobody may write to it."""
    path.chmod(path.stat().st_mode & ~0o222)


def writable(path: Path) -> None:
    """Everybody may."""
    path.chmod(path.stat().st_mode | stat.S_IWGRP | stat.S_IWOTH)


def _only(path: str) -> Callable[[Path], None]:
    """Let all of a store be written but one part of it."""

    def lock(directory: Path) -> None:
        for found in (directory, *directory.rglob("*")):
            writable(found)
        read_only(directory / path)

    return lock


def _all_of_it(directory: Path) -> None:
    for found in (directory, *directory.rglob("*")):
        read_only(found)


@pytest.mark.parametrize(
    ("lock", "named"),
    [
        (_all_of_it, "lock"),
        (_only("."), ""),
        (_only("commitlog/00000000000000000000"), "commitlog/00000000000000000000"),
        (_only("commitlog"), "commitlog"),
        (_only("consumequeue"), "consumequeue"),
        (_only("consumequeue/T/0/00000000000000000000"), "consumequeue/T/0/00000000000000000000"),
        (_only("index"), "index"),
        (_only("checkpoint"), "checkpoint"),
    ],
)
def test_a_store_without_permission_is_refused(root: Path, lock: Callable[[Path], None], named: str) -> None:
    directory = root / "store"
    make(directory)
    lock(directory)
    before = everything(directory)
    with as_nobody():
        error = refused(directory)
        user = os.geteuid()
    assert error.path == directory / named
    assert error.cause_errno == errno.EACCES
    assert str(error) == (
        f"the store cannot be opened: {directory / named}: Permission denied; let the user that the broker runs as "
        f"(uid {user}) write to {directory / named}, or choose another data directory (data_dir)"
    )
    assert everything(directory) == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_that_is_not_ours_to_fill_is_refused(root: Path, exists: bool) -> None:
    directory = root / "store"
    if exists:
        directory.mkdir()
        read_only(directory)
    read_only(root)
    before = everything(root)
    with as_nobody():
        error = refused(directory)
    assert error.path == directory
    assert error.cause_errno == errno.EACCES
    assert everything(root) == before
    root.chmod(0o755)


@pytest.mark.trio
@pytest.mark.parametrize(("mode", "what"), [(0o444, "write to"), (0o000, "read and write")])
async def test_a_table_that_may_not_be_written_or_read_is_refused(root: Path, mode: int, what: str) -> None:
    config = BrokerConfig(data_dir=root, store={"commit_log_file_size": "64KiB", "index": False})
    options = store_options(config, shares_of(1000), ("127.0.0.1", 0), lambda *_: None, is_replica=False)
    storage = Storage(config, options, lambda: 0, lambda *_: None)
    await storage.open()
    await storage.close()
    journal = root / "config" / "consumerOffset.journal"
    for path in (root, *root.rglob("*")):  # noqa: ASYNC240
        writable(path)
    journal.chmod(mode)
    storage = Storage(config, options, lambda: 0, lambda *_: None)
    with as_nobody():
        user = os.geteuid()
        with pytest.raises(StoreNotWritable) as refused:
            await storage.open()
        await storage.close()
    assert str(refused.value) == (
        f"the store cannot be opened: {journal}: Permission denied; let the user that the broker runs as (uid {user}) "
        f"{what} {journal}, or choose another data directory (data_dir)"
    )


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        directory = disk.path / "store"
        make(directory)
        before = everything(disk.path)
        disk.make_read_only()
        error = refused(directory)
        assert error.path == directory / "lock"
        assert error.cause_errno == errno.EROFS
        assert f"mount the file system of {directory / 'lock'} for writing" in str(error)
        assert everything(disk.path) == before
        assert refused(disk.path / "new").path == disk.path / "new"
        disk.make_read_only(False)
        store = opened(small_options(directory))
        assert store.is_writable
        assert store.close()


def test_a_data_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    def refusal(directory: Path) -> str:
        with pytest.raises(DataDirUnusable) as raised:
            MessageStore(small_options(directory), clock_ms=FakeClock()).open()
        return str(raised.value)

    file = tmp_path / "file"
    file.touch()
    for directory in (file, file / "below"):
        said = refusal(directory)
        assert said == f"{file} is not a directory; choose another data directory (data_dir)"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert refusal(link) == (
        f"{link} is a symbolic link to what does not exist; choose another data directory (data_dir)"
    )
