"""Evict the files of a store from the page cache, load them, and measure how much is cached."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_PAGE = mmap.PAGESIZE
_PARTS = ("commitlog", "consumequeue", "index")
_PROCESS_MADVISE = 440
_MADV_PAGEOUT = 21
_libc = ctypes.CDLL(None, use_errno=True)


def drop(root: Path) -> None:
    """Sync log, queues and index of a store and evict them from the page cache; no process may have them open."""
    for path in _files(root):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def evict(pid: int, root: Path) -> None:
    """Evict the mapped log of a running broker, as the system does when memory is short.

    Raises:
        OSError: this process is not allowed to; it needs root.
    """
    process = os.pidfd_open(pid)
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(str(root / "commitlog")):
                start, end = (int(part, 16) for part in fields[0].split("-"))
                piece = (ctypes.c_size_t * 2)(start, end - start)
                told = _libc.syscall(_PROCESS_MADVISE, process, piece, 1, _MADV_PAGEOUT, 0)
                if told < 0:
                    raise OSError(ctypes.get_errno(), "process_madvise")
    finally:
        os.close(process)
    drop(root)


def warm(root: Path) -> None:
    """Read log, queues and index of a store into the page cache."""
    for path in _files(root):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def resident_share(root: Path) -> float:
    """Return the share of a store's log that is in the page cache (mincore)."""
    pages = held = 0
    for path in _files(root, parts=("commitlog",)):
        size = path.stat().st_size
        if not size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            count = -(-size // _PAGE)
            found = (ctypes.c_ubyte * count)()
            first = ctypes.c_char.from_buffer(mapped)
            failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found)
            del first  # a mapping with an exported pointer cannot be closed
            if failed:
                raise OSError(ctypes.get_errno(), "mincore")
            pages += count
            held += sum(byte & 1 for byte in found)
    return held / pages if pages else 0.0


def _files(root: Path, parts: tuple[str, ...] = _PARTS) -> Iterator[Path]:
    for part in parts:
        yield from sorted(path for path in (root / part).rglob("*") if path.is_file())
