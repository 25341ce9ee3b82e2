"""The files of a store directory and their sizes, read from the files and not from a configuration.

Every stream (the log, each queue) is in files of one size, named by the offset of their first byte. Opening a store
stops at the first file that does not fit; here all are reported.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from reput_protocol.store.files import file_name, holds_only_zeros, is_file_name, standing_for
from reput_protocol.store.unit import UNIT_BYTES


class StreamFile(NamedTuple):
    """One file of a stream."""

    path: Path
    start: int
    size: int
    """Actual size: less than the stream's `file_size` if it is truncated."""

    @property
    def end(self) -> int:
        """Offset after its last byte."""
        return self.start + self.size


class OddFile(NamedTuple):
    """A file that does not belong to its stream or has a wrong size."""

    path: Path
    position: int
    reason: str


@dataclass(slots=True)
class Stream:
    """The files of one stream in the order of their offsets, and what is wrong with them."""

    directories: tuple[Path, ...]
    files: list[StreamFile] = field(default_factory=list)
    file_size: int = 0
    """Size of each file; 0 without files."""
    odd: list[OddFile] = field(default_factory=list)

    @property
    def min_offset(self) -> int:
        """Start of the first file; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def total_bytes(self) -> int:
        """Total size of all files."""
        return sum(file.size for file in self.files)

    def find(self, offset: int) -> StreamFile | None:
        """Return the file that holds the byte at `offset`, or None."""
        after = bisect_right(self.files, offset, key=attrgetter("start"))
        file = self.files[after - 1] if after else None
        return file if file is not None and offset < file.end else None

    def place(self, offset: int) -> tuple[Path, int]:
        """Return the file that has, or would have, the byte at `offset`, and its position there."""
        file = self.find(offset)
        if file is not None:
            return file.path, offset - file.start
        size = self.file_size or 1
        return self.directories[0] / file_name(offset - offset % size), offset % size


@dataclass(slots=True)
class QueueDirectory:
    """One directory `consumequeue/TOPIC/QUEUEID`."""

    topic: str
    queue_id: int
    stream: Stream


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes known to the caller; those that are 0 are read from the files."""

    commit_log_file_size: int = 0
    consume_queue_entries: int = 0
    index_slots: int = 0
    index_entries: int = 0


class StoreLayout:
    """The streams of one directory, even if a killed rebuild left queues or index under another name.

    Args:
        commit_log_dirs: directories of the log, if not `commitlog`; RocketMQ may spread it over
            several.
        geometry: known sizes.
    """

    def __init__(self, root: Path, commit_log_dirs: Sequence[Path] = (), geometry: Geometry | None = None) -> None:
        geometry = geometry or Geometry()
        self.root = root
        self.geometry = geometry
        self.log = read_stream(tuple(commit_log_dirs) or (root / "commitlog",), geometry.commit_log_file_size)
        self.consume_queue_dir = root / "consumequeue"
        self.queue_file_size = geometry.consume_queue_entries * UNIT_BYTES
        directories = list(_queue_directories(standing_for(self.consume_queue_dir)))
        if not self.queue_file_size:
            self.queue_file_size = most_common_size(
                entry.stat().st_size for _, _, path in directories for entry in os.scandir(path) if entry.is_file()
            )
        self.queues = [
            QueueDirectory(topic, queue_id, read_stream((path,), self.queue_file_size))
            for topic, queue_id, path in directories
        ]

    @property
    def abort(self) -> Path:
        """The marker of a broker that runs, or did not stop in order."""
        return self.root / "abort"

    @property
    def config_dir(self) -> Path:
        """Directory of the tables."""
        return self.root / "config"

    @property
    def index_dir(self) -> Path:
        """Directory of the index files."""
        return self.root / "index"

    def index_files(self) -> list[Path]:
        """Return the index files, oldest first (like RocketMQ's IndexService, names that are numbers)."""
        directory = standing_for(self.index_dir)
        if not directory.is_dir():
            return []
        return sorted(
            path for path in directory.iterdir() if path.is_file() and path.name.isascii() and path.name.isdecimal()
        )


def _without_leftovers(files: list[StreamFile]) -> list[StreamFile]:
    """Drop leftovers of files that were created in another directory instead."""
    kept: list[StreamFile] = []
    for file in files:
        if kept and kept[-1].start == file.start:
            if holds_only_zeros(file.path, file.size):
                continue
            if holds_only_zeros(kept[-1].path, kept[-1].size):
                kept.pop()
        kept.append(file)
    return kept


def read_stream(directories: tuple[Path, ...], file_size: int = 0) -> Stream:
    """List the files of a stream; with a `file_size` of 0 determine it.

    Sub-directories are skipped, as at a start. An empty last file does not count.
    """
    found = [
        (Path(entry.path), entry.stat().st_size)
        for directory in directories
        if directory.is_dir()
        for entry in os.scandir(directory)
        if not entry.is_dir()
    ]
    return stream_of(directories, found, file_size)


def stream_of(directories: tuple[Path, ...], found: Iterable[tuple[Path, int]], file_size: int = 0) -> Stream:
    """Return the stream of the files that were found in its directories, with their sizes, as `read_stream`."""
    stream = Stream(directories)
    for path, size in found:
        if not is_file_name(path.name):
            stream.odd.append(OddFile(path, 0, "its name is not a 20-digit offset; move it out of the directory"))
            continue
        stream.files.append(StreamFile(path, int(path.name), size))
    stream.files.sort(key=lambda file: (file.start, file.path))
    stream.files = _without_leftovers(stream.files)
    if stream.files and stream.files[-1].size == 0:
        stream.files.pop()
    stream.file_size = file_size or _guess_size(stream.files)
    size = stream.file_size
    kept: list[StreamFile] = []
    for file in stream.files:
        if kept and file.start == kept[-1].start:
            twin = kept[-1].path.parent
            stream.odd.append(
                OddFile(file.path, 0, f"{twin} has a file of that name too, and only one can be part of the log")
            )
            continue
        if file.start % size or (kept and file.start < kept[-1].start + size):
            stream.odd.append(
                OddFile(file.path, 0, f"its name is not a multiple of the file size {size} of this stream")
            )
            continue
        if file.size != size:
            stream.odd.append(
                OddFile(file.path, min(file.size, size), f"it has {file.size} bytes and must have {size}")
            )
        if kept and file.start > kept[-1].start + size:
            missing = kept[-1].start + size
            stream.odd.append(
                OddFile(
                    file.path.with_name(file_name(missing)),
                    0,
                    f"the file is missing between {kept[-1].path.name} and {file.path.name}",
                )
            )
        kept.append(file._replace(size=min(file.size, size)))
    stream.files = kept
    return stream


def _guess_size(files: Sequence[StreamFile]) -> int:
    """Return the distance of the names if a file has that size, else the most frequent size."""
    if not files:
        return 0
    steps = [after.start - before.start for before, after in pairwise(files)]
    step = min(steps, default=0)
    if step and any(file.size == step for file in files):
        return step
    common = most_common_size(file.size for file in files)
    fits = common and all(file.start % common == 0 for file in files)
    return common if fits else max(step, common, 1)


def most_common_size(sizes: Iterable[int]) -> int:
    """Return the most common of the sizes that are not 0, the largest of several; 0 without any."""
    counts = Counter(size for size in sizes if size)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _queue_directories(root: Path) -> Iterable[tuple[str, int, Path]]:
    for topic in sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else ():
        for queue in sorted(topic.iterdir()):
            if queue.is_dir() and queue.name.isascii() and queue.name.isdecimal():
                yield topic.name, int(queue.name), queue
