"""Ordered, preallocated files named by their first offset: every operation, and what a directory may hold."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_broker.store.base.errors import DiskFull, FileNotMade, FlushFailed, ForeignFile, StoreDamaged
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import MappedFileQueue

SIZE = 4096


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[MappedFileQueue]:
    queue = MappedFileQueue(tmp_path / "log", SIZE)
    queue.load()
    yield queue
    queue.close()


def fill(stream: MappedFileQueue, size: int, start: int = 0) -> None:
    """Append `size` bytes, each file to its brim."""
    while size:
        file = stream.last_file_for(start)
        assert file is not None
        part = min(size, file.size - file.wrote_position)
        file.append(b"x" * part)
        size -= part


def names(stream: MappedFileQueue) -> list[int]:
    return [int(path.name) for path in sorted(stream.directory.iterdir())]


def test_an_empty_stream(stream: MappedFileQueue) -> None:
    assert stream.first_file is None
    assert stream.last_file is None
    assert stream.last_file_for(0, create=False) is None
    assert (stream.min_offset, stream.max_offset, stream.max_wrote_position) == (-1, 0, 0)
    assert stream.find_by_offset(0) is None


def test_a_stream_begins_with_the_file_that_contains_its_start(stream: MappedFileQueue) -> None:
    file = stream.last_file_for(3 * SIZE + 5)
    assert file is not None
    assert file.base_offset == 3 * SIZE
    assert names(stream) == [3 * SIZE]
    assert stream.min_offset == 3 * SIZE
    assert file.path.stat().st_blocks * 512 >= SIZE, "the file is allocated, not sparse"


def test_appends_roll_and_offsets_are_found(stream: MappedFileQueue) -> None:
    fill(stream, 2 * SIZE + 100)
    assert names(stream) == [0, SIZE, 2 * SIZE]
    assert stream.max_wrote_position == stream.max_offset == 2 * SIZE + 100
    for offset, base in ((0, 0), (SIZE - 1, 0), (SIZE, SIZE), (3 * SIZE - 1, 2 * SIZE)):
        found = stream.find_by_offset(offset)
        assert found is not None
        assert found.base_offset == base
    assert stream.find_by_offset(3 * SIZE) is None
    full = stream.files[0]
    assert stream.last_file_for(0, create=False) is stream.last_file
    assert full.is_full


def test_what_is_to_commit_and_to_flush_shrinks_with_commit_and_flush(stream: MappedFileQueue) -> None:
    fill(stream, SIZE + 10)
    assert (stream.committed_where, stream.bytes_to_flush) == (0, SIZE + 10)
    stream.commit()
    assert stream.committed_where == SIZE + 10
    while stream.bytes_to_flush:
        stream.flush()
    assert stream.flushed_where == SIZE + 10
    assert all(file.flushed_position <= file.committed_position <= file.wrote_position for file in stream.files)


def test_truncate_dirty_files_deletes_what_follows(stream: MappedFileQueue) -> None:
    fill(stream, 3 * SIZE)
    stream.truncate_dirty_files(SIZE + 7)
    assert names(stream) == [0, SIZE]
    assert stream.max_wrote_position == SIZE + 7


def test_a_prepared_file_is_adopted(stream: MappedFileQueue) -> None:
    fill(stream, SIZE)
    assert stream.prepare_next() is not None
    assert stream.prepared_count == 1
    assert names(stream) == [0, SIZE]
    assert len(stream.files) == 1, "it belongs to the stream only once it is needed"
    fill(stream, 1)
    assert [file.base_offset for file in stream.files] == [0, SIZE]
    assert stream.prepared_count == 0


def test_a_full_disk_leaves_the_stream_and_the_directory_as_they_were(
    stream: MappedFileQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream, SIZE)

    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(DiskFull, match="no space"):
            stream.last_file_for()
    assert names(stream) == [0]
    fill(stream, 1)
    assert names(stream) == [0, SIZE]


def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = MappedFile(tmp_path / "f", SIZE, 0, create=True)
    file.append(b"data")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(FlushFailed):
            file.flush()
    with pytest.raises(FlushFailed):
        file.flush()
    assert file.flushed_position == 0
    file.close()


def test_a_file_that_is_held_outlives_its_destruction(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "f", SIZE, 0, create=True)
    file.append(b"held bytes")
    assert file.hold()
    view = file.slice(0, 10)
    assert file.destroy(1_000_000) is False
    assert bytes(view) == b"held bytes"
    assert file.hold() is False, "no new readers"
    view.release()
    file.release()
    assert file.destroy(0) is True
    assert not (tmp_path / "f").exists()


def test_published_bytes_appear_with_the_first_eight_last(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "f", SIZE, 0, create=True)
    data = bytes(range(1, 101))
    assert file.write_published(data) == 0
    assert file.read_at(0, 100) == data
    assert file.wrote_position == 100
    file.close()


LARGE = 300 * 1024


@pytest.mark.parametrize("taken", ["all", "a part", "none"])
def test_a_large_append_is_whole_whatever_the_system_takes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    file = MappedFile(tmp_path / "f", 1 << 20, 0, create=True)
    data = os.urandom(LARGE)
    file.append(b"before")
    pwrite, seen = os.pwrite, []

    def some(fd: int, given: memoryview, position: int) -> int:
        seen.append(os.pread(fd, 8, position - 8))
        if taken == "none":
            raise OSError(errno.EIO, "the disk does not answer")
        return pwrite(fd, given if taken == "all" else given[: len(given) // 2], position)

    monkeypatch.setattr(os, "pwrite", some)
    assert file.write_published(data) == 6
    assert seen == [bytes(8)], "the first eight bytes appear last"
    assert file.read_at(0, 6 + LARGE + 1) == b"before" + data
    assert file.copy_of(6, LARGE) == data
    assert bytes(file.slice(6, LARGE)) == data, "seen through the mapping, too"
    file.close()


def test_a_copy_is_what_was_written_however_large_it_is(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "f", 1 << 20, 0, create=True)
    data = os.urandom(LARGE)
    file.append(data)
    for position, size in ((0, 10), (5, 40_000), (0, LARGE)):
        assert file.copy_of(position, size) == data[position : position + size]
    for size in (10, 40_000):
        with pytest.raises(ValueError, match="readable bytes"):
            file.copy_of(LARGE - 5, size)
    file.close()


@pytest.mark.parametrize(
    ("files", "error", "says"),
    [
        ({"0" * 20: SIZE, "notes.txt": 3}, ForeignFile, "notes.txt"),
        ({"0" * 20: 100, f"{SIZE:020}": SIZE}, ForeignFile, "0" * 20),
        ({"0" * 20: SIZE, f"{SIZE:020}": SIZE - 1}, ForeignFile, f"{SIZE:020}"),
        ({"0" * 20: SIZE, f"{2 * SIZE:020}": SIZE}, StoreDamaged, "missing"),
        ({"7".zfill(20): SIZE}, ForeignFile, "7"),
    ],
)
def test_foreign_files_stop_the_load_and_stay(
    tmp_path: Path, files: dict[str, int], error: type[Exception], says: str
) -> None:
    for name, size in files.items():
        (tmp_path / name).write_bytes(b"\1" * size)
    with pytest.raises(error, match=says):
        MappedFileQueue(tmp_path, SIZE).load()
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == files


def test_an_empty_last_file_does_not_count_and_subdirectories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ("0" * 20)).write_bytes(b"\1" * SIZE)
    (tmp_path / f"{SIZE:020}").touch()
    (tmp_path / "other").mkdir()
    stream = MappedFileQueue(tmp_path, SIZE)
    stream.load()
    assert [file.base_offset for file in stream.files] == [0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0" * 20, f"{SIZE:020}", "other"]
    stream.drop_unfinished()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0" * 20, "other"]
    stream.close()


def test_a_directory_whose_name_could_not_be_synced_is_not_taken_for_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left there, the next attempt would find it and sync nothing; a power cut could take it with all its files."""
    queue = MappedFileQueue(tmp_path / "commitlog", 4096)
    real = os.fsync
    synced: list[str] = []

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(FileNotMade, match="check the disk"):
            queue.last_file_for()
    assert not queue.directory.exists()

    def sync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    assert queue.last_file_for() is not None
    assert str(tmp_path) in synced
