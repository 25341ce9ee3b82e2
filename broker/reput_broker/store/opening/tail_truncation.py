"""Truncate a log to what its master has, and keep the rest in a file.

A broker that was the master, and returns as a slave, may hold records that no other broker received. Its log must
become a prefix of the new master's, so they are removed; but they were accepted once, so they are saved first.

    1  judge the directory as a start does; nothing is changed if it is refused
    2  save the records beyond the offset in `cut/<start>-<end>.log`, synced
    3  create `abort` and void the checkpoint's mark, so that the start that follows rebuilds what is derived
    4  truncate the log

A kill before 4 leaves all records in the log, one during 4 fewer of them, and all are in the file. What is done again
then saves less under another name, or the same under the same name.
"""

from __future__ import annotations

import os

from reput_broker.store.file_io import make_directories, sync_directory, write_all
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.walk import last_record_ending_by
from reput_broker.store.opening.parts import StoreParts
from reput_broker.store.opening.start import load_and_judge
from reput_broker.store.options import StoreOptions

_CHUNK_BYTES = 1 << 20


def truncate_tail(parts: StoreParts, offset: int) -> None:
    """Truncate the log of a closed store to `offset` at most, a boundary between records; nothing if it ends before.

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
    path = _save(parts.options, log, start, end)
    parts.abort.create()
    checkpoint.mark = None
    checkpoint.physic_msg_timestamp_ms = min(checkpoint.physic_msg_timestamp_ms, last_ms)
    checkpoint.logics_msg_timestamp_ms = min(checkpoint.logics_msg_timestamp_ms, last_ms)
    checkpoint.flush()
    log.files.drop_unfinished()
    log.files.truncate_dirty_files(start)
    parts.options.on_event("log_tail_truncated", {"path": path, "from_offset": start, "to_offset": end})


def _save(options: StoreOptions, log: CommitLog, start: int, end: int) -> str:
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
