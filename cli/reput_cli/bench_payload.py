"""Bodies for measurements: every one different, quick to make, and checkable by whoever receives it."""

from __future__ import annotations

import random
import struct
import time

_HEAD = struct.Struct(">QQ")
HEAD_BYTES = _HEAD.size
POOL_BYTES = 1 << 20


class Payloads:
    """Makes and checks bodies of one size.

    A body is its number, the time it was made (nanoseconds since 1970), and bytes cut from a random pool at a place
    that the number decides: 4099 bytes after that of the number before, modulo `POOL_BYTES`. Equal seeds make equal
    pools, so that a receiver can check what it got.
    """

    def __init__(self, size: int, seed: int = 1) -> None:
        if size < _HEAD.size:
            raise ValueError(
                f"bodies of {size} bytes are too small to be told apart; {_HEAD.size} is the least"
            )
        self._fill_bytes = size - _HEAD.size
        self.pool = random.Random(seed).randbytes(POOL_BYTES + self._fill_bytes)

    def make(self, number: int, at_ns: int | None = None) -> bytes:
        """Return body `number`, made now or, as it is to say, at `at_ns`."""
        start = number * 4099 % POOL_BYTES
        return (
            _HEAD.pack(number, time.time_ns() if at_ns is None else at_ns)
            + self.pool[start : start + self._fill_bytes]
        )

    def check(self, body: bytes) -> bool:
        """Return whether a received body is one of ours, unchanged."""
        if len(body) != _HEAD.size + self._fill_bytes:
            return False
        start = _HEAD.unpack_from(body)[0] * 4099 % POOL_BYTES
        return body[_HEAD.size :] == self.pool[start : start + self._fill_bytes]


def number_of(body: bytes) -> int:
    """Return which body it is."""
    number: int = _HEAD.unpack_from(body)[0]
    return number


def made_at_ns(body: bytes) -> int:
    """Return when a body was made."""
    made: int = _HEAD.unpack_from(body)[1]
    return made
