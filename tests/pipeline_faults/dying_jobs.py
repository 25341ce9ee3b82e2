"""The jobs `archive` and `replay` with something that dies, or fails, before and after each of their steps."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark import TaskContext

from pipeline_faults import dying_sink
from pipeline_faults.points import Point
from reput_client.arrow.queues import QueueRange
from reput_pipeline.archives import batches, directory
from reput_pipeline.archives.batches import ArchiveTask, _OneFile, write_task
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import ArchiveBatch, ArchiveFile
from reput_pipeline.jobs import archive, replay
from reput_pipeline.jobs.run import JobRun

_TASK_MESSAGES = 200
"""Of so many messages a task is made here, so that small batches have several."""


def plant() -> None:
    """Have the jobs of this process die at the point of the environment."""
    _plant_in_archive(Point.of_environment())
    _plant_in_replay(Point.of_environment())


def _plant_in_archive(point: Point) -> None:
    batches._TASK_MESSAGES_MIN = _TASK_MESSAGES
    plan_batch, complete, write_whole = (ArchiveDirectory.plan, ArchiveDirectory.complete, directory.write_whole)

    def dying_plan(
        self: ArchiveDirectory, tasks: Sequence[Sequence[QueueRange]], generations: Mapping[tuple[str, str], str]
    ) -> ArchiveBatch:
        number = self.next_number()
        point.reached("before-plan", number)
        batch = plan_batch(self, tasks, generations)
        point.reached("after-plan", number)
        return batch

    def dying_complete(self: ArchiveDirectory, batch: ArchiveBatch, files: Any, **more: object) -> None:
        point.reached("before-manifest", batch.number)
        complete(self, batch, files, **more)
        point.reached("after-batch", batch.number)

    def dying_write_whole(path: Path, data: bytes) -> None:
        write_whole(path, data)
        if path.stem.isdigit():
            point.reached("after-manifest", int(path.stem))

    write = archive._Archiving._write

    def dying_write(self: Any, batch: ArchiveBatch, addresses: dict[str, str]) -> None:
        with patch.object(archive, "write_task", functools.partial(dying_write_task, batch.number)):
            write(self, batch, addresses)

    ArchiveDirectory.plan = dying_plan  # type: ignore[method-assign,assignment]
    ArchiveDirectory.complete = dying_complete  # type: ignore[method-assign,assignment]
    directory.write_whole = dying_write_whole
    archive._Archiving._write = dying_write  # type: ignore[method-assign]


def dying_write_task(number: int, task: ArchiveTask) -> Iterator[ArchiveFile]:
    """Write the files of a task of batch `number`, in a worker."""
    point = Point.of_environment()
    publish = _OneFile.publish

    def dying_publish(self: _OneFile, topic: str) -> ArchiveFile:
        self.write_group()
        point.reached("half-a-file", number)
        published = publish(self, topic)
        point.reached("between-files", number)
        return published

    with patch.object(_OneFile, "publish", dying_publish):
        yield from write_task(task)
    context = TaskContext.get()
    if context is not None:
        point.fail_task(context.attemptNumber(), context.partitionId())


def _plant_in_replay(point: Point) -> None:
    patch.object(replay, "register", dying_sink.register).start()
    note = JobRun.note

    def dying_note(self: JobRun, text: str) -> None:
        note(self, text)
        words = text.split()
        if words[0] == "batch" and words[-1] == "sent":
            point.reached("after-batch", int(words[1].rstrip(":")))

    JobRun.note = dying_note  # type: ignore[method-assign]
