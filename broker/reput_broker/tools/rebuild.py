"""Rebuild what is derived from the log in new directories, and then replace the old ones.

Each new directory is complete and on disk before it replaces the old one in one step (`directory_swap.py`). A kill
leaves the old or the new directories, and possibly `rebuild-N.tmp` directories, which the next rebuild removes. If the
checkpoint has not been updated after a replacement, a start compares the queues with the whole log, and rebuilds the
index.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.dispatch import DeletedTopics, DispatchBatch, QueueRows, rows_by_queue
from reput_broker.store.base.errors import FlushFailed, ForeignFile, StoreError
from reput_broker.store.base.file_io import sync_directory
from reput_broker.store.base.options import DELAY_LEVELS_MS, StoreOptions, ignore_event
from reput_broker.store.index.service import IndexService
from reput_broker.store.opening.directory_swap import put_back, swap
from reput_broker.store.opening.foreign_files import files_below
from reput_broker.store.queue.reput import RecoveringQueueBuilder
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_broker.tools.index_raw import index_sizes
from reput_broker.tools.report import Progress, no_progress
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_queues import queues_digest, units_of
from reput_protocol.printable import counted
from reput_protocol.record.scan import scan_dispatch
from reput_protocol.store.files import replaced
from reput_protocol.store.layout import Geometry, QueueDirectory, StoreLayout
from reput_protocol.store.log_reader import LogBatch, LogEnd, read_log
from reput_protocol.store.unit import PRE_BLANK, PRE_BLANK_SIZE, UNIT_BYTES
from reput_protocol.store.unit_files import OpenFiles, UnitFiles

_YEAR_9999_MS = 253_370_764_800_000
_OPEN_MAX = 256
QueueName = tuple[str, int]


class IndexSizesUnknown(ValueError):
    """The number of slots and entries of an index file is unknown."""


class IndexRebuild:
    """The index files, named by the store times of their first records."""

    def __init__(self, layout: StoreLayout, temporary: Path) -> None:
        """Begin.

        Raises:
            IndexSizesUnknown: neither the caller nor a file determines the sizes.
            ForeignFile: a file in the directory is not an index file, and would be removed.
        """
        self.directory = layout.index_dir
        sizes = index_sizes(layout)
        if sizes is None:
            raise IndexSizesUnknown(f"no file in {self.directory} shows how many slots and entries it has")
        index_files = layout.index_files()
        for path in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            if path not in index_files:
                raise ForeignFile(path, "it is not an index file; move it away")
        self._index = IndexService(temporary, *sizes, clock_ms=lambda: self._time_ms)
        self._time_ms = 0
        self._digest = 0
        self._position = 0

    def dispatch(self, batch: DispatchBatch) -> None:
        """Insert the keys of a batch."""
        self._time_ms = min(max(self._time_ms, batch.rows.last_store_timestamp_ms), _YEAR_9999_MS)
        self._index.dispatch(batch)
        self._index.flush_full_files()

    def finish(self) -> str:
        """Insert the remaining keys, and sync everything."""
        self._index.complete()
        self._index.flush_full_files()
        self._index.flush()
        self._digest, self._position = self._index.digest, self._index.position
        files = self._index.files
        return f"{counted(sum(file.header.next_entry - 1 for file in files), 'key')} in {counted(len(files), 'file')}"

    def close(self) -> None:
        """Close all files."""
        self._index.close()

    def note(self, checkpoint: StoreCheckpoint, _end_offset: int, *, stopped: bool) -> None:
        """Update the time of full files, and after an orderly stop mark the index as complete."""
        checkpoint.index_msg_timestamp_ms = self._index.full_until_ms
        if stopped and checkpoint.mark is not None:
            checkpoint.mark = checkpoint.mark._replace(index_offset=self._position, index_digest=self._digest)


class QueuesRebuild:
    """The ConsumeQueues."""

    def __init__(self, layout: StoreLayout, temporary: Path) -> None:
        self.directory = layout.consume_queue_dir
        self._layout = layout
        options = StoreOptions(data_dir=layout.root, commit_log_file_size=layout.log.file_size or 1 << 30)
        if layout.queue_file_size:
            options = replace(options, consume_queue_entries=-(-layout.queue_file_size // UNIT_BYTES))
        self._entries = options.consume_queue_entries
        self._table = ConsumeQueueTable(temporary, options)
        self._temporary = temporary
        self._builder = RecoveringQueueBuilder(self._table, from_beginning=True, on_event=ignore_event)

    def dispatch(self, batch: DispatchBatch) -> None:
        """Put the units of a batch."""
        self._builder.dispatch(batch)

    def finish(self) -> str:
        """Keep expired queues, and sync everything."""
        self._table.flush()
        made = self._count()
        kept = self._keep_expired()
        count = len(self._table)
        words = f"{counted(made, 'unit')} in {counted(count, 'queue')}"
        return f"{words}; {_kept_words(kept)}" if kept else words

    def close(self) -> None:
        """Close all files."""
        self._table.close()

    def note(self, checkpoint: StoreCheckpoint, end_offset: int, *, stopped: bool) -> None:
        """After an orderly stop mark the queues as complete, so that the next start need not compare them."""
        mark = checkpoint.mark
        if stopped and mark is not None:
            layout = StoreLayout(self._layout.root, self._layout.log.directories, self._layout.geometry)
            checkpoint.mark = mark._replace(queues_offset=end_offset, queues_digest=queues_digest(layout))

    def _count(self) -> int:
        return sum(queue.max_queue_offset - queue.min_queue_offset for queue in self._table)

    def _keep_expired(self) -> int:
        """Copy queues whose messages have all left the log, so that their offsets do not restart at 0."""
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
        offset, size, _ = units.read(units.end - 1, 1)[0]
        is_real = 0 < size < PRE_BLANK_SIZE and offset >= 0
        return is_real and offset + size <= self._layout.log.min_offset


def refuse_other_queues(root: Path) -> None:
    """Refuse a directory with queues of a form that a rebuild does not create.

    Raises:
        ForeignFile: names the first such file. Nothing was changed.
    """
    for name, kind in (
        ("batchconsumequeue", "batch queues (queue.type=BatchCQ)"),
        ("consumequeue_ext", "extended queue entries (enableConsumeQueueExt)"),
    ):
        directory = root / name
        for path in files_below(directory):
            raise ForeignFile(path, f"a rebuild does not create {kind}; move {directory} away to continue without them")


def refuse_other_delays(verification: Verification) -> None:
    """Refuse to rebuild queues if the due times of delayed messages are unknown.

    Raises:
        ForeignFile: most units of a queue contradict RocketMQ's delay levels. Nothing was changed.
    """
    if verification.other_delays is not None and not verification.delay_levels_given:
        raise ForeignFile(
            verification.other_delays,
            "its messages are due at other times than RocketMQ's delay levels give; name those of the broker that "
            "wrote them with --delay-levels (messageDelayLevel in its configuration)",
        )


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _kept_words(kept: int) -> str:
    queues, were = ("queue", "was") if kept == 1 else ("queues", "were")
    return f"{kept} {queues} whose messages have all left the log {were} kept"


class Derived(Protocol):
    """Something derived from the log, while it is rebuilt in a directory of its own."""

    directory: Path
    """Its final place."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Take the next batch of the log."""

    def finish(self) -> str:
        """Sync everything, and describe what was rebuilt."""

    def close(self) -> None:
        """Close all files."""

    def note(self, checkpoint: StoreCheckpoint, end_offset: int, *, stopped: bool) -> None:
        """Update the checkpoint for the new directory.

        Args:
            end_offset: where the log ends.
            stopped: whether the last broker stopped in order; if not, the next start recovers.
        """


DerivedFactory = Callable[[StoreLayout, Path], Derived]
"""Begins one rebuild: takes the layout and the empty directory to build it in."""

Fill = Callable[[StoreLayout, Sequence[Derived], DeletedTopics], None]
"""Distributes the log to what is rebuilt, instead of `hand_out`."""

REBUILDERS: dict[str, DerivedFactory] = {"queues": QueuesRebuild, "index": IndexRebuild}
"""Everything that can be rebuilt, by the name of its option."""


def rebuild(
    layout: StoreLayout,
    end_offset: int,
    kinds: Sequence[DerivedFactory],
    *,
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    progress: Progress = no_progress,
    fill: Fill | None = None,
) -> list[str]:
    """Rebuild what is derived from the log; return a description of each.

    Args:
        layout: the directory, locked by the caller as its owner, with a valid log.
        end_offset: where the log ends.
        delay_levels_ms: those of the broker that wrote the log.
        progress: receives how many bytes of the log are done.
        fill: distributes the log; by default `hand_out`.

    Raises:
        ForeignFile: a file that is not part of a store is in the way; nothing was changed.
        DiskFull, FlushFailed, OSError: each directory is the old or the new one. The next start detects what the
            checkpoint does not say. After FlushFailed the directories `rebuild-N.tmp` stay, because one of them may
            have the final name on disk.
    """
    if put_back(layout.root):
        layout = StoreLayout(layout.root, layout.log.directories, layout.geometry)
    deleted = DeletedTopics(layout.root / "deletedTopics")
    deleted.load()
    checkpoint = StoreCheckpoint(layout.root / "checkpoint")
    checkpoint.load()
    temporaries = [layout.root / f"rebuild-{number}.tmp" for number in range(len(kinds))]
    made: list[Derived] = []
    try:
        _remove_leftovers(layout)
        try:
            for factory, temporary in zip(kinds, temporaries, strict=True):
                temporary.mkdir()
                made.append(factory(layout, temporary))
                if made[-1].directory.is_symlink():
                    raise ForeignFile(made[-1].directory, "it is a symbolic link, and a directory would replace it")
            if fill is None:
                hand_out(layout, end_offset, made, deleted, delay_levels_ms, progress)
            else:
                fill(layout, made, deleted)
            words = [derived.finish() for derived in made]
        finally:
            for derived in made:
                derived.close()
        for derived, temporary in zip(made, temporaries, strict=True):
            sync_directory(temporary)
            swap(temporary, derived.directory)
    except FlushFailed:
        # It is unknown which directory has which name on disk, so neither may be removed. Another
        # sync proves nothing: the system reports a failed sync only once.
        raise
    except BaseException:
        _remove(layout.root, temporaries)
        raise
    _remove(layout.root, temporaries)
    before = (checkpoint.mark, checkpoint.index_msg_timestamp_ms)
    for derived in made:
        derived.note(checkpoint, end_offset, stopped=not layout.abort.exists())
    try:
        if before != (checkpoint.mark, checkpoint.index_msg_timestamp_ms):
            checkpoint.flush()
    finally:
        checkpoint.close()
    return words


def _remove(root: Path, temporaries: Sequence[Path]) -> None:
    sync_directory(root)
    for temporary in temporaries:
        shutil.rmtree(temporary, ignore_errors=True)


def hand_out(
    layout: StoreLayout,
    end_offset: int,
    kinds: Sequence[Derived],
    deleted: DeletedTopics,
    levels_ms: Sequence[int],
    progress: Progress,
) -> None:
    """Distribute the log, batch by batch, as reput does."""
    for part in read_log(layout.log):
        if isinstance(part, LogEnd) or (isinstance(part, LogBatch) and part.offset >= end_offset):
            break
        if not isinstance(part, LogBatch):
            continue
        data = part.data[: min(part.end, end_offset - part.offset)]
        rows = scan_dispatch(data, base_physical_offset=part.offset, levels_ms=levels_ms)
        assert rows.consumed == len(data), "the log was found sound"
        queues = rows_by_queue(rows, deleted if len(deleted) else None)
        batch = DispatchBatch(part.offset, part.offset + len(data), data, rows, queues)
        for derived in kinds:
            derived.dispatch(batch)
        progress(part.offset + len(data) - layout.log.min_offset, end_offset - layout.log.min_offset)


def _remove_leftovers(layout: StoreLayout) -> None:
    """Remove incomplete new directories and replaced old ones."""
    sync_directory(layout.root)
    old = [replaced(place) for place in (layout.consume_queue_dir, layout.index_dir)]
    for directory in (*layout.root.glob("rebuild-*.tmp"), *old):
        if directory.is_dir():
            shutil.rmtree(directory)


class UnitsPart(NamedTuple):
    """One file of the log, and where the units of its records go."""

    root: Path
    commit_log_dirs: tuple[Path, ...]
    geometry: Geometry
    number: int
    end_offset: int
    """Where the log ends."""
    target: Path
    file_size: int
    delay_levels_ms: tuple[int, ...]
    only: Mapping[QueueName, int] | None
    """If set: the queues to write, each from a log offset on."""


class UnitsRun(NamedTuple):
    """Consecutive messages of a queue."""

    topic: str
    queue_id: int
    first: int
    end: int
    log_start: int
    """Log offset of the first record."""


def write_units(part: UnitsPart) -> list[UnitsRun]:
    """Write and sync the units of the records of one file of the log; return their runs.

    Raises:
        OSError: the disk is full, or fails.
    """
    layout = StoreLayout(part.root, part.commit_log_dirs, part.geometry)
    deleted = DeletedTopics(part.root / "deletedTopics")
    deleted.load()
    runs: dict[QueueName, list[UnitsRun]] = {}
    files = _UnitWriter(part.target, part.file_size)
    try:
        for found in read_log(layout.log, part.number, to_index=part.number + 1):
            if not isinstance(found, LogBatch) or found.offset >= part.end_offset:
                continue
            data = found.data[: min(found.end, part.end_offset - found.offset)]
            rows = scan_dispatch(data, base_physical_offset=found.offset, levels_ms=part.delay_levels_ms)
            for queue in rows_by_queue(rows, deleted if len(deleted) else None):
                if part.only is None or queue.physical_offsets[0] >= part.only.get(queue[:2], part.end_offset):
                    files.write(queue)
                    _note_run(runs.setdefault(queue[:2], []), queue)
        files.sync()
    finally:
        files.close()
    return [run for queue_runs in runs.values() for run in queue_runs]


def _note_run(runs: list[UnitsRun], queue: QueueRows) -> None:
    first, end = queue.first_queue_offset, queue.first_queue_offset + len(queue.sizes)
    if runs and runs[-1].end == first:
        runs[-1] = runs[-1]._replace(end=end)
    else:
        runs.append(UnitsRun(queue.topic, queue.queue_id, first, end, queue.physical_offsets[0]))


@dataclass(eq=False, repr=False)
class _UnitWriter:
    """Writes units in place, concurrently with other parts."""

    _target: Path
    _file_size: int
    _open: dict[Path, int] = field(default_factory=dict, init=False)

    def write(self, queue: QueueRows) -> None:
        directory = self._target / queue.topic / str(queue.queue_id)
        write_at(self._fd, directory, self._file_size, queue.first_queue_offset * UNIT_BYTES, units_of(queue))

    def _fd(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is None:
            if len(self._open) >= _OPEN_MAX:
                self.sync()
                self.close()
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = self._open[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if os.fstat(fd).st_size < self._file_size:
                os.ftruncate(fd, self._file_size)  # sparse, as in the broker
        return fd

    def sync(self) -> None:
        for fd in self._open.values():
            os.fsync(fd)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def write_at(
    fd_of: Callable[[Path], int], directory: Path, file_size: int, position: int, data: bytes | bytearray
) -> None:
    """Write bytes at a position of a stream of files of one size."""
    done = 0
    while done < len(data):
        inside = (position + done) % file_size
        piece = data[done : done + file_size - inside]
        path = directory / f"{position + done - inside:020d}"
        written = os.pwrite(fd_of(path), piece, inside)
        done += written


class QueuesInParts(QueuesRebuild):
    """The ConsumeQueues, whose units are written by `write_units`."""

    def __init__(self, layout: StoreLayout, temporary: Path) -> None:
        super().__init__(layout, temporary)
        self.runs: dict[QueueName, UnitsRun] = {}
        """Final contents of each queue."""

    def dispatch(self, _batch: DispatchBatch) -> None:
        """Not used: the units are written in parts."""
        raise NotImplementedError("the units are written in parts")

    def parts(self, end_offset: int, delay_levels_ms: Sequence[int]) -> list[UnitsPart]:
        """Return a part for every file of the log."""
        layout = self._layout
        return [
            UnitsPart(
                layout.root,
                layout.log.directories,
                layout.geometry,
                number,
                end_offset,
                self._temporary,
                self._file_size,
                tuple(delay_levels_ms),
                None,
            )
            for number, file in enumerate(layout.log.files)
            if file.start < end_offset
        ]

    def put_together(self, runs: Iterable[UnitsRun]) -> dict[QueueName, int]:
        """Combine the runs of all parts, in the order of the log.

        Returns:
            The queues that start again, each with the log offset from which its messages count.
            Their units are removed; repeat the parts for these queues only.

        Raises:
            StoreError: the log is out of order.
        """
        again: dict[QueueName, int] = {}
        for run in runs:
            name = run[:2]
            before = self.runs.get(name)
            if before is not None and before.end == run.first:
                self.runs[name] = before._replace(end=run.end)
                continue
            if before is not None:
                if 0 < run.first < before.end:
                    raise StoreError(
                        f"message {run.first} of {run.topic}/{run.queue_id}, at log offset {run.log_start}, comes "
                        f"after message {before.end - 1}: the log is out of order"
                    )
                again[name] = run.log_start
            self.runs[name] = run
        for topic, queue_id in again:
            shutil.rmtree(self._temporary / topic / str(queue_id))
        return again

    def finish(self) -> str:
        """Write the pre-blank units of each queue, and sync the names."""
        for run in self.runs.values():
            self._write_pre_blank(run)
        for directory in {path.parent for path in self._temporary.glob("*/*/*")}:
            sync_directory(directory)
        for directory in self._temporary.iterdir():
            sync_directory(directory)
        self._table.load()
        self._table.recover()
        return super().finish()

    def _count(self) -> int:
        return sum(run.end - run.first for run in self.runs.values())

    def _write_pre_blank(self, run: UnitsRun) -> None:
        position = run.first * UNIT_BYTES
        start = position - position % self._file_size
        if start < position:
            path = self._temporary / run.topic / str(run.queue_id) / f"{start:020d}"
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.pwrite(fd, PRE_BLANK * ((position - start) // UNIT_BYTES), 0)
                os.fsync(fd)
            finally:
                os.close(fd)

    @property
    def _file_size(self) -> int:
        return self._entries * UNIT_BYTES
