"""Open a store directory: load what is there, find the end of the log, complete the queues.

    1  load files, queues, checkpoint and marks; refuse what is not ours
    2  find where the sound records of the log end (recovery.py) and whether they are the messages that their queues
       say (identity_check.py); refuse damage
       -- up to here nothing has been changed --
    3  leave `abort`, cut the torn tail off, sync what is not known to be synced
    4  dispatch the records whose queue entries are missing or not certain
    5  write the checkpoint

The index is settled in step 3: files that are not known to be whole are deleted. What is then missing in it is indexed
again from the log once the store is open, at once if it is little, otherwise beside the running broker.

Being killed in 3 to 5 leaves `abort` and a checkpoint that claims no more than before, so that the next start does the
same again.

An orderly stop of this broker left a digest of where every queue ends. If it still holds, only the last file is
checked and step 4 has nothing to do. If it does not, or if RocketMQ made the stop, the whole log is checked and the
queues are compared with all of it, once. (RocketMQ dispatches after an orderly stop only what lies beyond the furthest
entry of any queue, and so loses messages of a queue that lagged behind.)

After a disorderly stop the entries of everything that is read again are dropped first: they may be left over from
records that are gone. If queues turn out to lack even older entries, or their extended entries, all are completed from
the oldest file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from reput_broker.store.abort_marker import AbortMarker
from reput_broker.store.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.commit_log import CommitLog
from reput_broker.store.consume_queue_builder import QueueGap, RecoveringQueueBuilder
from reput_broker.store.consume_queue_table import ConsumeQueueTable
from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.errors import StoreDamaged
from reput_broker.store.foreign_files import refuse_foreign_files, refuse_foreign_records
from reput_broker.store.identity_check import queues_agree
from reput_broker.store.index_service import IndexService
from reput_broker.store.options import StoreOptions
from reput_broker.store.recovery import (
    FlushEvidence,
    LogEnd,
    find_log_end,
    start_by_offset,
    start_by_timestamp,
)
from reput_broker.store.reput import Reput
from reput_broker.store.results import RecoveryReport
from reput_broker.store.stats import StoreStats


class StoreParts(NamedTuple):
    """Everything that opening works on."""

    options: StoreOptions
    log: CommitLog
    queues: ConsumeQueueTable
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
    abort: AbortMarker
    key_index: IndexService | None
    """None where no index is kept: what lies in its directory is left alone."""


def queues_digest(queues: ConsumeQueueTable) -> int:
    """A checksum of where every queue's files begin and its entries end."""
    return digest_of_ends(
        (
            queue.topic,
            queue.queue_id,
            queue.first_queue_offset,
            queue.max_queue_offset,
            queue.max_physical_offset,
        )
        for queue in queues
        if queue.has_files
    )


def digest_of_ends(ends: Iterable[tuple[str, int, int, int, int]]) -> int:
    """Return the checksum of queues: topic, queue id, first and next queue offset, end of the last record, of each."""
    return crc32(repr(sorted(ends)).encode())


def open_parts(parts: StoreParts) -> RecoveryReport:
    """Load and recover a directory that is locked already.

    Raises:
        ForeignFile, StoreDamaged: nothing has been changed.
        DiskFull, FlushFailed: recovery could not be finished; the next start does it again.
    """
    options, log, queues, checkpoint, deleted, abort, index = parts
    refuse_foreign_files(options.data_dir, keeps_ext=options.consume_queue_ext)
    abnormal = abort.exists
    log.files.load(after_crash=abnormal)
    queues.load(after_crash=abnormal)
    checkpoint.load()
    deleted.load()
    if index is not None:
        index.load(after_crash=abnormal)
    if log.files.files:
        report = _recover(parts, abnormal)
    else:
        _refuse_lost_log(parts)
        abort.create()
        queues.settle_ext()
        if index is not None:
            index.drop_all()
        checkpoint.mark = FlushMark(0, 0)
        report = RecoveryReport("empty", 0, 0, 0, 0, 0, 0.0)
    deleted.end_at(report.end_offset)
    deleted.forget_below(log.min_offset)
    queues.correct_min_offsets(log.min_offset)
    for queue in queues:
        if queue.max_queue_offset:
            log.next_queue_offsets[queue.topic, queue.queue_id] = queue.max_queue_offset
    checkpoint.flush()
    return report


def _refuse_lost_log(parts: StoreParts) -> None:
    mark = parts.checkpoint.mark
    filled = next((queue for queue in parts.queues if queue.has_files), None)
    if filled is None and (mark is None or mark.flushed_offset == 0):
        return
    proof = (
        f"{filled.directory} holds entries"
        if filled is not None
        else f"the checkpoint says that it had been flushed up to offset {mark.flushed_offset if mark else 0}"
    )
    raise StoreDamaged(
        parts.log.files.directory,
        0,
        f"there is no log, but {proof}",
        "restore the files of the log, or move consumequeue/ and checkpoint away to begin an empty store",
    )


def _recover(parts: StoreParts, abnormal: bool) -> RecoveryReport:
    options, log, queues, checkpoint, _, abort, index = parts
    files = log.files.files
    mark = checkpoint.mark
    check_crc = options.check_crc
    is_complete = False
    first = 0
    if not abnormal:
        queues.recover(min_physical_offset=log.min_offset)
        # With a mark every byte before it is on the disk, and nothing else was ever appended.
        flushed = mark.flushed_offset if mark is not None else max(queues.max_physical_offset(), 0)
        evidence = FlushEvidence(flushed, 0)
        is_complete = (
            mark is not None
            and not queues.ext_is_lost
            and mark.queues_offset >= mark.flushed_offset
            and mark.queues_digest == queues_digest(queues)
        )
        if is_complete:
            first = start_by_offset(files, evidence.flushed_offset or 0, check_crc=check_crc)
    elif mark is not None:
        evidence = FlushEvidence(mark.flushed_offset, 0)
        first = start_by_offset(files, min(mark.flushed_offset, mark.queues_offset), check_crc=check_crc)
    else:
        evidence = FlushEvidence(None, checkpoint.physic_msg_timestamp_ms)
        first = start_by_timestamp(files, checkpoint.min_timestamp_ms, check_crc=check_crc)
    end = find_log_end(files, first, evidence, check_crc=check_crc)
    if mark is None:
        refuse_foreign_records(files, first, end.end_offset)
    entries_until = mark.queues_offset if mark is not None else 0
    queues_are_right = _queues_agree(parts, end, entries_until)
    if not queues_are_right:
        # What else is wrong with them is not known, so that all of the log is needed to make them anew.
        is_complete = False
        first = 0
        end = find_log_end(files, first, evidence, check_crc=check_crc)
        _queues_agree(parts, end, entries_until)

    abort.create()
    truncated = _cut(log, end)
    log.adopt_last_file()
    if is_complete and not truncated:
        log.files.set_marks(end.end_offset)
    else:
        # What a killed process wrote is there, but only in the page cache.
        for file in files[first:]:
            file.flushed_position = 0
        log.files.set_marks(end.checked_from)
        log.files.flush()

    if index is not None:
        _settle_index(index, checkpoint, end, abnormal=abnormal)
    if abnormal:
        queues.recover(min_physical_offset=log.min_offset)
    queues.settle_ext()
    _drop_deleted_topics(parts)
    entries = sum(queue.max_queue_offset for queue in queues)
    if not is_complete:
        if mark is None:
            # Nothing says how many entries there must be: a start that is killed now must begin where this one does.
            _note_queues_uncertain(checkpoint, end, end.checked_from)
        _complete_queues(
            parts, end, drop_first=abnormal or not queues_are_right, mark=mark if abnormal else None
        )
        queues.flush()
    made = sum(queue.max_queue_offset for queue in queues) - entries

    if end.last_record_offset >= 0:
        last_ms = log.store_timestamp_at(end.last_record_offset)
        checkpoint.physic_msg_timestamp_ms = max(checkpoint.physic_msg_timestamp_ms, last_ms)
        checkpoint.logics_msg_timestamp_ms = max(checkpoint.logics_msg_timestamp_ms, last_ms)
        checkpoint.confirm_physical_offset = end.last_record_offset
    checkpoint.mark = FlushMark(end.end_offset, end.end_offset, queues.entries() & 0xFFFF_FFFF)
    return RecoveryReport(
        kind="abnormal" if abnormal else "clean",
        records=end.records,
        checked_from=end.checked_from,
        end_offset=end.end_offset,
        truncated_bytes=truncated,
        dispatched=max(0, made),
        duration_s=0.0,
    )


def _settle_index(index: IndexService, checkpoint: StoreCheckpoint, end: LogEnd, *, abnormal: bool) -> None:
    """Keep the index files that can be trusted; what they lack is indexed again once the store is open."""
    mark, full_until_ms = checkpoint.mark, checkpoint.index_msg_timestamp_ms
    if abnormal:
        index.keep_whole(full_until_ms, end.end_offset)
    elif mark is None:  # RocketMQ made the stop, with everything indexed
        index.keep_all(None, full_until_ms)
    elif mark.index_digest == index.digest:
        index.keep_all(mark.index_offset, full_until_ms)
    else:
        index.drop_all()


def _queues_agree(parts: StoreParts, end: LogEnd, entries_until: int) -> bool:
    return queues_agree(
        parts.log,
        parts.queues,
        parts.deleted,
        end.checked_from,
        end.end_offset,
        entries_until=entries_until,
    )


def _cut(log: CommitLog, end: LogEnd) -> int:
    """End the log there, with zeros behind; return how many bytes of unfinished writes that cost."""
    torn = 0
    for file in log.files.files:
        if end.end_offset < file.end_offset:
            begin = max(end.tail_from - file.base_offset, 0)
            if begin < file.size:
                torn += file.end_of_data(begin) - begin
    log.files.truncate_dirty_files(end.end_offset)
    return torn


def _drop_deleted_topics(parts: StoreParts) -> None:
    """Finish deletions that left their mark but not their work done."""
    for topic, end_offset in parts.deleted.items():
        queues = parts.queues.of_topic(topic)
        if queues and all(queue.max_physical_offset <= end_offset for queue in queues):
            parts.queues.delete_topic(topic)


def _note_queues_uncertain(checkpoint: StoreCheckpoint, end: LogEnd, from_offset: int) -> None:
    """Say in the checkpoint that queue entries are not certain from an offset on: they are about to be made anew.

    A start that is killed while it does so would otherwise leave queues that lack entries without anybody knowing. The
    log itself has just been synced up to its end.
    """
    checkpoint.mark = FlushMark(end.end_offset, from_offset)
    checkpoint.flush()


def _complete_queues(parts: StoreParts, end: LogEnd, *, drop_first: bool, mark: FlushMark | None) -> None:
    """Dispatch the checked part of the log, or all of it if that turns out not to be enough.

    It is not if the next record of a queue does not follow its last entry, if the queues have another number of entries
    than the mark says, or if a queue lacks its first files although the log has not lost any.

    Units that are not there afterwards, because their records are not, are reported.
    """
    queues = parts.queues
    min_offset = parts.log.min_offset
    ends = {(queue.topic, queue.queue_id): queue.max_queue_offset for queue in queues}
    queues.truncate_dirty(end.checked_from if drop_first else end.end_offset, min_offset)
    for queue in queues:
        if not queue.has_files:
            # It has nothing, wherever it was cut: no record is a repetition.
            queue.max_physical_offset = -1
    facts = _lost_extended_entries(queues) or _dispatch_and_compare(parts, end, mark)
    if facts:
        parts.options.on_event("queues_completed_from_beginning", facts)
        _note_queues_uncertain(parts.checkpoint, end, min_offset)
        queues.truncate_dirty(min_offset, min_offset)
        _dispatch(parts, min_offset, end.end_offset)
    for queue in queues:
        removed = ends.get((queue.topic, queue.queue_id), 0) - queue.max_queue_offset
        if removed > 0:
            where = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": queue.max_queue_offset}
            parts.options.on_event("consume_queue_cut", {**where, "units_removed": removed})


def _lost_extended_entries(queues: ConsumeQueueTable) -> dict[str, object]:
    """Return a queue whose extended entries are gone, as facts for the log; empty if all have theirs."""
    for queue in queues:
        if queue.ext_is_lost:
            return {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "max_queue_offset": queue.max_queue_offset,
            }
    return {}


def _dispatch_and_compare(parts: StoreParts, end: LogEnd, mark: FlushMark | None) -> dict[str, object]:
    """Dispatch the checked part of the log; return what shows that queues lack entries from before it, if any do."""
    queues = parts.queues
    try:
        _dispatch(parts, end.checked_from, end.end_offset)
    except QueueGap as gap:
        return {"topic": gap.topic, "queue_id": gap.queue_id, "max_queue_offset": gap.max_queue_offset}
    late = next((queue for queue in queues if queue.first_queue_offset > 0), None)
    if late is not None and parts.log.min_offset == 0:
        return {
            "topic": late.topic,
            "queue_id": late.queue_id,
            "first_queue_offset": late.first_queue_offset,
        }
    if mark is not None and mark.queues_offset <= end.end_offset:
        entries = queues.entries_before(mark.queues_offset)
        if entries & 0xFFFF_FFFF != mark.queues_digest:
            return {"entries": entries, "entries_expected": mark.queues_digest}
    return {}


def _dispatch(parts: StoreParts, from_offset: int, end_offset: int) -> None:
    builder = RecoveringQueueBuilder(
        parts.queues,
        parts.options.filter_bit_maps,
        from_beginning=from_offset == parts.log.min_offset,
        on_event=parts.options.on_event,
    )
    reput = Reput(
        parts.log,
        [builder],
        parts.deleted,
        StoreStats(),
        limit=lambda: end_offset,
        position=from_offset,
        levels_ms=parts.options.delay_levels_ms,
    )
    while reput.step():
        pass
