"""A log in several directories: where files go, that they make one log, and what is refused."""

from __future__ import annotations

import errno
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.errors import DiskFull, ForeignFile, LogDirectoryLocked, StoreDamaged, StoreNotWritable
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutStatus
from reput_broker.store.log.mapped_file_queue import MultiPathMappedFileQueue
from reput_broker.store.message_store import MessageStore
from reput_broker.store.retention import DiskLevel, DiskWatch, RetentionRules
from support.inside import log_of
from support.retention import HOUR_MS, Cleaning, FakeMachine, settle
from support.stores import FakeClock, bodies, dispatch_all, opened, put, small_options, tree

FILE = 4096


def options(tmp_path: Path, count: int = 3, **changes: object) -> StoreOptions:
    names = tuple(tmp_path / f"disk{number}" / "log" for number in range(count))
    return small_options(tmp_path / "root", commit_log_dirs=names, **changes)


def placed(options: StoreOptions) -> dict[str, list[int]]:
    """The numbers of the log's files in each directory."""
    directories = (*options.log_dirs, *options.read_only_commit_log_dirs)
    return {
        path.parent.name: sorted(int(file.name) // FILE for file in path.iterdir()) if path.is_dir() else []
        for path in directories
    }


def fill(store: MessageStore, files: int) -> int:
    """Put until the log has so many files more; return how many messages that took."""
    count = 0
    end = store.wrote_offset // FILE + files
    while store.wrote_offset // FILE < end:
        put(store, b"%05d" % count + bytes(700))
        count += 1
    settle(store)
    return count


def test_files_go_round_the_directories_in_the_order_of_their_names(tmp_path: Path) -> None:
    """(RocketMQ: file number k goes to the k mod n-th of the sorted directories.)"""
    some = options(tmp_path)
    some = replace(some, commit_log_dirs=tuple(reversed(some.commit_log_dirs)))
    store = opened(some)
    count = fill(store, 7)
    assert placed(some) == {"disk0": [0, 3, 6], "disk1": [1, 4, 7], "disk2": [2, 5]}
    assert not some.commit_log_dir.exists()
    assert len(bodies(store)) == count
    assert store.close()
    assert (tmp_path / "root" / "lock").exists()
    again = opened(some)
    assert len(bodies(again)) == count
    assert again.close()


@pytest.mark.parametrize("killed", [False, True])
def test_all_directories_together_are_one_log(tmp_path: Path, killed: bool) -> None:
    """The same records at the same offsets as in one directory, through stops and kills."""
    one, many = small_options(tmp_path / "one"), options(tmp_path)
    stores = [opened(one), opened(many)]
    rng = random.Random(3)
    for turn in range(4):
        for _ in range(10):
            body, queue_id = rng.randbytes(rng.randrange(1, 900)), rng.randrange(3)
            results = [put(store, body, queue_id=queue_id) for store in stores]
            assert results[0] == results[1]
        for store in stores:
            dispatch_all(store)
        if killed:
            images = [shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{turn}"))]
            for store in stores:
                store.close()
            root = images[0]
            one = replace(one, data_dir=root / "one")
            many = options(root)
            tmp_path = root
        else:
            assert all(store.close() for store in stores)
        stores = [opened(one), opened(many)]
    for queue_id in range(3):
        assert bodies(stores[0], queue_id=queue_id) == bodies(stores[1], queue_id=queue_id)
    assert all(store.close() for store in stores)
    log = {name: data for name, data in tree(one.data_dir).items() if name.startswith("commitlog/")}
    spread = {
        f"commitlog/{path.name}": path.read_bytes() for directory in many.log_dirs for path in directory.iterdir()
    }
    assert log == spread


def test_a_log_can_be_spread_later_and_gathered_again(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "root"))
    count = fill(store, 3)
    assert store.close()
    some = options(tmp_path, 1)
    spread = replace(some, commit_log_dirs=(tmp_path / "root" / "commitlog", *some.commit_log_dirs))
    store = opened(spread)
    count += fill(store, 3)
    assert len(bodies(store)) == count
    assert store.close()
    assert placed(spread)["disk0"] == [4, 6] or placed(spread)["disk0"] == [5]
    for path in list(some.commit_log_dirs[0].iterdir()):
        path.rename(tmp_path / "root" / "commitlog" / path.name)
    store = opened(small_options(tmp_path / "root"))
    assert len(bodies(store)) == count
    assert store.close()


def queue_of(tmp_path: Path, read_only: tuple[int, ...] = ()) -> MultiPathMappedFileQueue:
    names = [tmp_path / f"disk{number}" for number in range(3)]
    return MultiPathMappedFileQueue(names, [names[number] for number in read_only], FILE)


@pytest.mark.parametrize(
    ("full", "read_only", "expected"),
    [
        ((), (), "012012"),
        ((1,), (), "020202"),
        ((), (0,), "121212"),
        ((2,), (0,), "111111"),
        ((0, 1, 2), (), "012012"),
        ((1, 2), (0,), "121212"),
    ],
)
def test_full_and_read_only_directories_are_skipped(
    tmp_path: Path, full: tuple[int, ...], read_only: tuple[int, ...], expected: str
) -> None:
    """As RocketMQ does it: with every writable directory full, fullness does not count."""
    files = queue_of(tmp_path, read_only)
    files.note_full(frozenset(tmp_path / f"disk{number}" for number in full))
    chosen = [files.directories_for(number * FILE)[0].name[-1] for number in range(6)]
    assert "".join(chosen) == expected
    everywhere = {path.name for path in files.directories_for(0)}
    assert everywhere == {f"disk{number}" for number in range(3) if number not in read_only}


def test_names_are_sorted_as_java_sorts_them(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("\U0001f600", "\uff5e", "a", "B")]
    files = MultiPathMappedFileQueue(paths, [], FILE)
    assert [path.name for path in files.directories] == ["B", "a", "\U0001f600", "\uff5e"]


class FullDisks:
    """Directories in which no file can be made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        real = os.posix_fallocate

        def allocate(fd: int, offset: int, size: int) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if any(f"/{name}/" in path for name in self.names):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(fd, offset, size)

        monkeypatch.setattr(os, "posix_fallocate", allocate)


def test_a_disk_that_became_full_unnoticed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = FullDisks(monkeypatch)
    some = options(tmp_path)
    store = opened(some)
    disks.names = {"disk1"}
    count = fill(store, 5)
    assert placed(some) == {"disk0": [0, 3], "disk1": [], "disk2": [1, 2, 4, 5]}
    disks.names = {"disk0", "disk1", "disk2"}
    with pytest.raises(DiskFull):
        log_of(store).files.prepare_next()
    assert placed(some) == {"disk0": [0, 3], "disk1": [], "disk2": [1, 2, 4, 5]}
    disks.names = set()
    count += fill(store, 1)
    assert len(bodies(store)) == count
    assert store.close()


def test_no_new_file_is_made_in_a_read_only_directory_and_its_files_are_read(tmp_path: Path) -> None:
    some = options(tmp_path)
    store = opened(some)
    count = fill(store, 5)
    assert store.close()
    assert placed(some) == {"disk0": [0, 3], "disk1": [1, 4], "disk2": [2, 5]}
    retired = replace(some, read_only_commit_log_dirs=(some.commit_log_dirs[2],))
    store = opened(retired)
    assert len(bodies(store)) == count
    count += fill(store, 4)
    assert store.close()
    assert placed(some) == {"disk0": [0, 3, 6, 8], "disk1": [1, 4, 7, 9], "disk2": [2, 5]}
    named_apart = replace(
        some, commit_log_dirs=some.commit_log_dirs[:2], read_only_commit_log_dirs=some.commit_log_dirs[2:]
    )
    store = opened(named_apart)
    assert len(bodies(store)) == count
    assert store.close()


@pytest.fixture
def read_only_disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of disks that are mounted for reading only."""
    names: set[str] = set()
    real_open, real_unlink = os.open, os.unlink

    def refuse(path: Any) -> None:
        if any(f"/{name}/" in str(path) for name in names):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def open_(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            refuse(path)
        return real_open(path, flags, *arguments, **more)

    def unlink(path: Any, **more: Any) -> None:
        refuse(path)
        real_unlink(path, **more)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "unlink", unlink)
    return names


def mounted_read_only(tmp_path: Path, files: int, number: int) -> tuple[StoreOptions, int]:
    """A store of so many files, and how many messages it holds; one of its disks is to be read-only."""
    some = options(tmp_path)
    store = opened(some)
    count = fill(store, files)
    assert store.close()
    return replace(some, read_only_commit_log_dirs=(some.commit_log_dirs[number],)), count


@pytest.mark.parametrize("abnormal", [False, True])
def test_a_disk_that_is_read_only_in_fact_is_read(tmp_path: Path, read_only_disk: set[str], abnormal: bool) -> None:
    some, count = mounted_read_only(tmp_path, 5, 1)
    if abnormal:
        (some.data_dir / "abort").write_text("1")
        (some.data_dir / "checkpoint").unlink()
    read_only_disk.add("disk1")
    store = opened(some)
    assert len(bodies(store)) == count
    count += fill(store, 2)
    assert len(bodies(store)) == count
    assert store.close()


def test_a_log_that_ends_on_such_a_disk_is_refused(tmp_path: Path, read_only_disk: set[str]) -> None:
    some, _ = mounted_read_only(tmp_path, 4, 1)
    read_only_disk.add("disk1")
    before = tree(tmp_path)
    with pytest.raises(ForeignFile, match="in fact read-only") as refused:
        opened(some)
    assert refused.value.path == some.commit_log_dirs[1] / f"{4 * FILE:020d}"
    assert tree(tmp_path) == before
    read_only_disk.clear()
    store = opened(some)
    assert put(store, b"x").status is PutStatus.PUT_OK, "the file in use is filled up wherever it lies"
    assert store.close()


def test_a_directory_not_configured_as_read_only_must_be_writable(tmp_path: Path, read_only_disk: set[str]) -> None:
    some, _ = mounted_read_only(tmp_path, 5, 1)
    read_only_disk.add("disk1")
    with pytest.raises(StoreNotWritable, match=r"disk1.*Read-only file system; mount .* for writing"):
        opened(replace(some, read_only_commit_log_dirs=()))


def test_two_files_of_one_offset_are_refused_by_name(tmp_path: Path) -> None:
    some = options(tmp_path)
    store = opened(some)
    fill(store, 4)
    assert store.close()
    twin = some.commit_log_dirs[2] / f"{FILE:020d}"
    shutil.copy(some.commit_log_dirs[1] / twin.name, twin)
    before = tree(tmp_path)
    with pytest.raises(ForeignFile, match=f"{some.commit_log_dirs[1]} has a file of that name too") as refused:
        opened(some)
    assert refused.value.path == twin
    assert tree(tmp_path) == before


def test_a_gap_between_directories_is_named(tmp_path: Path) -> None:
    some = options(tmp_path)
    store = opened(some)
    fill(store, 4)
    assert store.close()
    (some.commit_log_dirs[1] / f"{FILE:020d}").unlink()
    with pytest.raises(StoreDamaged, match=f"{FILE:020d} is damaged.*the file is missing between"):
        opened(some)


def test_a_log_that_the_options_leave_out_is_refused(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "root"))
    fill(store, 2)
    assert store.close()
    with pytest.raises(ForeignFile, match=r"store\.commit_log_dirs names other directories"):
        opened(options(tmp_path))
    some = options(tmp_path)
    store = opened(replace(some, read_only_commit_log_dirs=(some.commit_log_dir,)))
    assert len(bodies(store)) > 0
    assert store.close()


def test_a_missing_directory_is_logged(tmp_path: Path) -> None:
    events: list[tuple[str, str]] = []
    some = options(tmp_path, on_event=lambda event, facts: events.append((event, str(facts["path"]))))
    store = opened(some)
    put(store, b"1")
    dispatch_all(store)
    assert store.close()
    assert events == [], "they have been made"
    for path in some.commit_log_dirs[1:]:
        path.rmdir()
    store = opened(some)
    assert store.close()
    assert events == [("commit_log_dir_missing", str(path)) for path in some.commit_log_dirs[1:]]


def test_two_stores_cannot_share_a_directory(tmp_path: Path) -> None:
    some = options(tmp_path)
    store = opened(some)
    put(store, b"1")
    assert store.close()
    store = opened(some)
    other = small_options(tmp_path / "other", commit_log_dirs=some.commit_log_dirs[:1])
    with pytest.raises(LogDirectoryLocked, match="in use by another store"):
        opened(other)
    assert not (tmp_path / "other").exists()
    assert store.close()
    again = opened(some)
    assert again.close()


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_nor_one_that_did_not_exist_before(tmp_path: Path, shared: int) -> None:
    """The first file would be made there long after both have started."""
    some = options(tmp_path)
    store = opened(some)
    names = sorted(tmp_path.rglob("*"))
    new = tmp_path / "a" / "new" / "log"
    other = small_options(tmp_path / "other", commit_log_dirs=(new, some.commit_log_dirs[shared]))
    with pytest.raises(LogDirectoryLocked, match="in use by another store") as refused:
        opened(other)
    assert refused.value.path == some.commit_log_dirs[shared]
    assert sorted(tmp_path.rglob("*")) == names, "and nothing is left of the refused start"
    count = fill(store, 4)
    assert len(bodies(store)) == count
    assert store.close()


def test_nor_the_directory_below_the_other_one(tmp_path: Path) -> None:
    own = small_options(tmp_path / "own")
    store = opened(own)
    other = small_options(tmp_path / "other", commit_log_dirs=(own.commit_log_dir,))
    with pytest.raises(LogDirectoryLocked):
        opened(other)
    assert store.close()


def test_a_directory_that_cannot_be_made_refuses_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be locked either; the others, made before it, go again."""
    some = options(tmp_path)
    real = os.mkdir

    def mkdir(path: Any, *arguments: Any, **more: Any) -> None:
        if "disk2" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", mkdir)
        with pytest.raises(DiskFull, match="disk2"):
            opened(some)
    assert list(tmp_path.iterdir()) == []
    assert opened(some).close()


# Retention


def test_the_oldest_file_is_deleted_in_any_directory(tmp_path: Path) -> None:
    machine = FakeMachine()
    some = options(tmp_path)
    store = opened(some, FakeClock(machine.now_ms))
    fill(store, 6)
    for directory in some.log_dirs:
        for path in directory.iterdir():
            os.utime(path, (machine.now_ms / 1000, machine.now_ms / 1000))
    cleaning = Cleaning(store, machine)
    machine.now_ms += 73 * HOUR_MS
    store._clock_ms.now_ms = machine.now_ms  # type: ignore[attr-defined]
    machine.hour = 4
    assert cleaning.clean() == [number * FILE for number in range(6)]
    assert placed(some) == {"disk0": [6], "disk1": [], "disk2": []}
    assert store.min_physical_offset == 6 * FILE
    assert store.close()


def test_full_disks_get_no_new_files_and_the_least_used_one_decides(tmp_path: Path) -> None:
    used = {"disk0": 0.5, "disk1": 0.95, "disk2": 0.5}
    some = options(tmp_path)
    store = opened(some)
    machine = FakeMachine()
    machine.disk_usage = lambda path: used.get(path.parent.name, 0.1)  # type: ignore[method-assign]
    cleaning = Cleaning(store, machine)
    assert not cleaning.log.look()
    before = cleaning.log.disk.level
    fill(store, 5)
    assert placed(some) == {"disk0": [0, 2, 4], "disk1": [], "disk2": [1, 3, 5]}
    used["disk1"] = 0.85
    cleaning.log.look()
    fill(store, 2)
    assert placed(some)["disk1"] == [7]
    used.update(disk0=0.95, disk1=0.95, disk2=0.95)
    cleaning.log.look()
    assert (before, cleaning.log.disk.level) == (DiskLevel.OK, DiskLevel.REFUSE)
    assert store.close()


def test_a_roomy_read_only_disk_does_not_count(tmp_path: Path) -> None:
    some = options(tmp_path, read_only_commit_log_dirs=(tmp_path / "disk0" / "log",))
    looked: list[str] = []

    def usage(path: Path) -> float:
        looked.append(path.parent.name)
        return 0.95 if path.parent.name in ("disk1", "disk2") else 0.1

    watch = DiskWatch(usage, some.writable_log_dirs, some.consume_queue_dir)
    assert watch.look(RetentionRules()) is DiskLevel.REFUSE
    assert "disk0" not in looked


def test_files_on_a_read_only_disk_stay(tmp_path: Path, read_only_disk: set[str]) -> None:
    some, _ = mounted_read_only(tmp_path, 5, 0)
    read_only_disk.add("disk0")
    machine = FakeMachine(hour=4)
    machine.now_ms += 100 * 365 * 24 * HOUR_MS
    store = opened(some, FakeClock(machine.now_ms))
    cleaning = Cleaning(store, machine)
    assert cleaning.clean() == []
    assert cleaning.log.is_unwritable
    assert cleaning.log.is_held_back
    assert store.min_physical_offset == 0
    assert store.close()
