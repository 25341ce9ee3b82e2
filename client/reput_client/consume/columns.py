"""The messages of a pull as NumPy arrays or an Arrow batch; no object per message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reput_client.errors import DamagedMessage, InflatedTooLarge, UnsupportedCompression
from reput_protocol.codes import MessageSysFlag
from reput_protocol.printable import counted
from reput_protocol.properties import KEYS, TAGS
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.compression import compression_method, inflate

if TYPE_CHECKING:
    import pyarrow as pa

IntArray: TypeAlias = NDArray[np.int64]
ByteArray: TypeAlias = NDArray[np.uint8]

INFLATED_TOTAL_MAX = 256 * 1024 * 1024
"""Default for all decompressed bodies of one pull of columns together."""


class CodedValues(NamedTuple):
    """A column of texts: row i has `values[codes[i]]`."""

    values: list[str | None]
    """Distinct values in no particular order; None for rows without one."""
    codes: IntArray


class MessageColumns:
    """Messages of one queue by ascending offset, with verified checksums.

    Numbers are native NumPy arrays with one value per message. Nothing is computed before it is requested.

    Attributes:
        topic, queue_id: of all messages.
        records: the records' fields and positions, for data without a column here.
    """

    __slots__ = ("queue_id", "records", "topic")

    def __init__(self, topic: str, queue_id: int, records: RecordColumns) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<columns of {counted(len(self), 'message')} of {self.topic}/{self.queue_id}>"

    @property
    def queue_offset(self) -> IntArray:
        """Offsets in the queue."""
        return self.records.queue_offset

    @property
    def physical_offset(self) -> IntArray:
        """Positions in the commit log."""
        return self.records.physical_offset

    @property
    def born_timestamp_ms(self) -> IntArray:
        """When messages were created, by the producer's clock; ms since 1970."""
        return self.records.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> IntArray:
        """When messages were stored, by the broker's clock; ms since 1970."""
        return self.records.store_timestamp_ms

    @property
    def flag(self) -> NDArray[np.int32]:
        """The application's flags."""
        return self.records.flag

    @property
    def reconsume_times(self) -> NDArray[np.int32]:
        """How often each message was given back."""
        return self.records.reconsume_times

    @property
    def compressed(self) -> NDArray[np.bool_]:
        """Whether the producer compressed each body; `bodies` decompresses it."""
        flags: NDArray[np.bool_] = (self.records.sys_flag & MessageSysFlag.COMPRESSED) != 0
        return flags

    def body_matrix(self) -> ByteArray | None:
        """Return the bodies as rows of a 2-D array; None if sizes differ or a body is compressed.

        A view of the received bytes if the records have one size as well, otherwise a copy.
        """
        sizes, starts = self.records.body_size, self.records.body_position
        if not len(self) or (sizes != sizes[0]).any() or self.compressed.any():
            return None
        steps = np.diff(starts)
        if (steps != steps[:1]).any():
            return self.bodies()[0].reshape(len(self), -1)
        strides = (int(steps[0]) if len(steps) else 1, 1)
        shape = (len(self), int(sizes[0]))
        view: ByteArray = np.ndarray(shape, np.uint8, self.records.buffer, int(starts[0]), strides)
        return view

    def bodies(self, *, max_inflated: int = INFLATED_TOTAL_MAX) -> tuple[ByteArray, IntArray]:
        """Return the bodies back to back, and their bounds: body i is `data[bounds[i]:bounds[i + 1]]`.

        Args:
            max_inflated: limit in bytes for all compressed bodies together, decompressed.

        Raises:
            DamagedMessage: a compressed body cannot be decompressed; names the first.
            InflatedTooLarge: they exceed `max_inflated`.
            UnsupportedCompression: a body is compressed with LZ4 or Zstandard.
        """
        inflated = self._inflated_bodies(max_inflated)
        bounds, data, _, _ = self.records.gather(self.records.part("body"), replaced=inflated)
        return np.frombuffer(data, np.uint8), np.asarray(bounds, np.int64)

    def _inflated_bodies(self, max_inflated: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        left = max_inflated
        for row in np.flatnonzero(self.compressed).tolist():
            found[row] = body = self.inflated(row)
            left -= len(body)
            if left < 0:
                raise InflatedTooLarge(self.topic, self.queue_id, max_inflated, row)
        return found

    def inflated(self, row: int) -> bytes:
        """Return a compressed body decompressed.

        Raises:
            DamagedMessage: it cannot be decompressed.
            UnsupportedCompression: it is compressed with LZ4 or Zstandard.
        """
        offset = int(self.records.queue_offset[row])
        method = compression_method(int(self.records.sys_flag[row]))
        if method != "zlib":
            raise UnsupportedCompression(self.topic, self.queue_id, offset, str(method))
        try:
            return inflate(self.records.body(row))
        except ValueError as error:
            raise DamagedMessage(self.topic, self.queue_id, offset, str(error)) from None

    def tags(self) -> list[str | None]:
        """Return each message's tag, or None."""
        return self.values_of(TAGS)

    def keys(self) -> list[str | None]:
        """Return each message's keys, separated by blanks, or None."""
        return self.values_of(KEYS)

    def values_of(self, name: str) -> list[str | None]:
        """Return one property of each message, or None."""
        values, codes = self.coded(name)
        return [values[code] for code in codes.tolist()]

    def coded(self, name: str) -> CodedValues:
        """Return one property as its distinct values and each message's index into them.

        For values that repeat, such as tags: no string is created per message.
        """
        return CodedValues(*self.records.distinct(self.records.property(name)))

    def take(self, rows: Any) -> MessageColumns:
        """Return some of the messages, by slice, row numbers or booleans."""
        return MessageColumns(self.topic, self.queue_id, self.records.take(rows))

    def to_arrow(
        self, names: tuple[str, ...] | None = None, *, max_inflated: int = INFLATED_TOTAL_MAX
    ) -> pa.RecordBatch:
        """Return the messages as an Arrow batch.

        Args:
            names: columns as of Spark's source (docs/pipeline.md), by default all with RocketMQ's names. One left out
                costs nothing; `brokerName` is null.
            max_inflated: as for `bodies`.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            ValueError: a name is not a column.
            DamagedMessage, InflatedTooLarge, UnsupportedCompression: as for `bodies`.
        """
        try:
            from reput_client.consume.arrow_columns import ArrowRecords, arrow_schema
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"an Arrow batch needs {missing.name}, which is not installed: pip install 'reput-client[arrow]'",
                name=missing.name,
            ) from missing
        records = ArrowRecords(self.records, lambda: self._inflated_bodies(max_inflated))
        return records.record_batch(arrow_schema(names))
