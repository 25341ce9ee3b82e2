"""One directory takes the place of another at once: being killed leaves the old one there, or the new one.

Linux exchanges two names in one step (renameat2 with RENAME_EXCHANGE). Where the system, or the file system, cannot do
that, there are two renames, and between them nothing is called NAME, and the old directory `NAME.replaced`. Whoever
opens a store to write calls `put_back` first, which ends that; who only reads takes what `standing_for` says.

It matters for the queues: a queue whose messages have all left the log cannot be made anew from it, and without its
files it would begin again at queue offset 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from reput_broker.store.errors import ForeignFile
from reput_broker.store.file_io import sync_directory

SWAPPED = ("consumequeue", "index")
"""Directories of a store whose place another may take."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# EPERM: a sandbox that does not know the call; a rename says whether it is meant.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def exchange(first: Path, second: Path) -> bool:
    """Let two names in one file system change places in one step; durable once their directory is synced.

    Returns:
        False, with nothing done, where this cannot be had.

    Raises:
        OSError: the names stay as they are.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def swap(new: Path, place: Path) -> None:
    """Let a directory take the place of another, which gets its name. Durable on return.

    What is in the new one must be on the disk, and both names must lie in the same directory.

    Raises:
        OSError: the old directory is in its place.
        FlushFailed: it is not known which of them is there on the disk: remove neither.
    """
    if not place.is_dir():
        os.rename(new, place)
    elif not exchange(new, place):
        old = replaced(place)
        if old.exists():
            raise ForeignFile(old, "a directory is to be set aside under this name; move it away")
        os.rename(place, old)
        try:
            sync_directory(place.parent)
            os.rename(new, place)
        except BaseException:
            os.rename(old, place)
            raise
        sync_directory(place.parent)
        with contextlib.suppress(OSError):  # it would only be left lying
            os.rename(old, new)
    sync_directory(place.parent)


def replaced(place: Path) -> Path:
    """What a directory is called between the two renames."""
    return place.with_name(place.name + ".replaced")


def standing_for(place: Path) -> Path:
    """Where a directory is found: at its place, or, after a kill between the two renames, under its other name."""
    old = replaced(place)
    return old if old.is_dir() and not place.exists() else place


def is_out_of_place(root: Path) -> bool:
    """Whether `put_back` has something to do."""
    return any(standing_for(root / name) != root / name for name in SWAPPED)


def put_back(root: Path) -> list[Path]:
    """Give directories of a store their names again that a kill left between the two renames. Durable on return.

    Returns:
        The places that were empty.
    """
    places = [root / name for name in SWAPPED if standing_for(root / name) != root / name]
    for place in places:
        os.rename(replaced(place), place)
    if places:
        sync_directory(root)
    return places


def take_out(places: Sequence[Path]) -> None:
    """Undo `put_back`."""
    for place in places:
        os.rename(place, replaced(place))
