"""Bugs to plant in the store, so that the fault checkers can prove that they would notice them.

Each function changes the running program through a `MonkeyPatch`, which undoes it. None of this is reachable from the
product.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from faults import outcome, workload
from faults import planted_delays as delays
from faults.clock_jumps import clock_jumps
from faults.delayed import delayed_messages
from faults.descriptors import out_of_descriptors
from faults.disk_full import full_disks
from faults.expiry import cuts_while_files_expire
from faults.failed_sync import failed_syncs
from faults.killed_rebuild import killed_rebuilds
from faults.killed_repair import killed_repairs
from faults.log_cuts import garbage_after_the_end, log_cuts
from faults.log_damage import damage_in_the_middle
from faults.log_flips import flips
from faults.lost_files import lost_files
from faults.outcome import Kind
from faults.planted_directories import (
    copy_not_synced_before_removal,
    cut_before_copies_are_synced,
    cut_without_a_mark,
    expired_queues_not_kept,
    expired_queues_not_synced,
    faster_owner_not_noticed,
    killed_rebuild_not_put_back,
    lock_made_before_judged,
    log_directories_not_locked,
    missing_directories_not_locked,
    queues_removed_before_replaced,
    refused_start_leaves_directories,
    side_files_share_a_name,
    side_names_not_synced,
)
from faults.power_cut import kills_during_recovery, power_cuts
from faults.shared_logs import stores_sharing_a_log
from faults.sparse_files import sparse_files
from reput_broker.store import message_writer as store_flush
from reput_broker.store.base import file_io
from reput_broker.store.base.dispatch import DeletedTopics
from reput_broker.store.base.errors import DiskFull, FlushFailed
from reput_broker.store.base.results import Block, PutResult, PutStatus
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.index import file as index_file
from reput_broker.store.index import service as index_service
from reput_broker.store.index.service import IndexService
from reput_broker.store.log import mapped_file, mapped_file_queue
from reput_broker.store.log import walk as log_walk
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import MappedFileQueue
from reput_broker.store.log.pool import WriteBuffer
from reput_broker.store.message_store import MessageStore
from reput_broker.store.message_writer import MessageWriter, StoreFlush
from reput_broker.store.opening import judgement
from reput_broker.store.opening import start as opening
from reput_broker.store.opening.judgement import IdentityCheck
from reput_broker.store.opening.lock import AbortMarker
from reput_broker.store.queue import files as sparse_file_queue
from reput_broker.store.queue import reput as reput_steps
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_broker.store.retention import StoreCleaners
from reput_broker.tables import config_file
from reput_broker.tables.offset_journal import OffsetJournal
from reput_client.consume import pull
from support import planted_bugs


def _nothing(*_: object, **__: object) -> None:
    return None


def skipped_sync(patch: pytest.MonkeyPatch) -> None:
    """the log's syncs are claimed and not done"""
    patch.setattr(mapped_file, "sync_data", _nothing)


def early_ack(patch: pytest.MonkeyPatch) -> None:
    """a flush reports what was written when it ends, and syncs only at the next call"""
    real = MappedFileQueue.flush

    def flush(self: MappedFileQueue) -> int:
        real(self) if self.flushed_where % 2 else None
        self.flushed_where = self.committed_where = self.max_wrote_position
        return self.flushed_where

    patch.setattr(MappedFileQueue, "flush", flush)


def no_truncation(patch: pytest.MonkeyPatch) -> None:
    """recovery leaves the bytes of the torn tail where they are"""
    patch.setattr(MappedFile, "zero_tail", lambda *_: 0)


def garbage_kept(patch: pytest.MonkeyPatch) -> None:
    """recovery leaves garbage after the log's end where it is"""
    no_truncation(patch)


def checkpoint_ahead_of_queues(patch: pytest.MonkeyPatch) -> None:
    """the checkpoint says that the queues are on the disk, and they are not"""
    patch.setattr(ConsumeQueueTable, "flush", lambda *_: 0)


def abort_removed_too_soon(patch: pytest.MonkeyPatch) -> None:
    """`abort` is removed as soon as the store is open"""
    real = MessageStore.open

    def open_(self: MessageStore) -> Any:
        report = real(self)
        self._abort.remove()
        return report

    patch.setattr(MessageStore, "open", open_)


def directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    """the names of new log files (and index files) are not synced"""
    patch.setattr(file_io, "sync_directory", _nothing)


def head_written_first(patch: pytest.MonkeyPatch) -> None:
    """a block's first eight bytes are written first, not last"""
    patch.setattr(MappedFile, "write_published", MappedFile.append)


def commit_head_first(patch: pytest.MonkeyPatch) -> None:
    """a commit writes the first eight bytes of what it brings first, not last"""

    def copy_to(self: WriteBuffer, fd: int, start: int, end: int, path: Path) -> None:
        file_io.write_all(fd, self.view[start : start + 8], start, path)
        file_io.write_all(fd, self.view[start + 8 : end], start + 8, path)

    patch.setattr(WriteBuffer, "copy_to", copy_to)
    patch.setattr(workload, "POOL_SHARE", 1.0)  # without a pool nothing is committed


def rebuilt_from_too_late(patch: pytest.MonkeyPatch) -> None:
    """recovery dispatches only what is after the flushed offset"""
    real = opening._dispatch

    def dispatch(parts: Any, from_offset: int, end_offset: int) -> None:
        mark = parts.checkpoint.mark
        real(parts, max(from_offset, mark.flushed_offset) if mark else from_offset, end_offset)

    patch.setattr(opening, "_dispatch", dispatch)


def torn_tail_accepted(patch: pytest.MonkeyPatch) -> None:
    """recovery checks neither checksums nor lost sectors"""
    real = log_walk.walk_file

    def walk(file: Any, sink: Any, *, check_crc: bool, flushed_offset: int) -> Any:
        return real(file, sink, check_crc=False, flushed_offset=1 << 62)

    patch.setattr(judgement, "walk_file", walk)


def flushed_mark_ahead(patch: pytest.MonkeyPatch) -> None:
    """the flushed mark says how far was written, not how far was synced"""
    real = StoreFlush.write_checkpoint

    def write(self: StoreFlush) -> None:
        self._checkpoint.move_mark(flushed_offset=self._log.max_offset)
        real(self)

    patch.setattr(StoreFlush, "write_checkpoint", write)


def unflushed_served(patch: pytest.MonkeyPatch) -> None:
    """under SYNC_FLUSH consumers see what is written"""
    patch.setattr(CommitLog, "visible_end", lambda self: self.max_offset)


def damage_cut_off(patch: pytest.MonkeyPatch) -> None:
    """recovery truncates at any bad record, flushed or not"""
    patch.setattr(judgement, "_refuse_if_flushed", _nothing)


def identity_not_checked(patch: pytest.MonkeyPatch) -> None:
    """a start does not ask whether records are the messages of their queues"""
    patch.setattr(IdentityCheck, "take", _nothing)


def sync_failure_forgotten(patch: pytest.MonkeyPatch) -> None:
    """a failed sync is tried again as if nothing had happened"""
    real = MappedFile.flush

    def flush(self: MappedFile) -> int:
        try:
            return real(self)
        except FlushFailed:
            self._flush_error = None
            return real(self)

    patch.setattr(MappedFile, "flush", flush)


def full_disk_swallowed(patch: pytest.MonkeyPatch) -> None:
    """a put on a full disk is acknowledged all the same"""
    real = MessageWriter.put_one

    def put_one(self: MessageWriter, block: Block) -> PutResult:
        result = real(self, block)
        if result.status is PutStatus.DISK_FULL:
            return PutResult(
                PutStatus.PUT_OK, self._log.next_queue_offsets.get((block.topic, block.queue_id), 0), 0, 0, 0, 1
            )
        return result

    patch.setattr(MessageWriter, "put_one", put_one)


def full_disk_final(patch: pytest.MonkeyPatch) -> None:
    """a store whose disk was full once stays so"""
    patch.setattr(RunningFlags, "note_written", _nothing)
    real = RunningFlags.note_disk_full

    def note(self: RunningFlags, error: DiskFull) -> None:
        real(self, error)
        self.refusal = PutStatus.DISK_FULL

    patch.setattr(RunningFlags, "note_disk_full", note)


def descriptors_final(patch: pytest.MonkeyPatch) -> None:
    """a store that could not open a file once stays read-only"""
    for module in (reput_steps, store_flush):
        patch.setattr(module, "is_out_of_descriptors", lambda *_: False)


def deletion_not_synced(patch: pytest.MonkeyPatch) -> None:
    """the mark of a deleted topic is not synced before its queues go"""

    def save(self: DeletedTopics) -> None:
        self._path.write_text(json.dumps(dict(self.items())))

    patch.setattr(DeletedTopics, "_save", save)


def table_renamed_unsynced(patch: pytest.MonkeyPatch) -> None:
    """a table's new file takes the old one's place before it is on the disk"""

    def write(self: Any, data: bytes) -> None:
        file_io.make_directories(self.path.parent)
        Path(self.temporary).write_bytes(data)

    patch.setattr(config_file.ConfigFile, "write_temporary", write)


def commit_not_written(patch: pytest.MonkeyPatch) -> None:
    """an offset commit is acknowledged and only in memory"""
    patch.setattr(OffsetJournal, "append_records", _nothing)


def files_removed_oldest_first(patch: pytest.MonkeyPatch) -> None:
    """recovery removes the files after the truncation from the oldest on"""

    def truncate(self: MappedFileQueue, offset: int) -> int:
        kept = [file for file in self.files if file.base_offset <= offset]
        for file in self.files[len(kept) :]:
            mapped_file_queue._delete_now(file)
        self.files = tuple(kept)
        return real(self, offset)

    real = MappedFileQueue.truncate_dirty_files
    patch.setattr(MappedFileQueue, "truncate_dirty_files", truncate)


def no_abort(patch: pytest.MonkeyPatch) -> None:
    """`abort` is written after recovery has begun to change things"""
    patch.setattr(AbortMarker, "create", _nothing)


def killed_taken_for_stopped(patch: pytest.MonkeyPatch) -> None:
    """a start takes any checkpoint for that of an orderly stop"""
    patch.setattr(judgement, "_is_as_stopped", lambda _, mark: mark is not None)


def cut_before_judged(patch: pytest.MonkeyPatch) -> None:
    """a start truncates the queues before it knows whether it will be refused"""
    real = ConsumeQueueTable.recover

    def recover(self: ConsumeQueueTable, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        self.apply_recovery()

    patch.setattr(ConsumeQueueTable, "recover", recover)


def damaged_tables_empty(patch: pytest.MonkeyPatch) -> None:
    """a table that cannot be decoded is taken for an empty one"""
    real = config_file.decode

    def decode(data: bytes) -> dict[str, Any]:
        try:
            return real(data)
        except ValueError:
            return {}

    patch.setattr(config_file, "decode", decode)


def index_trusted_after_crash(patch: pytest.MonkeyPatch) -> None:
    """after a kill or a power cut every index file is kept and taken for complete"""

    def keep(self: IndexService, full_until_ms: int, log_end: int) -> None:
        self.keep_all(log_end, full_until_ms)

    patch.setattr(IndexService, "keep_whole", keep)


def expired_before_dispatched(patch: pytest.MonkeyPatch) -> None:
    """retention deletes log files whose queue entries are not on the disk"""
    patch.setattr(StoreCleaners, "deletable_end", lambda _: 1 << 62)


def removals_not_synced(patch: pytest.MonkeyPatch) -> None:
    """retention deletes one file after the other without waiting for the disk"""
    patch.setattr(mapped_file_queue, "sync_directory", _nothing)
    patch.setattr(sparse_file_queue, "sync_directory", _nothing)


def queue_forgets_its_end(patch: pytest.MonkeyPatch) -> None:
    """retention deletes queue files that nothing durable follows"""
    real = ConsumeQueue.delete_expired
    patch.setattr(ConsumeQueue, "delete_expired", lambda queue, minimum, _: real(queue, minimum, 1 << 62))


def misplaced_record_handed_out(patch: pytest.MonkeyPatch) -> None:
    """the client does not compare a record with what it has pulled"""
    patch.setattr(pull, "read_pull", lambda records, _: pull.read_records(records))


def damage_hides_what_follows(patch: pytest.MonkeyPatch) -> None:
    """the client gives up a pull with a record that cannot be read"""

    def give_up(records: bytes, _: object) -> list[Any]:
        pull.read_records(records)
        return []

    patch.setattr(pull, "survey", give_up)


def new_files_sparse(patch: pytest.MonkeyPatch) -> None:
    """files of log and index are made ahead with their length, and the disk sets nothing aside for them"""
    patch.setattr(file_io, "allocate", os.ftruncate)


def found_files_sparse(patch: pytest.MonkeyPatch) -> None:
    """a start continues in a last file with holes without reserving its space"""
    for module in (mapped_file, index_file):
        patch.setattr(module, "reserve_space", _nothing)


def descriptors_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    """an index file that cannot be created without descriptors counts as one that could not be synced"""
    patch.setattr(index_service, "is_out_of_descriptors", lambda _: False)


@dataclass(frozen=True)
class Bug(planted_bugs.Bug):
    """A bug and the checker that must catch it."""

    caught_by: Kind
    images: int = 4000


BUGS: Final = planted_bugs.table_of(
    (
        Bug(skipped_sync, power_cuts),
        Bug(early_ack, power_cuts),
        Bug(no_truncation, log_cuts),
        Bug(checkpoint_ahead_of_queues, power_cuts),
        Bug(abort_removed_too_soon, power_cuts),
        Bug(directory_not_synced, power_cuts),
        Bug(head_written_first, power_cuts),
        Bug(commit_head_first, power_cuts),
        Bug(rebuilt_from_too_late, power_cuts),
        Bug(torn_tail_accepted, power_cuts),
        Bug(flushed_mark_ahead, power_cuts),
        Bug(unflushed_served, power_cuts),
        Bug(damage_cut_off, damage_in_the_middle),
        Bug(identity_not_checked, flips),
        Bug(sync_failure_forgotten, failed_syncs),
        Bug(full_disk_swallowed, full_disks, 1),
        Bug(full_disk_final, full_disks, 1),
        Bug(descriptors_final, out_of_descriptors, 20),
        Bug(deletion_not_synced, power_cuts),
        Bug(table_renamed_unsynced, power_cuts),
        Bug(commit_not_written, clock_jumps),
        Bug(files_removed_oldest_first, kills_during_recovery, 4000),
        Bug(no_abort, power_cuts),
        Bug(garbage_kept, garbage_after_the_end),
        Bug(killed_taken_for_stopped, power_cuts),
        Bug(damaged_tables_empty, lost_files),
        Bug(cut_before_judged, lost_files),
        Bug(index_trusted_after_crash, power_cuts),
        Bug(expired_before_dispatched, cuts_while_files_expire),
        Bug(removals_not_synced, cuts_while_files_expire),
        Bug(queue_forgets_its_end, cuts_while_files_expire, 10_000),
        Bug(misplaced_record_handed_out, flips),
        Bug(damage_hides_what_follows, flips),
        Bug(delays.copies_name_nobody, delayed_messages, 200),
        Bug(delays.progress_ahead, delayed_messages, 200),
        Bug(delays.slots_passed_too_soon, delayed_messages, 200),
        Bug(delays.units_not_synced, delayed_messages, 400),
        Bug(delays.cancelled_in_memory, delayed_messages, 200),
        Bug(delays.fired_with_the_slot, delayed_messages, 200),
        Bug(new_files_sparse, sparse_files, 1),
        Bug(found_files_sparse, sparse_files, 1),
        Bug(descriptors_taken_for_damage, out_of_descriptors, 20),
        Bug(missing_directories_not_locked, stores_sharing_a_log, 1000),
        Bug(log_directories_not_locked, stores_sharing_a_log, 1000),
        Bug(lock_made_before_judged, stores_sharing_a_log, 1000),
        Bug(refused_start_leaves_directories, stores_sharing_a_log, 1000),
        Bug(faster_owner_not_noticed, stores_sharing_a_log, 2000),
        Bug(side_files_share_a_name, killed_repairs, 1000),
        Bug(copy_not_synced_before_removal, killed_repairs, 1000),
        Bug(cut_before_copies_are_synced, killed_repairs, 1000),
        Bug(side_names_not_synced, killed_repairs, 1000),
        Bug(cut_without_a_mark, killed_repairs, 1000),
        Bug(queues_removed_before_replaced, killed_rebuilds, 1000),
        Bug(killed_rebuild_not_put_back, killed_rebuilds, 1000),
        Bug(expired_queues_not_kept, killed_rebuilds, 1000),
        Bug(expired_queues_not_synced, killed_rebuilds, 1000),
    )
)


def images_until_caught(bug: Bug, seed: int) -> tuple[int, str]:
    """Plant a bug, run its checker, take it out again; return how many images that took, and the first violation.

    Without a violation the text is empty: the bug was not caught.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "VIOLATIONS_MAX", 1)
        bug.plant(patch)
        caught = bug.caught_by(seed, bug.images)
    return caught.images, caught.violations[0] if caught.violations else ""
