"""Binary columns of Arrow as the bytes that they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]


def parts_of(values: pa.Array) -> tuple[memoryview, IntArray]:
    """Return the bytes of a binary column, of which no value is null, and where each value starts and the last ends."""
    _, offsets, data = values.buffers()
    rows = len(values)
    edges = (
        np.frombuffer(offsets, np.int32, rows + 1, values.offset * 4).astype(np.int64)
        if rows
        else np.zeros(1, np.int64)
    )
    if data is None:
        return memoryview(b""), edges - edges[0]
    return memoryview(data)[int(edges[0]) : int(edges[-1])].cast("B"), edges - edges[0]
