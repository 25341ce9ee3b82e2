"""Unique ids in RocketMQ's form, many at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from reput_pipeline.binary_columns import ByteArray

ID_BYTES: Final = 32
_COUNTER_WORDS: Final = 3


class UniqueIds:
    """Unique ids: 20 digits of who makes them, 12 that count on from the time."""

    def __init__(self, identity: bytes, now_ms: int) -> None:
        """Take 10 bytes that nobody else has, and the time."""
        assert len(identity) == 10, "address, process and a random number"
        self._prefix: ByteArray = np.frombuffer(identity.hex().upper().encode(), np.uint8)
        self._next = (now_ms & 0xFFFF_FFFF) << 16

    def write(self, rows: ByteArray) -> None:
        """Write an id into each of the rows, which have 32 bytes."""
        count = len(rows)
        numbers = np.arange(self._next, self._next + count, dtype=np.int64)
        self._next += count
        words: npt.NDArray[np.uint32] = np.empty((count, _COUNTER_WORDS), np.uint32)
        for word in range(_COUNTER_WORDS):
            words[:, word] = _FOUR_DIGITS[(numbers >> (_COUNTER_WORDS - 1 - word) * 16) & 0xFFFF]
        rows[:, : len(self._prefix)] = self._prefix
        rows[:, len(self._prefix) :] = words.view(np.uint8)

    def take(self, count: int) -> ByteArray:
        """Return so many ids, each a row."""
        rows: ByteArray = np.empty((count, ID_BYTES), np.uint8)
        self.write(rows)
        return rows


def _four_digits() -> npt.NDArray[np.uint32]:
    """Return the four hexadecimal digits of every number of 16 bits, as the four bytes of a word."""
    digits: ByteArray = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    numbers = np.arange(1 << 16)
    words: npt.NDArray[np.uint32] = digits[(numbers[:, None] >> np.array([12, 8, 4, 0])) & 15].view(np.uint32)
    return words.ravel()


_FOUR_DIGITS: Final = _four_digits()
