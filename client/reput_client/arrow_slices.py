"""Slices of a buffer as one Arrow array, copied by one call into Arrow's own code."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]

BUFFER_BYTES_MAX = (1 << 31) - 1
"""Positions in a buffer are 32 bits wide here; no file of a store is larger (RocketMQ: mappedFileSizeCommitLog)."""


def gather_slices(
    buffer: pa.Buffer,
    start: IntArray,
    end: IntArray,
    kind: pa.DataType,
    missing: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Return the slices `[start[i], end[i])` of a buffer, which ascend and do not overlap, as values of `kind`.

    The edges of all slices are the offsets of an array of values and gaps in turn, of which the values are taken.
    Where `missing`, the result is null.
    """
    count = len(start)
    if not count:
        return pa.array([], kind)
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = start
    edges[1::2] = end
    both = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(edges), buffer])
    return both.take(pa.array(np.arange(0, 2 * count - 1, 2), mask=missing))


def binary_parts(array: pa.Array) -> tuple[NDArray[np.uint8], IntArray]:
    """Return the bytes of a binary array without nulls, back to back, and where in them the values begin and end."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    if data is None or not len(array) or bounds[-1] == bounds[0]:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    size = int(bounds[-1] - bounds[0])
    return np.frombuffer(data, np.uint8, size, int(bounds[0])), bounds - bounds[0]


def with_replaced(array: pa.Array, rows: IntArray, values: pa.Array) -> pa.Array:
    """Return an array with other values in some rows."""
    order = np.arange(len(array))
    order[rows] = np.arange(len(array), len(array) + len(rows))
    return pa.concat_arrays([array, values]).take(pa.array(order))


def numbers(values: NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    """Return numbers as an Arrow array of `kind`, whose width theirs has to be."""
    native = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(native), [None, pa.py_buffer(native)])
