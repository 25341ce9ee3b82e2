"""The names and values in many properties texts at once, as positions: no loop over messages.

A text is *plain* if it is whole `name 0x01 value 0x02` units, the last 0x02 perhaps missing, no part empty, no value
with a further 0x01, no name twice. Of plain texts every reader finds the same (RocketMQ:
MessageDecoder.string2messageProperties), and nearly all are; the others are named, to be read one by one.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reput_protocol.rows_at import windows

IntArray: TypeAlias = NDArray[np.int64]
ByteArray: TypeAlias = NDArray[np.uint8]

_NAME_END: Final = 1
_VALUE_END: Final = 2
_UNIT_SEPARATORS: Final = bytes((_NAME_END, _VALUE_END))
_NEIGHBOURS_MAX: Final = 16
"""Up to so many units a text, comparing each with its neighbours finds a name that comes twice faster than sorting."""
_NO_ROWS: Final = np.empty(0, np.int64)
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
    names: tuple[bytes, ...] | None = None
    """The names in every text, where they are known to be the same in all of them, in the same order."""

    def numbered(self, data: ByteArray, name: bytes) -> slice | IntArray:
        """Return which units have this name: a slice of all if every text has one."""
        if self.names is None or name not in self.names:
            return self.named(data, name)
        return slice(self.names.index(name), None, len(self.names))

    def named(self, data: ByteArray, name: bytes) -> IntArray:
        """Return the numbers of the units with this name, ascending; there is one per text at most."""
        if self.names is not None:
            first = self.names.index(name) if name in self.names else len(self.row)
            return np.arange(first, len(self.row), len(self.names))
        size = len(name)
        units = np.flatnonzero(self.name_end - self.name_start == size)
        if not len(units):
            return units
        found = windows(data, size)[self.name_start[units]].view(np.uint8).reshape(-1, size)
        matching: IntArray = units[(found == np.frombuffer(name, np.uint8)).all(axis=1)]
        return matching


def units_of(data: ByteArray, starts: IntArray, ends: IntArray) -> PropertyUnits:
    """Return the units of the texts `data[starts[i]:ends[i]]`, which ascend; between them is neither 0x01 nor 0x02."""
    separators = np.flatnonzero(data - np.uint8(1) <= 1)
    common = _common_units(data, starts, ends, separators)
    if common is not None:
        return common
    filled = ends > starts
    if _all_whole(data, ends[filled], separators):
        name_end = separators[0::2]
        value_end = separators[1::2]
        first = _bounds(name_end, starts)
        name_start = np.empty_like(name_end)
        name_start[1:] = value_end[:-1] + 1
        name_start[first[:-1][filled]] = starts[filled]
        odd = np.zeros(len(starts), np.bool_)
    else:
        name_start, name_end, value_end, odd = _mixed(data, starts, ends, separators)
        first = _bounds(name_end, starts)
    value_start = name_end + 1
    counts = np.diff(first)
    row = np.repeat(np.arange(len(starts)), counts)
    odd[row[(name_start == name_end) | (value_start >= value_end)]] = True
    odd[row[_repeated(data, name_start, name_end, row, int(counts.max(initial=0)))]] = True
    if odd.any():
        kept = ~odd[row]
        name_start, name_end, value_start, value_end, row = (
            part[kept] for part in (name_start, name_end, value_start, value_end, row)
        )
        first = np.searchsorted(row, np.arange(len(starts) + 1))
    return PropertyUnits(first, row, name_start, name_end, value_start, value_end, np.flatnonzero(odd))


def _common_units(
    data: ByteArray, starts: IntArray, ends: IntArray, separators: IntArray
) -> PropertyUnits | None:
    """Return the units of texts that are plain and have the same names in the same order; None if they are not.

    That is what one producer writes, and costs half of looking at each name.
    """
    count = len(starts)
    units, rest = divmod(len(separators), 2 * count) if count else (0, 0)
    if rest or not 0 < units <= _NEIGHBOURS_MAX:
        return None
    table = separators.reshape(count, 2 * units)
    # If the last separator of each row is its text's last byte, then all of the row are in its text.
    if (table[:, -1] != ends - 1).any():
        return None
    if data[separators].tobytes() != _UNIT_SEPARATORS * (units * count):
        return None
    name_end, value_end = separators[0::2], separators[1::2]
    if int((value_end - name_end).min()) < 2:
        return None
    name_start = np.empty_like(name_end)
    name_start[1:] = value_end[:-1] + 1
    name_start[0::units] = starts
    names = []
    for number in range(units):
        # A name with the separator behind it: where both are found, no other name begins.
        size = int(name_end[number] - name_start[number]) + 1
        at = name_start[number::units]
        if int(at[-1]) > len(data) - size:
            return None
        found = windows(data, size)[at].tobytes()
        if found != found[:size] * count:
            return None
        names.append(found[: size - 1])
    if len(set(names)) < units or b"" in names:
        return None
    first = np.arange(0, units * count + 1, units)
    row = np.arange(count).repeat(units)
    return PropertyUnits(first, row, name_start, name_end, name_end + 1, value_end, _NO_ROWS, tuple(names))


def _bounds(places: IntArray, starts: IntArray) -> IntArray:
    """Return the number of the first place in each text, and last how many there are."""
    first = np.empty(len(starts) + 1, np.int64)
    first[:-1] = np.searchsorted(places, starts)
    first[-1] = len(places)
    return first


def _all_whole(data: ByteArray, ends: IntArray, separators: IntArray) -> bool:
    """Whether all texts are whole units with their last 0x02, as nearly all batches are; `ends` of those with bytes."""
    found = data[separators]
    return bool(
        len(separators) % 2 == 0
        and found.tobytes() == _UNIT_SEPARATORS * (len(separators) // 2)
        and (data[ends - 1] == _VALUE_END).all()
    )


def _mixed(
    data: ByteArray, starts: IntArray, ends: IntArray, separators: IntArray
) -> tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]:
    """Return where names begin and end and values end, and which texts are not plain; units of those are any."""
    first = _bounds(separators, starts)
    counts = np.diff(first)
    row = np.repeat(np.arange(len(starts)), counts)
    is_value_end = (np.arange(len(separators)) - first[row]) % 2 == 1
    odd = (counts == 0) & (ends > starts)
    odd[row[data[separators] != np.where(is_value_end, _VALUE_END, _NAME_END)]] = True
    whole = (counts > 0) & (counts % 2 == 0)
    odd[whole] |= separators[first[1:][whole] - 1] != ends[whole] - 1
    names = np.flatnonzero(~is_value_end)
    of = row[names]
    name_end = separators[names]
    is_first = names == first[of]
    name_start = np.where(is_first, starts[of], separators[names - 1] + 1)
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
