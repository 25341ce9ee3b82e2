"""Equally long parts of a buffer as the rows of one table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer


def rows_at(buffer: Buffer | NDArray[np.uint8], position: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Return the `size` bytes at each position as rows; a view, not a copy, where the positions are evenly spaced."""
    if not size:
        return np.empty((len(position), 0), np.uint8)
    steps = np.diff(position)
    if len(position) and (steps == steps[:1]).all():
        step = int(steps[0]) if len(steps) else size
        view: NDArray[np.uint8] = np.ndarray(
            (len(position), size), np.uint8, buffer, int(position[0]), (step, 1)
        )
        return view
    windows = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer, 0, (1,))
    rows: NDArray[np.uint8] = windows[position].view(np.uint8).reshape(-1, size)
    return rows
