"""An Iceberg table, written with pyiceberg.

Each snapshot of the job has the progress of all queues in its summary, as `reput.progress`; a job continues from the
newest such snapshot among the ancestors of the current one, so that a table that was rolled back is filled again. For
tables whose old snapshots have expired, the same commit writes it as a property of the table, too.

The catalog is a SQLite file in the warehouse, unless the settings name another one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationException
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, MapType, NestedField, StringType, StructType

from reput_client.arrow.queues import Generations, QueueKey
from reput_pipeline.lake.table import (
    LakeTable,
    Misfit,
    Progress,
    SchemaMismatch,
    TableChanged,
    TableOptions,
    TableUnreachable,
    decode_sources,
    encode_sources,
    mismatches,
    one_line,
    other_type,
)
from reput_pipeline.source.stream_offsets import decode_offsets, encode_offsets

PROGRESS: Final = "reput.progress"
CATALOG_FILE: Final = "catalog.db"
_NEW_TABLE: Final = {
    # Otherwise each commit leaves a manifest and a metadata file, which every later commit reads or keeps.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Of rows in memory, of which a file is made at once.
    "write.target-file-size-bytes": str(128 << 20),
}


_PLAIN_NAMES: Final = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}


class IcebergTable(LakeTable):
    """An Iceberg table; created, with its namespace, if it does not exist.

    Raises:
        TableUnreachable: the catalog or the table cannot be read or created.
        SchemaMismatch: its columns are others.
    """

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._without_bounds: set[str] = set()
        """Columns with times that Python does not have."""
        try:
            # As columns of a table: Iceberg has neither the small numbers of Arrow nor its names of elements.
            self._columns = _columns(_pyarrow_to_schema_without_ids(options.schema))
            self._catalog = _catalog_of(options)
            self._table = self._opened()
        except (SchemaMismatch, TableUnreachable):
            raise
        except Exception as error:  # of the catalog's library, which may be any
            raise TableUnreachable(self.where, error) from error
        self._check()

    @property
    def where(self) -> str:
        """Name and warehouse."""
        return f"{self._options.name} in {self._options.place}"

    def _opened(self) -> Table:
        options = self._options
        try:
            return self._catalog.load_table(options.name)
        except NoSuchTableError:
            pass
        self._catalog.create_namespace_if_not_exists(options.name.rpartition(".")[0])
        codec = "uncompressed" if options.compression == "none" else options.compression
        try:
            return self._catalog.create_table(
                options.name, options.schema, properties={**_NEW_TABLE, "write.parquet.compression-codec": codec}
            )
        except TableAlreadyExistsError:  # another job was faster
            return self._catalog.load_table(options.name)

    def _check(self) -> None:
        schema = self._table.schema()
        reason = mismatches(
            self._columns,
            _columns(schema),
            needed={column.name for column in schema.fields if column.required},
            evolve=self._options.evolve,
            difference=_difference,
        )
        if reason is not None:
            raise SchemaMismatch(self.where, reason)

    def load(self, queues: list[QueueKey], generations: Generations) -> Progress:  # noqa: ARG002
        """Read the table's newest metadata."""
        try:
            self._table = self._catalog.load_table(self._options.name)
        except Exception as error:
            raise TableUnreachable(self.where, error) from error
        found = _decoded(_progress_in(self._table))
        return found._replace(ends={queue: found.ends[queue] for queue in queues if queue in found.ends})

    def misfit(self, rows: pa.RecordBatch) -> Misfit | None:
        """Return None: the table can take all; note the columns for which the library cannot write bounds.

        It has them as times of Python, which end with the year 9999; the clock of a producer may be wrong.
        """
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
                try:
                    pc.min_max(column).as_py()
                except (OverflowError, ValueError):
                    self._without_bounds.add(name)
        return None

    def append(self, rows: pa.RecordBatchReader, progress: Progress, row_bytes: int) -> None:  # noqa: ARG002
        """Write files and commit them; the library repeats a commit that no other one contradicts."""
        self._check()
        before = _progress_in(self._table)
        found = _decoded(before)
        offsets = encode_offsets({**found.ends, **progress.ends}, {**found.generations, **progress.generations})
        sources = encode_sources({**found.sources, **progress.sources})
        text = json.dumps({**offsets, "sources": sources, "commit": uuid.uuid4().hex})
        table = _Unmoved(self._table, before, text, self._without_bounds)
        data: pa.RecordBatchReader | pa.Table = rows
        if not table.spec().is_unpartitioned():
            data = rows.read_all()  # the library does not divide a stream
        try:
            with table.transaction() as transaction:
                if any(name not in table.schema().column_names for name in self._options.schema.names):
                    with transaction.update_schema() as update:
                        update.union_by_name(self._options.schema)
                transaction.set_properties({PROGRESS: text})
                transaction.append(data, snapshot_properties={PROGRESS: text})
        except (CommitFailedException, ValidationException) as error:
            raise TableChanged(one_line(error)) from error
        self._table = table

    def figures(self) -> dict[str, Any]:
        """Return the id of the table's snapshot."""
        snapshot = self._table.current_snapshot()
        return {"snapshot": None if snapshot is None else snapshot.snapshot_id}

    def tidy(self, keep_s: float) -> str:
        """Remove snapshots older than `keep_s`, except the current one; the library merges no files."""
        oldest = datetime.fromtimestamp(time.time(), UTC) - timedelta(seconds=keep_s)
        table = self._catalog.load_table(self._options.name)
        before = len(table.metadata.snapshots)
        try:
            table.maintenance.expire_snapshots().older_than(oldest).commit()
        except (CommitFailedException, ValidationException) as error:
            return f"removed no snapshots: {one_line(error)}"
        self._table = self._catalog.load_table(self._options.name)
        return f"removed {before - len(self._table.metadata.snapshots)} snapshots"


class _Moved(ValidationException):
    """Another commit has changed the progress."""


class _Unmoved(Table):
    """A table whose commit fails if the progress is neither `before` nor, since a response was lost, its own, `after`.

    After a conflict the library loads the table and repeats the commit, whatever the other commit was. It copies the
    metadata some twenty times, at 1 ms for each snapshot in all, so these are left out except the current ones.

    Files are not named after their partitions if these are texts, which may be too long for a name: readers find the
    values in the manifests.
    """

    def __init__(self, table: Table, before: str | None, after: str, without_bounds: Iterable[str]) -> None:
        super().__init__(
            table.name(),
            _current(table.metadata, without_bounds),
            table.metadata_location,
            table.io,
            table.catalog,
            table.config,
        )
        self._texts = (before, after)

    def refresh(self) -> Table:
        """Load the newest metadata.

        Raises:
            _Moved: it has another progress.
        """
        super().refresh()
        if _progress_in(self) not in self._texts:
            raise _Moved("another commit has changed the progress")
        return self  # with all snapshots: the library looks whether its own is among them


def _current(metadata: TableMetadata, without_bounds: Iterable[str]) -> TableMetadata:
    """Return metadata with the snapshots of branches and tags only; files get no bounds of some columns."""
    kept = {reference.snapshot_id for reference in metadata.refs.values()}
    snapshots = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in kept]
    properties = {
        **metadata.properties,
        **{f"write.metadata.metrics.column.{name}": "counts" for name in without_bounds},
        **(_PLAIN_NAMES if _has_texts(metadata) else {}),
    }
    return metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": [], "properties": properties})


def _has_texts(metadata: TableMetadata) -> bool:
    schema = metadata.schema()
    return any(
        isinstance(part.transform, IdentityTransform) and isinstance(schema.find_type(part.source_id), StringType)
        for part in metadata.spec().fields
    )


def _decoded(text: str | None) -> Progress:
    if text is None:
        return Progress({}, {}, {})
    data = json.loads(text)
    return Progress(*decode_offsets(data), decode_sources(data.get("sources", {})))


def _progress_in(table: Table) -> str | None:
    """Return the progress that belongs to the current snapshot; None for a table without rows of any job."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and (text := snapshot.summary.get(PROGRESS)) is not None:
            return text
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
    newest = table.properties.get(PROGRESS)
    for other in table.metadata.snapshots:
        if other.summary is not None and other.summary.get(PROGRESS) == newest:
            return None  # the table was rolled back to before the first batch
    return newest  # the snapshot has expired


def _catalog_of(options: TableOptions) -> Catalog:
    settings: Mapping[str, str] = options.settings
    if "uri" in settings or "type" in settings:
        return load_catalog("reput", **{"warehouse": options.place, **settings})
    if "://" in options.place:
        raise TableUnreachable(
            options.place,
            "a catalog in SQLite is for a directory; name another one with --to-option uri=http://... (REST) or "
            "--to-option type=...",
        )
    directory = Path(options.place).absolute()
    if not (directory / CATALOG_FILE).exists():
        if directory.is_dir() and any(directory.iterdir()):
            raise TableUnreachable(options.place, f"the directory is not empty, and has no {CATALOG_FILE}")
        if not {"#", "?", "%"}.isdisjoint(str(directory)):
            raise TableUnreachable(
                options.place, "the libraries take #, ? and % in its path for parts of a URL; name another directory"
            )
    directory.mkdir(parents=True, exist_ok=True)
    return load_catalog(
        "reput",
        **{
            "type": "sql",
            "uri": f"sqlite:///{directory / CATALOG_FILE}",
            # Not `as_uri()`: the library does not decode %20, and would write next to the directory.
            "warehouse": f"file://{directory}",
            **settings,
        },
    )


def _columns(schema: Schema) -> dict[str, NestedField]:
    return {column.name: column for column in schema.fields}


def _difference(name: str, ours: NestedField, theirs: NestedField) -> str | None:
    """Return why a column does not fit that of the table, or None: as the library, but without its promotions.

    Nested fields are compared by name. One that always has a value fits an optional one.
    """
    found, wanted = _parts((name,), ours), _parts((name,), theirs)
    if any(path not in wanted or wanted[path][0] != kind for path, (kind, _) in found.items()):
        return other_type(name, ours.field_type, theirs.field_type)
    for path, (_, is_required) in wanted.items():
        if is_required and (path[:-1] in found or len(path) == 1):
            kind, has_value = found.get(path, (None, False))
            if not has_value:
                there = "does not exist" if kind is None else "is optional"
                return f"its column {'.'.join(path)} is required, and that of the messages {there}"
    return None


def _parts(path: tuple[str, ...], field: NestedField) -> dict[tuple[str, ...], tuple[str, bool]]:
    """Return the type of a field and those of the fields in it by their names, and whether they are required."""
    kind = field.field_type
    inner: tuple[NestedField, ...] = ()
    if isinstance(kind, StructType):
        inner = kind.fields
    elif isinstance(kind, ListType):
        inner = (kind.element_field,)
    elif isinstance(kind, MapType):
        inner = (kind.key_field, kind.value_field)
    found = {path: (type(kind).__name__ if inner else str(kind), field.required)}
    for each in inner:
        found |= _parts((*path, each.name), each)
    return found
