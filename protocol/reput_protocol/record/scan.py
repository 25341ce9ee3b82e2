"""Whether there is a whole record at a position; for recovery, dispatch and all readers.

(RocketMQ: CommitLog.checkMessageAndReturnSize.) The answer is a value, not an exception: the end of a log is normal.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.kernel.records import BLANK, INVALID, RECORD, TRUNCATED, read_record


class ScanStatus(Enum):
    """What is at a position."""

    RECORD = "record"
    BLANK = "blank"
    """The end of a file: continue at the start of the next one."""
    INVALID = "invalid"
    TRUNCATED = "truncated"
    """The beginning of a record, or too few bytes to tell."""


STATUSES: Final = {
    RECORD: ScanStatus.RECORD,
    BLANK: ScanStatus.BLANK,
    INVALID: ScanStatus.INVALID,
    TRUNCATED: ScanStatus.TRUNCATED,
}
"""The kernel's result as a status."""


class RecordScan(NamedTuple):
    """The result for one position.

    `size` is that of the record, or the rest of the file by a blank record. An invalid record with consistent outer
    lengths, which a reader may skip, and a truncated one with a readable size have one too; else it is 0.
    """

    status: ScanStatus
    size: int
    reason: str = ""


class Extent(NamedTuple):
    """Positions of a valid record's variable parts in its buffer."""

    body: int
    body_size: int
    topic: int
    topic_size: int
    properties: int
    properties_size: int
    store_timestamp: int


def scan_record(
    buffer: Buffer, position: int, end: int, *, check_crc: bool, check_properties_crc: bool = False
) -> RecordScan:
    """Examine what is at `[position, end)` of `buffer`. Never raises, whatever the bytes are.

    `check_crc` verifies the body's CRC, and the whole-record one if there is one. `check_properties_crc` makes a record
    without one invalid, for a store that always writes it.
    """
    return locate(buffer, position, end, check_crc=check_crc, check_properties_crc=check_properties_crc)[0]


def locate(
    buffer: Buffer, position: int, end: int, *, check_crc: bool, check_properties_crc: bool = False
) -> tuple[RecordScan, Extent | None]:
    """Like `scan_record`, and return where a valid record's parts are."""
    status, size, reason, parts = read_record(buffer, position, end, check_crc, check_properties_crc)
    return RecordScan(STATUSES[status], size, reason), None if parts is None else Extent._make(parts)
