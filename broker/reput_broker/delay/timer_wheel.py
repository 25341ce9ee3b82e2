"""The wheel: the chain of units of every second, in the file `timerwheel` (RocketMQ: TimerWheel).

    position  0        8        16       24     28     32
              +--------+--------+--------+------+------+
              | i64    | i64    | i64    | i32  | i32  |   big-endian, 1,209,600 slots: 14 days of seconds
              +--------+--------+--------+------+------+
              second   first    last     number magic
                       unit     unit     of messages, unused

A second's slot is its number modulo the slots; a slot that names another second, or none (0), is empty.
First and last are positions in the timer log; the number counts messages minus delete messages.

The file is derived: every start rebuilds it from the timer log, so nothing in it has to survive. It is
allocated completely before its first slot is needed, and mapped.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from reput_broker.delay.timer_log import NO_POSITION
from reput_broker.store.base.errors import FlushFailed
from reput_broker.store.base.file_io import create_file, map_file, sync_data
from reput_protocol.kernel.timer import filled_slots

PRECISION_MS = 1000
"""Milliseconds in a slot (RocketMQ: timerPrecisionMs)."""
SLOTS = 2 * 7 * 24 * 3600
"""(RocketMQ: TIMER_WHEEL_TTL_DAY, doubled.)"""
SLOT = struct.Struct(">qqqii")
SLOT_BYTES = 32
_SLOTS_A_READ = 4096

assert SLOT.size == SLOT_BYTES


class Slot(NamedTuple):
    """One second's chain."""

    first: int
    last: int
    number: int


EMPTY = Slot(NO_POSITION, NO_POSITION, 0)


def slot_of(time_ms: int) -> int:
    """Return the time of the slot that contains a time."""
    return time_ms - time_ms % PRECISION_MS


class TimerWheel:
    """The slots. All times are of slots, in milliseconds. One thread writes; `flush` may run in another.

    `slots` is their number; RocketMQ's for every wheel that RocketMQ is to read.
    """

    def __init__(self, path: Path, slots: int = SLOTS) -> None:
        self.path = path
        self.slots = slots
        self._fd: int | None = None
        self._map: mmap.mmap
        self._is_dirty = False

    @property
    def exists(self) -> bool:
        """Whether the file has been made."""
        return self._fd is not None

    @property
    def span_ms(self) -> int:
        """Times this far apart share a slot."""
        return self.slots * PRECISION_MS

    def create(self) -> None:
        """Make the file again, empty. Blocks.

        Raises:
            DiskFull, FlushFailed, OSError: there is no wheel.
        """
        self.close()
        self.path.unlink(missing_ok=True)
        fd = create_file(self.path, self.slots * SLOT_BYTES)
        try:
            self._map = map_file(fd, self.slots * SLOT_BYTES, self.path)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._is_dirty = False

    def slot(self, slot_ms: int) -> Slot:
        """Return the chain of a second."""
        if self._fd is None:
            return EMPTY
        second, first, last, number, _ = SLOT.unpack_from(self._map, self._index(slot_ms) * SLOT_BYTES)
        return Slot(first, last, number) if second == slot_ms // PRECISION_MS else EMPTY

    def held_by(self, slot_ms: int) -> int:
        """Return the time of the chain in this slot's place; a negative number if there is none."""
        if self._fd is None:
            return -1
        second = SLOT.unpack_from(self._map, self._index(slot_ms) * SLOT_BYTES)[0]
        return int(second) * PRECISION_MS if second else -1

    def put(self, slot_ms: int, slot: Slot) -> None:
        """Set the chain of a second. It survives a killed process, not necessarily a power loss."""
        assert self._fd is not None, "`create` is called before the first `put`"
        SLOT.pack_into(self._map, self._index(slot_ms) * SLOT_BYTES, slot_ms // PRECISION_MS, *slot, 0)
        self._is_dirty = True

    def filled(self, start_ms: int, stop_ms: int) -> list[tuple[int, Slot]]:
        """Return the non-empty slots in `[start, stop)` in order, each with its time.

        `stop` is at most one turn of the wheel after `start`.
        """
        if self._fd is None:
            return []
        found: list[tuple[int, Slot]] = []
        second, stop = start_ms // PRECISION_MS, stop_ms // PRECISION_MS
        while second < stop:
            at = second % self.slots
            count = min(_SLOTS_A_READ, stop - second, self.slots - at)
            slots = self._map[at * SLOT_BYTES : (at + count) * SLOT_BYTES]
            for index in filled_slots(slots, second):
                held, first, last, number, _ = SLOT.unpack_from(slots, index * SLOT_BYTES)
                found.append((held * PRECISION_MS, Slot(first, last, number)))
            second += count
        return found

    def first_filled(self, start_ms: int, stop_ms: int) -> int | None:
        """Return the time of the first non-empty slot in `[start, stop)`; None if there is none.
        Thread-safe."""
        step = _SLOTS_A_READ * PRECISION_MS
        for begin in range(start_ms, stop_ms, step):
            found = self.filled(begin, min(begin + step, stop_ms))
            if found:
                return found[0][0]
        return None

    def fill(self, slots: bytearray) -> None:
        """Set all slots of an empty wheel from their bytes. Blocks."""
        assert self._fd is not None
        assert len(slots) == self.slots * SLOT_BYTES
        step = _SLOTS_A_READ * SLOT_BYTES
        for start in range(0, len(slots), step):
            part = slots[start : start + step]
            if part.strip(b"\0"):
                self._map[start : start + len(part)] = part
                self._is_dirty = True

    def flush(self) -> None:
        """Flush every slot that was set before the call. Blocks.

        Raises:
            FlushFailed: the sync failed; nothing is lost, as the wheel is rebuilt at every start.
        """
        if self._fd is None or not self._is_dirty:
            return
        self._is_dirty = False
        try:
            sync_data(self._fd)
        except OSError as error:
            raise FlushFailed(self.path, error) from error

    def close(self) -> None:
        """Close the file without a flush."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._map.close()
            os.close(fd)

    def _index(self, slot_ms: int) -> int:
        return slot_ms // PRECISION_MS % self.slots
