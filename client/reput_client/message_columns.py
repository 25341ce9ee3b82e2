"""The messages of a pull as columns: NumPy arrays, and an Arrow batch where pyarrow is there. No object per message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reput_client.coded_values import CodedValues, coded_parts, coded_texts
from reput_client.compression import INFLATED_TOTAL_MAX, compression_method, inflate
from reput_client.errors import DamagedMessage, InflatedTooLarge, UnsupportedCompression
from reput_protocol.codes import MessageSysFlag
from reput_protocol.counted import counted
from reput_protocol.properties import KEYS, TAGS, decode_properties
from reput_protocol.properties_units import PropertyUnits, units_of
from reput_protocol.record_columns import RecordColumns
from reput_protocol.rows_at import parts_at, rows_at, slices_at

if TYPE_CHECKING:
    import pyarrow as pa

IntArray: TypeAlias = NDArray[np.int64]
ByteArray: TypeAlias = NDArray[np.uint8]


class MessageColumns:
    """Messages of one queue, row by row in the order of their offsets. Checksums were verified when they came.

    The numbers are native NumPy arrays of one value per message. Nothing is made before it is asked for.

    Attributes:
        topic, queue_id: whose messages they are.
        records: the records' fields and places, for what has no column of its own here.
    """

    __slots__ = ("_texts", "queue_id", "records", "topic")

    def __init__(self, topic: str, queue_id: int, records: RecordColumns) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.records = records
        self._texts: tuple[ByteArray, PropertyUnits] | None = None

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<columns of {counted(len(self), 'message')} of {self.topic}/{self.queue_id}>"

    @property
    def queue_offset(self) -> IntArray:
        """The number of each message in its queue."""
        return self.records.queue_offset

    @property
    def physical_offset(self) -> IntArray:
        """Where each message lies in the commit log."""
        return self.records.physical_offset

    @property
    def born_timestamp_ms(self) -> IntArray:
        """When each was made, by its producer's clock; milliseconds since 1970."""
        return self.records.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> IntArray:
        """When each was stored, by the broker's clock; milliseconds since 1970."""
        return self.records.store_timestamp_ms

    @property
    def flag(self) -> NDArray[np.int32]:
        """The application's flag of each."""
        return self.records.flag

    @property
    def reconsume_times(self) -> NDArray[np.int32]:
        """How often each was given back."""
        return self.records.reconsume_times

    @property
    def compressed(self) -> NDArray[np.bool_]:
        """Whether the producer compressed the body; `bodies` has it decompressed."""
        flags: NDArray[np.bool_] = (self.records.head["sys_flag"] & MessageSysFlag.COMPRESSED) != 0
        return flags

    def body_matrix(self) -> ByteArray | None:
        """Return the bodies as a table, a row of bytes for each; None if their sizes differ or one is compressed.

        Where the records are of one size as well it is a view of what came, not a copy.
        """
        sizes = self.records.body_size
        if not len(self) or (sizes != sizes[0]).any() or self.compressed.any():
            return None
        return rows_at(self.records.buffer, self.records.body_position, int(sizes[0]))

    def bodies(self, *, max_inflated: int = INFLATED_TOTAL_MAX) -> tuple[ByteArray, IntArray]:
        """Return the bodies back to back, and where they begin and end: body i is `data[bounds[i]:bounds[i + 1]]`.

        Args:
            max_inflated: how many bytes the compressed ones may take together when they are decompressed.

        Raises:
            DamagedMessage: a compressed body cannot be decompressed; it names the first.
            InflatedTooLarge: they take more than `max_inflated`.
            UnsupportedCompression: a body is compressed with LZ4 or Zstandard.
        """
        table = self.body_matrix()
        if table is not None:
            return table.ravel(), np.arange(len(self) + 1, dtype=np.int64) * table.shape[1]
        records = self.records
        parts = slices_at(records.buffer, records.body_position, records.body_position + records.body_size)
        for row, body in self._inflated_bodies(max_inflated).items():
            parts[row] = body
        return _joined(parts)

    def _inflated_bodies(self, max_inflated: int) -> dict[int, bytes]:
        """Return the compressed bodies by row, decompressed."""
        found: dict[int, bytes] = {}
        left = max_inflated
        for row in np.flatnonzero(self.compressed).tolist():
            found[row] = body = self.inflated(row)
            left -= len(body)
            if left < 0:
                raise InflatedTooLarge(self.topic, self.queue_id, max_inflated, row)
        return found

    def inflated(self, row: int) -> bytes:
        """Return a compressed body, decompressed.

        Raises:
            DamagedMessage: it cannot be decompressed.
            UnsupportedCompression: it is compressed with LZ4 or Zstandard.
        """
        offset = int(self.records.head["queue_offset"][row])
        method = compression_method(int(self.records.head["sys_flag"][row]))
        if method != "zlib":
            raise UnsupportedCompression(str(method), offset)
        try:
            return inflate(self.records.body(row))
        except ValueError as error:
            raise DamagedMessage(self.topic, self.queue_id, offset, str(error)) from None

    def tags(self) -> list[str | None]:
        """Return the tag of each message, None for one without."""
        return self.values_of(TAGS)

    def keys(self) -> list[str | None]:
        """Return the keys of each message, several with blanks between them, None for one without."""
        return self.values_of(KEYS)

    def values_of(self, name: str) -> list[str | None]:
        """Return one property of each message, None for one without."""
        data, units = self._properties()
        numbers = units.named(data, name.encode())
        starts, ends = units.value_start[numbers], units.value_end[numbers]
        if len(numbers) == len(self) and (text := _common(data, starts, ends)) is not None:
            return [text] * len(self)
        values: list[str | None] = [None] * len(self)
        raw = data.tobytes()
        known: dict[bytes, str] = {}
        for row, start, end in zip(units.row[numbers].tolist(), starts.tolist(), ends.tolist(), strict=True):
            part = raw[start:end]
            text = known.get(part)
            if text is None:
                text = known[part] = part.decode(errors="replace")
            values[row] = text
        for row in units.odd.tolist():
            values[row] = decode_properties(self.records.properties(row)).get(name)
        return values

    def coded(self, name: str) -> CodedValues:
        """Return one property as its distinct values, and a number for each message that says which one it has.

        For what repeats, tags above all: no text is made per message.
        """
        data, units = self._properties()
        numbers = units.named(data, name.encode())
        coded = None
        if not len(units.odd):
            starts, ends = units.value_start[numbers], units.value_end[numbers]
            coded = coded_parts(data, units.row[numbers], starts, ends, len(self))
        return coded_texts(self.values_of(name)) if coded is None else coded

    def _properties(self) -> tuple[ByteArray, PropertyUnits]:
        if self._texts is None:
            records = self.records
            data, starts, ends = parts_at(
                records.buffer, records.properties_position, records.properties_size
            )
            self._texts = data, units_of(data, starts, ends)
        return self._texts

    def take(self, rows: Any) -> MessageColumns:
        """Return some of the messages: a slice, row numbers, or a truth value for each."""
        return MessageColumns(self.topic, self.queue_id, self.records.take(rows))

    def to_arrow(
        self, names: tuple[str, ...] | None = None, *, max_inflated: int = INFLATED_TOTAL_MAX
    ) -> pa.RecordBatch:
        """Return the messages as an Arrow batch.

        Args:
            names: which columns, of `reput_client.arrow_columns.COLUMNS`; all of them by default. Those that are left
                out cost nothing.
            max_inflated: as for `bodies`.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            DamagedMessage, InflatedTooLarge, UnsupportedCompression: as for `bodies`.
        """
        from reput_client.arrow_columns import record_batch

        return record_batch(self.records, lambda: self._inflated_bodies(max_inflated), names)


def _common(data: ByteArray, starts: IntArray, ends: IntArray) -> str | None:
    """Return the text that all slices have in common; None if they differ, or there is none."""
    if not len(starts):
        return None
    size = int(ends[0] - starts[0])
    if (ends - starts != size).any():
        return None
    rows = rows_at(data, starts, size)
    first = rows[0].tobytes()
    return first.decode(errors="replace") if (rows == rows[0]).all() else None


def _joined(parts: list[Any]) -> tuple[ByteArray, IntArray]:
    bounds = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=bounds[1:])
    return np.frombuffer(b"".join(parts), np.uint8), bounds
