"""Units of a ConsumeQueue: 20 bytes with a record's log position, size and tag hash."""

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
    """Return the units of consecutive messages of a queue, without those that it has already.

    Args:
        physical_offsets, sizes, tags_codes: of each message.
        queue_offset: of the first message.
        end: the queue offset after the queue's last unit; -1 without any.
        max_physical_offset: where the record of its last unit ends in the log.

    Returns:
        The units; the messages they are for; where the record of the last one ends; how many would not get their own
            queue offset, and for the first of these its queue offset and the one that it would get.
    """
    count: cython.Py_ssize_t = len(physical_offsets)
    if len(sizes) != count or len(tags_codes) != count:
        raise ValueError(f"{count} offsets, but {len(sizes)} sizes and {len(tags_codes)} tag codes")
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
    units = taken = None  # arrays cannot be resized while views of them exist
    del made[20 * rows :]
    del numbers[rows:]
    return made, numbers, max_physical_offset, wrong, wrong_offset, wrong_end


def unit_table(
    units: cython.const[cython.uchar][::1],
    number: cython.longlong,
    owner: cython.longlong,
    log_start: cython.longlong,
    log_end: cython.longlong,
) -> tuple[Any, bool]:
    """Return units as numbers, and whether they are all of records in `[log_start, log_end)`, in the order of the log.

    Args:
        number: of the first unit.
        owner: the index of their queue.

    Returns:
        An `array('q')` of four numbers for each unit: log position, size, its own number, and the owner.
    """
    rows: cython.Py_ssize_t = len(units) // 20
    found = raw.room(_NUMBERS, 4 * rows)
    is_sound: cython.bint = True
    if rows:
        table: cython.longlong[::1] = found
        row: cython.Py_ssize_t
        for row in range(rows):
            place: cython.longlong = raw.i64(units, 20 * row)
            size: cython.longlong = raw.i32(units, 20 * row + 8)
            table[4 * row] = place
            table[4 * row + 1] = size
            table[4 * row + 2] = number + row
            table[4 * row + 3] = owner
            if place < log_start or place >= log_end or size < 92 or size == 0x7FFF_FFFF:
                is_sound = False
            log_start = place
    return found, is_sound


def doubtful_units(
    table: cython.const[cython.longlong][::1],
    log_start: cython.longlong,
    log_end: cython.longlong,
    size_max: cython.longlong,
) -> list[int]:
    """Return the rows of a `unit_table` whose record is not in `[log_start, log_end)`, is larger than `size_max`, or
    overlaps the next one.
    """
    rows: cython.Py_ssize_t = len(table) // 4
    found: list[int] = []
    row: cython.Py_ssize_t
    for row in range(rows):
        place: cython.longlong = table[4 * row]
        size: cython.longlong = table[4 * row + 1]
        if (
            place < log_start
            or size > size_max
            or place > log_end - size
            or (row + 1 < rows and table[4 * row + 4] < place + size)
        ):
            found.append(row)
    return found


def unit_runs(table: cython.const[cython.longlong][::1], gap_max: cython.longlong) -> list[int]:
    """Return the rows of a `unit_table` whose record does not begin within `gap_max` bytes after that of the row
    before.
    """
    found: list[int] = []
    row: cython.Py_ssize_t
    for row in range(len(table) // 4):
        gap: cython.longlong = -1
        if row:
            gap = table[4 * row] - (table[4 * row - 4] + table[4 * row - 3])
        if gap < 0 or gap > gap_max:
            found.append(row)
    return found


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
    """Select units up to the first that exceeds a limit.

    Args:
        log_start, log_end: the readable part of the log.
        memory_from: records from here on have the limits of memory; earlier ones those of the disk.
        max_bytes: no record is added to this many bytes.
        memory_messages, memory_bytes, disk_messages, disk_bytes: the limits.
        codes: hashes of the wanted tags, ascending; None for all. A unit with the address of an extended entry instead
            of a tags code matches any tag.
        accepts: called with position and size of each remaining record, returns whether to take it, or None to end the
            scan before this unit. None accepts all.

    Returns:
        How many units were processed, and records selected; their bytes; position and size of each contiguous part; how
            many records are not in the log.
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


def damaged_unit(units: cython.const[cython.uchar][::1], log_end: cython.longlong, file_size: cython.longlong) -> int:
    """Return the first unit that points to where no record can be or could have been; -1 if there is none.

    A record is within one file of the log; pre-blank units point nowhere.
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
    """Return a position in every log file that has a record of the units."""
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
    """Return the number of units before the first that is invalid or whose record is at or after `place_limit`."""
    row: cython.Py_ssize_t
    for row in range(len(units) // 20):
        place: cython.longlong = raw.i64(units, 20 * row)
        if not 0 <= place < place_limit or raw.i32(units, 20 * row + 8) <= 0:
            return row
    return len(units) // 20


def address_units(units: cython.const[cython.uchar][::1], log_start: cython.longlong) -> tuple[int, int]:
    """Return the first and last unit with an extended entry's address, of records from `log_start` on; -1 for none."""
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
    """Return the units that point neither to an expired record nor to damaged bytes of the log.

    Args:
        log_start: the start of the log, not negative.
        log_end: units of records from here on are only counted; -1: treat them like all others.
        may_be_blank: whether to skip pre-blank units.
        damaged: start and end of each damaged part of the log.

    Returns:
        These units, and the number of those only counted.
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
    units: cython.const[cython.uchar][::1], records: cython.const[cython.longlong][::1], start: cython.Py_ssize_t
) -> list[int]:
    """Return which records from `start` on, one for each unit, differ from those that the units point to.

    Args:
        records: queue offset, position and size of each record.
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
