"""Properties texts of one shape laid beneath each other: whole columns are then read and hashed at once.

Messages of one producer have the same properties in the same order, with values of the same lengths. Their texts form
a table in which every name and separator stands in a column of its own. A table is *regular* if that is so in every
row, its values are ASCII without separators, and no name comes twice; only then does a column hold what a reader of
the single text would find (RocketMQ: MessageDecoder.string2messageProperties).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
ByteTable: TypeAlias = NDArray[np.uint8]
Span: TypeAlias = tuple[int, int]

_ROWS_MIN: Final = 8
"""So many rows of one size cost the same as a table and one by one."""
_NAME_END: Final = 1
_VALUE_END: Final = 2
_POWERS_MAX: Final = 32_768
_POWERS: NDArray[np.uint32] = np.ones(1, dtype=np.uint32)


class PropertiesTable(NamedTuple):
    """The texts of some rows, all of one size and regular."""

    rows: slice | IntArray
    """Which rows these are."""
    texts: ByteTable
    """One text a row, one byte a column."""
    spans: dict[bytes, Span]
    """Where each property's value lies in every text, by name."""

    def holds(self, span: Span, byte: int) -> bool:
        """Whether any of the values in `span` holds this byte."""
        return bool((self.texts[:, span[0] : span[1]] == byte).any())

    def java_hashes(self, span: Span, prefix: int | NDArray[np.uint32] = 0) -> IntArray:
        """Return Java's string hash of every value in `span`; see the function of this name."""
        return java_hashes(self.texts[:, span[0] : span[1]], prefix)


def java_hashes(texts: ByteTable, prefix: int | NDArray[np.uint32] = 0) -> IntArray:
    """Return Java's string hash of the ASCII text in every row, after a prefix of this hash (unsigned)."""
    powers = _powers(texts.shape[1] + 1)
    values = (texts * powers[1:]).sum(axis=1, dtype=np.uint32)
    if isinstance(prefix, int):
        values += np.uint32(prefix * int(powers[0]) & 0xFFFF_FFFF)
    else:
        values += prefix * powers[0]
    hashes: IntArray = values.view(np.int32).astype(np.int64)
    return hashes


def tables_of(data: bytes, starts: IntArray, sizes: IntArray) -> list[PropertiesTable] | None:
    """Return tables that together hold every text at `starts` of `data`; None if some texts fit into none.

    Rows without properties are in no table.
    """
    if not len(sizes):
        return []
    source = np.frombuffer(data, np.uint8)
    first = int(sizes[0])
    if (sizes == first).all():
        groups: list[tuple[int, slice | IntArray]] = [(first, slice(0, len(sizes)))]
    else:
        groups = [(int(size), np.flatnonzero(sizes == size)) for size in np.unique(sizes)]
    tables: list[PropertiesTable] = []
    for size, rows in groups:
        if size == 0:
            continue
        at = starts[rows]
        if len(at) < _ROWS_MIN:
            return None
        texts = _lay(source, at, size)
        spans = _spans_of(texts)
        if spans is None:
            return None
        tables.append(PropertiesTable(rows, texts, spans))
    return tables


def _lay(source: ByteTable, starts: IntArray, size: int) -> ByteTable:
    """Lay the texts at `starts` beneath each other; without a copy where they are equally far apart."""
    step = int(starts[1] - starts[0])
    table: ByteTable
    if step >= size and (starts[1:] - starts[:-1] == step).all():
        window = source[int(starts[0]) : int(starts[-1]) + size]
        table = as_strided(window, (len(starts), size), (step, 1), writeable=False)
    else:
        table = source[starts[:, None] + np.arange(size)]
    return table


def _spans_of(texts: ByteTable) -> dict[bytes, Span] | None:
    """Return where the values lie in every row, by name; None if the table is not regular."""
    first = texts[0].tobytes()
    fixed = np.zeros(len(first), dtype=bool)
    spans: dict[bytes, Span] = {}
    start = 0
    while start < len(first):
        name_end = first.find(_NAME_END, start)
        end = first.find(_VALUE_END, start)
        if end < 0 or not start < name_end < end - 1:
            return None
        name = first[start:name_end]
        if name in spans:
            return None
        spans[name] = (name_end + 1, end)
        fixed[start : name_end + 1] = True
        fixed[end] = True
        start = end + 1
    if (texts[:, fixed] != texts[0, fixed]).any():
        return None
    values = texts[:, ~fixed]
    # One comparison for both bounds: what lies below wraps around to the far end.
    if (values - np.uint8(_VALUE_END + 1) >= np.uint8(0x80 - _VALUE_END - 1)).any():
        return None
    return spans


def _powers(count: int) -> NDArray[np.uint32]:
    """Return 31^(count-1) ... 31^0, modulo 2^32."""
    global _POWERS
    if count > len(_POWERS):
        size = min(max(2 * count, 256), 2 * _POWERS_MAX)
        powers = np.full(size, 31, dtype=np.uint32)
        powers[0] = 1
        _POWERS = np.multiply.accumulate(powers, dtype=np.uint32)[::-1].copy()
    return _POWERS[len(_POWERS) - count :]
