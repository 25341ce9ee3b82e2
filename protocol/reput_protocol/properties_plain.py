"""Whether many properties texts are canonical, ASCII and without reserved names: what `is_plain_text` says of each."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.properties import is_plain_text
from reput_protocol.rows_at import parts_at, slices_at, void_type, windows

IntArray = NDArray[np.int64]


def texts_pass(texts: bytes, count: int) -> bool:
    """Whether `count` texts of one size, back to back and not empty, are plain, each of them."""
    length = len(texts) // count
    if not is_plain_text(texts, 0, length):
        return False
    # Where the separators of all stand in the same places, and with them the same names, what is in order in one text
    # is so in all. Otherwise each is searched: with a separator at the end of each, they are in order one by one if
    # they are in order as one.
    shapes = texts.translate(_SHAPE)
    shape = shapes[:length]
    if shapes == shape * count and all(
        _are_equal(texts, start, stop, length, count) for start, stop in _names_of(shape)
    ):
        return True
    ends = texts[length - 1 :: length]
    return ends == _VALUE_END * count and is_plain_text(texts) is not None


def texts_of_any_size_pass(buffer: Buffer, position: IntArray, sizes: IntArray) -> bool:
    """Whether the texts of `sizes[i]` bytes at `position[i]`, none of them empty, are plain, each of them."""
    first = bytes(memoryview(buffer)[int(position[0]) : int(position[0] + sizes[0])])
    if not is_plain_text(first):
        return False
    data, starts, ends = parts_at(buffer, position, sizes)
    if (data[ends - 1] != _VALUE_END[0]).any():
        return False
    # With a separator at the end of each they are in order one by one if they are in order as one. What fills a text up
    # at its left becomes part of its first name, which therefore has to be that of the first text, found in order.
    name = first[: first.index(_NAME_END) + 1]
    last_start = len(data) - len(name)
    if int(starts[-1]) <= last_start and windows(data, len(name))[starts].tobytes() == name * len(starts):
        return is_plain_text(data.data) is not None
    return is_plain_text(b"".join(slices_at(buffer, position, position + sizes))) is not None


def _are_equal(texts: bytes, start: int, stop: int, length: int, count: int) -> bool:
    """Whether the bytes `[start, stop)` of each of `count` texts are those of the first one."""
    parts = np.ndarray((count,), void_type(stop - start), texts, start, (length,)).tobytes()
    return parts == parts[: stop - start] * count


@lru_cache(maxsize=1024)
def _names_of(shape: bytes) -> list[tuple[int, int]]:
    """Return where the names stand in a text of this shape, which is canonical."""
    names = []
    start = 0
    while start < len(shape):
        names.append((start, shape.index(_NAME_END, start)))
        start = shape.index(_VALUE_END, start) + 1
    return names


_NAME_END: Final = b"\x01"
_VALUE_END: Final = b"\x02"
# What a text looks like when only separators are told apart, and what may not be in a text at all.
_SHAPE: Final = b"\xff\x01\x02" + b"a" * 125 + b"\xff" * 128
