"""Replace a directory by another one in one step: a kill leaves the old one or the new one.

Linux exchanges two names atomically (renameat2 with RENAME_EXCHANGE). Where that is not supported, two renames are
used; between them the name is missing and the old directory is called `NAME.replaced`. Opening a store for writing
first calls `put_back`, which undoes that; readers use the path that `standing_for` returns. Otherwise a queue whose
messages have all left the log would begin again at queue offset 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from reput_broker.store.base.errors import ForeignFile
from reput_broker.store.base.file_io import sync_directory
from reput_protocol.store.files import replaced, standing_for

SWAPPED = ("consumequeue", "index")
"""Directories of a store that may be replaced."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# EPERM: a sandbox that does not know the call; a plain rename then shows a real refusal.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one file system atomically; durable once their directory is synced.

    Returns:
        False, with nothing done, if that is not supported.

    Raises:
        OSError: the names are unchanged.
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
    """Move a directory to the place of another, which gets its name. Durable on return.

    The contents of the new one must be on disk, and both must have the same parent.

    Raises:
        OSError: the old directory is in its place.
        FlushFailed: it is unknown which of them is there on disk: remove neither.
    """
    if not place.is_dir():
        os.rename(new, place)
    elif not exchange(new, place):
        old = replaced(place)
        if old.exists():
            raise ForeignFile(old, "a directory has to be moved to this name; move it away")
        os.rename(place, old)
        try:
            sync_directory(place.parent)
            os.rename(new, place)
        except BaseException:
            os.rename(old, place)
            raise
        sync_directory(place.parent)
        with contextlib.suppress(OSError):  # otherwise it stays under the other name
            os.rename(old, new)
    sync_directory(place.parent)


def is_out_of_place(root: Path) -> bool:
    """Whether `put_back` has something to do."""
    return any(standing_for(root / name) != root / name for name in SWAPPED)


def put_back(root: Path) -> list[Path]:
    """Rename directories back that a kill left between the two renames. Durable on return.

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
