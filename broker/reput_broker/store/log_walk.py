"""Walk the records of the log and find out where sound ones end: the reading half of recovery.

A record is sound if its own checks hold (RocketMQ: CommitLog.checkMessageAndReturnSize), the log offset it names is
the place where it lies, and its topic can be one. RocketMQ does not compare the place, so that bytes left over from
before a cut can come back to life there.

The body's checksum does not cover what follows the body. So of a record that is not known to be flushed more is asked:
a power cut leaves zeros where a page was lost, and topic and properties must not look like that.

Which message of which queue every record says it is goes to a `RecordSink` on the way, so that one reading answers both
questions that a start has.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.mapped_file import MappedFile
from reput_protocol.checksum import crc32
from reput_protocol.record_layout import (
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    FRONT,
    HEAD_BYTES,
    HOST_BITS,
    I16,
    I32,
    I64,
    MAGIC_V1,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    TRANSACTION_BITS,
    TRANSACTION_COMMIT,
)
from reput_protocol.record_scan import ScanStatus, locate, scan_record

_FRONT_TO_SYS_FLAG = struct.Struct(">iiiiiqqi")
_BODY_SIZE_AT = HEAD_BYTES - 4
_UNDERSCORE = 0x5F
_TOPIC_BYTES_MAX = 255
_TOPIC_BYTES_V2 = 128
"""A topic of so many bytes is in records of version 2 only."""
SECTOR_BYTES = 512
_ZERO_SECTOR = bytes(SECTOR_BYTES)
_UNTRUSTED: Final = "its properties hold zeros where a lost page would leave them"
_BYTES_AT_ONCE = 64 << 20
_NO_COMMON_RECORD: Final = HOST_BITS | TRANSACTION_BITS
_MAGIC_PATTERN = re.compile(rb"\xda\xa3\x20[\xa7\xab]")


QueuedRecords = Mapping[tuple[bytes, int], NDArray[np.int64]]
"""Records by topic and queue id, in log order: rows of queue offset, physical offset, size. Records that get no queue
entry are left out."""


class RecordSink(Protocol):
    """Told what a walk found."""

    def saw(self, records: QueuedRecords) -> None:
        """Sound records that follow those of the call before.

        Raises:
            StoreDamaged: they cannot be what they say; that ends the walk.
        """


class FileWalk(NamedTuple):
    """The sound records at the start of one file."""

    records: int
    end_position: int
    """Where in the file they end."""
    last_record_position: int
    """Where the last of them starts, -1 if there is none."""
    ends_with_blank: bool
    """Whether a blank record at `end_position` says that the log goes on in the next file."""
    reason: str
    """What is wrong at `end_position`; empty if a blank record or the end of the file is there."""


def walk_file(file: MappedFile, sink: RecordSink, *, check_crc: bool, flushed_offset: int) -> FileWalk:
    """Check record after record from the start of a file; `wrote_position` must cover the whole file.

    Args:
        file: the file, which only recovery uses now.
        sink: told about the sound ones.
        check_crc: verify checksums.
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


class _Walk:
    """One walk over the bytes of a file."""

    def __init__(self, view: memoryview, base_offset: int, sink: RecordSink) -> None:
        self._view = view
        self._base_offset = base_offset
        self._sink = sink
        self._found: dict[tuple[bytes, int], list[int]] = {}
        """Of queues met so far: where the records start that the sink has not been told of."""
        self._common: dict[tuple[bytes, int], list[int]] = {}
        """The same lists, of the queues whose topics records of version 1 can have."""
        self._records = 0

    def run(self, check_crc: bool, trusted: int) -> FileWalk:
        """Walk; the common kind of record is checked in place, any other by `locate`."""
        view, base_offset, common = self._view, self._base_offset, self._common
        size = len(view)
        position = 0
        last = -1
        tell_at = _BYTES_AT_ONCE
        head_of = _FRONT_TO_SYS_FLAG.unpack_from
        length_of = I16.unpack_from
        body_size_of = I32.unpack_from
        while size - position >= RECORD_BYTES_MIN:
            total, magic, crc, queue_id, _, _, named_offset, sys_flag = head_of(view, position)
            end = position + total
            if (
                magic == MAGIC_V1
                and named_offset == base_offset + position
                and not sys_flag & _NO_COMMON_RECORD
                and total >= RECORD_BYTES_MIN
                and end <= trusted
                and end <= size
                and view[end - 20] != _UNDERSCORE
            ):
                body = position + HEAD_BYTES
                body_end = body + body_size_of(view, position + _BODY_SIZE_AT)[0]
                if body <= body_end < end - 3:
                    properties = body_end + 3 + view[body_end]
                    if (
                        properties <= end
                        and length_of(view, properties - 2)[0] == end - properties
                        and (not check_crc or crc32(view[body:body_end]) & 0x7FFF_FFFF == crc)
                    ):
                        rows = common.get((view[body_end + 1 : properties - 2].tobytes(), queue_id))
                        if rows is not None:
                            rows.append(position)
                            last = position
                            position = end
                            if position >= tell_at:
                                self._tell()
                                tell_at = position + _BYTES_AT_ONCE
                            continue
            scan, parts = locate(view, position, size, check_crc=check_crc)
            if parts is None:
                break
            end = position + scan.size
            topic = view[parts.topic : parts.topic + parts.topic_size].tobytes()
            reason = ""
            if named_offset != base_offset + position:
                reason = f"the record there says that it belongs at log offset {named_offset}"
            elif not can_be_topic(topic):
                reason = f"the record there has topic {topic[:80]!r}"
            elif end > trusted and has_lost_sector(view, parts.properties, end):
                reason = _UNTRUSTED
            if reason:
                self._tell()
                return FileWalk(self._records, position, last, False, reason)
            if sys_flag & TRANSACTION_BITS in (0, TRANSACTION_COMMIT):
                rows = self._found.setdefault((topic, queue_id), [])
                rows.append(position)
                if len(topic) < _TOPIC_BYTES_V2:
                    common[topic, queue_id] = rows
            else:
                self._records += 1
            last = position
            position = end
        self._tell()
        ends_with_blank, reason = self._judge_end(position, check_crc)
        return FileWalk(self._records, position, last, ends_with_blank, reason)

    def _judge_end(self, position: int, check_crc: bool) -> tuple[bool, str]:
        """Whether a blank record lies where the records end, and what is wrong there."""
        size = len(self._view)
        if position == size:
            return False, ""
        scan, _ = locate(self._view, position, size, check_crc=check_crc)
        if scan.status is not ScanStatus.BLANK:
            return False, scan.reason or "no record is there"
        if scan.size == size - position:
            return True, ""
        return (
            False,
            f"a blank record there speaks of {scan.size} bytes, but {size - position} are left in the file",
        )

    def _tell(self) -> None:
        """Hand over what was found since the last time."""
        told = self._take_found()
        if told:
            self._sink.saw(told)

    def _take_found(self) -> dict[tuple[bytes, int], NDArray[np.int64]]:
        size = len(self._view)
        # Numbers at every byte of the file, to pick those from where records start.
        sizes = np.ndarray((size - 3,), ">i4", self._view, strides=(1,))
        queue_offsets = np.ndarray((size - 7,), ">i8", self._view, strides=(1,))
        told: dict[tuple[bytes, int], NDArray[np.int64]] = {}
        for queue, starts in self._found.items():
            if starts:
                positions = np.array(starts, np.int64)
                table = told[queue] = np.empty((len(starts), 3), np.int64)
                table[:, 0] = queue_offsets[positions + QUEUE_OFFSET_AT]
                table[:, 1] = positions + self._base_offset
                table[:, 2] = sizes[positions]
                self._records += len(starts)
                starts.clear()
        return told


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

    Properties end with 0x02, or with text from a client that leaves that out. Files begin on a sector boundary.
    """
    if end > start and view[end - 1] == 0:
        return True
    first = -(-start // SECTOR_BYTES) * SECTOR_BYTES
    return any(
        view[at : at + SECTOR_BYTES] == _ZERO_SECTOR
        for at in range(first, end - SECTOR_BYTES + 1, SECTOR_BYTES)
    )


def find_sound_record_after(file: MappedFile, position: int, *, stored_by_ms: int | None = None) -> int:
    """Find a sound record behind an unsound place of a file: where in the file the first one starts, -1 if none does.

    Looks for the magic numbers and checks what they belong to, body checksum and place included, so that it does not
    matter what lies between. With `stored_by_ms` only records stored by that time count.
    """
    held = file.hold()
    assert held, "recovery owns the files"
    try:
        view = file.slice(0, file.size)
        for match in _MAGIC_PATTERN.finditer(view, max(position, 0)):
            start = match.start() - 4
            if start <= position or len(view) - start < RECORD_BYTES_MIN:
                continue
            if FRONT.unpack_from(view, start)[6] != file.base_offset + start:
                continue
            if scan_record(view, start, len(view), check_crc=True).status is not ScanStatus.RECORD:
                continue
            if stored_by_ms is None or store_timestamp_in(view, start) <= stored_by_ms:
                return start
        return -1
    finally:
        file.release()


def first_record_timestamp(file: MappedFile, *, check_crc: bool) -> int:
    """The store time of the sound record at the start of a file, 0 if there is none."""
    held = file.hold()
    assert held, "recovery owns the files"
    try:
        with file.slice(0, file.size) as view:
            if scan_record(view, 0, file.size, check_crc=check_crc).status is not ScanStatus.RECORD:
                return 0
            if FRONT.unpack_from(view, 0)[6] != file.base_offset:
                return 0
            return store_timestamp_in(view, 0)
    finally:
        file.release()


def store_timestamp_in(view: memoryview, position: int) -> int:
    """The store time of the record at `position`."""
    (sys_flag,) = I32.unpack_from(view, position + SYS_FLAG_AT)
    at = position + BORN_HOST_AT + (20 if sys_flag & BORN_HOST_IPV6 else 8)
    return int(I64.unpack_from(view, at)[0])
