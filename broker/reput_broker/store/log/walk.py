"""Walk the records of the log and find where valid ones end: the reading half of recovery.

A record is valid if its own checks pass (RocketMQ: CommitLog.checkMessageAndReturnSize), its log offset field matches
its place, and its topic is possible. RocketMQ does not compare the place, so bytes from before a truncation can become
valid again.

The body's checksum does not cover what follows the body. So if a record may not have been flushed, its properties must
not look as if a page was lost, which leaves zeros.

Queue and queue offset of every record go to a `RecordSink`, so that a start reads the log only once for both checks.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from reput_broker.store.log.mapped_file import MappedFile
from reput_protocol.kernel.records import follow_records
from reput_protocol.record.layout import (
    RECORD_BYTES_MIN,
    TRANSACTION_BITS,
    TRANSACTION_COMMIT,
    physical_offset_at,
    read_head,
    store_timestamp_at,
)
from reput_protocol.record.scan import ScanStatus, locate, scan_record

_TOPIC_BYTES_MAX = 255
SECTOR_BYTES = 512
_ZERO_SECTOR = bytes(SECTOR_BYTES)
LOST_PAGE: Final = "its properties hold zeros where a lost page would leave them"
_BYTES_AT_ONCE = 1 << 20
"""How many bytes are scanned before other threads may run."""
_BYTES_PER_BATCH = 64 << 20
_MAGIC_PATTERN = re.compile(rb"\xda\xa3\x20[\xa7\xab]")


QueuedRecords: TypeAlias = "Mapping[tuple[bytes, int], array[int]]"
"""Queue offset, physical offset and size of records with entries, in log order, by topic and queue."""


class RecordSink(Protocol):
    """Receives what a walk found."""

    def take(self, records: QueuedRecords) -> None:
        """Take valid records that follow those of the previous call.

        Raises:
            StoreDamaged: they contradict each other or the queues; that ends the walk.
        """


class FileWalk(NamedTuple):
    """The valid records at the start of one file."""

    records: int
    end_position: int
    """End of these records in the file."""
    last_record_position: int
    """Start of the last of them, -1 if there is none."""
    ends_with_blank: bool
    """Whether a blank record at `end_position` says that the log continues in the next file."""
    reason: str
    """What is wrong at `end_position`; empty if a blank record or the end of the file is there."""


def walk_file(file: MappedFile, sink: RecordSink, *, check_crc: bool, flushed_offset: int) -> FileWalk:
    """Check records from the start of a file; `wrote_position` must cover the whole file.

    Args:
        flushed_offset: records that end after this log offset may have lost pages.

    Raises:
        StoreDamaged: by the sink.
    """
    held = file.hold()
    assert held, "recovery owns the files"
    try:
        with file.slice(0, file.size) as view:
            return _Walk(view, file.base_offset, sink).run(check_crc, flushed_offset - file.base_offset)
    finally:
        file.release()


@dataclass(eq=False, repr=False)
class _Walk:
    _view: memoryview
    _base_offset: int
    _sink: RecordSink
    _found: dict[tuple[bytes, int], array[int]] = field(default_factory=dict, init=False)
    """By queue met so far: the records that the sink has not received."""
    _records: int = field(default=0, init=False)

    def run(self, check_crc: bool, trusted: int) -> FileWalk:
        """Records of queues already met are handled by the kernel, others one by one."""
        view, base_offset = self._view, self._base_offset
        size = len(view)
        position, last = 0, -1
        report_at = _BYTES_PER_BATCH
        while size - position >= RECORD_BYTES_MIN:
            stop = position + _BYTES_AT_ONCE
            position, at = follow_records(view, position, stop, min(trusted, size), base_offset, check_crc, self._found)
            last = max(last, at)
            if position >= report_at:
                self._report()
                report_at = position + _BYTES_PER_BATCH
            if position >= stop or size - position < RECORD_BYTES_MIN:
                continue
            head = read_head(view, position)
            scan, parts = locate(view, position, size, check_crc=check_crc)
            if parts is None:
                break
            end = position + scan.size
            topic = view[parts.topic : parts.topic + parts.topic_size].tobytes()
            reason = ""
            if head.physical_offset != base_offset + position:
                reason = f"the record there says that it belongs at log offset {head.physical_offset}"
            elif not can_be_topic(topic):
                reason = f"the record there has topic {topic[:80]!r}"
            elif end > trusted and has_lost_sector(view, parts.properties, end):
                reason = LOST_PAGE
            if reason:
                self._report()
                return FileWalk(self._records, position, last, False, reason)
            if head.sys_flag & TRANSACTION_BITS in (0, TRANSACTION_COMMIT):
                rows = self._found.setdefault((topic, head.queue_id), array("q"))
                rows.extend((head.queue_offset, head.physical_offset, head.size))
            else:
                self._records += 1
            last = position
            position = end
        self._report()
        ends_with_blank, reason = self._judge_end(position, check_crc)
        return FileWalk(self._records, position, last, ends_with_blank, reason)

    def _judge_end(self, position: int, check_crc: bool) -> tuple[bool, str]:
        size = len(self._view)
        if position == size:
            return False, ""
        scan, _ = locate(self._view, position, size, check_crc=check_crc)
        if scan.status is not ScanStatus.BLANK:
            return False, scan.reason or "no record is there"
        if scan.size == size - position:
            return True, ""
        return (False, f"a blank record there names {scan.size} bytes, but {size - position} are left in the file")

    def _report(self) -> None:
        found = {queue: rows[:] for queue, rows in self._found.items() if rows}
        for queue, rows in found.items():
            self._records += len(rows) // 3
            del self._found[queue][:]
        if found:
            self._sink.take(found)


def can_be_topic(topic: bytes) -> bool:
    """Whether these bytes can name a topic, and so a directory."""
    if len(topic) > _TOPIC_BYTES_MAX or min(topic) < 0x20 or b"/" in topic or topic in (b".", b".."):
        return False
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    return True


def has_lost_sector(view: memoryview, start: int, end: int) -> bool:
    """Whether properties look as if a sector of theirs had not reached the disk.

    Properties end with 0x02, or with text if the client omits that. Files begin on a sector boundary.
    """
    if end > start and view[end - 1] == 0:
        return True
    first = -(-start // SECTOR_BYTES) * SECTOR_BYTES
    return any(
        view[at : at + SECTOR_BYTES] == _ZERO_SECTOR for at in range(first, end - SECTOR_BYTES + 1, SECTOR_BYTES)
    )


def last_record_ending_by(files: Sequence[MappedFile], offset: int) -> tuple[int, int] | None:
    """Return start and end of the last record that ends by a log offset; None if there is none. Blocks.

    Bodies are not checked: the log is known to be whole up to there.
    """
    for file in reversed(files):
        if file.base_offset >= offset or not file.hold():
            continue
        start, end = -1, 0
        try:
            stop = min(offset - file.base_offset, file.read_position)
            with file.slice(0, stop) as view:
                while (scan := scan_record(view, end, stop, check_crc=False)).status is ScanStatus.RECORD:
                    start, end = end, end + scan.size
        finally:
            file.release()
        if start >= 0:
            return file.base_offset + start, file.base_offset + end
    return None


def find_sound_record_after(file: MappedFile, position: int, *, stored_by_ms: int | None = None) -> int:
    """Return the position of the first valid record after an invalid place of a file, -1 if there is none.

    Checks body checksum and place of a record at every magic number, whatever is in between. With `stored_by_ms`, only
    records stored by that time count.
    """
    held = file.hold()
    assert held, "recovery owns the files"
    try:
        view = file.slice(0, file.size)
        for match in _MAGIC_PATTERN.finditer(view, max(position, 0)):
            start = match.start() - 4
            if start <= position or len(view) - start < RECORD_BYTES_MIN:
                continue
            if physical_offset_at(view, start) != file.base_offset + start:
                continue
            if scan_record(view, start, len(view), check_crc=True).status is not ScanStatus.RECORD:
                continue
            if stored_by_ms is None or store_timestamp_at(view, start) <= stored_by_ms:
                return start
        return -1
    finally:
        file.release()


def first_record_timestamp(file: MappedFile, *, check_crc: bool) -> int:
    """The store time of the valid record at the start of a file, 0 if there is none."""
    held = file.hold()
    assert held, "recovery owns the files"
    try:
        with file.slice(0, file.size) as view:
            if scan_record(view, 0, file.size, check_crc=check_crc).status is not ScanStatus.RECORD:
                return 0
            if physical_offset_at(view) != file.base_offset:
                return 0
            return store_timestamp_at(view)
    finally:
        file.release()
