"""Parts of a buffer as the rows of one table, equally long or made so."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer

_WASTE_MAX: Final = 2
"""Where filling up would make the parts more than so many times as long, they are laid end to end instead."""
FILLER: Final = 0x61
"""What stands before a part that is shorter than others: a letter, which separates nothing."""


class Parts(NamedTuple):
    """Parts of a buffer one after the other, each behind as many fillers as it is shorter than the longest."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def windows(buffer: Buffer | NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """Return a view of the `size` bytes from every position on: whoever takes some of them copies equal parts."""
    return np.ndarray((len(buffer) - size + 1,), void_type(size), buffer, 0, (1,))


@lru_cache(maxsize=1024)
def void_type(size: int) -> np.dtype[np.void]:
    """Return the type of `size` bytes of any kind."""
    return np.dtype((np.void, size))


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
    rows: NDArray[np.uint8] = windows(buffer, size)[position].view(np.uint8).reshape(-1, size)
    return rows


def slices_at(buffer: Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[Buffer]:
    """Return the parts `[starts[i], ends[i])` of a buffer, bytes of bytes and views of anything else."""
    data = buffer if isinstance(buffer, bytes) else memoryview(buffer)
    return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def parts_at(buffer: Buffer, position: NDArray[np.int64], sizes: NDArray[np.int64]) -> Parts:
    """Copy the `sizes[i]` bytes at `position[i]` out of a buffer, in whatever order they are asked for.

    They come as one table where their sizes are not too different, which costs a fraction of slicing them one by one.
    """
    count = len(sizes)
    widest = int(sizes.max()) if count else 0
    ends = position + sizes
    if not widest or widest * count > _WASTE_MAX * int(sizes.sum()) or int(ends.min()) < widest:
        bounds = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=bounds[1:])
        joined = b"".join(slices_at(buffer, position, ends))
        return Parts(np.frombuffer(joined, np.uint8), bounds[:-1], bounds[1:])
    table = windows(buffer, widest)[ends - widest].view(np.uint8).reshape(count, widest)
    ragged = widest - int(sizes.min())
    if ragged:
        table[:, :ragged][np.arange(widest, widest - ragged, -1) > sizes[:, None]] = FILLER
    stops = np.arange(widest, (count + 1) * widest, widest)
    return Parts(table.reshape(-1), stops - sizes, stops)
