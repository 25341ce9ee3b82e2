"""What has to be done so that a start accepts a store, and what it costs: deciding only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.opening.directory_swap import standing_for
from reput_broker.tools.index_raw import index_sizes
from reput_broker.tools.layout import Stream
from reput_broker.tools.log_reader import Damage, LogBatch, read_log
from reput_broker.tools.mend import Mend, find_mend, renumber
from reput_broker.tools.queue_ends import queue_ends, queues_digest
from reput_broker.tools.rebuild import refuse_other_delays, refuse_other_queues
from reput_broker.tools.repair_files import data_end
from reput_broker.tools.tables import table_in_force
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_checkpoint import checkpoint_min_time
from reput_broker.tools.verify_log import LOST_PAGE
from reput_protocol.printable import counted
from reput_protocol.record.dispatch_rows import topic_text
from reput_protocol.record.layout import BORN_HOST_AT, BORN_HOST_IPV6, FRONT, I64
from reput_protocol.record.row import POSITION
from reput_protocol.record.scan import ScanStatus, scan_record

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


class Cut(NamedTuple):
    """Where the log has to end, and what that costs."""

    file: Path
    position: int
    offset: int
    reason: str
    lost_bytes: int
    lost_records: int
    """Records behind the place that are sound by themselves."""
    lost_topics: dict[str, int]


@dataclass(slots=True)
class RepairPlan:
    """What a repair would do."""

    mends: list[Mend] = field(default_factory=list)
    cut: Cut | None = None
    left: list[Damage] = field(default_factory=list)
    """Damage in a part of the log that a start does not read: cutting there would cost all messages behind it."""
    aside: list[tuple[Path, str]] = field(default_factory=list)
    """Files that nobody can read, with the reason."""
    resize: list[tuple[Path, int]] = field(default_factory=list)
    """Log files of a wrong length with nothing missing in them, and the bytes they have."""
    rebuild_queues: str = ""
    """Why the queues are made anew; empty if they are not."""
    new_checkpoint: str = ""
    drop_index: bool = False
    """Whether the index goes."""
    rebuild_index: bool = False
    """Whether it is made anew then; if not, the next start does that."""
    clamp: bool = False
    """Whether committed offsets lie behind the ends of their queues."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to repair."""
        return not (
            self.mends
            or self.resize
            or self.cut
            or self.aside
            or self.rebuild_queues
            or self.new_checkpoint
            or self.drop_index
            or self.clamp
        )

    @property
    def touches_log_or_queues(self) -> bool:
        """Whether a start has more to check afterwards than the index."""
        return bool(
            self.mends or self.resize or self.cut or self.aside or self.rebuild_queues or self.new_checkpoint
        )

    def lines(self) -> list[str]:
        """Say it in words, a line each."""
        lines = [f"mend {mend}" for mend in self.mends]
        if self.cut is not None:
            cut = self.cut
            lines.append(
                f"cut the log at offset {cut.offset}: {cut.file} at byte {cut.position}: {cut.reason}"
            )
            lines.append(
                f"  lost: {cut.lost_bytes} bytes, among them {counted(cut.lost_records, 'sound record')} behind it"
            )
            lines += [
                f"  lost: {counted(count, 'message')} of topic {topic}"
                for topic, count in sorted(cut.lost_topics.items())
            ]
        lines += [
            f"leave {damage.file.path} at byte {damage.position}: {damage.reason}; a start does not mind, and a cut "
            "there would cost all that follows"
            for damage in self.left
        ]
        lines += [f"move {path} away: {reason}" for path, reason in self.aside]
        lines += [
            f"bring {path}, which has {size} bytes, to the size of a log file" for path, size in self.resize
        ]
        if self.new_checkpoint:
            lines.append(f"write a new checkpoint: {self.new_checkpoint}")
        if self.rebuild_queues:
            lines.append(f"make the queues anew from the log: {self.rebuild_queues}")
        if self.rebuild_index:
            lines.append("move the key index away, and make it anew from the log")
        elif self.drop_index:
            lines.append("move the key index away: the next start makes it anew from the log")
        if self.clamp:
            lines.append("set committed offsets that lie behind the end of their queue back to that end")
        return lines


def plan_repair(verification: Verification) -> RepairPlan:
    """Decide what to do about what a verification found.

    Raises:
        ForeignFile: the store has queues of a form that could not be made anew, or delay levels that are not known.
    """
    plan = RepairPlan()
    report, layout = verification.report, verification.layout
    refuse_other_queues(verification.root)
    refuse_other_delays(verification)
    checked_from = start_checks_from(verification)
    queues_are_sound = not report.kinds["queue"] and not any(queue.stream.odd for queue in layout.queues)
    for damage in verification.log.damages:
        mend = None if damage.reason == LOST_PAGE else find_mend(damage)
        if mend is not None:
            plan.mends.append(mend)
        elif _may_stay(damage, checked_from, queues_are_sound, layout.log.file_size):
            plan.left.append(damage)
        else:
            plan.left, place = _with_last_file(plan.left, damage, layout.log)
            plan.cut = _cut_at(layout.log, place.file.path, place.position, place.offset, place.reason)
            plan.mends = [mend for mend in plan.mends if _offset_of(mend, layout.log) < place.offset]
            break
    damaged = {damage.offset for damage in verification.log.damages}
    for offset, number in sorted(verification.renumbered.items()):
        if offset not in damaged and (plan.cut is None or offset < plan.cut.offset):
            plan.mends.append(renumber(layout.log, offset, number))
    mark = verification.mark
    if (
        plan.cut is None
        and not plan.mends
        and mark is not None
        and mark.flushed_offset > verification.log.end_offset
    ):
        path, position = layout.log.place(verification.log.end_offset)
        reason = f"the records end here, but had been flushed up to offset {mark.flushed_offset}"
        plan.cut = Cut(path, position, verification.log.end_offset, reason, 0, 0, {})
    kept = {file.path for file in layout.log.files}
    plan.aside += [
        (odd.path, odd.reason) for odd in layout.log.odd if odd.path not in kept and odd.path.exists()
    ]
    for name, kind in (
        ("deletedTopics", "topics"),
        ("config/topics.json", "topics"),
        ("config/consumerOffset.json", "offsets"),
    ):
        path = verification.root / name
        table = table_in_force(path)
        if path.suffix == ".json" and table.error is not None:
            plan.aside.append((path, f"it is no JSON table, and there is no backup: {table.error}"))
        elif path.suffix != ".json" and any(
            fault.file == path for fault in report.faults if fault.kind == kind
        ):
            plan.aside.append((path, "it is not a table of deleted topics"))
    for file in layout.log.files:
        size = file.path.stat().st_size
        if size != layout.log.file_size and (plan.cut is None or file.start <= plan.cut.offset):
            plan.resize.append((file.path, size))
    if report.kinds["checkpoint"]:
        plan.new_checkpoint = next(fault.reason for fault in report.faults if fault.kind == "checkpoint")
    # From a log with holes nothing can be derived; a start brings queues and index to the new end by itself.
    is_whole = all(damage.is_framed for damage in plan.left)
    if is_whole and report.kinds["order"] <= len(verification.renumbered):
        if plan.cut is not None or plan.mends:
            plan.rebuild_queues = "the log changes"
        elif report.kinds["queue"] or any(queue.stream.odd for queue in layout.queues):
            plan.rebuild_queues = "units are wrong or missing"
    has_index = standing_for(layout.index_dir).is_dir()
    plan.drop_index = has_index and bool(plan.cut or plan.mends or report.kinds["index"])
    plan.rebuild_index = plan.drop_index and is_whole and index_sizes(layout) is not None
    plan.clamp = plan.cut is not None or any(
        f.kind in ("offsets", "journal") and "queue ends at" in f.reason for f in report.faults
    )
    return plan


def _may_stay(damage: Damage, checked_from: int, queues_are_sound: bool, file_size: int) -> bool:
    """Whether a start does not mind a damage: it does not read that part of the log, and need not make queues of it."""
    if damage.file.size < file_size and damage.end_position >= damage.file.size:
        return False  # a file is missing or too short
    return damage.offset < checked_from and (damage.is_framed or queues_are_sound)


def _with_last_file(left: list[Damage], place: Damage, log: Stream) -> tuple[list[Damage], Damage]:
    """Cut earlier where damage that was to stay lies in what would be the last file: a start reads that one whole."""
    while True:
        last = max((file.start for file in log.files if file.start < place.offset), default=0)
        first = next((damage for damage in left if damage.offset >= last), None)
        if first is None:
            return left, place
        left, place = [damage for damage in left if damage.offset < first.offset], first


def _offset_of(mend: Mend, log: Stream) -> int:
    return next(file.start for file in log.files if file.path == mend.file) + mend.position


def _cut_at(log: Stream, path: Path, position: int, offset: int, reason: str) -> Cut:
    """Count what lies behind a place of the log."""
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
    return Cut(path, position, offset, reason, max(0, lost), records, topics)
