"""Records in a buffer: finding their parts, describing them in a table, checking and sealing them.

Every length is checked before it is used, so nothing outside of the buffer is read. A table has one row of integers per
record (`scan_records`).
"""

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

COLUMNS: Final = (
    "position", "size", "queue_id", "queue_offset", "physical_offset", "store_timestamp_ms", "sys_flag", "flag",
    "born_timestamp_ms", "reconsume_times", "prepared_transaction_offset", "body_crc", "body_position", "body_size",
    "topic_position", "topic_size", "properties_position", "properties_size", "tag_position", "tag_size",
    "unique_id_position", "unique_id_size", "keys_position", "keys_size",
)  # fmt: skip
"""The numbers in a row of the table. Positions are bytes from the start of the buffer.

Tag, unique id and keys are the values of the last units of these names that have a value; size 0 means none.
"""

# What is at a position: a record, the end of a file, something else, an incomplete record.
_RECORD = cython.declare(cython.int, 0)
_BLANK = cython.declare(cython.int, 1)
_INVALID = cython.declare(cython.int, 2)
_TRUNCATED = cython.declare(cython.int, 3)
RECORD: Final = 0
BLANK: Final = 1
INVALID: Final = 2
TRUNCATED: Final = 3


@cython.cclass
class _Record:
    """The parts of one record; a scan reuses one object."""

    size: cython.Py_ssize_t
    sys_flag: cython.int
    store_timestamp: cython.Py_ssize_t
    back: cython.Py_ssize_t
    body: cython.Py_ssize_t
    body_size: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    topic_size: cython.Py_ssize_t
    properties: cython.Py_ssize_t
    properties_size: cython.Py_ssize_t
    tag: cython.Py_ssize_t
    tag_size: cython.Py_ssize_t
    unique_id: cython.Py_ssize_t
    unique_id_size: cython.Py_ssize_t
    keys: cython.Py_ssize_t
    keys_size: cython.Py_ssize_t
    reason: object


@cython.cfunc
def _read(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t, record: _Record
) -> cython.int:
    """Find the parts of the record at `[position, end)`; without one, set `record.reason`."""
    left: cython.Py_ssize_t = end - position
    magic: cython.int
    size: cython.Py_ssize_t
    length_size: cython.Py_ssize_t
    at: cython.Py_ssize_t
    record.size = 0
    if left < 8:
        record.reason = f"{max(left, 0)} bytes are left, too few for a size and a magic"
        return _TRUNCATED
    size = raw.i32(data, position)
    magic = raw.i32(data, position + 4)
    if magic == -875_286_124:
        record.size = size
        record.reason = ""
        return _BLANK
    if magic == -626_843_481:
        length_size = 1
    elif magic == -626_843_477:
        length_size = 2
    else:
        record.reason = f"magic {magic & 0xFFFF_FFFF:#010x} is not that of a record"
        return _INVALID
    if size < 88 + length_size + 3:
        record.reason = f"TOTALSIZE {size} is too small for a record"
        return _INVALID
    record.size = size
    if size > left:
        record.reason = f"TOTALSIZE is {size}, but only {left} bytes are left"
        return _TRUNCATED
    record.sys_flag = raw.i32(data, position + 36)
    record.store_timestamp = position + 48 + (20 if record.sys_flag & 0x10 else 8)
    record.back = record.store_timestamp + 8 + (20 if record.sys_flag & 0x20 else 8)
    record.body = record.back + 16
    stop: cython.Py_ssize_t = position + size
    # Room for body, topic and properties beyond their minimum.
    spare: cython.Py_ssize_t = stop - record.body - length_size - 3
    if spare < 0:
        record.reason = f"TOTALSIZE {size} is too small for a record with IPv6 hosts"
        return _INVALID
    record.body_size = raw.i32(data, record.body - 4)
    if not 0 <= record.body_size <= spare:
        record.reason = f"BODYLEN {record.body_size} does not fit into TOTALSIZE {size}"
        return _INVALID
    at = record.body + record.body_size
    record.topic = at + length_size
    if length_size == 2:
        record.topic_size = raw.i16(data, at)
    else:
        record.topic_size = data[at] if data[at] < 128 else cython.cast(cython.int, data[at]) - 256
    if not 0 < record.topic_size <= stop - record.topic - 2:
        record.reason = f"TOPICLEN {record.topic_size} does not fit into TOTALSIZE {size}"
        return _INVALID
    record.properties = record.topic + record.topic_size + 2
    record.properties_size = raw.i16(data, record.properties - 2)
    if record.properties_size < 0 or record.properties + record.properties_size != stop:
        room = stop - record.properties
        record.reason = f"PROPLEN is {record.properties_size}, but TOTALSIZE {size} leaves {room} bytes for it"
        return _INVALID
    if raw.i32(data, position + 12) < 0:
        record.reason = f"QUEUEID {raw.i32(data, position + 12)} is negative"
        return _INVALID
    return _RECORD


@cython.cfunc
def _checksum_fault(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    properties: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    must_have: cython.bint,
) -> object:
    """Return why the checksum property of the record at `[position, stop)` is wrong, or None.

    An absent one is wrong if it is required.
    """
    if not raw.ends_with_checksum(data, properties, stop):
        return "the record has no checksum property" if must_have else None
    found = bytes(data[stop - 20 : stop])
    expected = checksum_property(raw.crc31(data, position, stop - 20))
    if found == expected:
        return None
    return f"the record's checksum property is {found!r}, should be {expected!r}"


def crc32(data: cython.const[cython.uchar][::1], value: cython.uint = 0) -> int:
    """Return the CRC-32 of `data` like `zlib.crc32`; `value` is that of the preceding bytes."""
    return raw.crc(data, 0, len(data), value)


def body_fault(stated: int, actual: int) -> str:
    """Return the message for a record whose stated checksum is not its body's."""
    return f"BODYCRC is {stated & 0xFFFF_FFFF:#010x}, but the body's CRC is {actual:#010x}"


def checksum_property(value: int) -> bytes:
    """Return the 20 bytes of the whole-record checksum `value`: ten digits, the least significant first."""
    return b"__CRC32#\x01%b\x02" % str(value)[::-1].ljust(10, "0").encode()


def read_record(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    check_crc: cython.bint,
    check_properties_crc: cython.bint,
) -> tuple[int, int, str, tuple[int, int, int, int, int, int, int] | None]:
    """Examine what is at `[position, end)`.

    Returns:
        One of RECORD, BLANK, INVALID, TRUNCATED; the size; the reason; and for a valid record: position and size of
            body, topic and properties, and the store timestamp.
    """
    _check_range(position, end, len(data))
    record: _Record = _Record()
    status: cython.int = _read(data, position, end, record)
    if status != RECORD:
        return status, record.size, record.reason, None
    fault: object = None
    if check_crc:
        crc: cython.int = raw.crc31(data, record.body, record.body + record.body_size)
        if crc != raw.i32(data, position + 8):
            fault = body_fault(raw.i32(data, position + 8), crc)
    if fault is None and (check_crc or check_properties_crc):
        fault = _checksum_fault(data, position, record.properties, position + record.size, check_properties_crc)
    if fault is not None:
        return _INVALID, record.size, str(fault), None
    return (
        RECORD,
        record.size,
        "",
        (
            record.body,
            record.body_size,
            record.topic,
            record.topic_size,
            record.properties,
            record.properties_size,
            record.store_timestamp,
        ),
    )


@cython.cfunc
@cython.exceptval(check=False)
def _find_units(data: cython.const[cython.uchar][::1], record: _Record) -> cython.void:
    """Find tag, unique id and keys in a record's properties, tolerantly: the last of each counts.

    A value ends with 0x02 or with the text, and may contain 0x01; a unit without a value is ignored.
    """
    name: cython.Py_ssize_t = record.properties
    stop: cython.Py_ssize_t = name + record.properties_size
    end: cython.Py_ssize_t
    value: cython.Py_ssize_t
    record.tag = record.unique_id = record.keys = name
    record.tag_size = record.unique_id_size = record.keys_size = 0
    while name < stop:
        end = raw.find(data, 2, name, stop)
        value = raw.find(data, 1, name, end) + 1
        if value < end:
            if value - name == 5:
                if raw.has(data, name, end, b"TAGS"):
                    record.tag = value
                    record.tag_size = end - value
                elif raw.has(data, name, end, b"KEYS"):
                    record.keys = value
                    record.keys_size = end - value
            elif value - name == 9 and raw.has(data, name, end, b"UNIQ_KEY"):
                record.unique_id = value
                record.unique_id_size = end - value
        name = end + 1


def scan_records(
    buffer: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t, physical_offset: cython.longlong = -1
) -> tuple[Any, int, int, int, str]:
    """Read the consecutive valid records from `start` on, without verifying checksums.

    Args:
        buffer: bytes of the log.
        physical_offset: the log position of `start`; a record that states another position is invalid. -1: ignored.

    Returns:
        The table, an `array('q')` of `len(COLUMNS)` numbers for each record; where the records end; what is there
            (RECORD means the end of the buffer); the size that it states, and why it is not a record.
    """
    data: cython.const[cython.uchar][::1] = raw.searchable(buffer)
    _check_range(start, end, len(data))
    record: _Record = _Record()
    record.size = 0
    status: cython.int = RECORD
    position: cython.Py_ssize_t = start
    rows: cython.Py_ssize_t = _count_sizes(data, start, end)
    found = raw.zeros(_NUMBERS, 24 * rows)
    reason = ""
    row: cython.Py_ssize_t = 0
    if rows:
        table: cython.longlong[::1] = found
        while row < rows:
            status = _read(data, position, end, record)
            if status != RECORD:
                break
            if physical_offset >= 0 and raw.i64(data, position + 28) != physical_offset + position - start:
                status = INVALID
                record.reason = (
                    f"PHYSICALOFFSET is {raw.i64(data, position + 28)}, but the record lies at "
                    f"{physical_offset + position - start}"
                )
                break
            _find_units(data, record)
            _fill_row(data, position, record, table, 24 * row)
            position += record.size
            row += 1
        table = None  # an array cannot be resized while a view of it exists
    if status == RECORD and position < end:
        status = _read(data, position, end, record)
        assert status != RECORD, "sizes were followed to the end"
    if status != RECORD:
        reason = str(record.reason)
    del found[24 * row :]
    return found, position, status, record.size, reason


def properties_have_any(buffer: object, parts: tuple[bytes, ...]) -> bool:
    """Return whether the name of any property of the valid records in `buffer` begins with one of `parts`."""
    data: cython.const[cython.uchar][::1] = raw.searchable(buffer)
    record: _Record = _Record()
    position: cython.Py_ssize_t = 0
    while _read(data, position, len(data), record) == _RECORD:
        name: cython.Py_ssize_t = record.properties
        stop: cython.Py_ssize_t = record.properties + record.properties_size
        while name < stop:
            for part in parts:
                if raw.has(data, name, stop, part):
                    return True
            name = raw.find(data, 2, name, stop) + 1
        position += record.size
    return False


def record_starts(data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> Any:
    """Return where consecutive records start from `position` on, by their sizes only."""
    _check_range(position, end, len(data))
    rows: cython.Py_ssize_t = _count_sizes(data, position, end)
    found = raw.zeros(_NUMBERS, rows)
    if rows:
        starts: cython.longlong[::1] = found
        row: cython.Py_ssize_t
        for row in range(rows):
            starts[row] = position
            position += raw.i32(data, position)
    return found


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check_range(start: cython.Py_ssize_t, end: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
    if start < 0 or end > size:
        raise ValueError(f"bytes {start} to {end} are not in a buffer of {size}")
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _count_sizes(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the maximum number of records, by their sizes."""
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    while end - position >= 92:
        size = raw.i32(data, position)
        if not 92 <= size <= end - position:
            break
        position += size
        count += 1
    return count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _fill_row(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    record: _Record,
    table: cython.longlong[::1],
    at: cython.Py_ssize_t,
) -> cython.void:
    """Write one row, in the order of `COLUMNS`."""
    table[at] = position
    table[at + 1] = record.size
    table[at + 2] = raw.i32(data, position + 12)
    table[at + 3] = raw.i64(data, position + 20)
    table[at + 4] = raw.i64(data, position + 28)
    table[at + 5] = raw.i64(data, record.store_timestamp)
    table[at + 6] = record.sys_flag
    table[at + 7] = raw.i32(data, position + 16)
    table[at + 8] = raw.i64(data, position + 40)
    table[at + 9] = raw.i32(data, record.back)
    table[at + 10] = raw.i64(data, record.back + 4)
    table[at + 11] = raw.i32(data, position + 8)
    table[at + 12] = record.body
    table[at + 13] = record.body_size
    table[at + 14] = record.topic
    table[at + 15] = record.topic_size
    table[at + 16] = record.properties
    table[at + 17] = record.properties_size
    table[at + 18] = record.tag
    table[at + 19] = record.tag_size
    table[at + 20] = record.unique_id
    table[at + 21] = record.unique_id_size
    table[at + 22] = record.keys
    table[at + 23] = record.keys_size


def checksum_faults(
    buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1], bodies: cython.bint = True
) -> list[tuple[int, str]]:
    """Return the rows whose record fails the checksum of its body or, if it has one, of the whole record.

    Args:
        bodies: False, for readers that return no bodies: verify only whole-record checksums.

    Returns:
        Number and reason for each such row.
    """
    found = []
    row: cython.Py_ssize_t
    for row in range(len(table) // 24):
        at: cython.Py_ssize_t = 24 * row
        stop: cython.Py_ssize_t = table[at] + table[at + 1]
        is_inside: cython.bint = 0 <= table[at] < stop <= len(buffer) and table[at] <= table[at + 16] <= stop
        if not is_inside or not table[at] <= table[at + 12] <= stop or not 0 <= table[at + 13] <= stop - table[at + 12]:
            raise ValueError(f"row {row} of the table is not of a buffer of {len(buffer)} bytes")
        is_sealed: cython.bint = raw.ends_with_checksum(buffer, table[at + 16], stop)
        if not bodies and not is_sealed:
            continue
        crc: cython.int = raw.crc31(buffer, table[at + 12], table[at + 12] + table[at + 13])
        if crc != table[at + 11]:
            found.append((row, body_fault(table[at + 11], crc)))
        elif is_sealed:
            fault: object = _checksum_fault(buffer, table[at], table[at + 16], stop, True)
            if fault is not None:
                found.append((row, str(fault)))
    return found


def queue_records(
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    topic: bytes,
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
    is_gapless: cython.bint,
) -> tuple[Any, int]:
    """Read the consecutive records of one queue from `start` on, without verifying checksums.

    Ends before the first bytes that are not a valid record of this queue with the next queue offset.

    Args:
        topic, queue_id: the queue.
        queue_offset: of the first record.
        is_gapless: whether queue offsets are consecutive; otherwise they ascend.

    Returns:
        The table, and where the records end.
    """
    data: cython.const[cython.uchar][::1] = raw.searchable(buffer)
    _check_range(start, end, len(data))
    record: _Record = _Record()
    position: cython.Py_ssize_t = start
    # Room for the smallest records: following their sizes first would read each twice from memory.
    rows: cython.Py_ssize_t = (end - start) // 92
    found = raw.room(_NUMBERS, 24 * rows)
    if not rows:
        return found, position
    row: cython.Py_ssize_t = 0
    table: cython.longlong[::1] = found
    while row < rows and _read(data, position, end, record) == _RECORD:
        number: cython.longlong = raw.i64(data, position + 20)
        if (
            raw.i32(data, position + 12) != queue_id
            or number < queue_offset
            or (is_gapless and number != queue_offset)
            or record.topic_size != len(topic)
            or not raw.has(data, record.topic, record.properties, topic)
        ):
            break
        _find_units(data, record)
        _fill_row(data, position, record, table, 24 * row)
        position += record.size
        row += 1
        if number == 0x7FFF_FFFF_FFFF_FFFF:
            break  # the maximum has no successor
        queue_offset = number + 1
    table = None  # an array cannot be resized while a view of it exists
    del found[24 * row :]
    return found, position


def unit_records(
    buffer: object,
    base_offset: cython.longlong,
    units: cython.const[cython.longlong][::1],
    queues: list[tuple[bytes, int]],
) -> tuple[Any, list[int]]:
    """Read the records that ConsumeQueue units point to, without verifying checksums.

    Args:
        buffer: bytes of the log.
        base_offset: the log position of the buffer's start.
        units: for each its log position, size, queue offset, and the index of its queue.
        queues: topic and queue id of each.

    Returns:
        The table of the valid records that match their units; the units without such a record.
    """
    data: cython.const[cython.uchar][::1] = buffer
    record: _Record = _Record()
    rows: cython.Py_ssize_t = len(units) // 4
    found = raw.room(_NUMBERS, 24 * rows)
    wrong: list[int] = []
    if not rows:
        return found, wrong
    table: cython.longlong[::1] = found
    count: cython.Py_ssize_t = 0
    owner: cython.longlong = -1
    topic: bytes = b""
    queue_id: cython.longlong = 0
    row: cython.Py_ssize_t
    for row in range(rows):
        place: cython.longlong = units[4 * row]
        size: cython.longlong = units[4 * row + 1]
        at: cython.Py_ssize_t = 0
        if units[4 * row + 3] != owner:
            owner = units[4 * row + 3]
            if not 0 <= owner < len(queues):
                raise ValueError(f"a unit is of queue {owner} of {len(queues)}")
            topic, queue_id = queues[owner]
        if 92 <= size <= len(data) and base_offset <= place <= base_offset + (len(data) - size):
            at = place - base_offset
        else:
            size = 0
        if (
            not size
            or raw.i32(data, at) != size
            or _read(data, at, at + size, record) != _RECORD
            or raw.i64(data, at + 28) != place
            or raw.i64(data, at + 20) != units[4 * row + 2]
            or raw.i32(data, at + 12) != queue_id
            or record.topic_size != len(topic)
            or not raw.has(data, record.topic, record.properties, topic)
        ):
            wrong.append(row)
            continue
        _find_units(data, record)
        _fill_row(data, at, record, table, 24 * count)
        count += 1
    table = None  # an array cannot be resized while a view of it exists
    del found[24 * count :]
    return found, wrong


def follow_records(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base_offset: cython.longlong,
    check_crc: cython.bint,
    found: dict[tuple[bytes, int], Any],
) -> tuple[int, int]:
    """Follow the valid records of a log file that belong to known queues, up to the first other one.

    Args:
        position: where the first record should start.
        stop: records from here on are not read.
        end: no record may extend beyond.
        base_offset: the log position of the file. Every record must state its position.
        check_crc: verify checksums.
        found: for each known queue, by topic and queue id, an `array('q')` to which queue offset, log position and size
            of its records are appended.

    Returns:
        Where the records end, and where the last of them starts, or -1.
    """
    record: _Record = _Record()
    last: cython.Py_ssize_t = -1
    topic: cython.Py_ssize_t = 0
    topic_size: cython.Py_ssize_t = -1
    queue_id: cython.int = -1
    rows: Any = None
    end = min(end, len(data))
    while 0 <= position < stop:
        if _read(data, position, end, record) != _RECORD or record.sys_flag & 4:
            break  # a prepared or rolled-back record has no place in a queue
        if raw.i64(data, position + 28) != base_offset + position:
            break
        if check_crc:
            if raw.crc31(data, record.body, record.body + record.body_size) != raw.i32(data, position + 8):
                break
            stop_of_record: cython.Py_ssize_t = position + record.size
            if _checksum_fault(data, position, record.properties, stop_of_record, False) is not None:
                break
        if (
            raw.i32(data, position + 12) != queue_id
            or record.topic_size != topic_size
            or not raw.same(data, record.topic, topic, topic_size)
        ):
            queue_id = raw.i32(data, position + 12)
            topic = record.topic
            topic_size = record.topic_size
            rows = found.get((bytes(data[topic : topic + topic_size]), queue_id))
            if rows is None:
                break
        rows.extend((raw.i64(data, position + 20), base_offset + position, record.size))
        last = position
        position += record.size
    return position, last


def patch_block(
    buffer: cython.uchar[::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    queue_offset: cython.longlong,
    step: cython.int,
    physical_offset: cython.longlong,
    store_timestamp_ms: cython.longlong,
    hosts: cython.const[cython.uchar][::1],
    is_sealed: cython.bint,
) -> None:
    """Write the broker's fields into the valid records in `[start, stop)`, which are appended together.

    Args:
        queue_offset: of the first record.
        step: from one queue offset to the next.
        physical_offset: log position of the first record.
        hosts: 8 bytes each of born host and store host; if empty, the records' hosts are kept.
        is_sealed: whether any record ends with a whole-record checksum, which is then computed again.
    """
    position: cython.Py_ssize_t = start
    while position < stop:
        raw.put_i64(buffer, position + 20, queue_offset)
        raw.put_i64(buffer, position + 28, physical_offset + position - start)
        if len(hosts) == 16:
            raw.copy(hosts, 0, 8, buffer, position + 48)
            raw.copy(hosts, 8, 8, buffer, position + 64)
        raw.put_i64(buffer, position + (68 if buffer[position + 39] & 0x10 else 56), store_timestamp_ms)
        if is_sealed:
            seal_record(buffer, position)
        queue_offset += step
        position += raw.i32(buffer, position)


def seal_record(buffer: cython.uchar[::1], position: cython.Py_ssize_t) -> None:
    """Recompute the whole-record checksum of the valid record at `position`, if it has one."""
    record: _Record = _Record()
    stop: cython.Py_ssize_t = position + raw.i32(buffer, position)
    # One byte rules out almost every record.
    if buffer[stop - 20] != 0x5F or _read(buffer, position, stop, record) != RECORD:
        return
    if raw.ends_with_checksum(buffer, record.properties, stop):
        text: bytes = checksum_property(raw.crc31(buffer, position, stop - 20))
        index: cython.Py_ssize_t
        for index in range(20):
            buffer[stop - 20 + index] = text[index]
