"""Listing of the fixed-size files of a stream.

A file is named by the offset of its first byte in its stream, 20 decimal digits (RocketMQ: UtilAll,
MappedFileQueue). Listing a directory detects a wrong configuration and files of another origin.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from reput_broker.store.base.errors import ForeignFile, StoreDamaged
from reput_protocol.store.files import file_name, holds_only_zeros, is_file_name


def list_stream_files(
    directory: Path,
    file_size: int,
    unfinished: list[Path],
    *,
    strays: list[Path] | None,
) -> list[int]:
    """Return the start offsets of a stream's files, ascending and without a gap. Changes nothing.

    Sub-directories and an empty last file are skipped; that file is added to `unfinished` for the caller to remove.

    With `strays`, for a stream that can be rebuilt, the list ends where a file is missing or empty, because a power
    failure can lose unsynced names and lengths; the files from there on are added to `strays` for the caller to remove.

    Raises:
        ForeignFile: a name is not an offset, or a length is not `file_size`.
        StoreDamaged: a file between two others is missing.
    """
    files = list_files_of((directory,), file_size, unfinished, strays=strays)
    return [start for start, _ in files]


def list_files_of(
    directories: Iterable[Path],
    file_size: int,
    unfinished: list[Path],
    *,
    after_crash: bool = False,
    strays: list[Path] | None = None,
) -> list[tuple[int, Path]]:
    """Return start offset and directory entry of a stream's files in several directories.

    As `list_stream_files`. After a crash, a last file that is too short and holds only zeros is added to `unfinished`,
    too: a process was killed while it created the file. Of files with the same name, so are those that hold only zeros:
    the beginning of a file that could not be created there. A missing directory has no files.

    Raises:
        ForeignFile: also if two directories hold the same part of the stream and neither is empty.
        StoreDamaged: as `list_stream_files` does.
    """
    directories = tuple(directories)
    # With several directories, one that takes no new files may keep an unfinished one for more than
    # one run.
    may_be_begun = after_crash or len(directories) > 1
    entries = sorted(
        (entry.name, entry.stat().st_size, directory)
        for directory in directories
        if directory.is_dir()
        for entry in os.scandir(directory)
        if not entry.is_dir()
    )
    entries = _without_leftovers(entries, unfinished)
    files: list[tuple[int, Path]] = []
    for index, (name, size, directory) in enumerate(entries):
        path = directory / name
        start = _parse_start(path, file_size)
        if index and entries[index - 1][0] == name:
            raise ForeignFile(
                path,
                f"{entries[index - 1][2]} has a file of that name too, and only one can be part of the log; "
                "move the wrong one away",
            )
        expected = files[-1][0] + file_size if files else start
        if size != file_size:
            unwritten = size == 0 or (may_be_begun and size < file_size and holds_only_zeros(path, size))
            if index == len(entries) - 1 and unwritten:
                unfinished.append(path)
                break
            if strays is not None and size == 0:
                strays.append(path)
                continue
            raise ForeignFile(
                path,
                f"it has {size} bytes and the configured file size is {file_size}; "
                "open the directory with the size it was created with, or move the file away",
            )
        if strays or (strays is not None and start != expected):
            strays.append(path)
            continue
        if start != expected:
            before = files[-1][1]
            raise StoreDamaged(
                before.with_name(file_name(expected)),
                0,
                f"the file is missing between {before.name} and {name}",
                "restore it from a copy, or run `reput store repair`",
            )
        files.append((start, path))
    return files


def _without_leftovers(
    entries: list[tuple[str, int, Path]], unfinished: list[Path]
) -> list[tuple[str, int, Path]]:
    """Keep one of files with the same name that hold only zeros; add the others to `unfinished`."""
    kept: list[tuple[str, int, Path]] = []
    for name, twins in groupby(entries, key=itemgetter(0)):
        group = list(twins)
        for entry in group[:] if len(group) > 1 else ():
            if len(group) > 1 and holds_only_zeros(entry[2] / name, entry[1]):
                group.remove(entry)
                unfinished.append(entry[2] / name)
        kept += group
    return kept


def _parse_start(path: Path, file_size: int) -> int:
    name = path.name
    if not is_file_name(name):
        raise ForeignFile(path, "its name is not a 20-digit offset; move it out of the directory")
    start = int(name)
    if start % file_size:
        raise ForeignFile(
            path,
            f"its name is not a multiple of the configured file size {file_size}; "
            "open the directory with the size it was created with",
        )
    return start
