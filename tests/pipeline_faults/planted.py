"""Bugs to plant in the pipeline and its broker, so that the kinds of faults can prove that they would notice them.

The environment names a bug; every process of a driver, and the broker, plants it in itself. None of this is reachable
from the product.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from pipeline_faults.points import BUG

if TYPE_CHECKING:
    from reput_client.arrow.queues import QueueRange


class Bug(NamedTuple):
    """A bug, the kind of fault that has to catch it, and the points at which that has something to catch."""

    name: str
    plant: Callable[[], None]
    kind: str
    points: tuple[str, ...]


def commit_not_remembered() -> None:
    """a commit, and a task, take every batch for a new one"""
    from reput_broker.staging.batches import CommittedBatches

    CommittedBatches.last = lambda *_: None  # type: ignore[method-assign]
    CommittedBatches.is_committed = lambda *_: False  # type: ignore[method-assign]


def recovery_publishes_all() -> None:
    """a broker that starts with a batch published in part does not look for what is there already"""
    from reput_broker.staging.publisher import Publisher

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
    from reput_pipeline.archives.manifests import ArchiveDirectory, ArchiveFile
    from reput_pipeline.archives.write import _RangeFiles

    finish, complete = _RangeFiles.finish, ArchiveDirectory.complete

    def finish_late(self: Any) -> Iterator[ArchiveFile]:
        for file in finish(self):
            path = Path(self._task.root, file.path)
            path.rename(_late(path))
            yield file

    def complete_early(self: ArchiveDirectory, batch: Any, files: Any, **more: object) -> None:
        complete(self, batch, files, **more)
        for file in files:
            path = self.root / file.path
            _late(path).rename(path)

    _RangeFiles.finish = finish_late  # type: ignore[method-assign]
    ArchiveDirectory.complete = complete_early  # type: ignore[method-assign]


def _late(path: Path) -> Path:
    return path.with_name(f"{path.name}.late")


def names_made_anew() -> None:
    """the files of an archive have other names at every attempt, and what is left of one stays"""
    from reput_pipeline.archives import write
    from reput_pipeline.archives.manifests import ArchiveDirectory
    from reput_pipeline.archives.names import file_path

    def strange_path(part: QueueRange, values: Mapping[str, str | None]) -> PurePosixPath:
        path = file_path(part, values)
        return path.with_name(f"{uuid.uuid4().hex}-{path.name}")

    patch.object(write, "file_path", strange_path).start()
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

    def apart(self: IcebergTable, rows: Any, progress: Any) -> None:
        commit(self, rows, progress)
        with self._table.transaction() as transaction:
            set_properties(transaction, kept)

    IcebergTable.append = apart  # type: ignore[method-assign]
    Transaction.append = lambda self, rows, **_: append(self, rows)  # type: ignore[method-assign]
    Transaction.set_properties = lambda _, given: kept.update(given)  # type: ignore[method-assign,assignment,misc]


BUGS = (
    Bug("commit_not_remembered", commit_not_remembered, "sink: driver killed", ("after-commit",)),
    Bug("recovery_publishes_all", recovery_publishes_all, "replay: broker killed", ("piece:1",)),
    Bug("decision_forgotten", decision_forgotten, "sink: master killed", ("marking",)),
    Bug("manifest_before_files", manifest_before_files, "archive: driver killed", ("after-manifest",)),
    Bug("names_made_anew", names_made_anew, "archive: driver killed", ("before-manifest",)),
    Bug("delta_progress_apart", delta_progress_apart, "lake: delta job killed", ()),
    Bug("iceberg_progress_apart", iceberg_progress_apart, "lake: iceberg job killed", ()),
    Bug("replay_without_key", replay_without_key, "replay: driver killed", ("after-commit",)),
)
_planted: list[str] = []


def plant_of_environment() -> None:
    """Plant the bug that the environment names, once in a process."""
    wanted = os.environ.get(BUG, "")
    for bug in BUGS:
        if bug.name == wanted and bug.name not in _planted:
            _planted.append(bug.name)
            bug.plant()
