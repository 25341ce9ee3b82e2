"""Make a log file's pages ready before it is used, and keep them in memory (RocketMQ: warmMappedFile, mlock).

The first write to a page of a mapping waits until the system has given it a page of memory, and the file system a place
on the disk. After a warm-up no append waits for that. Appends may go on while a file is warmed.
"""

from __future__ import annotations

import os

from reput_broker.store.file_io import PAGE_BYTES, sync_data
from reput_broker.store.mapped_file import MappedFile
from reput_broker.store.memory_pages import lock_pages, populate_pages, unlock_pages

STEP_PAGES = 4096
"""So many pages are made ready with one call (RocketMQ: flushLeastPagesWhenWarmMapedFile)."""


def warm_up(file: MappedFile, *, sync: bool) -> OSError | None:
    """Fetch every page of a file and keep it in memory. Blocks: 1 GiB takes a second, and longer if it is synced.

    Args:
        file: which; nothing happens if it is shut down.
        sync: sync after every step, since pages that were made ready have to be written some time; otherwise the system
            does that when it likes.

    Returns:
        Why the pages cannot be kept in memory, None if they are.
    """
    with file.mapping() as lent:
        if lent is None:
            return None
        fd, mapped = lent
        step = STEP_PAGES * PAGE_BYTES
        for start in range(0, file.size, step):
            populate_pages(mapped, start, min(step, file.size - start))
            if sync:
                sync_data(fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, file.size, os.POSIX_FADV_WILLNEED)
        return lock_pages(mapped)


def unlock(file: MappedFile) -> None:
    """Let the system drop the pages of a warmed file again."""
    with file.mapping() as lent:
        if lent is not None:
            unlock_pages(lent[1])
