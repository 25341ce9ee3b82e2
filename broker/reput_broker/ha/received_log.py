"""Bytes of a master's log that have arrived, divided into what can be appended: whole, checked records.

A master sends bytes without regard to records. A slave that appended them as they come would end in the middle of a
record after a kill, or after the connection broke, and could not be promoted without losing its end.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from reput_broker.ha.frames import HAProtocolError
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.log.walk import can_be_topic
from reput_protocol.kernel.records import BLANK, INVALID, RECORD, checksum_faults, scan_records
from reput_protocol.kernel.tables import runs
from reput_protocol.record.layout import BLANK_BYTES
from reput_protocol.record.scan import STORE_TIMESTAMP_MS, WIDTH

_OVERHEAD_BYTES: Final = 64 * 1024
"""More than a record has in addition to its body."""
_TOPICS_MAX: Final = 10_000
_BUFFER_BYTES: Final = 512 * 1024


class LogItem(NamedTuple):
    """Records, or a blank record with all that follows it in its file."""

    offset: int
    data: memoryview
    """Valid until the next call of `ReceivedLog`."""
    stored_ms: int = 0
    """Store time of the last record; 0 for a blank one."""
    last_record_offset: int = -1
    """Where the last record starts; -1 for a blank one."""


class ReceivedLog:
    """Collects bytes from a log offset on.

    Args:
        options: of the store that they are for.
        offset: where the first byte belongs.
    """

    def __init__(self, options: StoreOptions, offset: int) -> None:
        self.offset = offset
        """Everything before this offset was dropped."""
        self._file_size = options.commit_log_file_size
        self._record_bytes_max = options.message_bytes_max + _OVERHEAD_BYTES
        # Kept from one call to the next: what has arrived and was not dropped is `[start, end)` of it.
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._topics: set[bytes] = set()

    def add(self, data: memoryview) -> None:
        """Add bytes that follow those added before."""
        size = len(data)
        if self._end + size > len(self._buffer):
            self._make_room(size)
        self._buffer[self._end : self._end + size] = data
        self._end += size

    def _make_room(self, size: int) -> None:
        """Move what there is to the beginning, of a larger buffer if necessary."""
        rest = self._buffer[self._start : self._end]
        target = self._buffer
        if len(rest) + size > len(target):
            target = memoryview(bytearray(max(2 * len(target), len(rest) + size)))
        target[: len(rest)] = rest
        self._buffer = target
        self._start, self._end = 0, len(rest)

    def take(self) -> LogItem | None:
        """Return what can be appended next; None if more bytes are needed for that.

        Raises:
            HAProtocolError: what has arrived is not a log, or could not be stored here.
        """
        room = self._file_size - self.offset % self._file_size
        data = self._buffer[self._start : min(self._end, self._start + room)]
        if not data:
            return None
        table, stop, status, size, reason = scan_records(data, 0, len(data), self.offset)
        if stop:
            self._check(data, table, stop, room)
            last = len(table) - WIDTH
            return LogItem(
                self.offset,
                data[:stop],
                table[last + STORE_TIMESTAMP_MS],
                self.offset + table[last],
            )
        if status == INVALID:
            raise self._refused(0, reason)
        if status == BLANK:
            if size != room:
                raise self._refused(0, f"a blank record names {size} bytes, but {room} are left in the file")
            return LogItem(self.offset, data) if len(data) == room else None
        assert status != RECORD, "the bytes end within a record"
        if size > room - BLANK_BYTES:
            raise self._refused(
                0, f"a record of {size} bytes does not fit into the {room} bytes left in the file"
            )
        if size > self._record_bytes_max:
            raise self._refused(
                0, f"a record has {size} bytes; raise store.message_size_max to that of the master"
            )
        return None

    def drop(self, size: int) -> None:
        """Drop this number of bytes from the beginning, after they have been appended."""
        self.offset += size
        self._start += size
        if self._start == self._end:
            self._start = self._end = 0

    def _check(self, data: memoryview, table: array[int], stop: int, room: int) -> None:
        faults = checksum_faults(data, table)
        if faults:
            row, reason = faults[0]
            raise self._refused(table[WIDTH * row], reason)
        if stop > room - BLANK_BYTES:
            raise self._refused(
                table[-WIDTH], "the record leaves no room for the blank one at the end of its file"
            )
        for topic, _, first, _, _ in runs(data, table):
            if topic not in self._topics:
                if not can_be_topic(topic):
                    raise self._refused(table[WIDTH * first], f"the record there has topic {topic[:80]!r}")
                if len(self._topics) >= _TOPICS_MAX:
                    self._topics.clear()
                self._topics.add(topic)

    def _refused(self, position: int, reason: str) -> HAProtocolError:
        return HAProtocolError(
            f"what it sends for log offset {self.offset + position} cannot be stored: {reason}"
        )
