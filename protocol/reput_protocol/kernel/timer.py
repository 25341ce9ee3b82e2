"""The timer's files: units of 52 bytes in its log, slots of 32 bytes in its wheel."""

from __future__ import annotations

from array import array
from typing import Any, Final

try:
    import cython
except ImportError:
    from reput_protocol.kernel import uncompiled as cython

if cython.compiled:
    from cython.cimports.reput_protocol.kernel import raw
else:
    from reput_protocol.kernel import raw

_NUMBERS: Final = array("q")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_timer_unit(units: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.bint:
    return raw.i32(units, at) == 52 and 0 <= raw.i32(units, at + 12) <= 0xF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _timer_slot(units: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.longlong:
    """Return the slot time of a timer log unit; -1 for one that no timer can have written."""
    write_time: cython.longlong = raw.i64(units, at + 16)
    if not 0 <= write_time < 0x4000_0000_0000_0000:
        return -1
    return write_time + raw.i32(units, at + 24)


def timer_units(units: cython.const[cython.uchar][::1]) -> int:
    """Return the number of valid units before the first invalid one."""
    row: cython.Py_ssize_t
    for row in range(len(units) // 52):
        if not _is_timer_unit(units, 52 * row):
            return row
    return len(units) // 52


def timer_units_ahead(units: cython.const[cython.uchar][::1], since_ms: cython.longlong) -> Any:
    """Return slot time and record position of the units of slots at or after a time."""
    rows: cython.Py_ssize_t = len(units) // 52
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    found = raw.zeros(_NUMBERS, 2 * rows)
    ahead: cython.longlong[::1] = found
    for row in range(rows):
        slot_ms: cython.longlong = _timer_slot(units, 52 * row)
        if _is_timer_unit(units, 52 * row) and slot_ms >= since_ms:
            ahead[count] = slot_ms
            ahead[count + 1] = raw.i64(units, 52 * row + 28)
            count += 2
    ahead = None  # an array cannot be resized while a view of it exists
    del found[count:]
    return found


def chain_timer_units(
    wheel: cython.uchar[::1],
    units: cython.const[cython.uchar][::1],
    position: cython.longlong,
    since_ms: cython.longlong,
    done: cython.const[cython.longlong][::1],
    waiting: dict[int, int],
) -> tuple[int, int]:
    """Add consecutive units of the timer log to the slots of a wheel.

    Args:
        wheel: all slots; one of second 0 is empty.
        units: invalid ones are skipped.
        position: of the first unit in the timer log.
        since_ms: slots before this non-negative time are finished.
        done: positions of finished records, ascending.
        waiting: waiting messages by hash of the topic; updated.

    Returns:
        The earliest time of a slot that got a unit, and the latest of one with a finished record; -1 for none.
    """
    slots: cython.Py_ssize_t = len(wheel) // 32
    row: cython.Py_ssize_t
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    first_ms: cython.longlong = -1
    done_ms: cython.longlong = -1
    if slots <= 0 or since_ms < 0:
        raise ValueError(f"a wheel of {slots} slots has none from {since_ms} on")
    for row in range(len(units) // 52):
        at: cython.Py_ssize_t = 52 * row
        slot_ms: cython.longlong = _timer_slot(units, at)
        if slot_ms < since_ms or not _is_timer_unit(units, at):
            continue
        place: cython.longlong = raw.i64(units, at + 28)
        low = 0
        high = len(done)
        while low < high:
            middle = (low + high) // 2
            if done[middle] < place:
                low = middle + 1
            else:
                high = middle
        if low < len(done) and done[low] == place:
            done_ms = max(done_ms, slot_ms)
            continue
        second: cython.longlong = slot_ms // 1000
        slot: cython.Py_ssize_t = 32 * (second % slots)
        sign: cython.int = -1 if raw.i32(units, at + 12) & 4 else 1
        if raw.i64(wheel, slot) == 0:
            raw.put_i64(wheel, slot + 8, position + at)
        raw.put_i64(wheel, slot, second)
        raw.put_i64(wheel, slot + 16, position + at)
        raw.put_i32(wheel, slot + 24, raw.i32(wheel, slot + 24) + sign)
        topic_hash = raw.i32(units, at + 40)
        waiting[topic_hash] = waiting.get(topic_hash, 0) + sign
        if first_ms < 0 or 1000 * second < first_ms:
            first_ms = 1000 * second
    return first_ms, done_ms


def filled_slots(slots: cython.const[cython.uchar][::1], second: cython.longlong) -> list[int]:
    """Return the slots of a wheel that have a chain, counted from that of `second`."""
    return [
        row
        for row in range(len(slots) // 32)
        if raw.i64(slots, 32 * row) == second + row and raw.i64(slots, 32 * row + 16) >= 0
    ]
