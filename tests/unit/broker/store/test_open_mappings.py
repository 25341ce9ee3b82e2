"""Files of log and index that are full and on the disk take no descriptors while no reader uses them."""

from __future__ import annotations

import errno
import os
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.errors import ForeignFile
from reput_broker.store.index.file import IndexFile
from reput_broker.store.log.mapped_file import MappedFile, OpenMappings
from reput_broker.store.log.mapped_file_queue import MappedFileQueue

SIZE = 4096


def descriptors_of(directory: Path) -> int:
    """How many descriptors of this process lead to files of a directory."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith(f"{directory}/") for link in links)


def stream_of(directory: Path, count: int, open_max: int) -> MappedFileQueue:
    """A log of `count` full files, each filled with its number, and one that is written."""
    stream = MappedFileQueue(directory, SIZE, open_max=open_max)
    stream.load()
    for number in range(count):
        file = stream.last_file_for()
        assert file is not None
        file.append(bytes([number]) * SIZE)
        stream.flush()
    assert stream.last_file_for() is not None
    return stream


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[MappedFileQueue]:
    made = stream_of(tmp_path / "log", 20, 3)
    yield made
    made.close()


def byte_of(file: MappedFile) -> int:
    assert file.hold()
    try:
        with file.slice(SIZE - 1, 1) as view:
            return view[0]
    finally:
        file.release()


def test_a_log_of_many_files_keeps_few_open_and_reads_them_all(stream: MappedFileQueue) -> None:
    assert descriptors_of(stream.directory) <= 2 * 4
    for _ in range(2):
        assert [byte_of(file) for file in stream.files[:20]] == list(range(20))
        assert [file.read_at(0, 1)[0] for file in stream.files[:20]] == list(range(20))
        assert descriptors_of(stream.directory) <= 2 * 4


def test_so_does_one_that_is_opened_again(stream: MappedFileQueue) -> None:
    stream.close()
    assert descriptors_of(stream.directory) == 0
    again = MappedFileQueue(stream.directory, SIZE, open_max=3)
    again.load()
    assert descriptors_of(stream.directory) <= 2 * 3
    assert [byte_of(file) for file in again.files[:20]] == list(range(20))
    again.close()
    assert descriptors_of(stream.directory) == 0


def test_a_file_that_is_held_stays_open(stream: MappedFileQueue) -> None:
    held = stream.files[0]
    assert held.hold()
    view = held.slice(0, SIZE)
    for file in stream.files[:20]:
        byte_of(file)
    assert not held.rest()
    assert bytes(view) == bytes(SIZE)
    view.release()
    held.release()
    assert held.rest()


def test_a_file_that_is_not_full_or_not_on_the_disk_does_not_rest(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "0", SIZE, 0, create=True)
    file.append(b"x" * (SIZE - 1))
    file.flush()
    assert not file.rest()
    file.append(b"y")
    assert not file.rest()
    file.flush()
    assert file.rest()
    assert byte_of(file) == ord("y")
    file.close()
    assert not file.hold()


def test_a_file_with_a_slice_that_was_kept_stays_open_and_readable(stream: MappedFileQueue) -> None:
    file = stream.files[0]
    assert file.hold()
    kept = file.slice(0, SIZE)
    file.release()
    assert not file.rest()
    assert byte_of(file) == kept[0] == 0
    kept.release()
    assert file.rest()
    assert byte_of(file) == 0


def test_files_at_rest_are_deleted_and_truncated_like_others(stream: MappedFileQueue) -> None:
    assert stream.delete_first()
    assert not (stream.directory / f"{0:020d}").exists()
    stream.truncate_dirty_files(SIZE * 5 + 10)
    file = stream.last_file_for()
    assert file is not None
    assert file.append(b"after") == SIZE * 5 + 10
    assert file.read_at(9, 6) == b"\x05after"
    assert not file.rest()


def test_another_file_of_the_same_name_is_not_read(stream: MappedFileQueue) -> None:
    resting = stream.files[2]
    assert resting.rest()
    shutil.copy(resting.path, stream.directory / "copy")
    os.replace(stream.directory / "copy", resting.path)
    with pytest.raises(ForeignFile, match="not the file that was there"):
        resting.hold()


def test_a_file_without_a_name_does_not_rest(stream: MappedFileQueue) -> None:
    file = stream.files[2]
    byte_of(file)
    file.path.unlink()
    assert not file.rest()


def index_files(directory: Path, count: int, mappings: OpenMappings) -> list[IndexFile]:
    """Full index files, each with one key and its number as offset."""
    directory.mkdir()
    files = []
    for number in range(count):
        file = IndexFile(directory / f"{number:017d}", 10, 3, create=True)
        file.mappings = mappings
        for place in (number, number + 1000):
            file.insert(array("q", (7, place, 1000)), 0, 1)
        file.flush()
        mappings.opened(file)
        files.append(file)
    return files


def test_unmapped_index_files_are_still_searched(tmp_path: Path) -> None:
    directory = tmp_path / "index"
    files = index_files(directory, 20, OpenMappings(3))
    for _ in range(2):
        assert descriptors_of(directory) <= 2 * 3
        assert [list(file.find(7, 0, 2000)) for file in files] == [[n + 1000, n] for n in range(20)]
    search = files[0].find(7, 0, 2000)
    assert next(search) == 1000
    assert files[0].rest()
    assert next(search) == 0, "a search that has begun continues"
    del search
    for file in files:
        file.flush()
        file.close()
        assert list(file.find(7, 0, 2000)) == []
    assert descriptors_of(directory) == 0


def test_an_index_file_that_takes_keys_or_is_not_on_the_disk_does_not_rest(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "00000000000000001", 10, 3, create=True)
    for place in (1, 2):
        assert not file.rest()
        file.insert(array("q", (7, place, 1000)), 0, 1)
    assert file.is_full
    assert not file.rest()
    file.flush()
    assert file.rest()
    file.close()


def test_without_a_free_descriptor_another_file_rests_first(
    stream: MappedFileQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting = stream.files[0]
    assert resting.rest()
    open_before = descriptors_of(stream.directory)
    real_open = os.open

    def open_if_free(*arguments: Any, **options: Any) -> int:
        if descriptors_of(stream.directory) >= open_before:
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_if_free)
        assert byte_of(resting) == 0
    for file in stream.files[:20]:
        file.rest()
    monkeypatch.setattr(os, "open", _none_free)
    with pytest.raises(OSError, match="Too many"):
        resting.hold()


def _none_free(*_: Any, **__: Any) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_reading_ahead_is_set_once_for_each_open_descriptor(
    stream: MappedFileQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advice.append(arguments[3]))
    wanted = True
    stream.mappings.reads_ahead = lambda: wanted
    file = stream.files[0]

    def read() -> list[int]:
        assert file.read_at(0, 8) == bytes(8)
        assert file.read_into(0, [memoryview(bytearray(8))], wait=True) if file.hold() else False
        file.release()
        found, advice[:] = [*advice], []
        return found

    assert read() == [], "it is the system's default"
    wanted = False
    assert read() == [os.POSIX_FADV_RANDOM]
    assert read() == []
    assert file.rest()
    assert read() == [os.POSIX_FADV_RANDOM], "the descriptor is another one"
    wanted = True
    assert read() == [os.POSIX_FADV_NORMAL]
