"""Rebuild the ConsumeQueues in parts that can run in parallel, one file of the log each.

A record contains its queue offset, so the parts write units in place, and repeating a part writes the same bytes. A
part does not know whether its queue starts again in a later file, after a deletion or a gap. Combining the parts
detects that, and what was written of such a queue is rewritten.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.dispatch import DeletedTopics, DispatchBatch, QueueRows, rows_by_queue
from reput_broker.store.base.errors import StoreError
from reput_broker.store.base.file_io import sync_directory
from reput_broker.tools.queue_ends import units_of
from reput_broker.tools.rebuild import QueuesRebuild
from reput_protocol.record.scan import scan_dispatch
from reput_protocol.store.layout import Geometry, StoreLayout
from reput_protocol.store.log_reader import LogBatch, read_log
from reput_protocol.store.unit import PRE_BLANK, UNIT_BYTES

_OPEN_MAX = 256
QueueName = tuple[str, int]


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
                if part.only is None or queue.physical_offsets[0] >= part.only.get(
                    queue[:2], part.end_offset
                ):
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


class _UnitWriter:
    """Writes units in place, concurrently with other parts."""

    def __init__(self, target: Path, file_size: int) -> None:
        self._target = target
        self._file_size = file_size
        self._open: dict[Path, int] = {}

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
