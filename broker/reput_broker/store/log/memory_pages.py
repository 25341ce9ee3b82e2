"""Ask the system to keep pages of a mapping in memory: the calls that Python itself does not offer.

All of them are wishes. A limit (`ulimit -l`) or a system without the call refuses them, which costs speed and nothing
else, so that a refusal is an answer here and no exception. They release the interpreter lock: to lock a gibibyte can
take most of a second.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time

from reput_broker.store.file_io import PAGE_BYTES

_MADV_POPULATE_WRITE = 23  # Linux 5.14 and later
_TOUCH_PAGES = 64


def lock_pages(mapped: mmap.mmap) -> OSError | None:
    """Fetch every page of a writable mapping and keep it in memory; None if that was done, else why not."""
    return _call("mlock", mapped, 0, len(mapped))


def unlock_pages(mapped: mmap.mmap) -> None:
    """Let the system drop the pages of a mapping again."""
    _call("munlock", mapped, 0, len(mapped))


def populate_pages(mapped: mmap.mmap, start: int, size: int) -> None:
    """Have the pages of a stretch ready to be written: in memory, and in this process's page table.

    Afterwards the first write to a page costs no fault. What the pages hold stays as it is, also if somebody writes to
    them meanwhile. `start` is a multiple of the page size.
    """
    if _call("madvise", mapped, start, size, _MADV_POPULATE_WRITE) is None:
        return
    # Each page's first byte is copied onto itself, which the interpreter lock makes one step. It is let go of after
    # every few pages: a fault can take long, and nobody else runs meanwhile.
    with memoryview(mapped) as view:
        for first in range(start, start + size, _TOUCH_PAGES * PAGE_BYTES):
            with view[first : min(first + _TOUCH_PAGES * PAGE_BYTES, start + size) : PAGE_BYTES] as pages:
                pages[:] = pages
            time.sleep(0)


def _call(name: str, mapped: mmap.mmap, start: int, size: int, *arguments: int) -> OSError | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    begin = ctypes.c_char.from_buffer(mapped, start)  # holds the mapping open until it goes
    address = ctypes.c_void_p(ctypes.addressof(begin))
    if function(address, ctypes.c_size_t(size), *arguments) == 0:
        return None
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))
