"""Java's string hash of many parts of a buffer at once, whatever their lengths.

The hash of a text is a polynomial in 31 modulo 2^32, and 31 has an inverse there. So with one running sum over the
whole buffer, the byte at place i counting as byte / 31^i, the hash of any part is the difference of two sums times a
power.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
ByteArray: TypeAlias = NDArray[np.uint8]
HashArray: TypeAlias = NDArray[np.uint32]

_MASK: Final = 0xFFFF_FFFF
_INVERSE: Final = pow(31, -1, 1 << 32)
_WINDOW_BYTES: Final = 1 << 18
"""Powers are kept for so many bytes; a longer buffer is taken in parts. Much longer than a properties text."""
_PART_BYTES: Final = _WINDOW_BYTES - (1 << 15)


class ValueHashes(NamedTuple):
    """The hashes of some values, each of one row; a row may have several, one after the other."""

    rows: slice | IntArray
    """Whose values these are, ascending."""
    hashes: HashArray
    powers: int | HashArray
    """31 to the power of each value's length: for so much counts what stands before it."""

    def signed(self) -> IntArray:
        """Return the hashes as Java's, which are signed."""
        return self.hashes.view(np.int32).astype(np.int64)

    def after(self, prefix: int | HashArray) -> IntArray:
        """Return the hashes, as Java's, of a prefix (given by its hash, unsigned) and each value behind it."""
        powers = self.powers
        if isinstance(prefix, int) and isinstance(powers, int):
            start: np.uint32 | HashArray = np.uint32(prefix * powers & _MASK)
        else:
            start = np.multiply(prefix, powers, dtype=np.uint32)
        return (self.hashes + start).view(np.int32).astype(np.int64)


class _Powers:
    """31^i and 31^-i, as far as they were wanted."""

    up: HashArray = np.ones(1, np.uint32)
    down: HashArray = np.ones(1, np.uint32)


def power_of_31(exponent: int) -> int:
    """Return 31^exponent, modulo 2^32."""
    return pow(31, exponent, 1 << 32)


@lru_cache(maxsize=256)
def falling_powers(count: int) -> HashArray:
    """Return 31^(count - 1) to 31^0, modulo 2^32: what each byte of a value of so many counts in its hash."""
    return np.array([power_of_31(exponent) for exponent in reversed(range(count))], np.uint32)


def _grow(count: int) -> None:
    if count <= len(_Powers.up):
        return
    size = max(2 * count, 256)
    for name, factor in (("down", _INVERSE), ("up", 31)):  # `up` last: whoever sees it long finds both long
        powers = np.full(size, factor, np.uint32)
        powers[0] = 1
        setattr(_Powers, name, np.multiply.accumulate(powers, dtype=np.uint32))


class SpanHashes:
    """Hashes parts of one buffer, each byte being a character."""

    __slots__ = ("_data", "_sums")

    def __init__(self, data: ByteArray) -> None:
        self._data = data
        self._sums: HashArray | None = None

    def of(self, starts: IntArray, ends: IntArray) -> tuple[HashArray, HashArray]:
        """Return the hashes of the parts `[starts[i], ends[i])`, and 31 to the power of each part's length.

        Args:
            starts: ascending.
            ends: none more than 32767 behind its start.
        """
        data = self._data
        _grow(min(len(data), _WINDOW_BYTES) + 1)
        powers = _Powers.up[ends - starts]
        if len(data) <= _WINDOW_BYTES:
            if self._sums is None:
                self._sums = _sums_of(data)
            return _differences(self._sums, starts, ends), powers
        hashes = np.empty(len(starts), np.uint32)
        for base in range(0, len(data), _PART_BYTES):
            low, high = np.searchsorted(starts, (base, base + _PART_BYTES)).tolist()
            if low < high:
                sums = _sums_of(data[base : base + _WINDOW_BYTES])
                hashes[low:high] = _differences(sums, starts[low:high] - base, ends[low:high] - base)
        return hashes, powers


def _sums_of(data: ByteArray) -> HashArray:
    sums = np.zeros(len(data) + 1, np.uint32)
    np.cumsum(data * _Powers.down[: len(data)], dtype=np.uint32, out=sums[1:])
    return sums


def _differences(sums: HashArray, starts: IntArray, ends: IntArray) -> HashArray:
    # A part that ends at e: the last byte counts once, which is 31^(e - 1) times what it counts in the sum.
    return (sums[ends] - sums[starts]) * (_Powers.up[ends] * np.uint32(_INVERSE))


assert 31 * _INVERSE & _MASK == 1
