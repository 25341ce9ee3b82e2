"""Make a store that a start refuses one that it accepts, and keep every byte that has to go.

Only the log is irreplaceable. A damaged record is put right where it says itself what is wrong (`mend`); at the first
one that cannot be, the log has to end: what follows it may be sound, but a log with a hole in it would give message
numbers and log offsets to other messages. So all that follows is lost to the store, and kept in `repair-N/`. Everything
else is derived from the log, and made anew.

Order: everything that will change or go is copied to `repair-N/` and synced. Then the checkpoint is written, which says
that the log had been flushed up to the cut and no further, and `abort` is left: from here on a start would make the
same cut. Then the log is cut and the queues are made anew. Killed at any moment, the same repair can be begun again.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from reput_broker.config_file import ConfigFile, encode
from reput_broker.store.abort_marker import AbortMarker
from reput_broker.store.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.consume_queue_unit import UNIT_BYTES
from reput_broker.store.file_io import end_of_data, sync_directory, write_all, zero_range
from reput_broker.store_tools.layout import Geometry, StoreLayout, Stream, StreamFile
from reput_broker.store_tools.log_reader import Damage, LogBatch, read_log
from reput_broker.store_tools.mend import Mend, find_mend, renumber
from reput_broker.store_tools.queue_ends import queue_ends
from reput_broker.store_tools.rebuild import QueuesRebuild, rebuild, refuse_other_queues
from reput_broker.store_tools.report import Progress, no_progress
from reput_broker.store_tools.start_rules import start_checks_from
from reput_broker.store_tools.tables import apply_journal, find_journal, offsets_in, table_in_force
from reput_broker.store_tools.verify import LOST_PAGE, Verification

_COPY_BYTES = 1 << 20
_READ_UNITS = 65_536
_TABLES = (
    "consumerOffset.json",
    "consumerOffset.json.bak",
    "consumerOffset.journal",
    "consumerOffset.journal.next",
)


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
                f"  lost: {cut.lost_bytes} bytes, {cut.lost_records} sound records behind that place among them"
            )
            lines += [
                f"  lost: {count} messages of topic {topic}"
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
        if self.drop_index:
            lines.append("move the key index away: it is derived from the log")
        if self.clamp:
            lines.append("set committed offsets that lie behind the end of their queue back to that end")
        return lines


def plan_repair(verification: Verification) -> RepairPlan:
    """Decide what to do about what a verification found.

    Raises:
        ForeignFile: the store has queues of a form that could not be made anew.
    """
    plan = RepairPlan()
    report, layout = verification.report, verification.layout
    refuse_other_queues(verification.root)
    checked_from = start_checks_from(verification)
    queues_are_sound = not report.kinds["queue"] and not any(queue.stream.odd for queue in layout.queues)
    for damage in verification.damages:
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
    damaged = {damage.offset for damage in verification.damages}
    for offset, number in sorted(verification.renumbered.items()):
        if offset not in damaged and (plan.cut is None or offset < plan.cut.offset):
            plan.mends.append(renumber(layout.log, offset, number))
    mark = verification.mark
    if (
        plan.cut is None
        and not plan.mends
        and mark is not None
        and mark.flushed_offset > verification.end_offset
    ):
        path, position = layout.log.place(verification.end_offset)
        reason = f"the records end here, but had been flushed up to offset {mark.flushed_offset}"
        plan.cut = Cut(path, position, verification.end_offset, reason, 0, 0, {})
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
    if not all(damage.is_framed for damage in plan.left) or report.kinds["order"] > len(
        verification.renumbered
    ):
        pass  # nothing can be derived from such a log; a start brings the queues to the new end of the log by itself
    elif plan.cut is not None or plan.mends:
        plan.rebuild_queues = "the log changes"
    elif report.kinds["queue"] or any(queue.stream.odd for queue in layout.queues):
        plan.rebuild_queues = "units are wrong or missing"
    plan.drop_index = layout.index_dir.is_dir() and bool(plan.cut or plan.mends or report.kinds["index"])
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
            lost += _data_end(file) - max(0, min(offset - file.start, file.size))
    for part in read_log(log):
        if isinstance(part, LogBatch) and part.offset + len(part.data) > offset:
            for row in range(len(part.columns)):
                if part.offset + int(part.columns.position[row]) > offset:
                    records += 1
                    topic = bytes(part.columns.topic(row)).decode("utf-8", "replace")
                    topics[topic] = topics.get(topic, 0) + 1
    return Cut(path, position, offset, reason, max(0, lost), records, topics)


def _data_end(file: StreamFile) -> int:
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return end_of_data(fd, 0, file.size)
    finally:
        os.close(fd)


class RepairResult(NamedTuple):
    """What a repair did."""

    side_directory: Path
    """Where everything that was changed or cut is kept."""
    end_offset: int
    """Where the log ends now."""
    lines: list[str]


def apply_repair(
    verification: Verification, plan: RepairPlan, progress: Progress = no_progress
) -> RepairResult:
    """Carry a plan out. The caller has locked the directory as its owner.

    Raises:
        DiskFull, FlushFailed, OSError: while copying: nothing was changed. Later: `abort` is there, and the same repair
            can be made again.
    """
    root, layout = verification.root, verification.layout
    side = _make_side_directory(root)
    _save(verification, plan, side)
    if plan.new_checkpoint:
        (root / "checkpoint").unlink(missing_ok=True)
    if plan.cut is not None:
        start = max((file.start for file in layout.log.files if file.start <= plan.cut.offset), default=0)
        _write_checkpoint(root, FlushMark(plan.cut.offset, start), None)
    if plan.touches_log_or_queues:
        AbortMarker(layout.abort).create()
    for mend in plan.mends:
        _overwrite(mend.file, mend.position, mend.right)
    for path, _ in plan.aside:
        _move(path, side / path.relative_to(root) if path.is_relative_to(root) else side / path.name)
    if plan.cut is not None:
        _cut_log(layout.log, plan.cut)
    for path, _ in plan.resize:
        if path.exists():
            _resize(path, layout.log.file_size)
    if plan.drop_index:
        _move(layout.index_dir, side / "index")
    after = Verification(
        root, commit_log_dirs=layout.log.directories, geometry=_geometry_of(verification), progress=progress
    )
    after.run()
    lines: list[str] = []
    if plan.rebuild_queues:
        lines += rebuild(after.layout, after.log_end, [QueuesRebuild], progress=progress)
    if plan.cut is not None or plan.new_checkpoint:
        # Without new queues the next start drops the units of the last file's records, and makes them anew.
        last = max((file.start for file in after.layout.log.files if file.start < after.log_end), default=0)
        queues_offset = after.log_end if plan.rebuild_queues else last
        entries = sum(queue_ends(_layout_now(verification), queues_offset).values())
        _write_checkpoint(root, FlushMark(after.log_end, queues_offset, entries & 0xFFFF_FFFF), after)
    elif plan.touches_log_or_queues and verification.mark is not None:
        # The next start takes the mark for one that was left in the middle of work: it counts entries then.
        mark = verification.mark
        entries = sum(queue_ends(_layout_now(verification), mark.queues_offset).values())
        _write_checkpoint(
            root, FlushMark(mark.flushed_offset, mark.queues_offset, entries & 0xFFFF_FFFF), None
        )
    if plan.clamp:
        ends = queue_ends(_layout_now(verification), after.log_end)
        lines += _clamp_offsets(layout.config_dir, ends)
    return RepairResult(side, after.log_end, lines)


def _layout_now(verification: Verification) -> StoreLayout:
    """Look at the directory again."""
    directories = verification.layout.log.directories
    return StoreLayout(verification.root, directories, _geometry_of(verification))


def _geometry_of(verification: Verification) -> Geometry:
    """The sizes that were found: after a cut there may be too few files to tell them from."""
    layout = verification.layout
    return replace(
        layout.geometry,
        commit_log_file_size=layout.log.file_size,
        consume_queue_entries=-(-layout.queue_file_size // UNIT_BYTES),
    )


def _make_side_directory(root: Path) -> Path:
    number = 1
    while (side := root / f"repair-{number}").exists():
        number += 1
    side.mkdir()
    sync_directory(root)
    return side


def _save(verification: Verification, plan: RepairPlan, side: Path) -> None:
    """Copy everything that is going to change, and sync the copies and their names."""
    root, log = verification.root, verification.layout.log
    saved: list[dict[str, Any]] = []
    if plan.cut is not None:
        (side / "commitlog").mkdir()
        for file in log.files:
            start = max(0, plan.cut.offset - file.start)
            stop = max(
                _data_end(file), file.path.stat().st_size if file.path.stat().st_size > log.file_size else 0
            )
            if file.start + log.file_size <= plan.cut.offset or stop <= start:
                continue
            target = side / "commitlog" / (f"{file.path.name}.from-{start}" if start else file.path.name)
            _copy_part(file.path, start, stop, target)
            saved.append(
                {"file": str(file.path), "from": start, "to": stop, "kept_as": str(target.relative_to(side))}
            )
    for path, size in plan.resize:
        if size > log.file_size:
            target = side / f"{path.name}.from-{log.file_size}"
            _copy_part(path, log.file_size, size, target)
            saved.append({"file": str(path), "from": log.file_size, "to": size, "kept_as": target.name})
    for name in ("checkpoint", "deletedTopics", *(f"config/{table}" for table in _TABLES)):
        source = root / name
        if source.is_file():
            target = side / "before" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_part(source, 0, source.stat().st_size, target)
    words = {
        "plan": plan.lines(),
        "cut": saved,
        "mended": [
            {
                "file": str(m.file),
                "position": m.position,
                "field": m.field,
                "was": m.wrong.hex(),
                "is": m.right.hex(),
            }
            for m in plan.mends
        ],
    }
    with (side / "repair.json").open("w", encoding="utf-8") as file_of_words:
        json.dump(words, file_of_words, indent=2, ensure_ascii=False)
        file_of_words.flush()
        os.fsync(file_of_words.fileno())
    for directory in [*(path for path in side.rglob("*") if path.is_dir()), side, root]:
        sync_directory(directory)


def _copy_part(source: Path, start: int, stop: int, target: Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
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


def _overwrite(path: Path, position: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(fd, data, position, path)
        os.fsync(fd)
    finally:
        os.close(fd)


def _resize(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _move(path: Path, target: Path) -> None:
    if not path.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(path, target)
    except OSError:  # a log directory may lie on another disk
        shutil.copytree(path, target) if path.is_dir() else _copy_part(path, 0, path.stat().st_size, target)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    sync_directory(target.parent)
    sync_directory(path.parent)


def _cut_log(log: Stream, cut: Cut) -> None:
    """End the log: later files go, the last one first; the file of the place is filled up with zeros."""
    for index in range(len(log.files) - 1, -1, -1):
        file = log.files[index]
        if file.start > cut.offset or (file.start == cut.offset and index > 0):
            file.path.unlink(missing_ok=True)
            sync_directory(file.path.parent)
        elif file.start + log.file_size > cut.offset:
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, log.file_size)
                zero_range(fd, cut.offset - file.start, log.file_size, file.path)
                os.fsync(fd)
            finally:
                os.close(fd)


def _write_checkpoint(root: Path, mark: FlushMark, after: Verification | None) -> None:
    """Claim no more than what is there now."""
    checkpoint = StoreCheckpoint(root / "checkpoint")
    checkpoint.load()
    if after is not None:
        newest = after.max_store_timestamp_ms
        checkpoint.physic_msg_timestamp_ms = min(checkpoint.physic_msg_timestamp_ms, newest)
        checkpoint.logics_msg_timestamp_ms = min(checkpoint.logics_msg_timestamp_ms, newest)
        checkpoint.index_msg_timestamp_ms = min(checkpoint.index_msg_timestamp_ms, newest)
    checkpoint.confirm_physical_offset = min(checkpoint.confirm_physical_offset, mark.flushed_offset)
    checkpoint.mark = mark
    try:
        checkpoint.flush()
    finally:
        checkpoint.close()


def _clamp_offsets(config: Path, ends: dict[tuple[str, int], int]) -> list[str]:
    """Set offsets behind the end of their queue back to it: else messages to come would be passed over."""
    table = table_in_force(config / "consumerOffset.json")
    if not table.exists or table.error is not None:
        return []
    offsets = offsets_in(table.members)
    found = find_journal(config, table)
    if found is not None:
        apply_journal(offsets, found[1])
    lines: list[str] = []
    entries = dict(table.members.get("offsetTable", {}))
    rewritten: dict[str, dict[str, int]] = {}
    for (group, topic, queue_id), offset in sorted(offsets.items()):
        end = ends.get((topic, queue_id), 0)
        if type(offset) is int and offset > end:
            lines.append(f"group {group} in {topic}/{queue_id}: offset {offset} becomes {end}")
            offset = end
        rewritten.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    if not lines:
        return []
    entries = {name: entry for name, entry in entries.items() if "@" not in name}
    members = {**table.members, "offsetTable": {**entries, **rewritten}}
    ConfigFile(config / "consumerOffset.json").save(encode(members))
    for name in ("consumerOffset.journal", "consumerOffset.journal.next"):
        (config / name).unlink(missing_ok=True)
    sync_directory(config)
    return lines
