"""A Delta table, written with deltalake.

The progress of each queue is an application transaction of the table: `reput:TOPIC/BROKER/QUEUE` with the offset of the
next message as its version. Checkpoints of the table's log keep it, and the library rejects a commit if another one has
set the same transaction since the table was loaded. The generation of a topic is a transaction too, of its hash. The
offsets are also in the commit's own record as `reput`, for people. A transaction has a number only, so the sources of
topics are a property of the table, `reput.sources`, which is set before the first rows of a topic.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from reput_client.arrow.queues import Generations, QueueKey
from reput_client.arrow.urls import is_remote
from reput_pipeline.lake.table import (
    LakeTable,
    Misfit,
    OtherPartitions,
    Progress,
    SchemaMismatch,
    Sources,
    TableChanged,
    TableOptions,
    TableUnreachable,
    decode_sources,
    encode_sources,
    mismatches,
    one_line,
)
from reput_pipeline.source.stream_offsets import encode_offsets

SOURCES: Final = "reput.sources"
_STATISTICS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "keys",
    "tags",
    "storeTimestamp",
    "partition",
    "offset",
    "timestamp",
)
"""Columns whose bounds are kept for each file: those that queries select by."""

_ROW_GROUP_BYTES: Final = 32 << 20
"""About; the writer holds a row group in memory."""
_ROW_GROUP_ROWS: Final = 131_072
_NAME_BYTES_MAX: Final = 255
"""Of common file systems."""
_KEY_PART_BYTES_MAX: Final = 800
"""Of a directory's name in an object store, whose keys have at most 1,024 bytes."""


class DeltaLake(LakeTable):
    """A Delta table; created if it does not exist.

    Raises:
        TableUnreachable: it cannot be read or created.
        SchemaMismatch: its columns are others.
        OtherPartitions: it exists, and is partitioned by other columns than the options say.
    """

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._storage = dict(options.settings) or None
        self._table = self._opened()
        self._version = -1
        self._found: dict[str, int | None] = {}
        """Transactions of this version of the table."""
        self._check()
        columns = self._table.metadata().partition_columns
        if options.partition_by and columns != list(options.partition_by):
            raise OtherPartitions(self.where, columns, options.partition_by)

    @property
    def where(self) -> str:
        """Directory or URL."""
        return self._options.place

    def _opened(self) -> DeltaTable:
        options = self._options
        try:
            try:
                return DeltaTable(options.place, storage_options=self._storage)
            except TableNotFoundError:
                self._create()
                return DeltaTable(options.place, storage_options=self._storage)
        except (DeltaError, OSError, ValueError) as error:
            raise TableUnreachable(self.where, error) from error

    def _create(self) -> None:
        options = self._options
        directory = Path(options.place)
        if "://" not in options.place:
            if directory.is_dir() and any(directory.iterdir()):
                raise TableUnreachable(self.where, "the directory is not empty, and is not a Delta table")
            directory.mkdir(parents=True, exist_ok=True)
        kept = [name for name in _STATISTICS if name in options.schema.names]
        try:
            DeltaTable.create(
                options.place,
                Schema.from_arrow(options.schema),
                partition_by=list(options.partition_by) or None,
                configuration={"delta.dataSkippingStatsColumns": ",".join(kept)} if kept else None,
                storage_options=self._storage,
            )
        except DeltaError:
            # Another job may have created it meanwhile.
            if not DeltaTable.is_deltatable(options.place, self._storage):
                raise

    def _check(self) -> None:
        schema = self._table.schema()
        reason = mismatches(
            _types(Schema.from_arrow(self._options.schema)),
            _types(schema),
            needed={column.name for column in schema.fields if not column.nullable},
            evolve=self._options.evolve,
        )
        if reason is not None:
            raise SchemaMismatch(self.where, reason)

    def load(self, queues: list[QueueKey], generations: Generations) -> Progress:
        """Read what is new in the table's log."""
        try:
            self._table.update_incremental()
            if self._table.version() != self._version:  # others have committed; a look-up takes about 0.5 ms
                self._found.clear()
            self._version = self._table.version()
            ends = {queue: self._transaction(_app_id(queue)) for queue in queues}
            known = {}
            for (topic, broker), generation in generations.items():
                found = self._transaction(_generation_id(topic, broker))
                if found is not None:
                    known[topic, broker] = generation if found == _number(generation) else f"{found:x}"
            sources = self._sources()
        except (DeltaError, OSError) as error:
            raise TableUnreachable(self.where, error) from error
        return Progress({queue: end for queue, end in ends.items() if end is not None}, known, sources)

    def _transaction(self, app_id: str) -> int | None:
        if app_id not in self._found:
            self._found[app_id] = self._table.transaction_version(app_id)
        return self._found[app_id]

    def _sources(self) -> Sources:
        return decode_sources(json.loads(self._table.metadata().configuration.get(SOURCES, "{}")))

    def _set_sources(self, sources: Sources) -> None:
        """Commit sources, unless another commit has changed progress or sources since the table was loaded."""
        before = self._sources()
        self._table.update_incremental()
        self._check_progress()
        if self._sources() != before:
            raise TableChanged("another commit has changed the sources")
        text = json.dumps(encode_sources({**self._sources(), **sources}))
        try:
            self._table.alter.set_table_properties({SOURCES: text}, raise_if_not_exists=False)
        except CommitFailedError as error:
            raise TableChanged(one_line(error)) from error
        # The library has loaded what was committed meanwhile, and compares the rows' commit with later ones only.
        self._check_progress()

    def _check_progress(self) -> None:
        for app_id, version in self._found.items():
            if self._table.transaction_version(app_id) != version:
                raise TableChanged("another commit has changed the progress")

    def misfit(self, rows: pa.RecordBatch) -> Misfit | None:
        """Return the first row with a value that is too long for the name of its directory.

        The library does not shorten names, and would end with an error of the file system.
        """
        most = _KEY_PART_BYTES_MAX if is_remote(self._options.place) else _NAME_BYTES_MAX
        for name in self._table.metadata().partition_columns:
            at = rows.schema.get_field_index(name)
            if at < 0 or not pa.types.is_string(rows.schema.field(at).type):
                continue
            longest = pc.max(pc.binary_length(rows.column(at))).as_py() or 0
            if len(name) + 1 + 3 * longest <= most:  # a byte is at most %XX
                continue
            for value in rows.column(at).unique().drop_null().to_pylist():
                size = len(f"{name}={quote(value, safe='')}")
                if size > most:
                    return Misfit(
                        pc.index(rows.column(at), value).as_py(),
                        f"the table is partitioned by {name}, and with this message's value, which begins with "
                        f"{value[:20]!r}, the name of a directory would have {size} bytes instead of at most {most}; "
                        f"name another table, which is not partitioned by {name}",
                    )
        return None

    def append(self, rows: pa.RecordBatchReader, progress: Progress, row_bytes: int) -> None:
        """Write files and commit them; the library repeats a commit that no other one contradicts."""
        self._check()
        if progress.sources:
            self._set_sources(progress.sources)
        versions = {_app_id(queue): end for queue, end in progress.ends.items()}
        for (topic, broker), generation in progress.generations.items():
            versions[_generation_id(topic, broker)] = _number(generation)
        try:
            write_deltalake(
                self._table,
                rows,
                mode="append",
                # Columns are found by their names; those that the messages do not have are null.
                schema_mode="merge",
                writer_properties=WriterProperties(
                    compression=_codec(self._options.compression),
                    max_row_group_size=max(1, min(_ROW_GROUP_ROWS, _ROW_GROUP_BYTES // max(1, row_bytes))),
                ),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(app_id, version) for app_id, version in versions.items()],
                    custom_metadata={"reput": json.dumps(encode_offsets(progress.ends, progress.generations))},
                ),
            )
        except CommitFailedError as error:
            raise TableChanged(one_line(error)) from error
        self._version = self._table.version()
        self._found.update(versions)

    def figures(self) -> dict[str, Any]:
        """Return the version of the table."""
        return {"version": self._table.version()}

    def tidy(self, keep_s: float) -> str:
        """Merge small files, delete files that no version of the last `keep_s` has, those of killed jobs included."""
        try:
            merged = self._table.optimize.compact()
        except CommitFailedError as error:
            return f"merged no files: {one_line(error)}"
        removed = self._table.vacuum(
            math.ceil(keep_s / 3600), dry_run=False, enforce_retention_duration=False, full=True
        )
        return f"merged {merged['numFilesRemoved']} files into {merged['numFilesAdded']}, deleted {len(removed)}"


def _types(schema: Schema) -> dict[str, str]:
    return {column.name: _type_name(column.type) for column in schema.fields}


def _type_name(kind: Any) -> str:
    return str(getattr(kind, "type", kind))


def _codec(compression: str) -> Any:
    return {"none": "UNCOMPRESSED", "lz4": "LZ4_RAW"}.get(compression, compression.upper())


def _app_id(queue: QueueKey) -> str:
    return f"reput:{queue.topic}/{queue.broker}/{queue.queue_id}"


def _generation_id(topic: str, broker: str) -> str:
    return f"reput-generation:{topic}/{broker}"


def _number(generation: str) -> int:
    """Return a generation as the version of a transaction: 63 bits of its hash."""
    return int.from_bytes(hashlib.sha256(generation.encode()).digest()[:8]) >> 1
