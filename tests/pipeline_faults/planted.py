"""Bugs to plant in the pipeline and its broker, so that the kinds of faults can prove that they would notice them.

The environment names a bug. Each process plants it once: a broker and a driver of the lake at their start, the other
drivers and their workers when they import `dying_sink`. None of this is reachable from the product.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from pipeline_faults.points import BUG
from support import planted_bugs

if TYPE_CHECKING:
    from reput_client.arrow.queues import QueueRange


@dataclass(frozen=True)
class Bug(planted_bugs.Bug):
    """A bug that a kind of fault has to catch.

    Attributes:
        points: at which the kind has something to catch.
        rules: of `Outcome`, by one of which it has to be caught.
    """

    kind: str
    points: tuple[str, ...]
    rules: tuple[str, ...]


_LOST: Final = ("rows missing",)
_TWICE: Final = ("rows too many",)
_ONCE: Final = ("rows once",)


def commit_not_remembered() -> None:
    """a commit, and a task, take every batch for a new one"""
    from reput_broker.staging.batches import CommittedBatches

    CommittedBatches.last = lambda *_: None  # type: ignore[method-assign]
    CommittedBatches.is_committed = lambda *_: False  # type: ignore[method-assign]


def recovery_publishes_all() -> None:
    """a broker that starts with a batch published in part does not look for what is there already"""
    from reput_broker.staging.batches import Publisher

    async def nothing(*_: object) -> dict[Any, int]:
        return {}

    Publisher.count_published = nothing  # type: ignore[method-assign,assignment]


def decision_forgotten() -> None:
    """a broker that becomes the master takes no notice of a batch that another one has decided"""
    from reput_broker.staging.committer import Committer

    async def nothing(*_: object) -> None:
        return None

    Committer._read_markers = nothing  # type: ignore[method-assign,assignment]


def manifest_before_files() -> None:
    """an archive's manifest is written before its files have their names"""
    from reput_pipeline.archives.batches import _RangeFiles
    from reput_pipeline.archives.directory import ArchiveDirectory
    from reput_pipeline.archives.manifests import ArchiveFile

    finish, complete = _RangeFiles.finish, ArchiveDirectory.complete

    def finish_late(self: Any) -> Iterator[ArchiveFile]:
        for file in finish(self):
            path = Path(self._task.place, file.path)
            path.rename(_late(path))
            yield file

    def complete_early(self: ArchiveDirectory, batch: Any, files: Any, **more: object) -> None:
        complete(self, batch, files, **more)
        for file in files:
            path = self.root / file.path
            _late(path).rename(path)

    _RangeFiles.finish = finish_late  # type: ignore[method-assign]
    ArchiveDirectory.complete = complete_early  # type: ignore[method-assign,assignment]


def _late(path: Path) -> Path:
    return path.with_name(f"{path.name}.late")


def names_made_anew() -> None:
    """the files of an archive have other names at every attempt, and what is left of one stays"""
    from reput_pipeline.archives import batches
    from reput_pipeline.archives.directory import ArchiveDirectory
    from reput_pipeline.archives.layout import file_path

    def strange_path(part: QueueRange, values: Mapping[str, str | None]) -> PurePosixPath:
        path = file_path(part, values)
        return path.with_name(f"{uuid.uuid4().hex}-{path.name}")

    patch.object(batches, "file_path", strange_path).start()
    ArchiveDirectory.remove_strays = lambda _: []  # type: ignore[method-assign,assignment]


def replay_without_key() -> None:
    """a replay that is started again sends its batches under other keys"""
    from reput_pipeline.jobs import replay

    replay._key = lambda manifest, *_: f"replay-{manifest['batch']}-{uuid.uuid4().hex}"


def delta_progress_apart() -> None:
    """the progress of a Delta table is committed after its rows"""
    from deltalake import CommitProperties, write_deltalake

    from reput_pipeline.lake import delta

    def apart(table: Any, rows: Any, *, commit_properties: CommitProperties, **given: Any) -> None:
        write_deltalake(table, rows, **given)
        table.create_write_transaction([], "append", table.schema(), commit_properties=commit_properties)

    delta.write_deltalake = apart  # type: ignore[attr-defined,assignment]


def iceberg_progress_apart() -> None:
    """the progress of an Iceberg table is committed after its rows"""
    from pyiceberg.table import Transaction

    from reput_pipeline.lake.iceberg import IcebergTable

    commit, append, set_properties = IcebergTable.append, Transaction.append, Transaction.set_properties
    kept: dict[str, str] = {}

    def apart(self: IcebergTable, rows: Any, progress: Any, row_bytes: int) -> None:
        commit(self, rows, progress, row_bytes)
        with self._table.transaction() as transaction:
            set_properties(transaction, kept)

    IcebergTable.append = apart  # type: ignore[method-assign]
    Transaction.append = lambda self, rows, **_: append(self, rows)  # type: ignore[method-assign]
    Transaction.set_properties = lambda _, given: kept.update(given)  # type: ignore[method-assign,assignment,misc]


def run_for_query() -> None:
    """the sink knows a query by its run, which ends with the first error, and not by its checkpoint"""
    from pyspark import TaskContext

    from reput_pipeline.sink import writers

    run_task = writers._run_task

    def of_run(options: Any, columns: Any, batches: Any, query_id: str, batch_id: int) -> Any:
        context = TaskContext.get()
        assert context is not None
        return run_task(options, columns, batches, f"query:{context.getLocalProperty('spark.jobGroup.id')}", batch_id)

    writers._run_task = of_run


BUGS: Final = planted_bugs.table_of(
    (
        Bug(commit_not_remembered, "sink: driver killed", ("after-commit",), _TWICE),
        Bug(recovery_publishes_all, "replay: broker killed", ("piece:1",), _TWICE),
        Bug(decision_forgotten, "sink: master killed", ("marking",), (*_LOST, *_TWICE)),
        Bug(manifest_before_files, "archive: driver killed", ("after-manifest",), (*_LOST, "files missing")),
        Bug(names_made_anew, "archive: driver killed", ("before-manifest",), _TWICE),
        Bug(delta_progress_apart, "lake: delta job killed", (), _ONCE),
        Bug(iceberg_progress_apart, "lake: iceberg job killed", (), _ONCE),
        Bug(replay_without_key, "replay: driver killed", ("after-commit",), _TWICE),
        Bug(run_for_query, "stream: masters killed", ("piece:1",), _TWICE),
    )
)


def plant_of_environment() -> None:
    """Plant the bug that the environment names, if it names one."""
    if wanted := os.environ.get(BUG):
        BUGS[wanted].plant()
