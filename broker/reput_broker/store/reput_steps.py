"""Dispatch step by step: what has been dispatched so far, and what becomes of the store when a step fails.

`Reput` says what a step is; this says when it is tried again, and when it never is (RocketMQ: ReputMessageService).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reput_broker.store.commit_log import CommitLog
from reput_broker.store.consume_queue_builder import ConsumeQueueBuilder, QueueGap
from reput_broker.store.errors import DiskFull, FlushFailed, StoreDamaged
from reput_broker.store.file_io import is_out_of_descriptors
from reput_broker.store.options import EventHandler
from reput_broker.store.reput import STEP_BYTES_MAX, Reput
from reput_broker.store.running_flags import RunningFlags
from reput_broker.store.stats import StoreStats

DISPATCH_RETRY_MS = 100
"""How long dispatch waits after it found no room on the disk, or no file descriptor."""


class Dispatched(NamedTuple):
    """What belongs together when the queues are flushed: it is replaced as a whole, for the thread that flushes."""

    position: int
    """Everything before this log offset has been dispatched."""
    store_timestamp_ms: int
    """Store time of the last record dispatched."""
    entries: int
    """How many entries the queues have in all."""


class ReputSteps:
    """Drives one `Reput`, for the owner of the store.

    Args:
        reput: does a step.
        builder: counts the entries of the queues.
        log: says how far dispatch may go, and whether it waits for space itself.
        flags: told when dispatch cannot go on, and why.
        stats: says whether it can ever go on (`dispatch_damage`).
        clock_ms: wall clock.
        on_event: told when there are no file descriptors.
    """

    def __init__(
        self,
        reput: Reput,
        builder: ConsumeQueueBuilder,
        log: CommitLog,
        flags: RunningFlags,
        stats: StoreStats,
        *,
        clock_ms: Callable[[], int],
        on_event: EventHandler,
    ) -> None:
        self.dispatched = Dispatched(0, 0, 0)
        """What the queues hold now; may be read in any thread."""
        self._reput = reput
        self._builder = builder
        self._log = log
        self._flags = flags
        self._stats = stats
        self._clock_ms = clock_ms
        self._on_event = on_event
        self._failed_ms: int | None = None

    def begin(self, position: int, store_timestamp_ms: int, entries: int) -> None:
        """Go on from where recovery has left the queues."""
        self._reput.position = position
        self._builder.entries = entries
        self.dispatched = Dispatched(position, store_timestamp_ms, entries)

    def set_entries(self, entries: int) -> None:
        """Say how many entries the queues have, after some were deleted."""
        self._builder.entries = entries
        self.dispatched = self.dispatched._replace(entries=entries)

    def reput_step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Dispatch what the log holds beyond the last step, about `max_bytes` of it; return how many records.

        0 means that there is nothing to do now: everything is dispatched, the disk is full or no file can be opened
        (dispatch tries again by itself, a moment later), or what comes next cannot be read, written or synced. The last
        three make the store read-only: what was put behind could not be consumed.
        """
        flags = self._flags
        if flags.read_only_reason is not None and self._stats.dispatch_damage:
            return 0
        failed_ms = self._failed_ms
        if failed_ms is not None and 0 <= self._clock_ms() - failed_ms < DISPATCH_RETRY_MS:
            return 0
        reput = self._reput
        try:
            count = reput.step(max_bytes)
        except DiskFull as error:
            self._failed_ms = self._clock_ms()
            flags.dispatch_wants_space = True
            flags.note_disk_full(error)
            return 0
        except (StoreDamaged, QueueGap, FlushFailed) as error:
            self._stand_still(error)
            return 0
        except OSError as error:
            if not is_out_of_descriptors(error):
                self._stand_still(error)
                return 0
            if failed_ms is None:
                self._on_event("store_out_of_open_files", {"reason": str(error)})
            self._failed_ms = self._clock_ms()
            return 0
        if count:
            self.dispatched = Dispatched(reput.position, reput.store_timestamp_ms, self._builder.entries)
        if failed_ms is not None:
            self._failed_ms = None
            flags.dispatch_wants_space = False
            flags.note_written(self._log.file_refusal)
        return count

    def _stand_still(self, error: Exception) -> None:
        self._stats.dispatch_damage += 1
        self._flags.become_read_only(str(error))

    def finish(self) -> bool:
        """Dispatch all there is, without waiting after a failure; return whether everything is dispatched."""
        self._failed_ms = None
        while self.is_behind:
            if self.reput_step() == 0 and self.is_behind:
                return False
        return True

    @property
    def is_behind(self) -> bool:
        """Whether the log holds what could be dispatched and has not been."""
        return self._reput.position < self._log.readable_end()

    @property
    def dispatched_offset(self) -> int:
        """Every record before this log offset has been dispatched."""
        return self._reput.position

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that could be dispatched and have not been."""
        return self._reput.behind_bytes

    @property
    def dispatch_idle(self) -> bool:
        """Whether a step now would find nothing to do; true too when dispatch stands still for good."""
        return self._reput.position >= self._log.readable_end() or self._stats.dispatch_damage > 0
