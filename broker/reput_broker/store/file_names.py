"""Names and lists of the fixed-size files of one stream.

A file is named by the offset of its first byte in its stream, 20 decimal digits (RocketMQ: UtilAll,
MappedFileQueue). Loading a directory is where a wrong configuration or a stranger's file is noticed.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ForeignFile, StoreDamaged
from .file_io import is_all_zero

_NAME_DIGITS = 20
_OFFSET_MAX = (1 << 63) - 1


def file_name(base_offset: int) -> str:
    """Return the name of the file whose first byte is byte `base_offset` of its stream."""
    return f"{base_offset:020d}"


def list_stream_files(
    directory: Path,
    file_size: int,
    unfinished: list[Path],
    *,
    after_crash: bool = False,
    strays: list[Path] | None = None,
) -> list[int]:
    """Return the start offsets of a stream's files, ascending and without a gap. Changes nothing.

    Sub-directories are skipped. A last file of length 0 does not count. Nor does, after a crash, one that is shorter
    than it must be and holds nothing but zeros: a process leaves it that was killed while it created the file, and no
    byte was ever written to it. Such a file is added to `unfinished` for the caller to remove.

    A stream that can be made anew need not be refused for what a power cut does to names and lengths that were not
    synced: where a file is missing or has length 0, the list ends, and the files from there on are added to `strays`
    for the caller to remove.

    Raises:
        ForeignFile: a name is not an offset, or a length is not `file_size`.
        StoreDamaged: a file between two others is missing.
    """
    entries = sorted(
        ((entry.name, entry.stat().st_size) for entry in os.scandir(directory) if not entry.is_dir()),
    )
    starts: list[int] = []
    for index, (name, size) in enumerate(entries):
        path = directory / name
        start = _parse_start(path, file_size)
        if size != file_size:
            unwritten = size == 0 or (after_crash and size < file_size and _holds_only_zeros(path, size))
            if index == len(entries) - 1 and unwritten:
                unfinished.append(path)
                break
            if strays is not None and size == 0:
                strays.append(path)
                continue
            raise ForeignFile(
                path,
                f"it has {size} bytes and the configured file size is {file_size}; "
                "open the directory with the size it was made with, or move the file away",
            )
        if strays or (strays is not None and starts and start != starts[-1] + file_size):
            strays.append(path)
            continue
        if starts and start != starts[-1] + file_size:
            raise StoreDamaged(
                directory / file_name(starts[-1] + file_size),
                0,
                f"the file is missing between {file_name(starts[-1])} and {name}",
                "restore it from a copy, or run `reput store repair`",
            )
        starts.append(start)
    return starts


def _parse_start(path: Path, file_size: int) -> int:
    name = path.name
    if not (name.isascii() and name.isdecimal()) or len(name) != _NAME_DIGITS or int(name) > _OFFSET_MAX:
        raise ForeignFile(path, "its name is not a 20-digit offset; move it out of the directory")
    start = int(name)
    if start % file_size:
        raise ForeignFile(
            path,
            f"its name is not a multiple of the configured file size {file_size}; "
            "open the directory with the size it was made with",
        )
    return start


def _holds_only_zeros(path: Path, size: int) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return is_all_zero(fd, 0, size)
    finally:
        os.close(fd)
