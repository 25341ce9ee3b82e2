"""Where a file of the log cannot be made: the next directory, the report, the remains, and no descriptors."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.errors import DiskFull, FileNotMade, ForeignFile
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutStatus
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import FileMaker
from reput_protocol.store.files import file_name
from reput_protocol.store.layout import StoreLayout
from support.inside import log_of
from support.stores import FakeClock, bodies, dispatch_all, opened, put, small_options

FILE = 4096
BODY = bytes(700)


class Disks:
    """Disks on which a system call fails: which call, on which disk, with which error."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.failing: dict[tuple[str, str], int] = {}
        for name in ("open", "unlink", "posix_fallocate", "fsync"):
            patch.setattr(os, name, self._watch(name, getattr(os, name)))

    def fail(self, disk: str, call: str, code: int) -> None:
        self.failing[disk, call] = code

    def _watch(self, name: str, real: Any) -> Any:
        def call(target: Any, *arguments: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            for (disk, failing), code in self.failing.items():
                if failing == name and f"/{disk}/" in path and (name != "open" or arguments[0] & os.O_CREAT):
                    raise OSError(code, os.strerror(code), path)
            return real(target, *arguments, **options)

        return call


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    return Disks(monkeypatch)


@pytest.fixture
def events() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def options(tmp_path: Path, events: list[tuple[str, dict[str, Any]]]) -> StoreOptions:
    names = tuple(tmp_path / f"disk{number}" / "log" for number in range(3))
    return small_options(
        tmp_path / "root", commit_log_dirs=names, on_event=lambda event, facts: events.append((event, dict(facts)))
    )


def placed(options: StoreOptions) -> list[list[int]]:
    """The numbers of the log's files in each directory."""
    return [
        sorted(int(path.name) // FILE for path in directory.iterdir()) if directory.is_dir() else []
        for directory in options.log_dirs
    ]


def fill(store: Any, files: int) -> None:
    end = store.wrote_offset // FILE + files
    while store.wrote_offset // FILE < end:
        assert put(store, BODY).status is PutStatus.PUT_OK
    dispatch_all(store)


@pytest.mark.parametrize(
    ("call", "code", "remedy"),
    [
        ("open", errno.EROFS, "mount the file system of .*/disk1/log for writing"),
        ("open", errno.EACCES, r"let the user that the broker runs as \(uid \d+\) write to .*/disk1/log"),
        ("open", errno.EIO, "check the disk of .*/disk1/log"),
        ("posix_fallocate", errno.EIO, "check the disk of .*/disk1/log"),
        ("fsync", errno.EIO, "check the disk of .*/disk1/log"),
    ],
)
def test_a_directory_that_fails_is_skipped_logged_once_and_tried_again(
    options: StoreOptions, disks: Disks, events: list[Any], call: str, code: int, remedy: str
) -> None:
    store = opened(options)
    fill(store, 3)
    assert placed(options) == [[0, 3], [1], [2]]
    disks.fail("disk1", call, code)
    fill(store, 6)
    assert placed(options) == [[0, 3, 6, 9], [1], [2, 4, 5, 7, 8]]
    ((event, facts),) = events
    assert event == "commit_log_dir_failed"
    assert facts["path"] == str(options.log_dirs[1])
    assert os.strerror(code) in facts["reason"]
    assert re.search(f"{remedy}; this is retried automatically", facts["reason"])
    disks.failing.clear()
    fill(store, 3)
    assert placed(options)[1] == [1, 10]
    assert events[1:] == [("commit_log_dir_works_again", {"path": str(options.log_dirs[1])})]
    count = len(bodies(store))
    assert store.close()
    again = opened(options)
    assert len(bodies(again)) == count
    assert again.close()


def test_with_no_directory_left_puts_are_refused_until_one_works(
    options: StoreOptions, disks: Disks, events: list[Any]
) -> None:
    clock = FakeClock()
    store = opened(options, clock)
    fill(store, 1)
    for disk in ("disk0", "disk1", "disk2"):
        disks.fail(disk, "open", errno.EROFS)
    while (result := put(store, BODY)).status is PutStatus.PUT_OK:
        pass
    assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert not store.is_writable
    assert store.disk_full_reason is None
    assert store.read_only_reason is None
    assert "Read-only file system" in str(store.file_refusal)
    assert put(store, b"small").status is PutStatus.PUT_OK, "there is room for it in the file in use"
    assert not store.is_writable, "a file is still lacking"
    tried = len(events)
    with pytest.raises(FileNotMade):
        store.make_log_file()
    assert len(events) == tried
    disks.failing.clear()
    clock.now_ms += 1000
    assert put(store, BODY).status is PutStatus.PUT_OK
    assert store.is_writable
    names = [event for event, _ in events]
    assert names.count("commit_log_dir_failed") == 3
    assert names.count("log_file_not_made") == 1
    assert names[-1] == "log_file_made_again"
    assert store.close()


def test_making_a_file_ahead_ends_it_without_a_put(options: StoreOptions, disks: Disks) -> None:
    clock = FakeClock()
    store = opened(options, clock)
    fill(store, 1)
    for disk in ("disk0", "disk1", "disk2"):
        disks.fail(disk, "open", errno.EACCES)
    while put(store, BODY).status is PutStatus.PUT_OK:
        pass
    assert not store.is_writable
    disks.failing.clear()
    clock.now_ms += 1000
    store.prepare_next_file()
    assert store.is_writable
    assert store.file_refusal is None
    assert store.close()


def test_a_full_disk_among_failing_ones_is_a_full_disk(options: StoreOptions, disks: Disks) -> None:
    store = opened(options)
    fill(store, 1)
    disks.fail("disk0", "open", errno.EIO)
    disks.fail("disk1", "posix_fallocate", errno.ENOSPC)
    disks.fail("disk2", "open", errno.EROFS)
    with pytest.raises(DiskFull):
        log_of(store).files.prepare_next()
    assert store.close()


# What is left of a file that could not be made


@pytest.fixture
def left_behind(options: StoreOptions, disks: Disks) -> Iterator[Any]:
    """A store whose second disk broke while file 1 was made in it, so that it could not be removed either."""
    store = opened(options)
    put(store, BODY)
    disks.fail("disk1", "posix_fallocate", errno.EIO)
    disks.fail("disk1", "unlink", errno.EIO)
    fill(store, 2)
    assert placed(options) == [[0], [1], [1, 2]]
    yield store
    disks.failing.clear()
    store.close()


def test_it_is_removed_before_another_file_is_made_there(left_behind: Any, options: StoreOptions, disks: Disks) -> None:
    fill(left_behind, 2)
    assert placed(options) == [[0, 3], [1], [1, 2, 4]], "while it cannot be removed none is made beside it"
    disks.failing.clear()
    fill(left_behind, 3)
    assert placed(options) == [[0, 3, 6], [7], [1, 2, 4, 5]]


@pytest.mark.parametrize("size", [0, 100, FILE])
def test_the_next_start_knows_it_by_its_holding_nothing(
    left_behind: Any, options: StoreOptions, disks: Disks, size: int
) -> None:
    count = len(bodies(left_behind))
    assert left_behind.close()
    twin = options.log_dirs[1] / file_name(FILE)
    twin.write_bytes(bytes(size))
    assert StoreLayout(options.data_dir, options.log_dirs).log.odd == [], "and so does verify"
    read_only = replace(
        options, commit_log_dirs=options.log_dirs[::2], read_only_commit_log_dirs=(options.log_dirs[1],)
    )
    store = opened(read_only)
    assert len(bodies(store)) == count
    assert twin.exists(), "the disk does not let it go, and it is in nobody's way"
    assert store.close()
    disks.failing.clear()
    store = opened(options)
    assert len(bodies(store)) == count
    assert not twin.exists()
    assert store.close()


@pytest.mark.parametrize("size", [0, 100])
def test_one_whose_file_was_made_nowhere_does_not_refuse_the_start(
    options: StoreOptions, disks: Disks, size: int
) -> None:
    """Its disk does not let it go, and another can take the file."""
    store = opened(options)
    put(store, BODY)
    dispatch_all(store)
    assert store.close()
    (options.log_dirs[1] / file_name(FILE)).write_bytes(bytes(size))
    (options.data_dir / "abort").touch()
    disks.fail("disk1", "unlink", errno.EROFS)
    for _ in range(2):  # the second time after an orderly stop
        store = opened(options)
        assert bodies(store) == [BODY]
        assert store.close()
    store = opened(options)
    fill(store, 1)
    assert placed(options) == [[0], [1], [1]]
    assert store.close()


def test_a_twin_that_holds_something_is_refused(left_behind: Any, options: StoreOptions) -> None:
    assert left_behind.close()
    twin = options.log_dirs[1] / file_name(FILE)
    shutil.copy(options.log_dirs[2] / file_name(FILE), twin)
    with pytest.raises(ForeignFile, match="has a file of that name too"):
        opened(options)
    (odd,) = StoreLayout(options.data_dir, options.log_dirs).log.odd
    assert "a file of that name too" in odd.reason


def test_a_file_of_another_program_is_left_alone(tmp_path: Path, events: list[Any]) -> None:
    maker = FileMaker(FILE, lambda event, facts: events.append((event, dict(facts))))
    (tmp_path / file_name(0)).write_bytes(b"theirs")
    for _ in range(2):
        with pytest.raises(
            FileNotMade, match="File exists; the existing file was not created by a broker; move it away"
        ):
            maker.make(0, [tmp_path])
    assert (tmp_path / file_name(0)).read_bytes() == b"theirs"
    maker.make(0, [tmp_path, tmp_path / "other"]).close()


# No descriptors


class Descriptors:
    """How many descriptors are left, for directories and mappings each by itself."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.none_for = ""
        real_open, real_map = os.open, mmap.mmap

        def open_(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            if self.none_for == ("directory" if flags & os.O_DIRECTORY else "file"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
            return real_open(path, flags, *arguments, **more)

        def map_(*arguments: Any, **more: Any) -> Any:
            if self.none_for == "mapping":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real_map(*arguments, **more)

        patch.setattr(os, "open", open_)
        patch.setattr("mmap.mmap", map_)


@pytest.mark.parametrize("missing", ["file", "directory", "mapping"])
def test_no_descriptor_for_the_next_file_is_soon_over(
    options: StoreOptions, monkeypatch: pytest.MonkeyPatch, events: list[Any], missing: str
) -> None:
    store = opened(options)
    fill(store, 1)
    descriptors = Descriptors(monkeypatch)
    descriptors.none_for = missing
    while (result := put(store, BODY)).status is PutStatus.PUT_OK:
        pass
    assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    refusal = store.file_refusal
    assert isinstance(refusal, FileNotMade)
    assert refusal.is_out_of_descriptors
    assert "allow the broker more open files" in str(refusal)
    with pytest.raises(FileNotMade):
        store.prepare_next_file()
    assert store.read_only_reason is None
    assert [event for event, _ in events] == ["log_file_not_made"], "no directory is to blame"
    descriptors.none_for = ""
    assert put(store, BODY).status is PutStatus.PUT_OK, "at once: to try costs nothing"
    assert store.is_writable
    fill(store, 2)
    count = len(bodies(store))
    assert sum(map(len, placed(options))) == 5
    assert store.close()
    again = opened(options)
    assert len(bodies(again)) == count
    assert again.close()


def test_a_file_that_cannot_be_mapped_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = Descriptors(monkeypatch)
    descriptors.none_for = "mapping"
    with pytest.raises(OSError, match="Too many open files"):
        MappedFile(tmp_path / "file", FILE, 0, create=True)
    assert list(tmp_path.iterdir()) == []
