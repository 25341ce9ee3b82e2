"""Make what is derived from the log anew, beside what is there, and put it in its place at the end.

The new directory is complete and on the disk before the old one gives way to it by two renames. Being killed between
them leaves the store without queues, and a start makes queues that are missing; being killed anywhere else leaves what
was there before, and directories `rebuild-N.tmp` that the next rebuild removes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from reput_broker.store.consume_queue_builder import RecoveringQueueBuilder
from reput_broker.store.consume_queue_table import ConsumeQueueTable
from reput_broker.store.consume_queue_unit import PRE_BLANK_SIZE, UNIT_BYTES
from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dispatch import DispatchBatch, rows_by_queue
from reput_broker.store.errors import ForeignFile
from reput_broker.store.file_io import sync_directory
from reput_broker.store.foreign_files import files_below
from reput_broker.store.options import DELAY_LEVELS_MS, StoreOptions, ignore_event
from reput_broker.store_tools.layout import QueueDirectory, StoreLayout
from reput_broker.store_tools.log_reader import LogBatch, LogEnd, read_log
from reput_broker.store_tools.report import Progress, no_progress
from reput_broker.store_tools.unit_files import OpenFiles, UnitFiles
from reput_protocol.record_batch import scan_dispatch

_REPLACED = ".replaced"


class Derived(Protocol):
    """Something that is derived from the log, while it is made anew in a directory of its own."""

    directory: Path
    """Where it belongs in the end."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Take the next batch of the log."""

    def finish(self) -> str:
        """Bring everything to the disk, close it, and say what was made."""


DerivedFactory = Callable[[StoreLayout, Path], Derived]
"""Begins to make one kind anew: gets the layout and the empty directory to make it in."""


class QueuesRebuild:
    """The ConsumeQueues."""

    def __init__(self, layout: StoreLayout, temporary: Path) -> None:
        self.directory = layout.consume_queue_dir
        self._layout = layout
        options = StoreOptions(data_dir=layout.root, commit_log_file_size=layout.log.file_size or 1 << 30)
        if layout.queue_file_size:
            options = replace(options, consume_queue_entries=-(-layout.queue_file_size // UNIT_BYTES))
        self._table = ConsumeQueueTable(temporary, options)
        self._temporary = temporary
        self._builder = RecoveringQueueBuilder(self._table, from_beginning=True, on_event=ignore_event)

    def dispatch(self, batch: DispatchBatch) -> None:
        """Put the units of a batch."""
        self._builder.dispatch(batch)

    def finish(self) -> str:
        """Keep what the log no longer holds, and bring all of it to the disk."""
        self._table.flush()
        made = sum(queue.max_queue_offset - queue.min_queue_offset for queue in self._table)
        kept = self._keep_expired()
        count = len(self._table)
        self._table.close()
        words = f"{made} units in {count} queues"
        return f"{words}; {kept} queues whose messages have all left the log were kept" if kept else words

    def _keep_expired(self) -> int:
        """Copy the queues whose messages have all left the log: without them message numbers would begin again at 0."""
        made = {(queue.topic, queue.queue_id) for queue in self._table if queue.has_files}
        files = OpenFiles()
        kept = 0
        try:
            for queue in self._layout.queues:
                if (queue.topic, queue.queue_id) not in made and self._is_expired(queue, files):
                    target = self._temporary / queue.topic / str(queue.queue_id)
                    target.mkdir(parents=True)
                    for file in queue.stream.files:
                        _copy(file.path, target / file.path.name)
                    for directory in (target, target.parent, target.parent.parent):
                        sync_directory(directory)
                    kept += 1
        finally:
            files.close()
        return kept

    def _is_expired(self, queue: QueueDirectory, files: OpenFiles) -> bool:
        units = UnitFiles(queue.stream, files)
        if units.end <= units.first:
            return False
        offset, size, _ = units.read(units.end - 1, 1)[0].tolist()
        is_real = 0 < size < PRE_BLANK_SIZE and offset >= 0
        return is_real and bool(offset + size <= self._layout.log.min_offset)


REBUILDERS: dict[str, DerivedFactory] = {"queues": QueuesRebuild}
"""Everything that can be made anew, by the name of its option."""


def refuse_other_queues(root: Path) -> None:
    """Refuse a directory with queues of a form that this rebuild would not make.

    Raises:
        ForeignFile: naming the first such file. Nothing was changed.
    """
    for name, kind in (
        ("batchconsumequeue", "batch queues (queue.type=BatchCQ)"),
        ("consumequeue_ext", "extended queue entries (enableConsumeQueueExt)"),
    ):
        directory = root / name
        for path in files_below(directory):
            raise ForeignFile(
                path, f"a rebuild does not make {kind}; move {directory} away to go on without them"
            )


def rebuild(
    layout: StoreLayout,
    end_offset: int,
    kinds: Sequence[DerivedFactory],
    *,
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    progress: Progress = no_progress,
) -> list[str]:
    """Make what is derived from the log anew, and return what was made.

    Args:
        layout: the directory, which the caller has locked as its owner, and whose log is sound.
        end_offset: where the log ends.
        kinds: what to make.
        delay_levels_ms: the delay levels of the broker that wrote the log.
        progress: told how many bytes of the log are done.

    Raises:
        DiskFull, FlushFailed, OSError: what was there before is still in its place.
    """
    deleted = DeletedTopics(layout.root / "deletedTopics")
    deleted.load()
    made: list[tuple[Derived, Path]] = []
    for number, factory in enumerate(kinds):
        temporary = layout.root / f"rebuild-{number}.tmp"
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.mkdir()
        made.append((factory(layout, temporary), temporary))
    for part in read_log(layout.log):
        if isinstance(part, LogEnd) or (isinstance(part, LogBatch) and part.offset >= end_offset):
            break
        if not isinstance(part, LogBatch):
            continue
        columns = part.columns
        stop = int(columns.position[-1]) + int(columns.head["size"][-1])
        data = part.data[: min(stop, end_offset - part.offset)]
        rows = scan_dispatch(data, base_physical_offset=part.offset, levels_ms=delay_levels_ms)
        assert rows.consumed == len(data), "the log was found sound"
        batch = DispatchBatch(
            part.offset,
            part.offset + len(data),
            data,
            rows,
            rows_by_queue(rows, deleted if len(deleted) else None),
        )
        for derived, _ in made:
            derived.dispatch(batch)
        progress(part.offset + len(data) - layout.log.min_offset, end_offset - layout.log.min_offset)
    words = [derived.finish() for derived, _ in made]
    for derived, temporary in made:
        _swap(temporary, derived.directory)
    return words


def _swap(new: Path, place: Path) -> None:
    """Let a directory take another's place; the old one is removed."""
    sync_directory(new)
    old = place.with_name(place.name + _REPLACED)
    if old.is_dir():
        shutil.rmtree(old)
    if place.is_dir():
        os.rename(place, old)
    os.rename(new, place)
    sync_directory(place.parent)
    if old.is_dir():
        shutil.rmtree(old)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
