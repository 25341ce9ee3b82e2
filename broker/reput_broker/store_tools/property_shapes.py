"""Properties of many records at once: those of one shape form a table with a column per byte.

Records of one producer mostly have the same property names at the same places. So tags and keys of all of them can be
hashed column by column. Whatever has a shape of its own is left over for the long way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_broker.store_tools.log_reader import LogBatch
from reput_protocol.columns import BoolArray, IntArray

_ROWS_MIN = 6
"""Fewer records of one shape are faster one by one."""
_SHAPES_MAX = 64
_SPACE = 32
_ASCII_END = 128
_HASHED = (b"TAGS", b"UNIQ_KEY", b"KEYS")

Bytes2D = NDArray[np.uint8]


class ShapedRows(NamedTuple):
    """Records whose properties have one shape."""

    rows: IntArray
    """Which records of the batch, ascending."""
    table: Bytes2D
    """Their properties texts, a row each. Tags and keys are ASCII."""
    values: dict[bytes, tuple[int, int]]
    """Where each property's value lies in the text: first byte, byte after the last."""
    key_tokens: list[tuple[int, int]]
    """Where the tokens of KEYS lie."""


class PropertyShapes(NamedTuple):
    """The records of a batch that have properties, by shape."""

    shaped: list[ShapedRows]
    alone: list[int]
    """Rows that belong to none."""


def property_shapes(batch: LogBatch) -> PropertyShapes:
    """Find the shapes of a batch."""
    sizes = batch.columns.properties_size
    remaining = np.flatnonzero(sizes > 0)
    shaped: list[ShapedRows] = []
    alone: list[int] = []
    for _ in range(_SHAPES_MAX):
        if not len(remaining):
            return PropertyShapes(shaped, alone)
        first = int(remaining[0])
        like = sizes[remaining] == sizes[first]
        rows = remaining if like.all() else remaining[like]
        shape = _shape_of(bytes(batch.columns.properties(first))) if len(rows) >= _ROWS_MIN else None
        if shape is None:
            alone.append(first)
            remaining = remaining[1:]
            continue
        table = _table(batch, rows)
        same = shape.fits(table)
        if same.all():
            shaped.append(ShapedRows(rows, table, shape.values, shape.key_tokens))
            remaining = remaining[~like]
            continue
        shaped.append(ShapedRows(rows[same], table[same], shape.values, shape.key_tokens))
        taken = like
        taken[like] = same
        remaining = remaining[~taken]
    alone.extend(remaining.tolist())
    return PropertyShapes(shaped, alone)


class _Shape(NamedTuple):
    values: dict[bytes, tuple[int, int]]
    key_tokens: list[tuple[int, int]]
    reference: Bytes2D
    fixed: BoolArray
    """Which bytes are names and separators."""
    spaces: slice
    """The value of KEYS: spaces must be in the same places."""
    hashed: list[slice]

    def fits(self, table: Bytes2D) -> BoolArray:
        """Tell which rows have this shape; the first one has."""
        same: BoolArray = (table[:, self.fixed] == self.reference[self.fixed]).all(axis=1)
        same &= (table[:, ~self.fixed] > 2).all(axis=1)
        same &= ((table[:, self.spaces] == _SPACE) == (self.reference[self.spaces] == _SPACE)).all(axis=1)
        for part in self.hashed:
            same &= (table[:, part] < _ASCII_END).all(axis=1)
        return same


def _shape_of(text: bytes) -> _Shape | None:
    """Find the shape of a text; None if it is not plain enough."""
    if not text.endswith(b"\x02"):
        return None
    fixed = np.ones(len(text), np.bool_)
    values: dict[bytes, tuple[int, int]] = {}
    position = 0
    for unit in text[:-1].split(b"\x02"):
        name, separator, value = unit.partition(b"\x01")
        if not name or not separator or not value or min(value) <= 2:
            return None
        start = position + len(name) + 1
        fixed[start : start + len(value)] = False
        values[name] = start, start + len(value)
        position += len(unit) + 1
    tokens: list[tuple[int, int]] = []
    first, end = values.get(b"KEYS", (0, 0))
    start = first
    for at in [at for at in range(first, end) if text[at] == _SPACE] + [end]:
        if start < at:
            tokens.append((start, at))
        start = at + 1
    hashed = [slice(*values[name]) for name in _HASHED if name in values]
    if any(byte >= _ASCII_END for part in hashed for byte in text[part]):
        return None
    return _Shape(values, tokens, np.frombuffer(text, np.uint8), fixed, slice(first, end), hashed)


def _table(batch: LogBatch, rows: IntArray) -> Bytes2D:
    position = batch.columns.properties_position[rows]
    size = int(batch.columns.properties_size[rows[0]])
    window: NDArray[Any] = np.ndarray((len(batch.data) - size + 1,), f"V{size}", batch.data, 0, (1,))
    return window[position].view(np.uint8).reshape(-1, size)
