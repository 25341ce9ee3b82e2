"""A get whose filter looks at the properties of each message (RocketMQ: ExpressionMessageFilter).

It goes by the rules of get_message.py, but it reads: the head and the tail of every record it comes by, not the bodies.
So it is cut in two. What to look at is settled, and its files are held, by the owner of the store; looking is done in
any thread, in a worker's if the records are not in memory.
"""

from __future__ import annotations

from types import TracebackType

from reput_broker.store.commit_log import CommitLog
from reput_broker.store.consume_queue import ConsumeQueue
from reput_broker.store.consume_queue_unit import UNIT_BYTES
from reput_broker.store.get_message import LogWindow, select, spans_files
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.results import Extent, GetMessageResult, TransferLimits
from reput_broker.store.status import GetStatus
from reput_protocol.kernel import damaged_unit, files_of_units
from reput_protocol.sql import SqlFilter

EFFORT_MAX = 5_000_000
"""What one get may spend on its filter, about in nanoseconds; it then ends where it is, and the next goes on there."""
PART_EFFORT = 150
LOOKUP_EFFORT = 600
LOOKUP_BYTE_EFFORT = 1
RECORD_EFFORT = 3000


class FilteredGet:
    """One such get; a context manager that lets go of the files it holds.

    Args:
        log: what is read.
        queue: says which entry is damaged, if one is.
        units: the queue's entries from `offset` on, as many as may be looked at.
        window: the part of the log that can be read.
        bounds: the queue's lowest and next offset.
        cold: whether the records are presumed to be out of memory.

    Raises (on construction):
        FileMissing: a file has been deleted since `window` was looked at; look again.
    """

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        units: bytes,
        offset: int,
        window: LogWindow,
        bounds: tuple[int, int],
        max_messages: int,
        max_bytes: int,
        sql_filter: SqlFilter,
        limits: TransferLimits,
        *,
        cold: bool,
    ) -> None:
        self.cold = cold
        """Whether to look in a worker thread."""
        self._queue = queue
        self._units = units
        self._offset = offset
        self._window = window
        self._bounds = bounds
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._filter = sql_filter
        self._limits = limits
        self._effort = 0
        places = files_of_units(units, window.min_offset, window.max_offset, window.file_size)
        self._held = HeldExtents(log, [Extent(place, 0) for place in places])

    def run(self) -> GetMessageResult:
        """Look; before `release`.

        Raises:
            StoreDamaged: an entry of the queue points to where no record can be.
        """
        selection = select(
            self._units,
            self._window,
            self._max_messages,
            self._max_bytes,
            None,
            self._limits,
            self._accepts,
        )
        if selection.missing or spans_files(selection.extents, self._window):
            scanned = self._units[: selection.scanned * UNIT_BYTES]
            damaged = damaged_unit(scanned, self._window.max_offset, self._window.file_size)
            if damaged >= 0:
                raise self._queue.damaged(self._offset + damaged)
        next_begin = self._offset + selection.scanned
        if not selection.taken:
            status = GetStatus.MESSAGE_WAS_REMOVING if selection.missing else GetStatus.NO_MATCHED_MESSAGE
            return GetMessageResult(status, next_begin, *self._bounds)
        return GetMessageResult(
            GetStatus.FOUND,
            next_begin,
            *self._bounds,
            selection.taken,
            selection.size,
            selection.extents,
            self.cold,
        )

    def _accepts(self, physical_offset: int, size: int) -> bool | None:
        """Whether the filter lets a record through; None where no effort is left to look."""
        if self._effort > EFFORT_MAX:
            return None
        properties = self._held.properties_at(Extent(physical_offset, size), cold=self.cold)
        if properties is None:
            return True  # whoever gets it finds the damage and names it, as without a filter
        wanted = self._filter
        self._effort += (
            RECORD_EFFORT
            + PART_EFFORT * wanted.parts
            + wanted.lookups * (LOOKUP_EFFORT + LOOKUP_BYTE_EFFORT * len(properties))
        )
        return wanted.matches(properties)

    def read(self, result: GetMessageResult) -> bytes:
        """The bytes of what `run` has found, by positional reads; before `release`."""
        return self._held.read(result.extents)

    def release(self) -> None:
        """Let go of the files. May be called twice."""
        self._held.release()

    def __enter__(self) -> FilteredGet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
