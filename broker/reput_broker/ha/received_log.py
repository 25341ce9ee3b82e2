"""Bytes of a master's log that have arrived, divided into what can be appended: whole, checked records.

A master sends bytes without regard to records. A slave that appended them as they come would end in the middle of a
record after a kill, or after the connection broke, and could not be promoted without losing its end.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from reput_broker.ha.frames import HAProtocolError
from reput_broker.store.log.walk import can_be_topic
from reput_broker.store.options import StoreOptions
from reput_protocol.kernel.records import BLANK, INVALID, RECORD, checksum_faults, scan_records
from reput_protocol.kernel.tables import runs
from reput_protocol.record.layout import BLANK_BYTES
from reput_protocol.record.row import STORE_TIMESTAMP_MS, WIDTH

_OVERHEAD_BYTES: Final = 64 * 1024
"""More than a record has besides its body."""
_TOPICS_MAX: Final = 10_000


class LogItem(NamedTuple):
    """Records, or a blank record with all that follows it in its file."""

    offset: int
    data: memoryview
    """To be released before the next call of `ReceivedLog`."""
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
        self._bytes = bytearray()
        self._topics: set[bytes] = set()

    def add(self, data: memoryview) -> None:
        """Add bytes that follow those added before."""
        self._bytes += data

    def take(self) -> LogItem | None:
        """Return what can be appended next; None if more bytes are needed for that.

        Raises:
            HAProtocolError: what has arrived is not a log, or could not be stored here.
        """
        room = self._file_size - self.offset % self._file_size
        end = min(len(self._bytes), room)
        if not end:
            return None
        table, stop, status, size, reason = scan_records(self._bytes, 0, end, self.offset)
        if stop:
            self._check(table, stop, room)
            last = len(table) - WIDTH
            return LogItem(
                self.offset,
                memoryview(self._bytes)[:stop],
                table[last + STORE_TIMESTAMP_MS],
                self.offset + table[last],
            )
        if status == INVALID:
            raise self._refused(0, reason)
        if status == BLANK:
            if size != room:
                raise self._refused(0, f"a blank record names {size} bytes, but {room} are left in the file")
            return LogItem(self.offset, memoryview(self._bytes)[:room]) if end == room else None
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
        """Drop so many bytes from the beginning: they have been appended."""
        del self._bytes[:size]
        self.offset += size

    def _check(self, table: array[int], stop: int, room: int) -> None:
        faults = checksum_faults(self._bytes, table)
        if faults:
            row, reason = faults[0]
            raise self._refused(table[WIDTH * row], reason)
        if stop > room - BLANK_BYTES:
            raise self._refused(
                table[-WIDTH], "the record leaves no room for the blank one at the end of its file"
            )
        for topic, _, first, _, _ in runs(self._bytes, table):
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
