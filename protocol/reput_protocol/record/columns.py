"""Records as NumPy columns: numbers as arrays, texts and bodies as positions in the buffer."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.kernel.records import COLUMNS, checksum_faults
from reput_protocol.kernel.tables import distinct, gather, property_columns, property_places
from reput_protocol.properties import KEYS, TAGS, UNIQ_KEY
from reput_protocol.record import scan as number
from reput_protocol.record.layout import born_host_in, store_host_in
from reput_protocol.record.message_id import Host

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

_NUMBER: Final = {name: number for number, name in enumerate(COLUMNS)}
_IN_TABLE: Final = {TAGS: number.TAG, UNIQ_KEY: number.UNIQUE_ID, KEYS: number.KEYS}
"""Properties whose values' positions are in a row."""


class Places(NamedTuple):
    """Positions of a column of bytes: row i's is `numbers[first + i * step]`, its size the next number."""

    numbers: array[int] | memoryview
    first: int
    step: int


class RecordColumns:
    """Columns of valid records in `buffer`; row i is the i-th record.

    Positions are bytes from the buffer's start. Every column is a new array, created on request.

    Args:
        buffer: what the kernel has read.
        table: the kernel's numbers (`COLUMNS`), record after record.
    """

    __slots__ = ("_table", "buffer")

    def __init__(self, buffer: Buffer, table: array[int] | IntArray) -> None:
        self.buffer = buffer
        self._table: IntArray = np.asarray(table, np.int64).reshape(-1, number.WIDTH)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def table(self) -> memoryview:
        """All records' numbers in the kernel's form."""
        flat: Any = self._table.ravel()
        return memoryview(flat)

    def numbers(self, name: str) -> IntArray:
        """Return a column by its name in `COLUMNS`."""
        return self._table[:, _NUMBER[name]].copy()

    def scaled(self, name: str, times: int, kind: str) -> NDArray[np.signedinteger]:
        """Return a column with each number multiplied, as integers of a NumPy type."""
        column = self._table[:, _NUMBER[name]]
        if times == 1:
            return column.astype(kind)
        return np.multiply(column, times, out=np.empty(len(column), kind), casting="unsafe")

    @property
    def position(self) -> IntArray:
        """Where each record starts."""
        return self.numbers("position")

    @property
    def size(self) -> NDArray[np.int32]:
        """Bytes of each whole record."""
        return self.numbers("size").astype(np.int32)

    @property
    def end(self) -> int:
        """Where the last record ends; requires one."""
        return int(self._table[-1, number.POSITION] + self._table[-1, number.SIZE])

    @property
    def queue_id(self) -> NDArray[np.int32]:
        """Queues."""
        return self.numbers("queue_id").astype(np.int32)

    @property
    def flag(self) -> NDArray[np.int32]:
        """The applications' flags."""
        return self.numbers("flag").astype(np.int32)

    @property
    def queue_offset(self) -> IntArray:
        """Message numbers in the queue."""
        return self.numbers("queue_offset")

    @property
    def physical_offset(self) -> IntArray:
        """The commit-log positions that the records state."""
        return self.numbers("physical_offset")

    @property
    def sys_flag(self) -> NDArray[np.int32]:
        """System flags."""
        return self.numbers("sys_flag").astype(np.int32)

    @property
    def born_timestamp_ms(self) -> IntArray:
        """Producers' clocks, ms."""
        return self.numbers("born_timestamp_ms")

    @property
    def store_timestamp_ms(self) -> IntArray:
        """The broker's clock, ms."""
        return self.numbers("store_timestamp_ms")

    @property
    def reconsume_times(self) -> NDArray[np.int32]:
        """How often each message was given back."""
        return self.numbers("reconsume_times").astype(np.int32)

    @property
    def body_position(self) -> IntArray:
        """Where each body starts."""
        return self.numbers("body_position")

    @property
    def body_size(self) -> IntArray:
        """Bytes of each body."""
        return self.numbers("body_size")

    def body(self, row: int) -> memoryview:
        """Return a view of a body."""
        return self._view(row, number.BODY)

    def topic(self, row: int) -> memoryview:
        """Return a view of a topic."""
        return self._view(row, number.TOPIC)

    def properties(self, row: int) -> memoryview:
        """Return a view of a properties text."""
        return self._view(row, number.PROPERTIES)

    def born_host(self, row: int) -> Host:
        """Return a producer's address."""
        position, sys_flag = int(self._table[row, number.POSITION]), int(self._table[row, number.SYS_FLAG])
        return Host.unpack(memoryview(self.buffer)[born_host_in(position, sys_flag)])

    def store_host(self, row: int) -> Host:
        """Return a broker's address."""
        body, sys_flag = int(self._table[row, number.BODY]), int(self._table[row, number.SYS_FLAG])
        return Host.unpack(memoryview(self.buffer)[store_host_in(body, sys_flag)])

    def part(self, name: str) -> Places:
        """Return the positions of `body`, `topic` or `properties`."""
        return Places(self.table, _NUMBER[f"{name}_position"], number.WIDTH)

    def property(self, name: str) -> Places:
        """Return the positions of a property's values."""
        if name in _IN_TABLE:
            return Places(self.table, _IN_TABLE[name], number.WIDTH)
        return Places(property_places(self.buffer, self.table, name.encode()), 0, 2)

    def distinct(self, places: Places) -> tuple[list[str | None], IntArray]:
        """Return the distinct values as text or None, and each record's index into them."""
        values, codes = distinct(self.buffer, *places)
        return [value.decode(errors="replace") if value else None for value in values], np.asarray(codes)

    def gather(
        self, places: Places, *, is_text: bool = False, replaced: dict[int, bytes] | None = None
    ) -> tuple[array[int], bytearray, bytearray, int]:
        """Copy values out of the buffer in Arrow's layout (`gather`)."""
        return gather(self.buffer, *places, is_text, replaced)

    def property_columns(self) -> tuple[array[int], array[int], bytearray, array[int], bytearray]:
        """Copy all properties out of the buffer in Arrow's layout (`property_columns`)."""
        return property_columns(self.buffer, self.table)

    def take(self, rows: Any) -> Self:
        """Return the columns of some records, by row numbers, mask or slice."""
        return type(self)(self.buffer, self._table[rows])

    def with_tag(self, wanted: Iterable[str]) -> Self:
        """Return the records whose tag is one of `wanted`."""
        values, codes = self.distinct(self.property(TAGS))
        chosen = frozenset(wanted)
        return self.take(np.array([value in chosen for value in values], np.bool_)[codes])

    def checksum_faults(self, *, bodies: bool = True) -> list[tuple[int, str]]:
        """Return row and reason of each record that fails the checksum of its body or of the whole record.

        Args:
            bodies: False, for readers that return no bodies: verify only whole-record checksums.
        """
        return checksum_faults(self.buffer, self.table, bodies)

    def _view(self, row: int, part: int) -> memoryview:
        start, size = self._table[row, part : part + 2].tolist()
        return memoryview(self.buffer)[start : start + size]
