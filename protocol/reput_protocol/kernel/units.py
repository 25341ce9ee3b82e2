"""Units of a ConsumeQueue: 20 bytes that say where a record is in the log, its size and the hash of its tag."""

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


def queue_units(
    physical_offsets: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    tags_codes: cython.const[cython.longlong][::1],
    queue_offset: cython.longlong,
    end: cython.longlong,
    max_physical_offset: cython.longlong,
) -> tuple[bytearray, Any, int, int, int, int]:
    """Make the units of messages that follow each other in a queue, and leave out those that it has already.

    Args:
        physical_offsets, sizes, tags_codes: of each message.
        queue_offset: of the first of them.
        end: the queue offset after the last unit of the queue; -1 for a queue without any.
        max_physical_offset: where the record of its last unit ends in the log.

    Returns:
        The units; which messages they are of; where the record of the last one ends; how many would not go to their
        own queue offset, and of the first of these its queue offset and the one that it would get.
    """
    count: cython.Py_ssize_t = len(physical_offsets)
    made = bytearray(20 * count)
    numbers = raw.zeros(_NUMBERS, count)
    units: cython.uchar[::1] = made
    taken: cython.longlong[::1] = numbers
    rows: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    wrong: cython.Py_ssize_t = 0
    wrong_offset: cython.longlong = 0
    wrong_end: cython.longlong = 0
    for row in range(count):
        record_end: cython.longlong = physical_offsets[row] + sizes[row]
        if record_end > max_physical_offset and not 0 < queue_offset < end:
            if end < 0:
                end = queue_offset
            elif 0 < queue_offset != end:
                if not wrong:
                    wrong_offset = queue_offset
                    wrong_end = end
                wrong += 1
            raw.put_i64(units, 20 * rows, physical_offsets[row])
            raw.put_i32(units, 20 * rows + 8, sizes[row])
            raw.put_i64(units, 20 * rows + 12, tags_codes[row])
            taken[rows] = row
            rows += 1
            end += 1
            max_physical_offset = record_end
        queue_offset += 1
    units = taken = None  # what has a view cannot be cut
    del made[20 * rows :]
    del numbers[rows:]
    return made, numbers, max_physical_offset, wrong, wrong_offset, wrong_end


def select_units(
    units: cython.const[cython.uchar][::1],
    log_start: cython.longlong,
    log_end: cython.longlong,
    memory_from: cython.longlong,
    max_bytes: cython.longlong,
    memory_messages: cython.longlong,
    memory_bytes: cython.longlong,
    disk_messages: cython.longlong,
    disk_bytes: cython.longlong,
    codes: object,
    accepts: object,
) -> tuple[int, int, int, list[tuple[int, int]], int]:
    """Take units one after the other, up to the first that does not fit any more.

    Args:
        log_start, log_end: the part of the log that can be read.
        memory_from: where the records begin that have the limits of memory; those before have the limits of the disk.
        max_bytes: a record that follows so many bytes is not taken.
        memory_messages, memory_bytes, disk_messages, disk_bytes: the limits.
        codes: hashes of the tags that are wanted, ascending; None for all. A unit that holds the address of an extended
            entry in the place of its tags code has any tag.
        accepts: told the place and the size of each record that is left, it says whether that is taken; with None the
            scan ends before this unit. None if no one looks.

    Returns:
        How many units are done with; how many records are taken; their bytes; where they lie, as place and size of each
        stretch; how many records are not in the log.
    """
    rows: cython.Py_ssize_t = len(units) // 20
    row: cython.Py_ssize_t
    taken: cython.longlong = 0
    total: cython.longlong = 0
    missing: cython.Py_ssize_t = 0
    start: cython.longlong = -1
    end: cython.longlong = -1
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    extents = []
    scanned: cython.Py_ssize_t = rows
    wanted: cython.const[cython.longlong][::1] = array("q") if codes is None else codes
    any_tag: cython.bint = codes is None
    for row in range(rows):
        at: cython.Py_ssize_t = 20 * row
        place: cython.longlong = raw.i64(units, at)
        size: cython.longlong = raw.i32(units, at + 8)
        messages_max: cython.longlong = memory_messages if place >= memory_from else disk_messages
        bytes_max: cython.longlong = memory_bytes if place >= memory_from else disk_bytes
        if taken and (taken >= messages_max or total >= max_bytes or total + size > bytes_max):
            scanned = row
            break
        if not any_tag and raw.i64(units, at + 12) >= -2_147_483_648:
            code: cython.longlong = raw.i32(units, at + 16)
            low = 0
            high = len(wanted)
            while low < high:
                middle = (low + high) // 2
                if wanted[middle] < code:
                    low = middle + 1
                else:
                    high = middle
            if low == len(wanted) or wanted[low] != code:
                continue
        if place < log_start or size <= 0 or place > log_end - size:
            missing += 1
            continue
        if accepts is not None:
            verdict = accepts(place, size)
            if verdict is None:
                scanned = row
                break
            if not verdict:
                continue
        taken += 1
        total += size
        if place != end:
            if end >= 0:
                extents.append((start, end - start))
            start = place
        end = place + size
    if end >= 0:
        extents.append((start, end - start))
    return scanned, taken, total, extents, missing


def damaged_unit(
    units: cython.const[cython.uchar][::1], log_end: cython.longlong, file_size: cython.longlong
) -> int:
    """Return which unit is the first that points to where no record can be or could have been; -1 if none does.

    A record lies within one file of the log, and pre-blank units point nowhere.
    """
    if file_size <= 0:
        raise ValueError(f"files of the log have no {file_size} bytes")
    row: cython.Py_ssize_t
    for row in range(len(units) // 20):
        place: cython.longlong = raw.i64(units, 20 * row)
        size: cython.longlong = raw.i32(units, 20 * row + 8)
        if place < 0 or size <= 0:
            return row
        if size != 0x7FFF_FFFF and (place > log_end - size or place % file_size > file_size - size):
            return row
    return -1


def files_of_units(
    units: cython.const[cython.uchar][::1],
    log_start: cython.longlong,
    log_end: cython.longlong,
    file_size: cython.longlong,
) -> list[int]:
    """Return a place in every file of the log in which a record of the units lies."""
    if file_size <= 0:
        raise ValueError(f"files of the log have no {file_size} bytes")
    places = {}
    last: cython.longlong = -1
    row: cython.Py_ssize_t
    for row in range(len(units) // 20):
        place: cython.longlong = raw.i64(units, 20 * row)
        size: cython.longlong = raw.i32(units, 20 * row + 8)
        if log_start <= place and size > 0 and place <= log_end - size and place // file_size != last:
            last = place // file_size
            places.setdefault(last, place)
    return list(places.values())


def valid_units(units: cython.const[cython.uchar][::1], place_limit: cython.longlong) -> int:
    """Return how many units come before the first that is not valid, or whose record lies at or after a place."""
    row: cython.Py_ssize_t
    for row in range(len(units) // 20):
        place: cython.longlong = raw.i64(units, 20 * row)
        if not 0 <= place < place_limit or raw.i32(units, 20 * row + 8) <= 0:
            return row
    return len(units) // 20


def address_units(units: cython.const[cython.uchar][::1], log_start: cython.longlong) -> tuple[int, int]:
    """Return the first and the last unit that hold the address of an extended entry; -1 twice if none does.

    Units of records before `log_start` do not count.
    """
    first: cython.Py_ssize_t = -1
    last: cython.Py_ssize_t = -1
    row: cython.Py_ssize_t
    for row in range(len(units) // 20):
        if raw.i64(units, 20 * row + 12) < -2_147_483_648 and raw.i64(units, 20 * row) >= log_start:
            last = row
            if first < 0:
                first = row
    return first, last


def stray_units(
    units: cython.const[cython.uchar][::1],
    log_start: cython.longlong,
    log_end: cython.longlong,
    may_be_blank: cython.bint,
    damaged: cython.const[cython.longlong][::1],
) -> tuple[list[int], int]:
    """Return which units name neither an expired record nor damaged bytes of the log.

    Args:
        log_start: where the log begins, which is not negative.
        log_end: units of records at or behind it are only counted; -1: they are like all others.
        may_be_blank: whether pre-blank units are left out.
        damaged: start and end of each damaged part of the log.

    Returns:
        These units, and how many were only counted.
    """
    stray = []
    behind: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    part: cython.Py_ssize_t
    for row in range(len(units) // 20):
        place: cython.longlong = raw.i64(units, 20 * row)
        size: cython.longlong = raw.i32(units, 20 * row + 8)
        if size > 0 and 0 <= place <= log_start - size:
            continue
        if may_be_blank and place == 0 and size == 0x7FFF_FFFF:
            continue
        is_damaged: cython.bint = False
        for part in range(len(damaged) // 2):
            if damaged[2 * part] <= place < damaged[2 * part + 1]:
                is_damaged = True
                break
        if is_damaged:
            continue
        if 0 <= log_end <= place:
            behind += 1
        else:
            stray.append(row)
    return stray, behind


def differing_units(
    units: cython.const[cython.uchar][::1],
    records: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
) -> list[int]:
    """Return which of the records from `start` on, one for each unit, are not those that the units point at.

    Args:
        records: queue offset, place and size of each record.
    """
    rows: cython.Py_ssize_t = len(units) // 20
    if not start >= 0 or len(records) < 3 * (start + rows):
        raise ValueError(f"{rows} units have no records from {start} on, of {len(records) // 3}")
    wrong = []
    row: cython.Py_ssize_t
    for row in range(rows):
        at: cython.Py_ssize_t = 3 * (start + row)
        if raw.i64(units, 20 * row) != records[at + 1] or raw.i32(units, 20 * row + 8) != records[at + 2]:
            wrong.append(start + row)
    return wrong
