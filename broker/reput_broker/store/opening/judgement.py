"""Judge a loaded directory: end of the log, identity of its records, completeness of the queues.

Everything that can refuse a start is checked here, and nothing is changed. The `Judgement`
determines what the start then does to the directory (`start.py`).

Identity means that every record belongs to the queue and queue offset that it names. No checksum of RocketMQ's records
covers topic, queue id and queue offset (except the optional whole-record one). But the offsets of one queue are
consecutive in the log, and the queue's entry points at the record. A record that leaves a gap in its queue, or that
another queue's entry points at, was changed, and the start is refused. If records and entries disagree otherwise, the
entries are wrong, and rebuilt.

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

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from reput_broker.store.base.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.base.dispatch import DeletedTopics
from reput_broker.store.base.errors import REPAIR_REMEDY, StoreDamaged
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.walk import (
    QueuedRecords,
    RecordSink,
    find_sound_record_after,
    first_record_timestamp,
    walk_file,
)
from reput_broker.store.opening.foreign_files import refuse_foreign_records, refuse_unwritable_end
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock
from reput_broker.store.queue.consume_queue import ConsumeQueue, QueueRest
from reput_broker.store.queue.table import ConsumeQueueTable, queues_digest
from reput_protocol.kernel.units import differing_units
from reput_protocol.store.unit import UNIT, UNIT_BYTES


class StoreParts(NamedTuple):
    """Built before the recovery, which reads and repairs them; an open store keeps them."""

    options: StoreOptions
    lock: DirectoryLock
    """Reserved; acquired before anything is changed."""
    log: CommitLog
    queues: ConsumeQueueTable
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
    abort: AbortMarker
    key_index: IndexService | None
    """None if no index is kept: files in its directory are left alone."""


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
        if files[index].base_offset <= offset and first_record_timestamp(files[index], check_crc=check_crc) > 0:
            return index
    return 0


def start_by_timestamp(files: Sequence[MappedFile], timestamp_ms: int, *, check_crc: bool) -> int:
    """Index of the newest file whose first record is valid and was stored by `timestamp_ms`, else 0."""
    for index in range(len(files) - 1, 0, -1):
        if 0 < first_record_timestamp(files[index], check_crc=check_crc) <= timestamp_ms:
            return index
    return 0


def find_log_end(
    files: Sequence[MappedFile], start_index: int, evidence: FlushEvidence, sink: RecordSink, *, check_crc: bool
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


Queue = tuple[str, int]


class _Run(NamedTuple):
    """Records of one queue with consecutive queue offsets."""

    queue: Queue
    records: array[int]
    """Queue offset, log offset and size of each."""

    def __len__(self) -> int:
        return len(self.records) // 3

    @property
    def first(self) -> int:
        return self.records[0]

    @property
    def end(self) -> int:
        return self.records[0] + len(self)

    @property
    def place(self) -> int:
        return self.records[1]

    def before(self, log_offset: int) -> int:
        """How many of the records are before a log offset."""
        return bisect_left(self.records[1::3], log_offset)


@dataclass(eq=False, repr=False)
class IdentityCheck:
    """Compares the records of a walk with each other and with the queues' entries. Changes nothing.

    Args:
        queues: recovered, but not truncated yet.
        from_offset: where the walk begins.
        entries_until: every record before this log offset has its entry on disk.
    """

    _log: CommitLog
    _queues: ConsumeQueueTable
    _deleted: DeletedTopics
    _from_offset: int
    _entries_until: int
    agrees: bool = field(default=True, init=False)
    """Whether every entry before `entries_until` is right, as far as the walk has come."""
    first: dict[Queue, tuple[int, int]] = field(default_factory=dict, init=False)
    """Queue offset and log offset of each queue's first record in the walk."""
    ends_at_mark: dict[Queue, tuple[int, bool]] = field(default_factory=dict, init=False)
    """End of each of these queues at `entries_until`, and whether it started again at 0 on the way."""
    _next: dict[Queue, int] = field(default_factory=dict, init=False)

    def take(self, records: QueuedRecords) -> None:
        """Compare the next records of the walk.

        Raises:
            StoreDamaged: a record is not the message that its queue has there.
        """
        runs = list(self._runs_of(records))
        # Entries first: if a record claims to be in another queue, they name it; a gap only names
        # the record after it.
        self._compare([run for run in runs if run.place < self._entries_until])
        for run in runs:
            self._follow(run)

    def check_continued_by(self, later: IdentityCheck) -> None:
        """Check that the records of a later walk follow those of this one.

        Raises:
            StoreDamaged: a queue has a gap between both.
        """
        for queue, (first, offset) in later.first.items():
            self._check_order(queue, first, offset)

    def _runs_of(self, records: QueuedRecords) -> Iterator[_Run]:
        hides = bool(len(self._deleted))
        for (topic_bytes, queue_id), rows in records.items():
            topic = topic_bytes.decode()
            if hides:
                rows = rows[3 * bisect_left(rows[1::3], self._deleted.end_offset(topic)) :]
                if not rows:
                    continue
            numbers = rows[::3]
            if numbers == array("q", range(numbers[0], numbers[0] + len(numbers))):
                yield _Run((topic, queue_id), rows)
                continue
            breaks = [at for at, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1]
            for start, stop in pairwise([0, *breaks, len(numbers)]):
                yield _Run((topic, queue_id), rows[3 * start : 3 * stop])

    # -- records with each other -----------------------------------------------------------------------

    def _follow(self, run: _Run) -> None:
        queue, first, offset = run.queue, run.first, run.place
        self._check_order(queue, first, offset)
        self.first.setdefault(queue, (first, offset))
        # A topic that was deleted starts at 0 again. Offsets used twice are an old broker's fault.
        known = 0 if first == 0 else self._next.get(queue, 0)
        self._next[queue] = max(known, run.end)
        certain = run.before(self._entries_until)
        if certain:
            end, restarted = self.ends_at_mark.get(queue, (0, False))
            end, restarted = (0, True) if first == 0 else (end, restarted)
            self.ends_at_mark[queue] = (max(end, first + certain), restarted)

    def _check_order(self, queue: Queue, first: int, offset: int) -> None:
        # Nothing precedes the log's first byte: every queue starts at 0 there.
        expected = self._next.get(queue, 0 if self._from_offset == 0 else None)
        if expected is not None and first > expected:
            self._refuse(queue, first, offset, f"but the record before it in that queue is message {expected - 1}")

    # -- records with entries --------------------------------------------------------------------------

    def _compare(self, runs: list[_Run]) -> None:
        missed: list[tuple[_Run, int]] = []
        for run in runs:
            certain = run.before(self._entries_until)
            missed += [(run, index) for index in self._without_entries(run) if index < certain]
        if not missed:
            return
        self.agrees = False
        places = [run.records[3 * index + 1] for run, index in missed]
        claims = self._claims(min(places), max(places))
        for (run, index), place in zip(missed, places, strict=True):
            claim = claims.get((place, run.records[3 * index + 2]))
            if claim is not None:
                (topic, queue_id), number = claim
                self._refuse(
                    run.queue,
                    run.first + index,
                    place,
                    f"but entry {number} of queue {queue_id} of topic {topic} points at it",
                )

    def _without_entries(self, run: _Run) -> list[int]:
        wrong: list[int] = []
        queue = self._queues.get(run.queue)
        done = 0
        while queue is not None and done < len(run):
            at = run.first + done
            units = queue.read_units(at, len(run) - done)
            if units:
                wrong += differing_units(units, run.records, done)
                done += len(units) // UNIT_BYTES
                continue
            if at >= queue.min_queue_offset:
                break
            expired = min(queue.min_queue_offset - at, len(run) - done)
            wrong += range(done, done + expired)
            done += expired
        wrong += range(done, len(run))
        return wrong

    def _claims(self, low: int, high: int) -> dict[tuple[int, int], tuple[Queue, int]]:
        """Queue and queue offset of entries that point into `[low, high]`, by (log offset, size)."""
        claims: dict[tuple[int, int], tuple[Queue, int]] = {}
        for queue in self._queues:
            for number, units in _entries_between(queue, low, high):
                for at, (place, size, _) in enumerate(UNIT.iter_unpack(units), number):
                    if low <= place <= high and size > 0:
                        claims[place, size] = (queue.topic, queue.queue_id), at
        return claims

    def _refuse(self, queue: Queue, message: int, offset: int, contradiction: str) -> None:
        file = self._log.files.find_by_offset(offset)
        assert file is not None, "it was read from there"
        topic, queue_id = queue
        raise StoreDamaged(
            file.path,
            offset - file.base_offset,
            f"the record there says that it is message {message} of queue {queue_id} of topic {topic} "
            f"(log offset {offset}), {contradiction}",
            REPAIR_REMEDY,
        )


def _entries_between(queue: ConsumeQueue, low: int, high: int) -> Iterator[tuple[int, bytes]]:
    position = max(queue.queue_offset_of(low), queue.min_queue_offset)
    end = min(queue.queue_offset_of(high + 1), queue.max_queue_offset)
    while position < end and (units := queue.read_units(position, end - position)):
        yield position, units
        position += len(units) // UNIT_BYTES


CHECK_WORTH_SAYING_BYTES = 16 << 20
"""A start that reads at least this much of the log reports it first, as it takes noticeable time."""


class Judgement(NamedTuple):
    """What a start found and what it has to do."""

    abnormal: bool
    """Whether the last broker did not stop in order, or something has changed since it did."""
    end: LogEnd
    first: int
    """Number of the first file whose records were checked."""
    is_complete: bool
    """Whether the queues are known to hold exactly the right entries."""
    drops_entries: bool
    """Whether entries of checked records are rebuilt, as lost records may have left some."""
    lacking: dict[str, object]
    """Evidence that queues lack older entries too, so that all are rebuilt; else empty."""


def judge(parts: StoreParts) -> Judgement:
    """Judge a directory that has a log. Nothing on disk is changed; the queues end where they will end.

    Raises:
        StoreDamaged, ForeignFile: the start is refused.
    """
    log, queues, mark = parts.log, parts.queues, parts.checkpoint.mark
    files = log.files.files
    queues.recover(log.min_offset)
    is_as_stopped = _is_as_stopped(queues, mark)
    abnormal = parts.abort.exists and not is_as_stopped
    is_complete = is_as_stopped and not queues.ext_is_lost and not abnormal
    evidence, first = _where_to_begin(parts, abnormal=abnormal, is_complete=is_complete)
    _report_check(parts, first, evidence, abnormal=abnormal)
    check, end = _walk(parts, first, evidence)
    if mark is None:
        refuse_foreign_records(files, first, end.end_offset)
    if mark is not None and is_as_stopped and end.end_offset != mark.flushed_offset:
        # Records were appended by a broker that never wrote our checkpoint: RocketMQ, killed soon
        # after its start.
        abnormal, is_complete = True, False
    agrees = check.agrees
    if not agrees:
        # The entries may be wrong elsewhere too, so all of the log is needed to rebuild them.
        is_complete = False
        if first:
            first = 0
            _report_check(parts, first, evidence, abnormal=abnormal)
            check, end = _walk(parts, first, evidence)
    refuse_unwritable_end(files, end.end_offset)
    drops_entries = abnormal or not agrees
    lacking: dict[str, object] = {}
    if not is_complete:
        counted = mark if abnormal and not is_as_stopped else None
        lacking = _lacking(parts, check, end, drops_entries=drops_entries, mark=counted)
        if lacking and first:
            older = _identity_check(parts, 0)
            check_files_before(files[:first], older)
            older.check_continued_by(check)
    return Judgement(abnormal, end, first, is_complete, drops_entries, lacking)


def _is_as_stopped(queues: ConsumeQueueTable, mark: FlushMark | None) -> bool:
    """Whether the checkpoint is that of an orderly stop, and the queues have not changed since.

    A start creates `abort` before it changes anything, and writes another checkpoint before it
    appends anything. If it is killed in between, nothing that matters has changed.
    """
    return (
        mark is not None and mark.queues_offset >= mark.flushed_offset and mark.queues_digest == queues_digest(queues)
    )


def _where_to_begin(parts: StoreParts, *, abnormal: bool, is_complete: bool) -> tuple[FlushEvidence, int]:
    check_crc = parts.options.check_crc
    files, mark = parts.log.files.files, parts.checkpoint.mark
    if not abnormal:
        # With a mark, every byte before it is on disk, and nothing else was appended.
        flushed = mark.flushed_offset if mark is not None else max(parts.queues.max_physical_offset(), 0)
        first = start_by_offset(files, flushed, check_crc=check_crc) if is_complete else 0
        return FlushEvidence(flushed, 0), first
    if mark is not None:
        offset = min(mark.flushed_offset, mark.queues_offset)
        return FlushEvidence(mark.flushed_offset, 0), start_by_offset(files, offset, check_crc=check_crc)
    checkpoint = parts.checkpoint
    return (
        FlushEvidence(None, checkpoint.physic_msg_timestamp_ms),
        start_by_timestamp(files, checkpoint.min_timestamp_ms, check_crc=check_crc),
    )


def _walk(parts: StoreParts, first: int, evidence: FlushEvidence) -> tuple[IdentityCheck, LogEnd]:
    check = _identity_check(parts, first)
    files, check_crc = parts.log.files.files, parts.options.check_crc
    return check, find_log_end(files, first, evidence, check, check_crc=check_crc)


def _report_check(parts: StoreParts, first: int, evidence: FlushEvidence, *, abnormal: bool) -> None:
    """Report what is about to be read if that is much, since nothing else is reported until it is done.

    Without a mark the end of the log is not known yet; the end of its files stands for it.
    """
    files = parts.log.files.files
    from_offset = files[first].base_offset
    to_offset = files[-1].end_offset if evidence.flushed_offset is None else evidence.flushed_offset
    if to_offset - from_offset >= CHECK_WORTH_SAYING_BYTES:
        facts = {"path": str(files[first].path), "from_offset": from_offset, "to_offset": to_offset}
        kind = "abnormal" if abnormal else "clean"
        parts.options.on_event("recovering", {"kind": kind, **facts, "bytes_to_check": to_offset - from_offset})


def _identity_check(parts: StoreParts, first: int) -> IdentityCheck:
    mark = parts.checkpoint.mark
    return IdentityCheck(
        parts.log,
        parts.queues,
        parts.deleted,
        parts.log.files.files[first].base_offset,
        mark.queues_offset if mark is not None else 0,
    )


def _lacking(
    parts: StoreParts, check: IdentityCheck, end: LogEnd, *, drops_entries: bool, mark: FlushMark | None
) -> dict[str, object]:
    """Return evidence that the checked part of the log is not enough to complete the queues, for the log.

    Evidence: extended entries are gone; the next record of a queue does not follow its last entry;
    a queue lacks its first files although the log has lost none; the queues have another number of
    entries than the mark says.
    """
    min_offset = parts.log.min_offset
    gone = topics_to_delete(parts)
    cut_at = end.checked_from if drops_entries else end.end_offset
    rests = {
        (queue.topic, queue.queue_id): queue.rest_before(cut_at, min_offset)
        for queue in parts.queues
        if queue.topic not in gone
    }
    nothing = QueueRest(0, 0, False)
    for (topic, queue_id), rest in rests.items():
        where = {"topic": topic, "queue_id": queue_id}
        if rest.ext_is_lost:
            return {**where, "max_queue_offset": rest.max_queue_offset}
        if rest.first_queue_offset > 0 and min_offset == 0:
            return {**where, "first_queue_offset": rest.first_queue_offset}
    if end.checked_from > min_offset:
        for (topic, queue_id), (message, _) in check.first.items():
            max_queue_offset = rests.get((topic, queue_id), nothing).max_queue_offset
            if message > max_queue_offset:
                return {"topic": topic, "queue_id": queue_id, "max_queue_offset": max_queue_offset}
    # Records before the first remaining file need no entries any more.
    if mark is not None and min_offset <= mark.queues_offset <= end.end_offset:
        ends = {queue: rest.max_queue_offset for queue, rest in rests.items()}
        for queue, (queue_end, restarted) in check.ends_at_mark.items():
            ends[queue] = queue_end if restarted else max(queue_end, ends.get(queue, 0))
        entries = sum(ends.values())
        if entries & 0xFFFF_FFFF != mark.queues_digest:
            return {"entries": entries, "entries_expected": mark.queues_digest}
    return {}


def topics_to_delete(parts: StoreParts) -> list[str]:
    """Topics whose deletion was interrupted: marked as deleted, with queues."""
    found = []
    for topic, end_offset in parts.deleted.items():
        queues = parts.queues.of_topic(topic)
        if queues and all(queue.max_physical_offset <= end_offset for queue in queues):
            found.append(topic)
    return found


def refuse_lost_log(parts: StoreParts) -> None:
    """Refuse a directory without a log in which there must have been one.

    Raises:
        StoreDamaged: names the evidence.
    """
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
