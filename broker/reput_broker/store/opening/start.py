"""Open a store directory: load its files, find the end of the log, complete the queues.

    1  load files, queues, checkpoint and marks; refuse files that are not supported
    2  find where the valid records of the log end, compare them with their queues, refuse damage,
       find missing queue entries (judgement.py); changes nothing
    3  create and lock what is missing (lock.py; refused if another store was faster), create
       `abort`, truncate the torn tail, sync what may not be synced, delete incomplete index files
    4  dispatch the records whose queue entries are missing or uncertain
    5  write the checkpoint

Records that are missing in the index are indexed once the store is open: immediately if they are
few, otherwise while the broker runs.

A kill in steps 3 to 5 leaves `abort` and a checkpoint that claims no more than before, so the next
start does the same again.

If the digest that an orderly stop left still holds, only the last file is checked and step 4 has
nothing to do. Otherwise, or if RocketMQ made the stop, the queues are compared with the whole log.
(After an orderly stop RocketMQ dispatches only what is beyond the furthest entry of any queue, and
so loses messages of a queue that lagged behind.) After a disorderly stop the entries of everything
that is read again are dropped first, because they may be left over from lost records. If queues
lack even older entries, all are completed from the oldest file.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from reput_broker.store.base.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.base.errors import DiskFull, StoreNotWritable
from reput_broker.store.base.file_io import make_directories, sync_directory, write_all
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import RecoveryReport, StoreStats
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.walk import last_record_ending_by
from reput_broker.store.opening.directory_swap import is_out_of_place, put_back, take_out
from reput_broker.store.opening.foreign_files import refuse_foreign_files, refuse_unlisted_log
from reput_broker.store.opening.judgement import Judgement, LogEnd, StoreParts, judge, refuse_lost_log, topics_to_delete
from reput_broker.store.queue.reput import LogFollower, RecoveringQueueBuilder

_CHUNK_BYTES = 1 << 20
_EFFECTIVE = os.access in os.supports_effective_ids


def refuse_unwritable(options: StoreOptions) -> None:
    """Refuse a directory in which something that the broker has to write is not writable.

    Of several directories of the log one writable one is enough.

    Raises:
        StoreNotWritable: names what cannot be written. Nothing was changed.
    """
    root = options.data_dir
    names = ("checkpoint", "abort", "deletedTopics", "config")
    for path in (root, *(root / name for name in names), options.consume_queue_dir, options.index_dir):
        _refuse(path)
    directories = options.writable_log_dirs
    if not any(is_writable(path) for path in directories):
        _refuse(directories[0])


def is_writable(path: Path) -> bool:
    """Whether a file or directory may be written, or does not exist."""
    return not path.exists() or os.access(path, os.W_OK, effective_ids=_EFFECTIVE)


def _refuse(path: Path) -> None:
    if not is_writable(path):
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        raise StoreNotWritable(path, errno.EROFS if is_read_only else errno.EACCES)


def open_parts(parts: StoreParts) -> RecoveryReport:
    """Load and recover a directory whose lock is reserved.

    Raises:
        ForeignFile, StoreDamaged, StoreLocked, StoreNotWritable: nothing has been changed.
        DiskFull, FlushFailed: recovery could not be completed; the next start repeats it.
    """
    log, queues, deleted = parts.log, parts.queues, parts.deleted
    refuse_unwritable(parts.options)
    moved: list[Path] = []
    try:
        moved = _put_back(parts)
        judgement = load_and_judge(parts)
    except BaseException:
        take_out(moved)
        parts.lock.remove_made()
        raise
    report = _begin(parts) if judgement is None else _recover(parts, judgement)
    deleted.end_at(report.end_offset)
    deleted.forget_below(log.min_offset)
    queues.correct_min_offsets(log.min_offset)
    for queue in queues:
        if queue.max_queue_offset:
            log.next_queue_offsets[queue.topic, queue.queue_id] = queue.max_queue_offset
    parts.checkpoint.flush()
    return report


def _put_back(parts: StoreParts) -> list[Path]:
    """Put back a directory that a killed rebuild was replacing, so that it can be judged.

    This needs the lock. It is undone if the start is refused; a lock file that was created stays.
    """
    root = parts.options.data_dir
    if not is_out_of_place(root):
        return []
    parts.lock.acquire()
    moved = put_back(root)
    for place in moved:
        parts.options.on_event("directory_put_back", {"path": str(place)})
    return moved


def load_and_judge(parts: StoreParts) -> Judgement | None:
    """Load everything and judge it; None for a directory without a log. Changes nothing.

    Raises:
        ForeignFile, StoreDamaged: the start is refused.
    """
    options, _, log, queues, checkpoint, deleted, abort, index = parts
    refuse_foreign_files(options.data_dir, keeps_ext=options.consume_queue_ext)
    refuse_unlisted_log(options)
    has_abort = abort.exists
    log.files.load(after_crash=has_abort)
    queues.load(after_crash=has_abort)
    checkpoint.load()
    deleted.load()
    if index is not None:
        index.load(after_crash=has_abort)
    _report_missing_directories(parts)
    if log.files.files:
        return judge(parts)
    refuse_lost_log(parts)
    return None


def _report_missing_directories(parts: StoreParts) -> None:
    """Report which of several log directories do not exist: new, or on a disk that is not mounted."""
    directories = parts.log.files.directories
    if len(directories) > 1 and parts.log.files.files:
        for directory in directories:
            if not directory.is_dir():
                parts.options.on_event("commit_log_dir_missing", {"path": str(directory)})


def _begin(parts: StoreParts) -> RecoveryReport:
    parts.lock.acquire()
    parts.abort.create()
    parts.log.files.drop_unfinished()
    parts.queues.apply_recovery()
    if parts.key_index is not None:
        parts.key_index.drop_all()
    parts.checkpoint.mark = FlushMark(0, 0)
    return RecoveryReport("empty", 0, 0, 0, -1, 0, 0, 0.0)


def _recover(parts: StoreParts, judgement: Judgement) -> RecoveryReport:
    _, lock, log, queues, checkpoint, _, abort, index = parts
    end, mark = judgement.end, checkpoint.mark
    lock.acquire()
    abort.create()
    log.files.drop_unfinished()
    truncated = _truncate(log, end)
    log.adopt_last_file()
    if judgement.is_complete and not truncated:
        log.files.set_marks(end.end_offset)
    else:
        # What a killed process wrote is readable, but only in the page cache.
        for file in log.files.files[judgement.first :]:
            file.flushed_position = 0
        log.files.set_marks(end.checked_from)
        log.files.flush()

    if index is not None:
        _complete_index(index, checkpoint, end, abnormal=judgement.abnormal)
    queues.apply_recovery()
    queues.delete_topics(topics_to_delete(parts))
    entries = queues.entries()
    if not judgement.is_complete:
        if mark is None or not judgement.abnormal:
            # No count of entries to compare with: a start that is killed now must begin where this
            # one does.
            _note_queues_uncertain(checkpoint, end, end.checked_from)
        _complete_queues(parts, judgement)
        queues.flush()
    made = queues.entries() - entries

    if end.last_record_offset >= 0:
        last_ms = log.store_timestamp_at(end.last_record_offset)
        checkpoint.physic_msg_timestamp_ms = max(checkpoint.physic_msg_timestamp_ms, last_ms)
        checkpoint.logics_msg_timestamp_ms = max(checkpoint.logics_msg_timestamp_ms, last_ms)
        checkpoint.confirm_physical_offset = end.last_record_offset
    checkpoint.mark = FlushMark(end.end_offset, end.end_offset, queues.entries() & 0xFFFF_FFFF)
    return RecoveryReport(
        kind="abnormal" if judgement.abnormal else "clean",
        records=end.records,
        checked_from=end.checked_from,
        end_offset=end.end_offset,
        last_record_offset=end.last_record_offset,
        truncated_bytes=truncated,
        dispatched=max(0, made),
        duration_s=0.0,
    )


def _complete_index(index: IndexService, checkpoint: StoreCheckpoint, end: LogEnd, *, abnormal: bool) -> None:
    """Keep the index files that can be trusted; missing records are indexed once the store is open."""
    mark, full_until_ms = checkpoint.mark, checkpoint.index_msg_timestamp_ms

    def note_kept() -> None:
        checkpoint.index_msg_timestamp_ms = index.full_until_ms
        checkpoint.flush()

    if abnormal:
        index.keep_whole(full_until_ms, end.end_offset, note_kept)
    elif mark is None:  # RocketMQ stopped in order, with everything indexed
        index.keep_all(None, full_until_ms)
    elif mark.index_digest == index.digest:
        index.keep_all(mark.index_offset, full_until_ms)
    else:
        index.drop_all(note_kept)
    checkpoint.index_msg_timestamp_ms = index.full_until_ms
    with suppress(DiskFull, OSError):  # dispatch retries when it has a key to insert
        index.reserve_last_file()


def _truncate(log: CommitLog, end: LogEnd) -> int:
    torn = 0
    for file in log.files.files:
        if end.end_offset < file.end_offset:
            begin = max(end.tail_from - file.base_offset, 0)
            if begin < file.size:
                torn += file.end_of_data(begin) - begin
    log.files.truncate_dirty_files(end.end_offset)
    return torn


def _note_queues_uncertain(checkpoint: StoreCheckpoint, end: LogEnd, from_offset: int) -> None:
    """Record in the checkpoint that queue entries from an offset on are about to be rebuilt.

    Otherwise a kill meanwhile would leave incomplete queues undetected. The log has just been synced.
    """
    checkpoint.mark = FlushMark(end.end_offset, from_offset)
    checkpoint.flush()


def _complete_queues(parts: StoreParts, judgement: Judgement) -> None:
    """Dispatch the checked part of the log, or all of it if that is not enough; report entries that are missing
    afterwards."""
    queues, end = parts.queues, judgement.end
    min_offset = parts.log.min_offset
    ends = {(queue.topic, queue.queue_id): queue.max_queue_offset for queue in queues}
    if judgement.lacking:
        parts.options.on_event("queues_completed_from_beginning", judgement.lacking)
        _note_queues_uncertain(parts.checkpoint, end, min_offset)
        cut_at = from_offset = min_offset
    else:
        from_offset = end.checked_from
        cut_at = from_offset if judgement.drops_entries else end.end_offset
    queues.truncate_dirty(cut_at, min_offset)
    for queue in queues:
        if not queue.has_files:
            # It is empty after any truncation: no record is a repetition.
            queue.max_physical_offset = -1
    _dispatch(parts, from_offset, end.end_offset)
    for queue in queues:
        removed = ends.get((queue.topic, queue.queue_id), 0) - queue.max_queue_offset
        if removed > 0:
            where = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": queue.max_queue_offset}
            parts.options.on_event("consume_queue_truncated", {**where, "units_removed": removed})


def _dispatch(parts: StoreParts, from_offset: int, end_offset: int) -> None:
    builder = RecoveringQueueBuilder(
        parts.queues,
        parts.options.filter_bit_maps,
        from_beginning=from_offset == parts.log.min_offset,
        on_event=parts.options.on_event,
    )
    reput = LogFollower(
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


def truncate_tail(parts: StoreParts, offset: int) -> None:
    """Truncate the log of a closed store to `offset` at most, a boundary between records; nothing if it ends before.

    A broker that was the master, and returns as a slave, may hold records that no other broker received. Its log must
    become a prefix of the new master's, so they are removed; but they were accepted once, so they are saved first.

        1  judge the directory as a start does; nothing is changed if it is refused
        2  save the records beyond the offset in `cut/<start>-<end>.log`, synced
        3  create `abort` and void the checkpoint's mark, so that the start that follows rebuilds what is derived
        4  truncate the log

    A kill before 4 leaves all records in the log, one during 4 fewer of them, and all are in the file. What is done
    again then saves less under another name, or the same under the same name.

    Blocks. The lock is reserved; the directory must be opened afterwards, with parts of its own.

    Raises:
        ForeignFile, StoreDamaged, StoreLocked, StoreNotWritable: nothing has been changed.
        DiskFull, FlushFailed: it could not be completed; it may be repeated.
    """
    log, checkpoint = parts.log, parts.checkpoint
    judgement = load_and_judge(parts)
    if judgement is None or offset >= judgement.end.end_offset:
        return
    end = judgement.end.end_offset
    last = last_record_ending_by(log.files.files, offset)
    start, last_ms = (log.min_offset, 0) if last is None else (last[1], log.store_timestamp_at(last[0]))
    parts.lock.acquire()
    path = _save_tail(parts.options, log, start, end)
    parts.abort.create()
    checkpoint.mark = None
    checkpoint.physic_msg_timestamp_ms = min(checkpoint.physic_msg_timestamp_ms, last_ms)
    checkpoint.logics_msg_timestamp_ms = min(checkpoint.logics_msg_timestamp_ms, last_ms)
    checkpoint.flush()
    log.files.drop_unfinished()
    log.files.truncate_dirty_files(start)
    parts.options.on_event("log_tail_truncated", {"path": path, "from_offset": start, "to_offset": end})


def _save_tail(options: StoreOptions, log: CommitLog, start: int, end: int) -> str:
    """Save `[start, end)` of the log durably; return the path."""
    directory = options.data_dir / "cut"
    make_directories(directory)
    path = directory / f"{start}-{end}.log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        position = start
        while position < end:
            size = min(_CHUNK_BYTES, end - position, log.next_file_offset(position) - position)
            write_all(fd, log.read(position, size), position - start, path)
            position += size
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(directory)
    return str(path)
