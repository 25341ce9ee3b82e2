"""The names and values in many properties texts at once, as positions: no loop over messages.

A text is *plain* if it is whole `name 0x01 value 0x02` units, the last 0x02 perhaps missing, no part empty, no value
with a further 0x01, no name twice. Of plain texts every reader finds the same (RocketMQ:
MessageDecoder.string2messageProperties), and nearly all are; the others are named, to be read one by one.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
ByteArray: TypeAlias = NDArray[np.uint8]

_NEIGHBOURS_MAX: Final = 16
"""Up to so many units a text, comparing each with its neighbours finds a name that comes twice faster than sorting."""
_ODD_FACTORS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


class PropertyUnits(NamedTuple):
    """The units of plain texts in the order of the texts; positions are bytes of the texts' data."""

    first: IntArray
    """Number of the first unit of each text, and last how many there are."""
    row: IntArray
    """Which text each unit is of."""
    name_start: IntArray
    name_end: IntArray
    value_start: IntArray
    value_end: IntArray
    odd: IntArray
    """Texts that are not plain, ascending; they have no units here."""

    def named(self, data: ByteArray, name: bytes) -> IntArray:
        """Return the numbers of the units with this name; there is one per text at most."""
        size = len(name)
        units = np.flatnonzero(self.name_end - self.name_start == size)
        if not len(units):
            return units
        windows = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
        found = windows[self.name_start[units]].view(np.uint8).reshape(-1, size)
        matching: IntArray = units[(found == np.frombuffer(name, np.uint8)).all(axis=1)]
        return matching


def units_of(data: ByteArray, bounds: IntArray) -> PropertyUnits:
    """Return the units of the texts that lie back to back: text i is `data[bounds[i]:bounds[i + 1]]`."""
    separators = np.flatnonzero(data - np.uint8(1) <= 1)
    sizes = np.diff(bounds)
    if _all_whole(data, bounds, sizes, separators):
        name_end = separators[0::2]
        value_end = separators[1::2]
        name_start = np.empty_like(name_end)
        if len(name_end):
            name_start[0] = bounds[0]
            name_start[1:] = value_end[:-1] + 1
        odd = np.zeros(len(sizes), np.bool_)
    else:
        name_start, name_end, value_end, odd = _mixed(data, bounds, sizes, separators)
    value_start = name_end + 1
    first = np.searchsorted(name_end, bounds)
    row = np.repeat(np.arange(len(sizes)), np.diff(first))
    odd[row[(name_start == name_end) | (value_start >= value_end)]] = True
    odd[row[_repeated(data, name_start, name_end, row, int(np.diff(first).max(initial=0)))]] = True
    if odd.any():
        kept = ~odd[row]
        name_start, name_end, value_start, value_end, row = (
            part[kept] for part in (name_start, name_end, value_start, value_end, row)
        )
        first = np.searchsorted(row, np.arange(len(sizes) + 1))
    return PropertyUnits(first, row, name_start, name_end, value_start, value_end, np.flatnonzero(odd))


def _all_whole(data: ByteArray, bounds: IntArray, sizes: IntArray, separators: IntArray) -> bool:
    """Whether all texts are whole units with their last 0x02, as nearly all batches are."""
    found = data[separators]
    return bool(
        len(separators) % 2 == 0
        and (found[0::2] == 1).all()
        and (found[1::2] == 2).all()
        and (data[bounds[1:][sizes > 0] - 1] == 2).all()
    )


def _mixed(
    data: ByteArray, bounds: IntArray, sizes: IntArray, separators: IntArray
) -> tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]:
    """Return where names begin and end and values end, and which texts are not plain; units of those are any."""
    first = np.searchsorted(separators, bounds)
    counts = np.diff(first)
    row = np.repeat(np.arange(len(sizes)), counts)
    is_value_end = (np.arange(len(separators)) - first[row]) % 2 == 1
    odd = (counts == 0) & (sizes > 0)
    odd[row[data[separators] != np.where(is_value_end, 2, 1)]] = True
    ends = bounds[1:]
    whole = (counts > 0) & (counts % 2 == 0)
    odd[whole] |= separators[first[1:][whole] - 1] != ends[whole] - 1
    names = np.flatnonzero(~is_value_end)
    of = row[names]
    name_end = separators[names]
    is_first = names == first[of]
    name_start = np.where(is_first, bounds[of], separators[names - 1] + 1)
    is_last = names + 1 == first[of + 1]
    following = np.minimum(names + 1, len(separators) - 1)
    value_end = np.where(is_last, ends[of], separators[following])
    return name_start, name_end, value_end, odd


def _repeated(
    data: ByteArray, starts: IntArray, ends: IntArray, row: IntArray, most: int
) -> NDArray[np.bool_] | IntArray:
    """Return units whose name comes again in their text; perhaps a few more, whose names only look alike."""
    if most < 2 or len(data) < 8:
        return np.zeros(len(row), np.bool_) if most < 2 else np.arange(len(row))
    looks = _looks(data, starts, ends)
    if most <= _NEIGHBOURS_MAX:
        repeated = np.zeros(len(row), np.bool_)
        for distance in range(1, most):
            repeated[distance:] |= (looks[distance:] == looks[:-distance]) & (
                row[distance:] == row[:-distance]
            )
        return repeated
    order = np.lexsort((looks, row))
    looks, rows = looks[order], row[order]
    again: IntArray = order[1:][(looks[1:] == looks[:-1]) & (rows[1:] == rows[:-1])]
    return again


def _looks(data: ByteArray, starts: IntArray, ends: IntArray) -> NDArray[np.uint64]:
    """Return a number for each name, the same for the same name: of its length, its first and its last 8 bytes."""
    words = np.ndarray((len(data) - 7,), ">u8", data, 0, (1,))
    sizes = ends - starts
    unused = (64 - 8 * np.clip(sizes, 1, 8)).astype(np.uint64)
    at = np.minimum(starts, len(data) - 8)
    head = words[at].astype(np.uint64) << ((starts - at) * 8).astype(np.uint64)
    at = np.maximum(ends - 8, 0)
    tail = words[at].astype(np.uint64) >> ((at + 8 - ends) * 8).astype(np.uint64)
    head = (head >> unused) * _ODD_FACTORS[0]
    tail = (tail << unused) * _ODD_FACTORS[1]
    looks: NDArray[np.uint64] = head ^ tail ^ sizes.astype(np.uint64)
    return looks
