"""Make the log's files before they are needed (RocketMQ: AllocateMappedFileService).

A file takes its whole size from the disk when it is made, so none is made long before its first byte:

    the file in use is     less than half full     at least half full
    at ease                nothing is ready        the next file is ready
    in a hurry             the next is ready       the next and the one after it are ready

At ease the next file is in time as long as making it takes less than filling half a file. Whether that is so, the end
of each file tells: if its second half filled in less than `HURRY_FACTOR` times what it took to make a file, the log is
in a hurry until a file shows otherwise, and everything happens one half to one whole file earlier. (RocketMQ makes the
next file as soon as the one before it is begun, hurry or not.)

The file that a start finds last is one that somebody else made, perhaps with holes where nothing was written yet. It is
set aside in full before the first append to it, as if it were made then.

With warm-up, pages are fetched and locked into memory after the file is made, so that no put waits for that either.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reput_broker.store.errors import DiskFull, FileNotMade
from reput_broker.store.file_io import PAGE_BYTES, sync_data
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import MappedFileQueue
from reput_broker.store.log.memory_pages import lock_pages, populate_pages, unlock_pages
from reput_broker.store.options import StoreOptions

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


CREATE_RETRY_MS = 1000
"""How long nobody tries again to make a file after that has failed."""
HURRY_FACTOR = 4
HURRY_MS_MIN = 500
"""A second half filled in less than this is a hurry however quickly files were made so far."""
NEVER = 1 << 63


class AllocateMappedFile:
    """Decides when log files are made, and makes them.

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

    # -- when ------------------------------------------------------------------------------------------------

    def entered(self, file: MappedFile) -> None:
        """Note that appends go to this file from now on."""
        now_ms = self._clock_ms()
        offset = file.base_offset + file.wrote_position
        if self._mark is not None:
            filled, took_ms = offset - self._mark[0], now_ms - self._mark[1]
            limit_ms = max(HURRY_MS_MIN, HURRY_FACTOR * self._making_ms)
            # Extrapolated to half a file. A clock that was set back says nothing.
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
        """How many files should lie ready behind the one in use."""
        file = self._file
        if file is None:
            return 0
        return int(2 * file.wrote_position >= file.size) + self.is_in_hurry

    @property
    def should_prepare(self) -> bool:
        """Whether fewer files lie ready than should, or the one that a start found is not set aside yet.

        Also when a put could not have the file that it needed: it is made before the next put asks.
        """
        return self._found is not None or self.refusal is not None or self.wanted > self._files.prepared_count

    @property
    def refusal(self) -> DiskFull | FileNotMade | None:
        """Why the next append that needs a file cannot have one, as far as the last attempt to make one could tell."""
        return None if self._files.prepared_count else self._refusal

    # -- how -------------------------------------------------------------------------------------------------

    def found(self, file: MappedFile) -> None:
        """Note the file that a start found last: nothing may be appended to it before `set_found_aside`."""
        self._found = file

    @property
    def has_found(self) -> bool:
        """Whether that file is still to be set aside."""
        return self._found is not None

    def set_found_aside(self) -> None:
        """Set that file aside, if that is still to be done. Blocks. Raises as `prepare` does."""
        with self._found_lock:  # not a second time: somebody may be writing to it
            file = self._found
            if file is None:
                return
            with self._unless_just_refused():
                try:
                    file.set_aside()
                except OSError as error:
                    raise FileNotMade(file.path, error) from error
            self._found = None
            self._refusal = None

    def prepare(self) -> bool:
        """Make one more file if fewer than wanted, or none at all, lie ready; False if none was made. Blocks.

        The file that a start found comes first: set aside, it is the one that the next append needs. An empty log gets
        its first file here only after a put could not have it.

        Raises:
            DiskFull, FileNotMade: there is no room, or it cannot be made for another reason; or so it was a moment ago.
        """
        if self._found is not None:
            self.set_found_aside()
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

    def make_first(self) -> None:
        """Make the first file of an empty log. Raises as `prepare` does."""
        with (
            self._first_lock,
            self._unless_just_refused(),
        ):  # a worker may be making it for whoever asked before
            self._files.last_file_for(create=True)
        self._refusal = None

    def make_needed(self) -> None:
        """Make the file that a put needs at this moment, if none lies ready. Raises as `prepare` does."""
        with self._unless_just_refused():
            self._files.prepare_next()
        self._refusal = None

    @contextmanager
    def _unless_just_refused(self) -> Iterator[None]:
        """Do not try to make a file when that failed a moment ago: trying costs time that every put would pay.

        That no descriptor is to be had shows at once, and may be over at once.
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
            self._may_lock = False  # said once; the limit will be the same for the next file
            facts = {"what": str(file.path), "size_b": file.size, "reason": refusal.strerror}
            self._options.on_event("memory_not_locked", facts)

    @property
    def has_full_to_unlock(self) -> bool:
        """Whether `unlock_full` has something to do."""
        return bool(self._locked) and self._locked[0].is_full

    def unlock_full(self) -> None:
        """Let the system drop the pages of files that are full (RocketMQ: unlockMappedFile)."""
        while self.has_full_to_unlock:
            unlock(self._locked.popleft())
