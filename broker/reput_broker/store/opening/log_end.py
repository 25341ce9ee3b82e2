"""Find where the log ends after any kind of stop, and refuse to guess if that cannot be determined.

A killed process leaves its last append unpublished; a power failure leaves any of the pages written since the last
sync, in any order. Both are a torn tail, which may be truncated. An invalid record below the flushed offset, or before
records that are known to have been flushed, is damage: the start is refused and names the place.

The flushed offset is in the mark of `checkpoint`. If RocketMQ has worked in the directory since, the mark is not valid.
Then a record counts as flushed if it is in a later file than the invalid place, if it was stored by the checkpoint's
`physicMsgTimestamp`, or, after an orderly stop, if a queue entry points to it.

The walk begins with the newest file whose first record was certainly flushed and dispatched, as in RocketMQ
(CommitLog.isMappedFileMatchedRecover).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reput_broker.store.base.errors import REPAIR_REMEDY, StoreDamaged
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.walk import (
    RecordSink,
    find_sound_record_after,
    first_record_timestamp,
    walk_file,
)


class FlushEvidence(NamedTuple):
    """What is known to have been flushed when the last broker stopped."""

    flushed_offset: int | None
    """Everything below was on disk; None if there is no valid mark."""
    flushed_ms: int
    """Without a mark: records stored by then had been flushed; 0 if that is unknown too."""


class LogEnd(NamedTuple):
    """Where the valid records of the log end."""

    end_offset: int
    checked_from: int
    records: int
    last_record_offset: int
    """Start of the last valid record, -1 if none was met."""
    tail_from: int
    """From here on the file must be zero: the end, or after the blank record there."""


def start_by_offset(files: Sequence[MappedFile], offset: int, *, check_crc: bool) -> int:
    """Index of the newest file that begins at or before `offset` with a valid record, else 0."""
    for index in range(len(files) - 1, 0, -1):
        if (
            files[index].base_offset <= offset
            and first_record_timestamp(files[index], check_crc=check_crc) > 0
        ):
            return index
    return 0


def start_by_timestamp(files: Sequence[MappedFile], timestamp_ms: int, *, check_crc: bool) -> int:
    """Index of the newest file whose first record is valid and was stored by `timestamp_ms`, else 0."""
    for index in range(len(files) - 1, 0, -1):
        if 0 < first_record_timestamp(files[index], check_crc=check_crc) <= timestamp_ms:
            return index
    return 0


def find_log_end(
    files: Sequence[MappedFile],
    start_index: int,
    evidence: FlushEvidence,
    sink: RecordSink,
    *,
    check_crc: bool,
) -> LogEnd:
    """Check the records from a file on and find where they end. Changes nothing.

    Raises:
        StoreDamaged: they end where flushed records should be; or raised by the sink.
    """
    records = 0
    last_record_offset = -1
    checked_from = files[start_index].base_offset
    for index in range(start_index, len(files)):
        file = files[index]
        walk = walk_file(file, sink, check_crc=check_crc, flushed_offset=evidence.flushed_offset or 0)
        records += walk.records
        if walk.last_record_position >= 0:
            last_record_offset = file.base_offset + walk.last_record_position
        if walk.reason:
            _refuse_if_flushed(files, index, walk.end_position, walk.reason, evidence)
        elif index + 1 < len(files):
            continue
        elif evidence.flushed_offset is not None and evidence.flushed_offset > file.end_offset:
            raise StoreDamaged(
                file.path.with_name(f"{file.end_offset:020d}"),
                0,
                f"the file is missing, but the log had been flushed up to offset {evidence.flushed_offset}",
                REPAIR_REMEDY,
            )
        end_offset = file.base_offset + walk.end_position
        tail_from = end_offset + 8 if walk.ends_with_blank else end_offset
        return LogEnd(end_offset, checked_from, records, last_record_offset, tail_from)
    raise AssertionError("a log without files has no end to find")


def check_files_before(files: Sequence[MappedFile], sink: RecordSink) -> None:
    """Walk over the files before those that `find_log_end` has checked, without reading bodies.

    Raises:
        StoreDamaged: the records of one do not reach its end; or raised by the sink.
    """
    for file in files:
        walk = walk_file(file, sink, check_crc=False, flushed_offset=file.end_offset)
        if walk.reason:
            raise StoreDamaged(
                file.path,
                walk.end_position,
                f"{walk.reason} (log offset {file.base_offset + walk.end_position}), and queues that lack entries "
                "cannot be rebuilt without it",
                REPAIR_REMEDY,
            )


def _refuse_if_flushed(
    files: Sequence[MappedFile], index: int, position: int, reason: str, evidence: FlushEvidence
) -> None:
    file = files[index]
    offset = file.base_offset + position
    if evidence.flushed_offset is not None:
        if offset < evidence.flushed_offset:
            raise StoreDamaged(
                file.path,
                position,
                f"{reason} (log offset {offset}), but the log had been flushed up to offset {evidence.flushed_offset}",
                REPAIR_REMEDY,
            )
        return
    survivor = find_sound_record_after(file, position, stored_by_ms=evidence.flushed_ms)
    if survivor >= 0:
        survivor += file.base_offset
    for later in files[index + 1 :]:
        if survivor >= 0:
            break
        survivor = find_sound_record_after(later, -1)
        if survivor >= 0:
            survivor += later.base_offset
    if survivor >= 0:
        raise StoreDamaged(
            file.path,
            position,
            f"{reason} (log offset {offset}), but a valid record that had been flushed follows at offset {survivor}",
            REPAIR_REMEDY,
        )
