"""From where on a start would check the records of a log (`start.py`, `recovery.py`): reading only."""

from __future__ import annotations

from reput_broker.store_tools.queue_ends import queue_ends, queues_digest
from reput_broker.store_tools.verify import Verification
from reput_broker.store_tools.verify_checkpoint import checkpoint_min_time
from reput_protocol.record_layout import BORN_HOST_AT, BORN_HOST_IPV6, FRONT, I64
from reput_protocol.record_scan import ScanStatus, scan_record

_RECORD_BYTES_MAX = 16 << 20


def start_checks_from(verification: Verification) -> int:
    """Return the log offset before which a start does not look at records."""
    mark, files = verification.mark, verification.layout.log.files
    is_synced = mark is not None and mark.queues_offset >= mark.flushed_offset
    if mark is not None and is_synced and queues_digest(verification.layout) == mark.queues_digest:
        # As an orderly stop left it; a start that was killed since may have left `abort`.
        return _file_by(verification, mark.flushed_offset, None)
    if mark is not None and not verification.stopped:
        entries = sum(queue_ends(verification.layout, mark.queues_offset).values())
        if entries & 0xFFFF_FFFF != mark.queues_digest:
            # Queues that lack entries are made anew from all of the log.
            return files[0].start if files else 0
        return _file_by(verification, min(mark.flushed_offset, mark.queues_offset), None)
    if mark is None and not verification.stopped:
        return _file_by(verification, None, checkpoint_min_time(verification.root))
    return files[0].start if files else 0


def _file_by(verification: Verification, offset: int | None, time_ms: int | None) -> int:
    """Start of the newest file that begins with a sound record, at or before an offset or a store time."""
    files = verification.layout.log.files
    for file in reversed(files[1:]):
        if offset is not None and file.start > offset:
            continue
        with file.path.open("rb") as reader:
            data = reader.read(min(_RECORD_BYTES_MAX, file.size))
        is_record = scan_record(data, 0, len(data), check_crc=True).status is ScanStatus.RECORD
        if not is_record or FRONT.unpack_from(data)[6] != file.start:
            continue
        born_host_bytes = 20 if FRONT.unpack_from(data)[7] & BORN_HOST_IPV6 else 8
        (stored_ms,) = I64.unpack_from(data, BORN_HOST_AT + born_host_bytes)
        if stored_ms > 0 and (time_ms is None or stored_ms <= time_ms):
            return file.start
    return files[0].start if files else 0
