"""Columns, hashes, and runs of one queue, from a table of records (`records.scan_records`)."""

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
_INTEGERS: Final = array("i")


@cython.cfunc
@cython.exceptval(-1)
def _rows_of(
    places: cython.const[cython.longlong][::1], first: cython.Py_ssize_t, step: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    if not 0 <= first <= step - 2 or len(places) % step:
        raise ValueError(f"{len(places)} numbers have no place and size at {first} of every {step}")
    return len(places) // step


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check_place(start: cython.longlong, size: cython.longlong, end: cython.Py_ssize_t) -> cython.int:
    if start < 0 or size < 0 or size > end or start > end - size:
        raise ValueError(f"{size} bytes at {start} are not in a buffer of {end} bytes")
    return 0


# A column is given as places: a row's value starts at `places[first + row * step]`; its size is next.


def gather(
    buffer: cython.const[cython.uchar][::1],
    places: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    step: cython.Py_ssize_t,
    is_text: cython.bint = False,
    replaced: dict[int, bytes] | None = None,
) -> tuple[Any, bytearray, bytearray, int]:
    """Copy values out of a buffer in Arrow's layout.

    Args:
        buffer, places, first, step: the values.
        is_text: replace invalid UTF-8 as `bytes.decode` does.
        replaced: replacements of values, by row.

    Returns:
        Where the values begin and the last one ends, an `array('i')`; the values back to back; a bit for each row, set
            if it has a non-empty value; the number of rows without one.

    Raises:
        ValueError: the values have 2 GiB or more.
    """
    rows: cython.Py_ssize_t = _rows_of(places, first, step)
    bounds = array("i", bytes(4 * rows + 4))
    has_value = bytearray((rows + 7) // 8)
    others: dict[int, bytes] = {} if replaced is None else dict(replaced)
    ends: cython.int[::1] = bounds
    row: cython.Py_ssize_t
    start: cython.longlong
    size: cython.longlong
    total: cython.longlong = 0
    missing: cython.Py_ssize_t = 0
    is_changed: cython.bint = False
    value: bytes
    text: bytes
    for row in range(rows):
        start = places[first + row * step]
        size = places[first + row * step + 1]
        _check_place(start, size, len(buffer))
        if others and row in others:
            size = len(others[row])
        total += size
        if total > 0x7FFF_FFFF:
            raise ValueError("the values of a column have 2 GiB or more; take fewer rows")
        ends[row + 1] = total
        if size:
            has_value[row // 8] |= 1 << (row % 8)
        else:
            missing += 1
    joined = raw.bytes_room(total)
    if total:
        data: cython.uchar[::1] = joined
        for row in range(rows):
            start = places[first + row * step]
            size = ends[row + 1] - ends[row]
            if others and row in others:
                value = others[row]
                raw.copy(value, 0, size, data, ends[row])
                continue
            raw.copy(buffer, start, size, data, ends[row])
            if is_text and not raw.is_ascii(buffer, start, start + size):
                value = raw.copied(buffer, start, size)
                text = value.decode("utf-8", "replace").encode()
                if text != value:
                    others[row] = text
                    is_changed = True
    if is_changed:
        return gather(buffer, places, first, step, False, others)
    return bounds, joined, has_value, missing


def distinct(
    buffer: cython.const[cython.uchar][::1],
    places: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    step: cython.Py_ssize_t,
) -> tuple[list[bytes], Any]:
    """Return the distinct values in order of their first rows, and an `array('q')` with each row's index."""
    rows: cython.Py_ssize_t = _rows_of(places, first, step)
    found = raw.zeros(_NUMBERS, rows)
    numbers: dict[bytes, int] = {}
    codes: cython.longlong[::1] = found
    row: cython.Py_ssize_t
    for row in range(rows):
        start: cython.longlong = places[first + row * step]
        size: cython.longlong = places[first + row * step + 1]
        _check_place(start, size, len(buffer))
        value: bytes = raw.copied(buffer, start, size)
        number = numbers.get(value)
        if number is None:
            number = numbers[value] = len(numbers)
        codes[row] = number
    return list(numbers), found


def property_places(
    buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1], name: bytes
) -> Any:
    """Return where each record has the value of a property, from the last unit of this name with a value.

    Returns:
        An `array('q')` of two numbers for each row: position and size, 0 without the property.
    """
    rows: cython.Py_ssize_t = _rows_of(table, 16, 24)
    found = raw.zeros(_NUMBERS, 2 * rows)
    places: cython.longlong[::1] = found
    row: cython.Py_ssize_t
    for row in range(rows):
        at: cython.Py_ssize_t = table[24 * row + 16]
        _check_place(at, table[24 * row + 17], len(buffer))
        stop: cython.Py_ssize_t = at + table[24 * row + 17]
        while at < stop:
            end: cython.Py_ssize_t = raw.find(buffer, 2, at, stop)
            value: cython.Py_ssize_t = raw.find(buffer, 1, at, end) + 1
            if at + 1 < value < end and value - at == len(name) + 1 and raw.has(buffer, at, end, name):
                places[2 * row] = value
                places[2 * row + 1] = end - value
            at = end + 1
    return found


def property_columns(
    buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1]
) -> tuple[Any, Any, bytearray, Any, bytearray]:
    """Copy all properties of the records in Arrow's layout, read tolerantly (`decode_properties`).

    A repeated name is at its first place, with the last value. Invalid UTF-8 is replaced as `bytes.decode` does.

    Returns:
        The index of each record's first property, and last their number; where the names begin and the last one ends,
            and the names back to back; the same of the values. Indexes and places are `array('i')`.

    Raises:
        ValueError: the table is not of this buffer, or the properties have 2 GiB or more.
    """
    rows: cython.Py_ssize_t = _rows_of(table, 16, 24)
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    room: cython.Py_ssize_t = 0
    most: cython.Py_ssize_t = 0
    is_plain: cython.bint
    firsts = raw.zeros(_INTEGERS, rows + 1)
    bounds: cython.int[::1] = firsts
    for row in range(rows):
        at = table[24 * row + 16]
        _check_place(at, table[24 * row + 17], len(buffer))
        stop = at + table[24 * row + 17]
        if stop - at > 0x7FFF:
            raise ValueError(f"row {row} of the table has properties of {stop - at} bytes; at most 32767 fit")
        is_plain = raw.is_ascii(buffer, at, stop)
        bounds[row + 1] = is_plain  # until the row's bound is known
        # A replacement takes three bytes; a property takes three without its end.
        room += stop - at if is_plain else 3 * (stop - at)
        most += (stop - at + 1) // 4
    if room > 0x7FFF_FFFF:
        raise ValueError("the properties have 2 GiB or more; take fewer rows")
    found = (raw.room(_INTEGERS, most + 1), raw.room(_INTEGERS, most + 1))
    joined = (raw.bytes_room(room + 1), raw.bytes_room(room + 1))
    name_ends: cython.int[::1] = found[0]
    value_ends: cython.int[::1] = found[1]
    names: cython.uchar[::1] = joined[0]
    values: cython.uchar[::1] = joined[1]
    name_ends[0] = value_ends[0] = 0
    # Finds a name of the same record: the number of its property, from 1. Numbers of earlier records mean nothing.
    slots: cython.int[::1] = raw.zeros(_INTEGERS, 0x4000)
    slot: cython.uint
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    size: cython.Py_ssize_t
    value: cython.Py_ssize_t
    name_at: cython.Py_ssize_t = 0
    value_at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    # Most records have the names of an earlier one, in its order: these are its properties.
    known: cython.Py_ssize_t
    known_first: cython.Py_ssize_t = 0
    known_end: cython.Py_ssize_t = 0
    for row in range(rows):
        at = table[24 * row + 16]
        stop = at + table[24 * row + 17]
        first = count
        is_plain = bounds[row + 1]
        known = known_first
        while is_plain and at < stop and known < known_end:
            size = name_ends[known + 1] - name_ends[known]
            value = at + size + 1
            if value >= stop or buffer[value - 1] != 1:
                break
            if not raw.equal(buffer, at, names, name_ends[known], size):
                break
            end = raw.find(buffer, 2, value, stop)
            if end == value:
                break
            name_at = raw.copy(buffer, at, size, names, name_ends[count])
            value_at = raw.copy(buffer, value, end - value, values, value_ends[count])
            count += 1
            name_ends[count] = name_at
            value_ends[count] = value_at
            known += 1
            at = end + 1
        if is_plain and at < stop:  # there are others, or more
            count = first
            at = table[24 * row + 16]
        while is_plain and at < stop:
            end = raw.find(buffer, 2, at, stop)
            value = raw.find(buffer, 1, at, end) + 1
            if at + 1 < value < end:
                name_at = raw.copy(buffer, at, value - 1 - at, names, name_ends[count])
                slot = _hash_bytes(buffer, at, value - 1, 0) & 0x3FFF
                while slots[slot] > first:
                    number: cython.Py_ssize_t = slots[slot] - 1
                    if name_ends[number + 1] - name_ends[number] == value - 1 - at and raw.same(
                        names, name_ends[number], name_ends[count], value - 1 - at
                    ):
                        is_plain = False
                        break
                    slot = (slot + 1) & 0x3FFF
                slots[slot] = count + 1
                value_at = raw.copy(buffer, value, end - value, values, value_ends[count])
                count += 1
                name_ends[count] = name_at
                value_ends[count] = value_at
            at = end + 1
        if is_plain and count - first != known - known_first:
            known_first, known_end = first, count
        if not is_plain:
            if count > first:
                for slot in range(0x4000):
                    slots[slot] = 0
            count = first
            at = table[24 * row + 16]
            for name, text in _decoded(buffer, at, stop).items():
                data: bytes = name.encode()
                name_at = raw.copy(data, 0, len(data), names, name_ends[count])
                data = text.encode()
                value_at = raw.copy(data, 0, len(data), values, value_ends[count])
                count += 1
                name_ends[count] = name_at
                value_ends[count] = value_at
        bounds[row + 1] = count
    name_at = name_ends[count]
    value_at = value_ends[count]
    # What has a view cannot be resized.
    names = values = name_ends = value_ends = None
    del joined[0][name_at:]
    del joined[1][value_at:]
    del found[0][count + 1 :]
    del found[1][count + 1 :]
    return firsts, found[0], joined[0], found[1], joined[1]


@cython.cfunc
def _decoded(buffer: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> dict[str, str]:
    """Return properties as text, with invalid UTF-8 replaced."""
    found: dict[str, str] = {}
    while at < stop:
        end: cython.Py_ssize_t = raw.find(buffer, 2, at, stop)
        value: cython.Py_ssize_t = raw.find(buffer, 1, at, end) + 1
        if at + 1 < value < end:
            name = raw.copied(buffer, at, value - 1 - at).decode("utf-8", "replace")
            found[name] = raw.copied(buffer, value, end - value).decode("utf-8", "replace")
        at = end + 1
    return found


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of `text`: signed 32 bits, over UTF-16 code units."""
    return _signed(_hash_units(text.encode("utf-16-be", "surrogatepass"), 0))


@cython.cfunc
def _hash_units(units: bytes, value: cython.uint) -> cython.uint:
    """Continue Java's hash `value` with big-endian UTF-16 code units."""
    index: cython.Py_ssize_t
    for index in range(0, len(units), 2):
        value = _hash_unit(value, cython.cast(cython.uint, units[index]) << 8 | units[index + 1])
    return value


@cython.cfunc
def _hash_bytes(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, value: cython.uint
) -> cython.uint:
    """Continue Java's hash `value` with the UTF-8 text at `[start, stop)`."""
    at: cython.Py_ssize_t
    for at in range(start, stop):
        if data[at] > 0x7F:
            return _hash_units(bytes(data[at:stop]).decode("utf-8", "replace").encode("utf-16-be"), value)
        value = _hash_unit(value, data[at])
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash_unit(value: cython.uint, unit: cython.uint) -> cython.uint:
    if cython.compiled:
        return 31 * value + unit
    return 31 * value + unit & 0xFFFF_FFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _signed(value: cython.uint) -> cython.int:
    if cython.compiled:
        return cython.cast(cython.int, value)
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tags_codes(buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1]) -> Any:
    """Return each record's tags code of a ConsumeQueue unit: the hash of its tag, or 0."""
    rows: cython.Py_ssize_t = len(table) // 24
    found = raw.zeros(_NUMBERS, rows)
    codes: cython.longlong[::1] = found
    row: cython.Py_ssize_t
    for row in range(rows):
        at: cython.Py_ssize_t = 24 * row
        if table[at + 19]:
            start: cython.Py_ssize_t = table[at + 18]
            codes[row] = _signed(_hash_bytes(buffer, start, start + table[at + 19], 0))
    return found


def key_hashes(
    buffer: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    topic_hash: cython.uint,
) -> Any:
    """Return the index entries of the rows `[start, stop)`: for each key its hash, physical offset and store time.

    Args:
        topic_hash: Java's hash, unsigned, of `TOPIC#`, the prefix of all these keys.

    Returns:
        An `array('q')` of three numbers for each key: first a record's unique id, then its keys in order.
    """
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    key: cython.Py_ssize_t
    end: cython.Py_ssize_t
    space: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    for row in range(start, stop):
        at = 24 * row
        count += table[at + 21] > 0
        for key in range(table[at + 22], table[at + 22] + table[at + 23]):
            count += buffer[key] != 0x20 and (key == table[at + 22] or buffer[key - 1] == 0x20)
    found = raw.zeros(_NUMBERS, 3 * count)
    if not count:
        return found
    keys: cython.longlong[::1] = found
    count = 0
    for row in range(start, stop):
        at = 24 * row
        key = table[at + 20]
        end = key + table[at + 21]
        if key < end:
            keys[count] = _index_hash(_hash_bytes(buffer, key, end, topic_hash))
            keys[count + 1] = table[at + 4]
            keys[count + 2] = table[at + 5]
            count += 3
        key = table[at + 22]
        end = key + table[at + 23]
        while key < end:
            space = key
            while space < end and buffer[space] != 0x20:
                space += 1
            if key < space:
                keys[count] = _index_hash(_hash_bytes(buffer, key, space, topic_hash))
                keys[count + 1] = table[at + 4]
                keys[count + 2] = table[at + 5]
                count += 3
            key = space + 1
    return found


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _index_hash(value: cython.uint) -> cython.longlong:
    """Return a key's hash in the index: the absolute value, or 0 for the one that has none."""
    signed: cython.longlong = _signed(value)
    return signed if signed >= 0 else -signed if signed > -2_147_483_647 - 1 else 0


def runs(
    buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1]
) -> list[tuple[bytes, int, int, int, int]]:
    """Return the runs of rows of one queue: topic, queue id, first row, row after the last, transaction bits.

    The system flag's transaction bits are equal in a run. Queue offsets are consecutive; those of prepared and
    rolled-back transaction records, which have no place in a queue, are ignored.
    """
    found = []
    rows: cython.Py_ssize_t = len(table) // 24
    row: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    for row in range(1, rows + 1):
        if row == rows or not _follows(buffer, table, 24 * row):
            at: cython.Py_ssize_t = 24 * first
            topic: cython.Py_ssize_t = table[at + 14]
            name = bytes(buffer[topic : topic + table[at + 15]])
            found.append((name, table[at + 2], first, row, table[at + 6] & 0xC))
            first = row
    return found


def columns_of_runs(
    table: cython.const[cython.longlong][::1],
    tags_codes: cython.const[cython.longlong][::1],
    runs: cython.const[cython.longlong][::1],
) -> tuple[Any, Any, Any, Any]:
    """Return physical offsets, sizes, tags codes and store times of the rows of some runs.

    Args:
        table, tags_codes: of all records.
        runs: the first row and the row after the last of each run.

    Raises:
        ValueError: a run has rows outside of the table.
    """
    rows: cython.Py_ssize_t = min(len(table) // 24, len(tags_codes))
    count: cython.Py_ssize_t = 0
    run: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for run in range(len(runs) // 2):
        if not 0 <= runs[2 * run] <= runs[2 * run + 1] <= rows:
            raise ValueError(f"rows {runs[2 * run]} to {runs[2 * run + 1]} are not in a table of {rows}")
        count += runs[2 * run + 1] - runs[2 * run]
    found = (
        raw.zeros(_NUMBERS, count),
        raw.zeros(_NUMBERS, count),
        raw.zeros(_NUMBERS, count),
        raw.zeros(_NUMBERS, count),
    )
    if not count:
        return found
    places: cython.longlong[::1] = found[0]
    sizes: cython.longlong[::1] = found[1]
    codes: cython.longlong[::1] = found[2]
    stored: cython.longlong[::1] = found[3]
    at: cython.Py_ssize_t = 0
    for run in range(len(runs) // 2):
        for row in range(runs[2 * run], runs[2 * run + 1]):
            places[at] = table[24 * row + 4]
            sizes[at] = table[24 * row + 1]
            codes[at] = tags_codes[row]
            stored[at] = table[24 * row + 5]
            at += 1
    return found


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _follows(
    data: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1], at: cython.Py_ssize_t
) -> cython.bint:
    """Return whether a row's record follows that of the previous row in the same queue."""
    before: cython.Py_ssize_t = at - 24
    if (
        table[at + 2] != table[before + 2]
        or table[at + 15] != table[before + 15]
        or table[at + 6] & 0xC != table[before + 6] & 0xC
        or (table[at + 3] != table[before + 3] + 1 and (table[at + 6] & 0xC == 0 or table[at + 6] & 0xC == 8))
    ):
        return False
    return raw.same(data, table[at + 14], table[before + 14], table[at + 15])
