"""Make Arrow batches of decoded records, with the requested columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from reput_client.consume.arrow_columns import ArrowRecords
from reput_protocol.codes import MessageSysFlag
from reput_protocol.filter.tags import TagFilter
from reput_protocol.record.columns import IntArray, RecordColumns
from reput_protocol.record.compression import INFLATED_BYTES_MAX, inflate

_CODECS: Final = {MessageSysFlag.COMPRESSION_LZ4: "lz4", MessageSysFlag.COMPRESSION_ZSTD: "zstd"}
_ZLIB: Final = (0, MessageSysFlag.COMPRESSION_ZLIB)


def compressed_rows(columns: RecordColumns) -> IntArray:
    """Return the numbers of the rows whose body is compressed."""
    return np.flatnonzero(columns.sys_flag & MessageSysFlag.COMPRESSED)


def decompress(data: bytes, sys_flag: int) -> bytes:
    """Return a decompressed body; `sys_flag` has the method (RocketMQ's CompressorFactory).

    Raises:
        ValueError: the method is unknown, the data is invalid, or the body is larger than `INFLATED_BYTES_MAX`.
    """
    method = sys_flag & MessageSysFlag.COMPRESSION_MASK
    if method in _ZLIB:
        return inflate(data)
    codec = _CODECS.get(method)
    if codec is None:
        raise ValueError(f"body is compressed with an unknown method, {method >> 8}")
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            body: bytes = stream.read(INFLATED_BYTES_MAX + 1)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"body cannot be decompressed with {codec}: {error}") from None
    if len(body) > INFLATED_BYTES_MAX:
        raise ValueError(f"body is larger than {INFLATED_BYTES_MAX} bytes when decompressed")
    return body


BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 16 << 20
"""Largest batch, in rows and in bytes of records; a larger record is a batch by itself."""
BATCH_INFLATED_BYTES: Final = 64 << 20
"""Bytes of decompressed bodies at which a batch ends."""
LOG_BATCH_ROWS: Final = 32_768
"""Rows of a batch made by one read of the log."""

_BODIES: Final = frozenset(("body", "value", "bodyCRC"))

BadRow = Callable[[RecordColumns, int, str], None]
"""Called with columns, row and reason of a damaged record; raises, or counts it."""


class BatchMaker:
    """Makes batches of one schema.

    Args:
        schema: Arrow schema of the batches.
        tag_filter: selects messages.
        on_bad_row: called for a wrong checksum or an invalid compressed body.
    """

    def __init__(self, schema: pa.Schema, tag_filter: TagFilter, on_bad_row: BadRow) -> None:
        self.schema = schema
        self._tag_filter = tag_filter
        self._on_bad_row = on_bad_row
        self._has_bodies = any(name in _BODIES for name in schema.names)

    def make(self, columns: RecordColumns, broker: str) -> Iterator[pa.RecordBatch]:
        """Yield the selected records: one batch, none, or several if decompressed bodies are large.

        The caller has checked the records' lengths; they ascend in their buffer. This verifies the checksums of bodies,
        if the schema has them, and of whole records, if they have one.
        """
        faults = columns.checksum_faults(bodies=self._has_bodies)
        if faults:
            for row, reason in faults:
                self._on_bad_row(columns, row, reason)
            columns = columns.take(np.setdiff1d(np.arange(len(columns)), [row for row, _ in faults]))
        if not self._tag_filter.matches_all:
            columns = columns.with_tag(self._tag_filter.tags)
        compressed = compressed_rows(columns).tolist() if self._has_bodies else []
        if compressed:
            yield from self._decompressed(columns, compressed, broker)
        elif len(columns):
            yield ArrowRecords(columns, broker=broker).record_batch(self.schema)

    def _decompressed(self, columns: RecordColumns, compressed: list[int], broker: str) -> Iterator[pa.RecordBatch]:
        bodies: dict[int, bytes] = {}
        bad: list[int] = []
        start = size = 0
        for row in compressed:
            try:
                body = decompress(bytes(columns.body(row)), int(columns.sys_flag[row]))
            except ValueError as error:
                self._on_bad_row(columns, row, str(error))
                bad.append(row)
                continue
            bodies[row] = body
            size += len(body)
            if size >= BATCH_INFLATED_BYTES:
                yield self._part(columns, np.setdiff1d(np.arange(start, row + 1), bad), bodies, broker)
                bodies, bad, start, size = {}, [], row + 1, 0
        rest = np.setdiff1d(np.arange(start, len(columns)), bad)
        if len(rest):
            yield self._part(columns, rest, bodies, broker)

    def _part(self, columns: RecordColumns, rows: IntArray, bodies: dict[int, bytes], broker: str) -> pa.RecordBatch:
        places = np.searchsorted(rows, list(bodies)).tolist()
        decompressed = dict(zip(places, bodies.values(), strict=True))
        return ArrowRecords(columns.take(rows), lambda: decompressed, broker).record_batch(self.schema)
