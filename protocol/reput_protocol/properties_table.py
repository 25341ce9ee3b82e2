"""Properties texts of one shape laid beneath each other: whole columns are then read and hashed at once.

Messages of one producer have the same properties in the same order, with values of the same lengths. Their texts form
a table in which every name and separator stands in a column of its own. Texts fit into one table if that is so, if
their values hold no separators and no name comes twice, if tags and keys are ASCII, and if the spaces between several
keys stand in the same columns; only then does a column hold what a reader of the single text would find (RocketMQ:
MessageDecoder.string2messageProperties).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer

IntArray: TypeAlias = NDArray[np.int64]
ByteTable: TypeAlias = NDArray[np.uint8]
Span: TypeAlias = tuple[int, int]

_ROWS_MIN: Final = 8
"""So many rows of one size cost no more as a table than one by one."""
_SHARE_MIN: Final = 16
"""Nor is a shape that less than this part of the rows of one size has worth a table."""
_MISSES_MAX: Final = 3
"""After so many shapes that were not worth it, the rows of this size that are left go one by one."""
_NAME_END: Final = 1
_VALUE_END: Final = 2
_SPACE: Final = 0x20
_ASCII_MAX: Final = 0x7F
_HASHED: Final = (b"TAGS", b"UNIQ_KEY")
_POWERS_MAX: Final = 32_768
_POWERS: NDArray[np.uint32] = np.ones(1, dtype=np.uint32)


class PropertiesTable(NamedTuple):
    """The texts of some rows, all of one size and shape."""

    rows: slice | IntArray
    """Which rows these are, ascending."""
    texts: ByteTable
    """One text a row, one byte a column."""
    spans: dict[bytes, Span]
    """Where each property's value lies in every text, by name."""
    keys: list[Span]
    """Where the keys lie that the value of KEYS consists of."""

    def java_hashes(self, span: Span, prefix: int | NDArray[np.uint32] = 0) -> IntArray:
        """Return Java's string hash of every value in `span`, after a prefix of this hash (unsigned)."""
        texts = self.texts[:, span[0] : span[1]]
        powers = _powers(texts.shape[1] + 1)
        values = (texts * powers[1:]).sum(axis=1, dtype=np.uint32)
        if isinstance(prefix, int):
            values += np.uint32(prefix * int(powers[0]) & 0xFFFF_FFFF)
        else:
            values += prefix * powers[0]
        hashes: IntArray = values.view(np.int32).astype(np.int64)
        return hashes


class PropertiesTables(NamedTuple):
    """The rows that have properties: as tables, and those that fit into none."""

    tables: list[PropertiesTable]
    alone: IntArray
    """Rows that have to be read one by one, ascending."""


def tables_of(data: Buffer, starts: IntArray, sizes: IntArray) -> PropertiesTables:
    """Lay the texts at `starts` of `data` out as tables; rows without properties are nowhere."""
    if not len(sizes):
        return PropertiesTables([], _NONE)
    source = np.frombuffer(data, np.uint8)
    first = int(sizes[0])
    tables: list[PropertiesTable] = []
    alone: list[IntArray] = []
    if (sizes == first).all():
        if first:
            _divide(source, starts, first, None, tables, alone)
    else:
        counts = np.bincount(sizes)
        counts[0] = 0
        few = counts < _ROWS_MIN
        of_few = few[sizes] & (sizes > 0)
        if of_few.any():
            alone.append(np.flatnonzero(of_few))
        for size in np.flatnonzero(~few).tolist():
            _divide(source, starts, size, np.flatnonzero(sizes == size), tables, alone)
    if len(alone) <= 1:
        return PropertiesTables(tables, alone[0] if alone else _NONE)
    return PropertiesTables(tables, np.sort(np.concatenate(alone)))


def table_of(texts: ByteTable) -> PropertiesTables | None:
    """Return texts that lie beneath each other as one table; None if they are not all of one shape."""
    if not texts.shape[1]:
        return PropertiesTables([], _NONE)
    shape = _shape_of(texts[0].tobytes())
    if shape is None or shape.rows_of(texts) is not None:
        return None
    return PropertiesTables([PropertiesTable(slice(0, len(texts)), texts, shape.spans, shape.keys)], _NONE)


def _divide(
    source: ByteTable,
    starts: IntArray,
    size: int,
    rows: IntArray | None,
    tables: list[PropertiesTable],
    alone: list[IntArray],
) -> None:
    """Make tables of rows whose texts all have `size` bytes, None standing for all rows; add the rest to `alone`."""
    at = starts if rows is None else starts[rows]
    worth = max(_ROWS_MIN, len(at) // _SHARE_MIN)
    misses = 0
    while len(at) >= worth and misses < _MISSES_MAX:
        texts = _lay(source, at, size)
        shape = _shape_of(texts[0].tobytes())
        alike = None if shape is None else shape.rows_of(texts)
        if shape is not None and alike is None:
            tables.append(
                PropertiesTable(slice(0, len(at)) if rows is None else rows, texts, shape.spans, shape.keys)
            )
            return
        if rows is None:
            rows = np.arange(len(at))
        if alike is None:
            alike = np.zeros(len(at), dtype=bool)
        if shape is not None and np.count_nonzero(alike) >= worth:
            tables.append(PropertiesTable(rows[alike], texts[alike], shape.spans, shape.keys))
        else:
            misses += 1
            alike[0] = True
            alone.append(rows[alike])
        rows, at = rows[~alike], at[~alike]
    if len(at):
        alone.append(np.arange(len(at)) if rows is None else rows)


def _lay(source: ByteTable, starts: IntArray, size: int) -> ByteTable:
    """Lay the texts at `starts` beneath each other; without a copy where they are equally far apart."""
    step = int(starts[1] - starts[0])
    table: ByteTable
    if step >= size and (starts[1:] - starts[:-1] == step).all():
        window = source[int(starts[0]) : int(starts[-1]) + size]
        table = as_strided(window, (len(starts), size), (step, 1), writeable=False)
    else:
        windows = np.ndarray((len(source) - size + 1,), f"V{size}", source, 0, (1,))
        table = windows[starts].view(np.uint8).reshape(-1, size)
    return table


class _Shape(NamedTuple):
    """Where things lie in a text, and between which bytes every other text of this shape is in each column."""

    spans: dict[bytes, Span]
    keys: list[Span]
    lowest: ByteTable
    spread: ByteTable
    """How much higher than the lowest a byte may be: not at all in names and separators."""

    def rows_of(self, texts: ByteTable) -> NDArray[np.bool_] | None:
        """Tell which texts have this shape; None if all have, as is usual."""
        # One comparison for both bounds: what lies below wraps around to the far end.
        right = texts - self.lowest <= self.spread
        if right.all():
            return None
        alike: NDArray[np.bool_] = np.logical_and.reduce(right, axis=1)
        return alike


def _shape_of(text: bytes) -> _Shape | None:
    """Return where the values lie in a text; None if it is not plain enough to tell."""
    spans: dict[bytes, Span] = {}
    keys: list[Span] = []
    lowest = np.frombuffer(text, np.uint8).copy()
    spread = np.zeros(len(text), np.uint8)
    start = 0
    while start < len(text):
        name_end = text.find(_NAME_END, start)
        end = text.find(_VALUE_END, start)
        if end < 0 or not start < name_end < end - 1:
            return None
        name = text[start:name_end]
        if name in spans:
            return None
        span = spans[name] = (name_end + 1, end)
        if name == b"KEYS":
            keys = _keys_in(text, *span)
            for first, stop in keys:
                lowest[first:stop] = _SPACE + 1
                spread[first:stop] = _ASCII_MAX - _SPACE - 1
        else:
            lowest[slice(*span)] = _VALUE_END + 1
            spread[slice(*span)] = (_ASCII_MAX if name in _HASHED else 0xFF) - _VALUE_END - 1
        start = end + 1
    return _Shape(spans, keys, lowest, spread)


def _keys_in(text: bytes, start: int, end: int) -> list[Span]:
    keys: list[Span] = []
    while start < end:
        stop = text.find(_SPACE, start, end)
        stop = end if stop < 0 else stop
        if start < stop:
            keys.append((start, stop))
        start = stop + 1
    return keys


def _powers(count: int) -> NDArray[np.uint32]:
    """Return 31^(count-1) ... 31^0, modulo 2^32."""
    global _POWERS
    if count > len(_POWERS):
        size = min(max(2 * count, 256), 2 * _POWERS_MAX)
        powers = np.full(size, 31, dtype=np.uint32)
        powers[0] = 1
        _POWERS = np.multiply.accumulate(powers, dtype=np.uint32)[::-1].copy()
    return _POWERS[len(_POWERS) - count :]


_NONE: Final = np.empty(0, dtype=np.int64)
