"""Whether the store can be read and accepts puts, and if not, why (RocketMQ: RunningFlags).

Puts are refused in four conditions:

- read-only: a sync failed or something is damaged; until a restart.
- no space: a write found no room; until one succeeds. Small puts that still have room are accepted, unless dispatch has
  none.
- no file: the log needs a file that cannot be created, for lack of descriptors or because no directory allows it; until
  one can be.
- disk too full: set and cleared by the disk watch.
"""

from __future__ import annotations

import threading

from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed, StoreError, StoreReadOnly
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutResult, PutStatus, StoreStats


class RunningFlags:
    """The condition of one store, across closing and reopening.

    The owner of the store changes it; worker threads may call `become_read_only`, `final`, and the
    methods that note a commit, a write, or a file that cannot be created.
    """

    __slots__ = (
        "_disk_refusal",
        "_options",
        "_refusal_lock",
        "_stats",
        "dispatch_wants_space",
        "is_open",
        "no_file_reason",
        "no_space_reason",
        "read_only_reason",
        "refusal",
    )

    def __init__(self, options: StoreOptions, stats: StoreStats) -> None:
        self._options = options
        self._stats = stats
        self.is_open = False
        """Whether messages can be read."""
        self.refusal: PutStatus | None = PutStatus.SERVICE_NOT_AVAILABLE
        """Status of every put until the store is opened; READ_ONLY once `read_only_reason` is set.

        DISK_FULL while a commit finds no room.
        """
        self.read_only_reason: str | None = None
        """Why puts are refused as READ_ONLY until the store is opened again; kept after `close`."""
        self.no_space_reason: str | None = None
        """What the last attempt could not write for lack of space."""
        self.no_file_reason: str | None = None
        """Why the last attempt to create the next log file failed, if not for lack of space."""
        self.dispatch_wants_space = False
        """Whether dispatch found no room; then all puts are refused."""
        self._disk_refusal: str | None = None
        # A commit that succeeds in one worker must not clear what a failed sync in another has just
        # set.
        self._refusal_lock = threading.Lock()

    def note_open(self) -> None:
        """The store has been opened: earlier conditions no longer apply."""
        self.read_only_reason = self.no_space_reason = self.no_file_reason = self._disk_refusal = None
        self.dispatch_wants_space = False
        self.refusal = None
        self.is_open = True

    def note_closed(self) -> None:
        """The store is being closed: nothing is put or read any more."""
        self.refusal = PutStatus.SERVICE_NOT_AVAILABLE
        self.is_open = False

    # -- queries ---------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Whether puts of any size are accepted, as far as the last attempts to write show."""
        return self.refusal is None and self._disk_refusal is None and not self.lacks_something

    @property
    def lacks_something(self) -> bool:
        """Whether the last attempt to write, or to create a file, failed."""
        return self.no_space_reason is not None or self.no_file_reason is not None

    @property
    def disk_full_reason(self) -> str | None:
        """What could not be written for lack of space, or why the disk watch refuses puts; None otherwise."""
        return self._disk_refusal or self.no_space_reason

    @property
    def refuses_now(self) -> bool:
        """Whether every put is refused now."""
        return self.refusal is not None or self.dispatch_wants_space or self._disk_refusal is not None

    def refused_now(self) -> PutResult:
        """The result of a put while `refuses_now`."""
        return self.refused(self.refusal or PutStatus.DISK_FULL)

    def refused(self, status: PutStatus) -> PutResult:
        """The result of a put that is refused with a status; counted."""
        self._stats.put_refused += 1
        return PutResult(status)

    def closed(self) -> StoreClosed:
        """The error to raise if an operation needs an open store."""
        return StoreClosed(f"the store in {self._options.data_dir} is not open")

    def check_writable(self) -> None:
        """Check that the store may be changed.

        Raises:
            StoreClosed, StoreReadOnly: it may not.
        """
        if not self.is_open:
            raise self.closed()
        if self.read_only_reason is not None:
            raise StoreReadOnly(self.read_only_reason)

    # -- changes ---------------------------------------------------------------------------------------

    def become_read_only(self, reason: str) -> None:
        """Refuse puts until the store is opened again; the first reason is kept (event `store_read_only`)."""
        with self._refusal_lock:
            is_first = self.read_only_reason is None
            if is_first:
                self.read_only_reason = reason
            if self.refusal is not PutStatus.SERVICE_NOT_AVAILABLE:
                self.refusal = PutStatus.READ_ONLY
        if is_first:
            self._options.on_event("store_read_only", {"reason": reason})

    def final(self, error: StoreError | OSError) -> StoreReadOnly:
        """Become read-only after an error that only a restart resolves; return the error to raise."""
        self.become_read_only(str(error))
        return StoreReadOnly(str(error))

    def refuse_for_disk(self, reason: str | None) -> None:
        """Refuse puts as DISK_FULL because the disk is too full, or, with None, stop doing so.

        (RocketMQ: RunningFlags, disk full.) Reads and dispatch continue. Events
        `store_disk_above_limit` and `store_disk_below_limit`.
        """
        before, self._disk_refusal = self._disk_refusal, reason
        if reason is not None and before is None:
            self._options.on_event("store_disk_above_limit", {"reason": reason})
        elif reason is None and before is not None:
            self._options.on_event("store_disk_below_limit", {})

    def note_disk_full(self, error: DiskFull) -> None:
        """A write failed for lack of space (event `store_disk_full`, once until there is space)."""
        if self.no_space_reason is None:
            self._options.on_event("store_disk_full", {"path": str(error.path), "needed_bytes": error.needed_bytes})
        self.no_space_reason = error.reason

    def note_file_refused(self, error: DiskFull | FileNotMade) -> None:
        """The log needs a file that cannot be created (event `store_disk_full` or `log_file_not_made`)."""
        if isinstance(error, DiskFull):
            self.note_disk_full(error)
            return
        if self.no_file_reason is None:
            self._options.on_event("log_file_not_made", {"path": str(error.path), "reason": str(error)})
        self.no_file_reason = str(error)

    def note_commit_without_space(self, error: DiskFull) -> None:
        """A commit found no room: refuse puts until one does, since their bytes would wait in memory."""
        self.note_disk_full(error)
        with self._refusal_lock:
            if self.refusal is None:
                self.refusal = PutStatus.DISK_FULL

    def note_commit(self) -> None:
        """A commit succeeded."""
        with self._refusal_lock:
            if self.refusal is PutStatus.DISK_FULL:
                self.refusal = None

    def note_written(self, file_refusal: DiskFull | FileNotMade | None) -> None:
        """A write, or the creation of a file, succeeded: clear the conditions, except those that still hold.

        Events `store_has_space_again` and `log_file_made_again`.

        Args:
            file_refusal: why the log still has no next file; None if it does not need one.
        """
        if self.no_file_reason is not None and not isinstance(file_refusal, FileNotMade):
            self.no_file_reason = None
            self._options.on_event("log_file_made_again", {})
        waiting = isinstance(file_refusal, DiskFull) or self.refusal is PutStatus.DISK_FULL
        if self.no_space_reason is not None and not (waiting or self.dispatch_wants_space):
            self.no_space_reason = None
            self._options.on_event("store_has_space_again", {})
