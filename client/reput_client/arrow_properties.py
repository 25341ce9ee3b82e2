"""The properties of a batch of records as Arrow columns: the tag, the keys, all of them as a map or as headers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput_client.arrow_slices import IntArray, binary_parts, gather_slices, with_replaced
from reput_protocol.properties import decode_properties
from reput_protocol.properties_table import PropertiesTable, table_of
from reput_protocol.properties_units import PropertyUnits, units_of
from reput_protocol.record_columns import RecordColumns
from reput_protocol.rows_at import rows_at

_NOT_ASCII = 0x80
_ROWS_MIN = 16
"""Fewer texts of one size are read one by one."""


class BatchProperties:
    """The properties of one batch. Texts that are not plain, or no UTF-8, are read one by one as every reader does."""

    def __init__(self, columns: RecordColumns, buffer: pa.Buffer) -> None:
        start = columns.properties_position
        texts = gather_slices(buffer, start, start + columns.properties_size, pa.binary())
        self._rows = len(columns)
        self._data, self._bounds = binary_parts(texts)
        self._buffer = pa.py_buffer(self._data)
        self._units: PropertyUnits = units_of(self._data, self._bounds[:-1], self._bounds[1:])
        self._odd = self._units.odd
        self._odd_maps: list[dict[str, str]] = [self._decode(row) for row in self._odd.tolist()]
        if len(self._data) and int(self._data.max()) >= _NOT_ASCII:
            self._set_aside_bad_text()

    def _text(self, row: int) -> bytes:
        return self._data[self._bounds[row] : self._bounds[row + 1]].tobytes()

    def _decode(self, row: int) -> dict[str, str]:
        return decode_properties(self._text(row))

    def _set_aside_bad_text(self) -> None:
        """Take texts that are no UTF-8 out of the units, too."""
        bad = []
        for row in np.setdiff1d(np.arange(self._rows), self._odd, assume_unique=True).tolist():
            text = self._text(row)
            if not text.isascii():
                try:
                    text.decode()
                except UnicodeDecodeError:
                    bad.append(row)
        if not bad:
            return
        units = self._units
        kept = ~np.isin(units.row, bad)
        row = units.row[kept]
        self._odd = np.union1d(self._odd, bad)
        self._odd_maps = [self._decode(number) for number in self._odd.tolist()]
        self._units = PropertyUnits(
            np.searchsorted(row, np.arange(self._rows + 1)),
            row,
            units.name_start[kept],
            units.name_end[kept],
            units.value_start[kept],
            units.value_end[kept],
            self._odd,
        )

    def value_of(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return the value of one property, null where a message does not have it."""
        units = self._units
        numbers = units.named(self._data, name.encode())
        start = self._bounds[:-1].copy()
        end = start.copy()
        missing = np.ones(self._rows, np.bool_)
        rows = units.row[numbers]
        start[rows] = units.value_start[numbers]
        end[rows] = units.value_end[numbers]
        missing[rows] = False
        found = gather_slices(self._buffer, start, end, kind, missing)
        if not len(self._odd):
            return found
        values = pa.array([properties.get(name) for properties in self._odd_maps], pa.string())
        return with_replaced(found, self._odd, values.cast(kind))

    def map(self, kind: pa.MapType) -> pa.Array:
        """Return all properties of every message as a map, the broker's own included."""
        names, values = self._parts(pa.string(), pa.string())
        offsets = pa.array(self._units.first.astype(np.int32))
        maps = pa.MapArray.from_arrays(offsets, names, values, kind)
        if not len(self._odd):
            return maps
        return with_replaced(maps, self._odd, pa.array([list(p.items()) for p in self._odd_maps], kind))

    def headers(self, kind: pa.ListType) -> pa.Array:
        """Return all properties of every message as a list of structures of `key` and `value`."""
        names, values = self._parts(pa.string(), pa.binary())
        pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        offsets = pa.array(self._units.first.astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, pairs, type=kind)
        if not len(self._odd):
            return lists
        odd = [
            [{"key": name, "value": value.encode()} for name, value in properties.items()]
            for properties in self._odd_maps
        ]
        return with_replaced(lists, self._odd, pa.array(odd, kind))

    def _parts(self, name_kind: pa.DataType, value_kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
        units = self._units
        return (
            gather_slices(self._buffer, units.name_start, units.name_end, name_kind),
            gather_slices(self._buffer, units.value_start, units.value_end, value_kind),
        )


class KeysAndTags:
    """`KEYS` and `TAGS` of one batch, the same as of `BatchProperties`, where nothing else of the properties is wanted.

    Of texts that are alike, as those of one producer are, it is known where these stand without a look at each; in
    tables of such texts both are ASCII (`properties_table`). The other texts are read as `BatchProperties` does.
    """

    def __init__(self, columns: RecordColumns, buffer: pa.Buffer) -> None:
        self._columns = columns
        self._buffer = buffer
        self._tables: list[tuple[IntArray, PropertiesTable]] = []
        sizes = columns.properties_size
        is_alone = sizes > 0
        for size, count in enumerate(np.bincount(sizes).tolist() if len(sizes) else []):
            if size and count >= _ROWS_MIN:
                rows = np.flatnonzero(sizes == size)
                table = table_of(rows_at(columns.buffer, columns.properties_position[rows], size))
                if table is not None:
                    self._tables.append((rows, table))
                    is_alone[rows] = False
        self._alone = np.flatnonzero(is_alone)
        self._rest = BatchProperties(columns.take(self._alone), buffer) if len(self._alone) else None

    def value_of(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return the value of `KEYS` or `TAGS`, null where a message does not have it."""
        assert name in ("KEYS", "TAGS"), "values of other names may be no text"
        position = self._columns.properties_position
        start, end = position.copy(), position.copy()
        missing = np.ones(len(position), np.bool_)
        for rows, table in self._tables:
            span = table.spans.get(name.encode())
            if span is not None:
                start[rows] = position[rows] + span[0]
                end[rows] = position[rows] + span[1]
                missing[rows] = False
        found = gather_slices(self._buffer, start, end, kind, missing)
        if self._rest is None:
            return found
        return with_replaced(found, self._alone, self._rest.value_of(name, kind))


def rows_with_tag(tags: pa.Array, wanted: frozenset[str]) -> IntArray:
    """Return the rows whose tag is one of the wanted; the hash in the queue does not decide that."""
    matching = pc.is_in(tags, value_set=pa.array(sorted(wanted), tags.type))
    return np.flatnonzero(matching.to_numpy(zero_copy_only=False))
