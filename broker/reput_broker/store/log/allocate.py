"""Create the log's files before they are needed (RocketMQ: AllocateMappedFileService).

A file takes its whole size from the disk when it is created, so files are created late:

    file in use      less than half full    at least half full
    normally         none prepared          the next file is prepared
    in a hurry       the next is prepared   the next two are prepared

The log is in a hurry if the second half of the last file filled in less than `HURRY_FACTOR` times the time that
creating a file took. (RocketMQ always creates the next file as soon as the previous one is begun.)

The last file that a start finds may have holes, if another broker made it. Its disk space is reserved before the first
append.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reput_broker.store.base.errors import DiskFull, FileNotMade
from reput_broker.store.base.file_io import PAGE_BYTES, sync_data
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import MappedFileQueue
from reput_broker.store.log.memory_pages import lock_pages, populate_pages, unlock_pages

STEP_PAGES = 4096
"""Number of pages populated with one call (RocketMQ: flushLeastPagesWhenWarmMapedFile)."""


def warm_up(file: MappedFile, *, sync: bool) -> OSError | None:
    """Fault in every page of a file and lock it. Blocks: 1 GiB takes a second, longer if synced.

    Args:
        file: nothing happens if it is shut down.
        sync: sync after every step, instead of leaving the write-back to the system.

    Returns:
        Why the pages cannot be locked; None if they are.
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
    """Allow the system to evict the pages of a warmed file."""
    with file.mapping() as lent:
        if lent is not None:
            unlock_pages(lent[1])


CREATE_RETRY_MS = 1000
"""How long creating a file is not retried after it has failed."""
HURRY_FACTOR = 4
HURRY_MS_MIN = 500
"""A second half that fills in less than this is always a hurry."""
NEVER = 1 << 63


class AllocateMappedFile:
    """Decides when log files are created, and creates them.

    The thread that appends calls `entered` and `reached`; `prepare` and `unlock_full` may run in a worker thread.
    """

    def __init__(self, files: MappedFileQueue, options: StoreOptions, clock_ms: Callable[[], int]) -> None:
        self._files = files
        self._options = options
        self._clock_ms = clock_ms
        self.prepare_from = NEVER
        """Log offset at which `reached` is to be called."""
        self.is_in_hurry = False
        self._file: MappedFile | None = None
        self._mark: tuple[int, int] | None = None
        self._making_ms = 0
        self._found: MappedFile | None = None
        self._found_lock = threading.Lock()
        self._first_lock = threading.Lock()
        self._refusal: DiskFull | FileNotMade | None = None
        self._refused_at_ms = 0
        self._locked: deque[MappedFile] = deque()
        self._may_lock = options.warm_mapped_file

    # -- when ------------------------------------------------------------------------------------------

    def entered(self, file: MappedFile) -> None:
        """Note that appends go to this file from now on."""
        now_ms = self._clock_ms()
        offset = file.base_offset + file.wrote_position
        if self._mark is not None:
            filled, took_ms = offset - self._mark[0], now_ms - self._mark[1]
            limit_ms = max(HURRY_MS_MIN, HURRY_FACTOR * self._making_ms)
            # Extrapolated to half a file; unknown if the clock was set back.
            self.is_in_hurry = 0 <= took_ms * (file.size // 2) < filled * limit_ms
        self._mark = (offset, now_ms)
        self._file = file
        self.prepare_from = file.base_offset if self.is_in_hurry else self._half_of(file)

    def reached(self, offset: int) -> None:
        """Note that the log has grown past `prepare_from`."""
        file = self._file
        assert file is not None, "it has an offset"
        self._mark = (offset, self._clock_ms())
        self.prepare_from = NEVER if offset >= self._half_of(file) else self._half_of(file)

    @staticmethod
    def _half_of(file: MappedFile) -> int:
        return file.base_offset + (file.size + 1) // 2

    @property
    def wanted(self) -> int:
        """How many files should be prepared behind the one in use."""
        file = self._file
        if file is None:
            return 0
        return int(2 * file.wrote_position >= file.size) + self.is_in_hurry

    @property
    def should_prepare(self) -> bool:
        """Whether too few files are prepared, or the file that a start found is not reserved on disk yet.

        Also after a put could not get the file that it needed.
        """
        return self._found is not None or self.refusal is not None or self.wanted > self._files.prepared_count

    @property
    def refusal(self) -> DiskFull | FileNotMade | None:
        """Why the next append that needs a file cannot have one, by the last attempt."""
        return None if self._files.prepared_count else self._refusal

    # -- how -------------------------------------------------------------------------------------------

    def note_found(self, file: MappedFile) -> None:
        """Note the last file that a start found: nothing may be appended to it before `reserve_found`."""
        self._found = file

    @property
    def has_found(self) -> bool:
        """Whether the disk space of that file is still to be reserved."""
        return self._found is not None

    def reserve_found(self) -> None:
        """Reserve the disk space of that file, if still needed. Blocks. Raises as `prepare` does."""
        with self._found_lock:  # never twice: another thread may already write to the file
            file = self._found
            if file is None:
                return
            with self._unless_just_refused():
                try:
                    file.reserve_space()
                except OSError as error:
                    raise FileNotMade(file.path, error) from error
            self._found = None
            self._refusal = None

    def prepare(self) -> bool:
        """Create a file if fewer than needed are prepared; return False if none was created. Blocks.

        The disk space of the file that a start found is reserved first, because the next append needs it. An empty log
        gets its first file here only after a put could not have it.

        Raises:
            DiskFull, FileNotMade: there is no room, or it cannot be created for another reason, now or in the last
                second.
        """
        if self._found is not None:
            self.reserve_found()
            return False
        started_ms = self._clock_ms()
        if self._file is None and self._refusal is not None:
            self.make_first()
            return True
        with self._unless_just_refused():
            file = self._files.prepare_next(max(1, self.wanted))
        if file is None:
            return False
        self._refusal = None
        if self._options.warm_mapped_file:
            self._warm_up(file)
        self._making_ms = max(0, self._clock_ms() - started_ms)
        return True

    def make_first(self, start_offset: int = 0) -> None:
        """Create the first file of an empty log, the one with this offset. Raises as `prepare` does."""
        # A worker may be creating it for an earlier put.
        with self._first_lock, self._unless_just_refused():
            self._files.last_file_for(start_offset, create=True)
        self._refusal = None

    def make_needed(self) -> None:
        """Create the file that a put needs now, unless one is prepared. Raises as `prepare` does."""
        with self._unless_just_refused():
            self._files.prepare_next()
        self._refusal = None

    @contextmanager
    def _unless_just_refused(self) -> Iterator[None]:
        """Skip an attempt to create a file shortly after one failed, because every put would pay for it.

        A lack of descriptors shows immediately and may end immediately, so it is not waited for.
        """
        now, refusal = self._clock_ms(), self._refusal
        is_dear = isinstance(refusal, DiskFull) or (refusal is not None and not refusal.is_out_of_descriptors)
        if refusal is not None and is_dear and 0 <= now - self._refused_at_ms < CREATE_RETRY_MS:
            raise refusal.with_traceback(None)
        try:
            yield
        except (DiskFull, FileNotMade) as error:
            self._refusal = error
            self._refused_at_ms = now
            raise

    # -- warm-up ---------------------------------------------------------------------------------------------

    def _warm_up(self, file: MappedFile) -> None:
        refusal = warm_up(file, sync=self._options.flush_sync)
        if refusal is None:
            self._locked.append(file)
        elif self._may_lock:
            self._may_lock = False  # reported once; the limit is the same for the next file
            facts = {"what": str(file.path), "size_bytes": file.size, "reason": refusal.strerror}
            self._options.on_event("memory_not_locked", facts)

    @property
    def has_full_to_unlock(self) -> bool:
        """Whether `unlock_full` has something to do."""
        return bool(self._locked) and self._locked[0].is_full

    def unlock_full(self) -> None:
        """Allow the system to evict the pages of files that are full (RocketMQ: unlockMappedFile)."""
        while self.has_full_to_unlock:
            unlock(self._locked.popleft())
