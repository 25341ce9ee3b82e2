"""Keep pages of a mapping in memory: system calls that Python does not offer.

A refusal, by a limit (`ulimit -l`) or a system without the call, is a return value and not an exception. They release
the interpreter lock: locking a gibibyte can take most of a second.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time

from reput_broker.store.base.file_io import PAGE_BYTES

_MADV_POPULATE_WRITE = 23  # Linux 5.14 and later
_TOUCH_PAGES = 64


def lock_pages(mapped: mmap.mmap) -> OSError | None:
    """Fault in and lock every page of a writable mapping; return why that failed, None on success."""
    return _call("mlock", mapped, 0, len(mapped))


def unlock_pages(mapped: mmap.mmap) -> None:
    """Allow the system to evict the pages of a mapping."""
    _call("munlock", mapped, 0, len(mapped))


def populate_pages(mapped: mmap.mmap, start: int, size: int) -> None:
    """Populate the pages of a range for writing, so that their first write causes no fault.

    The contents stay the same, even if another thread writes meanwhile. `start` is a multiple of the page size.
    """
    if _call("madvise", mapped, start, size, _MADV_POPULATE_WRITE) is None:
        return
    # Each page's first byte is copied onto itself, which the interpreter lock makes atomic. The lock is
    # released after every few pages, because a fault can take long.
    with memoryview(mapped) as view:
        for first in range(start, start + size, _TOUCH_PAGES * PAGE_BYTES):
            with view[first : min(first + _TOUCH_PAGES * PAGE_BYTES, start + size) : PAGE_BYTES] as pages:
                pages[:] = pages
            time.sleep(0)


def _call(name: str, mapped: mmap.mmap, start: int, size: int, *arguments: int) -> OSError | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    begin = ctypes.c_char.from_buffer(mapped, start)  # keeps the mapping open
    address = ctypes.c_void_p(ctypes.addressof(begin))
    if function(address, ctypes.c_size_t(size), *arguments) == 0:
        return None
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))
