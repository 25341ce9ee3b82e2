"""Decide what a start needs to accept a store, and what that costs. Changes nothing; the last functions change files
durably, so that a kill or a power failure loses nothing.

A damaged field whose right value follows from the rest is fixed. A record is partly redundant: its place, its size (the
sum of its parts), what its checksum covers. If one such field is wrong and with another value everything fits,
checksums included, that was its value.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.file_io import make_directories, sync_directory, write_all, zero_range
from reput_broker.store.log.walk import LOST_PAGE, can_be_topic
from reput_broker.tools.index_raw import index_sizes
from reput_broker.tools.rebuild import refuse_other_delays, refuse_other_queues
from reput_broker.tools.tables import table_in_force
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_checkpoint import checkpoint_min_time
from reput_broker.tools.verify_queues import queue_ends, queues_digest
from reput_protocol.printable import counted
from reput_protocol.properties import CRC_PROPERTY_BYTES, ends_with_crc_property
from reput_protocol.record.layout import (
    I16,
    I32,
    I64,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    body_size_at,
    crc31,
    head_bytes,
    physical_offset_at,
    read_head,
    store_timestamp_at,
)
from reput_protocol.record.scan import POSITION, ScanStatus, locate, scan_record, topic_text
from reput_protocol.store.files import end_of_data, standing_for
from reput_protocol.store.layout import Stream, StreamFile
from reput_protocol.store.log_reader import Damage, LogBatch, read_log

_RECORD_BYTES_MAX = 16 << 20
_COPY_BYTES = 1 << 20


def start_checks_from(verification: Verification) -> int:
    """Return the log offset before which a start does not check records."""
    mark, files = verification.mark, verification.layout.log.files
    is_synced = mark is not None and mark.queues_offset >= mark.flushed_offset
    if mark is not None and is_synced and queues_digest(verification.layout) == mark.queues_digest:
        # As after an orderly stop; a start that was killed since may have left `abort`.
        return _file_by(verification, mark.flushed_offset, None)
    if mark is not None and not verification.stopped:
        entries = sum(queue_ends(verification.layout, mark.queues_offset).values())
        if entries & 0xFFFF_FFFF != mark.queues_digest:
            # Queues that lack entries are rebuilt from the whole log.
            return files[0].start if files else 0
        return _file_by(verification, min(mark.flushed_offset, mark.queues_offset), None)
    if mark is None and not verification.stopped:
        return _file_by(verification, None, checkpoint_min_time(verification.root))
    return files[0].start if files else 0


def _file_by(verification: Verification, offset: int | None, time_ms: int | None) -> int:
    """Start of the newest file whose first record is valid and at or before an offset or time."""
    files = verification.layout.log.files
    for file in reversed(files[1:]):
        if offset is not None and file.start > offset:
            continue
        with file.path.open("rb") as reader:
            data = reader.read(min(_RECORD_BYTES_MAX, file.size))
        is_record = scan_record(data, 0, len(data), check_crc=True).status is ScanStatus.RECORD
        if not is_record or physical_offset_at(data) != file.start:
            continue
        stored_ms = store_timestamp_at(data)
        if stored_ms > 0 and (time_ms is None or stored_ms <= time_ms):
            return file.start
    return files[0].start if files else 0


class Truncation(NamedTuple):
    """Where the log has to end, and what that costs."""

    file: Path
    position: int
    offset: int
    reason: str
    lost_bytes: int
    lost_records: int
    """Valid records after that place."""
    lost_topics: dict[str, int]


@dataclass(slots=True)
class RepairPlan:
    """What a repair would do."""

    fixes: list[FieldFix] = field(default_factory=list)
    truncation: Truncation | None = None
    left: list[Damage] = field(default_factory=list)
    """Damage that a start does not read: a truncation there would lose all messages after it."""
    aside: list[tuple[Path, str]] = field(default_factory=list)
    """Unreadable files, with the reason."""
    resize: list[tuple[Path, int]] = field(default_factory=list)
    """Log files of a wrong length that miss nothing, and their sizes."""
    rebuild_queues: str = ""
    """Why the queues are rebuilt; empty if they are not."""
    new_checkpoint: str = ""
    drop_index: bool = False
    """Whether the index is moved away."""
    rebuild_index: bool = False
    """Whether it is then rebuilt; otherwise the next start does that."""
    clamp: bool = False
    """Whether committed offsets are beyond the ends of their queues."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to repair."""
        return not (
            self.fixes
            or self.resize
            or self.truncation
            or self.aside
            or self.rebuild_queues
            or self.new_checkpoint
            or self.drop_index
            or self.clamp
        )

    @property
    def touches_log_or_queues(self) -> bool:
        """Whether the next start has to check more than the index."""
        return bool(
            self.fixes or self.resize or self.truncation or self.aside or self.rebuild_queues or self.new_checkpoint
        )

    def lines(self) -> list[str]:
        """Describe the plan, one line per action."""
        lines = [f"fix {fix}" for fix in self.fixes]
        if self.truncation is not None:
            cut = self.truncation
            lines.append(f"truncate the log at offset {cut.offset}: {cut.file} at byte {cut.position}: {cut.reason}")
            lines.append(
                f"  lost: {cut.lost_bytes} bytes, among them {counted(cut.lost_records, 'valid record')} after it"
            )
            lines += [
                f"  lost: {counted(count, 'message')} of topic {topic}"
                for topic, count in sorted(cut.lost_topics.items())
            ]
        lines += [
            f"leave {damage.file.path} at byte {damage.position}: {damage.reason}; a start does not read it, and "
            "truncating there would lose everything after it"
            for damage in self.left
        ]
        lines += [f"move {path} away: {reason}" for path, reason in self.aside]
        lines += [f"resize {path}, which has {size} bytes, to the size of a log file" for path, size in self.resize]
        if self.new_checkpoint:
            lines.append(f"write a new checkpoint: {self.new_checkpoint}")
        if self.rebuild_queues:
            lines.append(f"rebuild the queues from the log: {self.rebuild_queues}")
        if self.rebuild_index:
            lines.append("move the key index away and rebuild it from the log")
        elif self.drop_index:
            lines.append("move the key index away: the next start rebuilds it from the log")
        if self.clamp:
            lines.append("reset committed offsets beyond the end of their queue to that end")
        return lines


def plan_repair(verification: Verification) -> RepairPlan:
    """Decide what to do about the findings of a verification.

    Raises:
        ForeignFile: the store has queues that cannot be rebuilt, or unknown delay levels.
    """
    plan = RepairPlan()
    report, layout = verification.report, verification.layout
    refuse_other_queues(verification.root)
    refuse_other_delays(verification)
    checked_from = start_checks_from(verification)
    queues_are_sound = not report.kinds["queue"] and not any(queue.stream.odd for queue in layout.queues)
    for damage in verification.log.damages:
        fix = None if damage.reason == LOST_PAGE else find_fix(damage)
        if fix is not None:
            plan.fixes.append(fix)
        elif _may_stay(damage, checked_from, queues_are_sound, layout.log.file_size):
            plan.left.append(damage)
        else:
            plan.left, place = _with_last_file(plan.left, damage, layout.log)
            plan.truncation = _truncation_at(layout.log, place.file.path, place.position, place.offset, place.reason)
            plan.fixes = [fix for fix in plan.fixes if _offset_of(fix, layout.log) < place.offset]
            break
    damaged = {damage.offset for damage in verification.log.damages}
    for offset, number in sorted(verification.renumbered.items()):
        if offset not in damaged and (plan.truncation is None or offset < plan.truncation.offset):
            plan.fixes.append(renumber(layout.log, offset, number))
    mark = verification.mark
    if (
        plan.truncation is None
        and not plan.fixes
        and mark is not None
        and mark.flushed_offset > verification.log.end_offset
    ):
        path, position = layout.log.place(verification.log.end_offset)
        reason = f"the records end here, but had been flushed up to offset {mark.flushed_offset}"
        plan.truncation = Truncation(path, position, verification.log.end_offset, reason, 0, 0, {})
    kept = {file.path for file in layout.log.files}
    plan.aside += [(odd.path, odd.reason) for odd in layout.log.odd if odd.path not in kept and odd.path.exists()]
    for name, kind in (
        ("deletedTopics", "topics"),
        ("config/topics.json", "topics"),
        ("config/consumerOffset.json", "offsets"),
    ):
        path = verification.root / name
        table = table_in_force(path)
        if path.suffix == ".json" and table.error is not None:
            plan.aside.append((path, f"it is not a JSON table, and there is no backup: {table.error}"))
        elif path.suffix != ".json" and any(fault.file == path for fault in report.faults if fault.kind == kind):
            plan.aside.append((path, "it is not a table of deleted topics"))
    for file in layout.log.files:
        size = file.path.stat().st_size
        if size != layout.log.file_size and (plan.truncation is None or file.start <= plan.truncation.offset):
            plan.resize.append((file.path, size))
    if report.kinds["checkpoint"]:
        plan.new_checkpoint = next(fault.reason for fault in report.faults if fault.kind == "checkpoint")
    # From a log with holes nothing can be derived; a start adapts queues and index to the new end.
    is_whole = all(damage.is_framed for damage in plan.left)
    if is_whole and report.kinds["order"] <= len(verification.renumbered):
        if plan.truncation is not None or plan.fixes:
            plan.rebuild_queues = "the log changes"
        elif report.kinds["queue"] or any(queue.stream.odd for queue in layout.queues):
            plan.rebuild_queues = "units are wrong or missing"
    has_index = standing_for(layout.index_dir).is_dir()
    plan.drop_index = has_index and bool(plan.truncation or plan.fixes or report.kinds["index"])
    plan.rebuild_index = plan.drop_index and is_whole and index_sizes(layout) is not None
    plan.clamp = plan.truncation is not None or any(
        f.kind in ("offsets", "journal") and "queue ends at" in f.reason for f in report.faults
    )
    return plan


def _may_stay(damage: Damage, checked_from: int, queues_are_sound: bool, file_size: int) -> bool:
    """Whether a start does not read a damage and needs no queues from it."""
    if damage.file.size < file_size and damage.end_position >= damage.file.size:
        return False  # a file is missing or too short
    return damage.offset < checked_from and (damage.is_framed or queues_are_sound)


def _with_last_file(left: list[Damage], place: Damage, log: Stream) -> tuple[list[Damage], Damage]:
    """Truncate earlier if tolerated damage would be in the last file, which a start reads completely."""
    while True:
        last = max((file.start for file in log.files if file.start < place.offset), default=0)
        first = next((damage for damage in left if damage.offset >= last), None)
        if first is None:
            return left, place
        left, place = [damage for damage in left if damage.offset < first.offset], first


def _offset_of(fix: FieldFix, log: Stream) -> int:
    return next(file.start for file in log.files if file.path == fix.file) + fix.position


def _truncation_at(log: Stream, path: Path, position: int, offset: int, reason: str) -> Truncation:
    lost = records = 0
    topics: dict[str, int] = {}
    for file in log.files:
        if file.end > offset:
            lost += data_end(file) - max(0, min(offset - file.start, file.size))
    for part in read_log(log):
        if isinstance(part, LogBatch) and part.offset + len(part.data) > offset:
            for row, start in enumerate(part.column(POSITION)):
                if part.offset + start > offset:
                    records += 1
                    topic = topic_text(part.topic(row))
                    topics[topic] = topics.get(topic, 0) + 1
    return Truncation(path, position, offset, reason, max(0, lost), records, topics)


_PHYSICAL_OFFSET_AT = 28


class FieldFix(NamedTuple):
    """Wrong bytes of a file, and the right ones."""

    file: Path
    position: int
    wrong: bytes
    right: bytes
    field: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.field} {self.wrong.hex()} becomes {self.right.hex()}"


def find_fix(damage: Damage) -> FieldFix | None:
    """Find the one field whose correction makes a damaged record valid; None if there is none."""
    if not damage.file.size:
        return None
    with damage.file.path.open("rb") as file:
        file.seek(damage.position)
        data = file.read(_RECORD_BYTES_MAX)
    if len(data) < RECORD_BYTES_MIN:
        return None
    place = damage.file.start + damage.position
    for at, right, fixed_field in _candidates(data, place):
        wrong = data[at : at + len(right)]
        fixed = data[:at] + right + data[at + len(right) :]
        if wrong != right and _is_valid(fixed, place, damage):
            return FieldFix(damage.file.path, damage.position + at, wrong, right, fixed_field)
    return None


def renumber(log: Stream, offset: int, number: int) -> FieldFix:
    """Correct a record's queue offset, which its unit determines."""
    path, position = log.place(offset + QUEUE_OFFSET_AT)
    with path.open("rb") as file:
        file.seek(position)
        return FieldFix(path, position, file.read(8), I64.pack(number), "QUEUEOFFSET")


def _candidates(data: bytes, place: int) -> Iterator[tuple[int, bytes, str]]:
    yield _PHYSICAL_OFFSET_AT, I64.pack(place), "PHYSICALOFFSET"
    yield 4, I32.pack(MAGIC_V1), "MAGIC"
    yield 4, I32.pack(MAGIC_V2), "MAGIC"
    parts = _sum_of_parts(data)
    if parts is not None:
        yield 0, I32.pack(parts), "TOTALSIZE"
    scan, extent = locate(data, 0, len(data), check_crc=False)
    if extent is None:
        return
    body = data[extent.body : extent.body + extent.body_size]
    actual, stored = crc31(body), read_head(data).body_crc
    # A wrong byte of the body changes about half of the checksum's bits; a single changed bit is in
    # the checksum itself. A checksum of the whole record makes this certain.
    text = data[extent.properties : scan.size]
    if (actual ^ stored).bit_count() == 1 or ends_with_crc_property(text[-CRC_PROPERTY_BYTES - 1 :]):
        yield 8, I32.pack(actual), "BODYCRC"


def _sum_of_parts(data: bytes) -> int | None:
    head = read_head(data)
    body = head_bytes(head.sys_flag)
    if body > len(data):
        return None
    body_size = body_size_at(data, 0, body)
    at = body + body_size
    if body_size < 0 or at + 4 > len(data):
        return None
    if head.magic == MAGIC_V1:
        at += 1 + data[at]
    else:
        at += 2 + max(0, I16.unpack_from(data, at)[0])
    return int(at + 2 + max(0, I16.unpack_from(data, at)[0])) if at + 2 <= len(data) else None


def _is_valid(data: bytes, place: int, damage: Damage) -> bool:
    scan, extent = locate(data, 0, len(data), check_crc=True)
    if extent is None or physical_offset_at(data) != place:
        return False
    topic = data[extent.topic : extent.topic + extent.topic_size]
    return scan.size == damage.size and can_be_topic(topic)


def data_end(file: StreamFile) -> int:
    """Return the position after a file's last non-zero byte."""
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return end_of_data(fd, 0, file.size)
    finally:
        os.close(fd)


def copy_part(source: Path, start: int, stop: int, target: Path) -> None:
    """Copy bytes `[start, stop)` of a file into a new one and sync it; the caller syncs its name.

    Raises:
        FileExistsError: the name is taken; that file is unchanged.
    """
    with source.open("rb") as reader, target.open("xb") as writer:
        reader.seek(start)
        left = stop - start
        while left > 0:
            chunk = reader.read(min(_COPY_BYTES, left))
            if not chunk:
                break
            writer.write(chunk)
            left -= len(chunk)
        writer.flush()
        os.fsync(writer.fileno())


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write bytes into a file and sync it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(fd, data, position, path)
        os.fsync(fd)
    finally:
        os.close(fd)


def resize(path: Path, size: int) -> None:
    """Truncate a file or extend it with zeros, and sync it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def move(path: Path, target: Path) -> None:
    """Move a file or directory, if it exists, and sync both names.

    To another disk it is copied, and removed once the copy and its names are on disk.

    Raises:
        FileExistsError: the name is taken; nothing was moved.
        OSError: it could not be moved, or not completely removed: one of both is complete.
    """
    if not path.exists():
        return
    make_directories(target.parent)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(path, target)
        sync_directory(target.parent)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    sync_directory(target.parent)
    sync_directory(path.parent)


def _copy(path: Path, target: Path) -> None:
    """Copy and sync a file or a directory tree; the caller syncs its name."""
    if path.is_dir():
        target.mkdir()
        for entry in sorted(path.iterdir()):
            _copy(entry, target / entry.name)
        sync_directory(target)
    else:
        copy_part(path, 0, path.stat().st_size, target)
    with contextlib.suppress(OSError):
        shutil.copystat(path, target)


def truncate_log(log: Stream, offset: int) -> None:
    """Truncate the log: delete later files, the last one first; zero the rest of the file at the offset."""
    for index in range(len(log.files) - 1, -1, -1):
        file = log.files[index]
        if file.start > offset or (file.start == offset and index > 0):
            file.path.unlink(missing_ok=True)
            sync_directory(file.path.parent)
        elif file.start + log.file_size > offset:
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, log.file_size)
                zero_range(fd, offset - file.start, log.file_size, file.path)
                os.fsync(fd)
            finally:
                os.close(fd)
