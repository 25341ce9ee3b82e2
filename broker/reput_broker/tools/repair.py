"""Repair a store that a start refuses, and keep every byte that is removed.

Only the log is irreplaceable. A damaged record is fixed if its right value is known (`repair_plan.py`). At the first
other one the log has to end: with a hole it would assign queue offsets and log offsets to other messages. Everything
after it is moved to `repair-N/`. Everything else is rebuilt from the log.

Order: everything that will change is copied to `repair-N/` and synced. Then the checkpoint is written with the new end
of the log, and `abort` is created: from here on a start would truncate the log at the same place. Unreadable files are
moved, the log is truncated, and the queues are rebuilt. After a kill at any moment the same repair can be started
again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from reput_broker.store.base.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.base.file_io import make_directories, sync_directory
from reput_broker.store.opening.directory_swap import put_back
from reput_broker.store.opening.lock import AbortMarker
from reput_broker.tables.config_file import ConfigFile, encode
from reput_broker.tools.index_raw import IndexSizes, index_sizes
from reput_broker.tools.rebuild import DerivedFactory, IndexRebuild, QueuesRebuild, rebuild
from reput_broker.tools.repair_plan import RepairPlan, copy_part, data_end, move, overwrite, resize, truncate_log
from reput_broker.tools.report import Progress, no_progress
from reput_broker.tools.tables import apply_journal, find_journal, offsets_in, table_in_force
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_queues import queue_ends
from reput_protocol.store.layout import Geometry, StoreLayout
from reput_protocol.store.unit import UNIT_BYTES

_WORDS = "repair.json"


class SideDirectory:
    """The first free `repair-N`: durably keeps everything that a repair changes or removes.

    If a name is taken, a number is added. Files from the store directory keep their path; files from other directories
    of the log go to `outside/K-NAME`, with a number for each directory. `repair.json` lists the origin of each file.
    """

    def __init__(self, root: Path) -> None:
        number = 1
        while os.path.lexists(path := root / f"repair-{number}"):
            number += 1
        path.mkdir()
        sync_directory(root)
        self.root = root
        self.path = path
        self._given: set[Path] = {path / _WORDS}
        self._outside: dict[Path, str] = {}

    def place_for(self, source: Path) -> Path:
        """Return a unique path in which to keep a file or directory."""
        if source.is_relative_to(self.root):
            return self.place(source.relative_to(self.root))
        directory = source.parent
        name = self._outside.setdefault(directory, f"{len(self._outside) + 1}-{directory.name}")
        return self.place(Path("outside", name, source.name))

    def place(self, wanted: Path) -> Path:
        """Return a unique path below this directory, the wanted one if it is free."""
        path, number = self.path / wanted, 1
        while path in self._given or os.path.lexists(path):
            number += 1
            path = self.path / wanted.with_name(f"{wanted.name}.{number}")
        self._given.add(path)
        return path

    def relative(self, place: Path) -> str:
        """Return a path as in `repair.json`."""
        return str(place.relative_to(self.path))

    def describe(self, words: dict[str, Any]) -> None:
        """Write `repair.json`, and sync it and every name in the directory."""
        with (self.path / _WORDS).open("x", encoding="utf-8") as file:
            json.dump(words, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        for directory in [*(path for path in self.path.rglob("*") if path.is_dir()), self.path, self.root]:
            sync_directory(directory)


_TABLES = ("consumerOffset.json", "consumerOffset.json.bak", "consumerOffset.journal", "consumerOffset.journal.next")


class RepairResult(NamedTuple):
    """What a repair has changed, and where its opposite is kept."""

    side_directory: Path
    """Where everything that was changed or removed is kept."""
    end_offset: int
    """New end of the log."""
    lines: list[str]


def apply_repair(verification: Verification, plan: RepairPlan, progress: Progress = no_progress) -> RepairResult:
    """Execute a plan. The caller has locked the directory as its owner.

    Raises:
        DiskFull, FlushFailed, OSError: while copying: nothing was changed. Later: `abort` exists,
            and the same repair can be repeated.
    """
    root, layout = verification.root, verification.layout
    geometry = _geometry_of(verification)
    put_back(root)
    side = SideDirectory(root)
    moves = _save(verification, plan, side)
    if plan.new_checkpoint:
        (root / "checkpoint").unlink(missing_ok=True)
    if plan.truncation is not None:
        start = max((file.start for file in layout.log.files if file.start <= plan.truncation.offset), default=0)
        _write_checkpoint(root, FlushMark(plan.truncation.offset, start), None)
    if plan.touches_log_or_queues:
        AbortMarker(layout.abort).create()
    for fix in plan.fixes:
        overwrite(fix.file, fix.position, fix.right)
    for path, target in moves:
        move(path, target)
    if plan.truncation is not None:
        truncate_log(layout.log, plan.truncation.offset)
    for path, _ in plan.resize:
        if path.exists():
            resize(path, layout.log.file_size)
    after = Verification(
        root,
        commit_log_dirs=layout.log.directories,
        geometry=geometry,
        delay_levels_ms=verification.delay_levels_ms,
        progress=progress,
    )
    after.run()
    kinds: list[DerivedFactory] = []
    if plan.rebuild_queues:
        kinds.append(QueuesRebuild)
    if plan.rebuild_index:
        kinds.append(IndexRebuild)
    levels_ms = verification.delay_levels_ms
    lines: list[str] = []
    if kinds:
        lines += rebuild(after.layout, after.log.kept_end, kinds, delay_levels_ms=levels_ms, progress=progress)
    if plan.truncation is not None or plan.new_checkpoint:
        # Unless the queues are rebuilt, the next start rebuilds the units of the last file's
        # records.
        last = max((file.start for file in after.layout.log.files if file.start < after.log.kept_end), default=0)
        queues_offset = after.log.kept_end if plan.rebuild_queues else last
        entries = sum(queue_ends(_layout_now(verification, geometry), queues_offset).values())
        _write_checkpoint(root, FlushMark(after.log.kept_end, queues_offset, entries & 0xFFFF_FFFF), after)
    elif plan.touches_log_or_queues and verification.mark is not None:
        # The next start takes the mark for that of an unfinished run, and compares the number of
        # entries.
        mark = verification.mark
        entries = sum(queue_ends(_layout_now(verification, geometry), mark.queues_offset).values())
        _write_checkpoint(root, FlushMark(mark.flushed_offset, mark.queues_offset, entries & 0xFFFF_FFFF), None)
    if plan.clamp:
        ends = queue_ends(_layout_now(verification, geometry), after.log.kept_end)
        lines += _clamp_offsets(layout.config_dir, ends)
    return RepairResult(side.path, after.log.kept_end, lines)


def _layout_now(verification: Verification, geometry: Geometry) -> StoreLayout:
    directories = verification.layout.log.directories
    return StoreLayout(verification.root, directories, geometry)


def _geometry_of(verification: Verification) -> Geometry:
    """Return the detected sizes: after the repair too few files may be left for that."""
    layout = verification.layout
    index = index_sizes(layout) or IndexSizes(layout.geometry.index_slots, layout.geometry.index_entries)
    return Geometry(layout.log.file_size, -(-layout.queue_file_size // UNIT_BYTES), index.slots, index.entries)


def _save(verification: Verification, plan: RepairPlan, side: SideDirectory) -> list[tuple[Path, Path]]:
    """Copy and sync everything that will change; return what is to be moved, and where."""
    root, log = verification.root, verification.layout.log
    truncated: list[dict[str, Any]] = []

    def keep(path: Path, start: int, stop: int, wanted: Path) -> None:
        target = side.place(wanted)
        make_directories(target.parent)
        copy_part(path, start, stop, target)
        truncated.append({"file": str(path), "from": start, "to": stop, "kept_as": side.relative(target)})

    if plan.truncation is not None:
        for file in log.files:
            start = max(0, plan.truncation.offset - file.start)
            size = file.path.stat().st_size
            stop = max(data_end(file), size if size > log.file_size else 0)
            if file.start + log.file_size <= plan.truncation.offset or stop <= start:
                continue
            name = file.path.name
            keep(file.path, start, stop, Path("commitlog", f"{name}.from-{start}" if start else name))
    for path, size in plan.resize:
        if size > log.file_size:
            keep(path, log.file_size, size, Path(f"{path.name}.from-{log.file_size}"))
    for name in ("checkpoint", "deletedTopics", *(f"config/{table}" for table in _TABLES)):
        source = root / name
        if source.is_file():
            target = side.place(Path("before", name))
            make_directories(target.parent)
            copy_part(source, 0, source.stat().st_size, target)
    gone = [path for path, _ in plan.aside]
    if plan.drop_index:
        gone.append(verification.layout.index_dir)
    moves = [(path, side.place_for(path)) for path in gone]
    side.describe(
        {
            "plan": plan.lines(),
            "truncated": truncated,
            "moved": [{"file": str(path), "kept_as": side.relative(target)} for path, target in moves],
            "fixed": [
                {
                    "file": str(fix.file),
                    "position": fix.position,
                    "field": fix.field,
                    "was": fix.wrong.hex(),
                    "is": fix.right.hex(),
                }
                for fix in plan.fixes
            ],
        }
    )
    return moves


def _write_checkpoint(root: Path, mark: FlushMark, after: Verification | None) -> None:
    """Write a checkpoint that claims no more than what is there now."""
    checkpoint = StoreCheckpoint(root / "checkpoint")
    checkpoint.load()
    if after is not None:
        newest = after.log.max_store_timestamp_ms
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
    """Reset offsets beyond the end of their queue to it, so that no new message is skipped."""
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
