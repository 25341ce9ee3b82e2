"""Every walk over records, as plain loops. Cython compiles this file where it can; elsewhere it runs as it is.

Nothing here knows a socket, a file or a clock, and nothing is read outside of the buffer that is passed: every length
is checked before it is used. What a buffer holds is described by a table of integers, one row per record
(`scan_records`); checking and patching a put block need no table.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Any, Final
from zlib import crc32 as _zlib_crc32

try:
    import cython
except ImportError:
    from reput_protocol import uncompiled as cython

from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import check_properties_size, properties_fault, reserved_property

if cython.compiled:
    from cython.cimports.cpython.array import clone
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.reput_protocol.crc32 import reput_crc32, reput_crc32_prepare

    reput_crc32_prepare()

FORM: Final = "compiled" if cython.compiled else "interpreted"
"""How this module runs."""

COLUMNS: Final = (
    "position", "size", "queue_id", "queue_offset", "physical_offset", "store_timestamp_ms", "sys_flag", "flag",
    "born_timestamp_ms", "reconsume_times", "prepared_transaction_offset", "body_crc", "body_position", "body_size",
    "topic_position", "topic_size", "properties_position", "properties_size", "tag_position", "tag_size",
    "unique_id_position", "unique_id_size", "keys_position", "keys_size",
)  # fmt: skip
"""What a row of a table says of its record, in this order. Positions are bytes from the start of the buffer.

Tag, unique id and keys are the values of the last units of these names that have a value; a size of 0 means none.
"""

# What is at a position: a record, the end of a file, something else, the beginning of a record or too little to tell.
_RECORD = cython.declare(cython.int, 0)
_BLANK = cython.declare(cython.int, 1)
_INVALID = cython.declare(cython.int, 2)
_TRUNCATED = cython.declare(cython.int, 3)
RECORD: Final = 0
BLANK: Final = 1
INVALID: Final = 2
TRUNCATED: Final = 3


class Refusal(Exception):
    """A put block breaks a rule.

    Attributes:
        index, position: the record that does, and where it starts.
        reason: which rule, with the values that break it.
        is_size: the record is sound, but larger than is accepted.
    """

    def __init__(self, index: int, position: int, reason: str, is_size: bool = False) -> None:
        super().__init__(index, position, reason, is_size)
        self.index = index
        self.position = position
        self.reason = reason
        self.is_size = is_size


# -- numbers and bytes --------------------------------------------------------------------------------------------
# The only code that exists twice: machine code reads bytes one by one, an interpreter has faster means.


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _i16(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.int:
    if cython.compiled:
        return cython.cast(cython.short, cython.cast(cython.int, data[at]) << 8 | data[at + 1])
    return _I16(data, at)[0]  # type: ignore[no-any-return]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _i32(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.int:
    if cython.compiled:
        high: cython.uint = (
            cython.cast(cython.uint, data[at]) << 24 | cython.cast(cython.uint, data[at + 1]) << 16
        )
        return cython.cast(cython.int, high | cython.cast(cython.uint, data[at + 2]) << 8 | data[at + 3])
    return _I32(data, at)[0]  # type: ignore[no-any-return]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _i64(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.longlong:
    if cython.compiled:
        high: cython.ulonglong = cython.cast(cython.uint, _i32(data, at))
        return cython.cast(cython.longlong, high << 32 | cython.cast(cython.uint, _i32(data, at + 4)))
    return _I64(data, at)[0]  # type: ignore[no-any-return]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_i16(data: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    data[at] = cython.cast(cython.uchar, value >> 8 & 0xFF)
    data[at + 1] = cython.cast(cython.uchar, value & 0xFF)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_hex(data: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.uint) -> cython.void:
    """Write 16 bits as four upper-case digits."""
    if cython.compiled:
        shift: cython.int
        digit: cython.uint
        for shift in range(4):
            digit = value >> (12 - 4 * shift) & 0xF
            data[at + shift] = cython.cast(cython.uchar, digit + (0x30 if digit < 10 else 0x37))
    else:
        data[at : at + 4] = b"%04X" % value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_i32(data: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    if cython.compiled:
        shift: cython.int
        for shift in range(4):
            data[at + shift] = cython.cast(cython.uchar, value >> (24 - 8 * shift) & 0xFF)
    else:
        _PACK_I32(data, at, value)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(
    source: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    target: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy `size` bytes and return where they end in `target`."""
    if cython.compiled:
        if size:
            memcpy(cython.address(target[at]), cython.address(source[start]), size)
    else:
        target[at : at + size] = source[start : start + size]
    return at + size


@cython.cfunc
@cython.exceptval(-1)
def _put(
    source: object, target: cython.uchar[::1], at: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Copy a whole bytes-like object to `target[at:stop]` and return where it ends.

    Raises:
        BufferError: it is too long, as one whose `len` is not its bytes.
    """
    if cython.compiled:
        view = cython.declare(Py_buffer)
        PyObject_GetBuffer(source, cython.address(view), PyBUF_SIMPLE)
        size: cython.Py_ssize_t = view.len
        if 0 < size <= stop - at:
            memcpy(cython.address(target[at]), view.buf, size)
        PyBuffer_Release(cython.address(view))
    else:
        size = memoryview(source).nbytes
        if size <= stop - at:
            target[at : at + size] = source
    if size > stop - at:
        raise BufferError(f"{size} bytes are copied to where there is room for {stop - at}")
    return at + size


@cython.cfunc
@cython.inline
def _bytes(data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> bytes:
    """Return a copy of `size` bytes, which are in the buffer."""
    if cython.compiled:
        if not size:
            return b""
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(data[start])), size)
    return bytes(data[start : start + size])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has(
    data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, stop: cython.Py_ssize_t, text: bytes
) -> cython.bint:
    """Tell whether `text` is at `at`, before `stop`."""
    if stop - at < len(text):
        return False
    if cython.compiled:
        index: cython.Py_ssize_t
        for index in range(len(text)):
            if data[at + index] != text[index]:
                return False
        return True
    return data[at : at + len(text)] == text


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _find(
    data: cython.const[cython.uchar][::1], byte: cython.uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return where `byte` is in `[at, stop)`; `stop` if it is not there."""
    if cython.compiled:
        while at < stop and data[at] != byte:
            at += 1
        return at
    if isinstance(data, memoryview):  # cannot be searched
        return at + _find(bytes(data[at:stop]), byte, 0, stop - at)
    found = data.find(byte, at, stop)
    return stop if found < 0 else found


@cython.cfunc
@cython.inline
def _searchable(buffer: object) -> object:
    """Return a buffer in which `_find` searches: an interpreter can search bytes only, and copies a view of some."""
    if cython.compiled or isinstance(buffer, bytes | bytearray):
        return buffer
    return bytes(buffer)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_i64(data: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    if cython.compiled:
        shift: cython.int
        for shift in range(8):
            data[at + shift] = cython.cast(cython.uchar, value >> (56 - 8 * shift) & 0xFF)
    else:
        _PACK_I64(data, at, value)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _crc31(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.int:
    """Return the CRC-32 of `[start, stop)` with the top bit cleared, the only checksum of a record."""
    if cython.compiled:
        if start == stop:
            return 0
        return cython.cast(
            cython.int, reput_crc32(0, cython.address(data[start]), stop - start) & 0x7FFF_FFFF
        )
    return _zlib_crc32(data[start:stop]) & 0x7FFF_FFFF


def crc32(data: cython.const[cython.uchar][::1], value: cython.uint = 0) -> int:
    """Return the CRC-32 of `data`, as `zlib.crc32` computes it; `value` is that of the bytes before."""
    if cython.compiled:
        if not len(data):
            return value
        return reput_crc32(value, cython.address(data[0]), len(data))
    return _zlib_crc32(data, value)


@cython.cfunc
@cython.inline
def _integers(count: cython.Py_ssize_t) -> Any:
    """Return an array of so many integers, all 0."""
    if cython.compiled:
        return clone(_NO_INTEGERS, count, True)
    return array("q", bytes(8 * count))


_NO_INTEGERS = array("q")
_I16: Final = Struct(">h").unpack_from
_I32: Final = Struct(">i").unpack_from
_I64: Final = Struct(">q").unpack_from
_U32: Final = 0xFFFF_FFFF
_PACK_I32: Final = Struct(">i").pack_into
_PACK_I64: Final = Struct(">q").pack_into


# -- the bytes of one record --------------------------------------------------------------------------------------


@cython.cclass
class _Record:
    """Where the parts of one record are. A scan has one and fills it again for every record."""

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
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    record: _Record,
) -> cython.int:
    """Find the parts of the record at `[position, end)`; say in `record.reason` why there is none."""
    left: cython.Py_ssize_t = end - position
    magic: cython.int
    size: cython.Py_ssize_t
    length_size: cython.Py_ssize_t
    at: cython.Py_ssize_t
    record.size = 0
    if left < 8:
        record.reason = f"{max(left, 0)} bytes are left, too few for a size and a magic"
        return _TRUNCATED
    size = _i32(data, position)
    magic = _i32(data, position + 4)
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
    record.sys_flag = _i32(data, position + 36)
    record.store_timestamp = position + 48 + (20 if record.sys_flag & 0x10 else 8)
    record.back = record.store_timestamp + 8 + (20 if record.sys_flag & 0x20 else 8)
    record.body = record.back + 16
    stop: cython.Py_ssize_t = position + size
    # What is left for body, topic and properties when each is as short as it can be.
    spare: cython.Py_ssize_t = stop - record.body - length_size - 3
    if spare < 0:
        record.reason = f"TOTALSIZE {size} is too small for a record with IPv6 hosts"
        return _INVALID
    record.body_size = _i32(data, record.body - 4)
    if not 0 <= record.body_size <= spare:
        record.reason = f"BODYLEN {record.body_size} does not fit into TOTALSIZE {size}"
        return _INVALID
    at = record.body + record.body_size
    record.topic = at + length_size
    if length_size == 2:
        record.topic_size = _i16(data, at)
    else:
        record.topic_size = data[at] if data[at] < 128 else cython.cast(cython.int, data[at]) - 256
    if not 0 < record.topic_size <= stop - record.topic - 2:
        record.reason = f"TOPICLEN {record.topic_size} does not fit into TOTALSIZE {size}"
        return _INVALID
    record.properties = record.topic + record.topic_size + 2
    record.properties_size = _i16(data, record.properties - 2)
    if record.properties_size < 0 or record.properties + record.properties_size != stop:
        room = stop - record.properties
        record.reason = (
            f"PROPLEN is {record.properties_size}, but TOTALSIZE {size} leaves {room} bytes for it"
        )
        return _INVALID
    if _i32(data, position + 12) < 0:
        record.reason = f"QUEUEID {_i32(data, position + 12)} is negative"
        return _INVALID
    return _RECORD


@cython.cfunc
@cython.exceptval(check=False)
def _ends_with_checksum(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.bint:
    """Tell whether the properties text `[start, stop)` ends with the unit of a whole-record checksum.

    Its digits may be damaged.
    """
    at: cython.Py_ssize_t = stop - 20
    return (
        at >= start
        and data[at] == 0x5F
        and data[stop - 1] == 2
        and data[at + 8] == 1
        and _has(data, at, stop, _CHECKSUM_NAME)
        and (at == start or data[at - 1] == 2)
    )


@cython.cfunc
def _checksum_fault(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    properties: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    must_have: cython.bint,
) -> object:
    """Say why the checksum property of the record at `[position, stop)` does not hold.

    None if it does, or if there is none and need be none.
    """
    if not _ends_with_checksum(data, properties, stop):
        return "the record has no checksum property" if must_have else None
    found = bytes(data[stop - 20 : stop])
    expected = checksum_property(_crc31(data, position, stop - 20))
    if found == expected:
        return None
    return f"the record's checksum property is {found!r}, should be {expected!r}"


def _body_fault(stated: int, actual: int) -> str:
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
    """Judge what is at `[position, end)`.

    Returns:
        One of RECORD, BLANK, INVALID, TRUNCATED; the size; the reason; and of a sound record where its parts are: body,
        its size, topic, its size, properties, their size, store timestamp.
    """
    _check_range(position, end, len(data))
    record: _Record = _Record()
    status: cython.int = _read(data, position, end, record)
    if status != RECORD:
        return status, record.size, record.reason, None
    fault: object = None
    if check_crc:
        crc: cython.int = _crc31(data, record.body, record.body + record.body_size)
        if crc != _i32(data, position + 8):
            fault = _body_fault(_i32(data, position + 8), crc)
    if fault is None and (check_crc or check_properties_crc):
        fault = _checksum_fault(
            data, position, record.properties, position + record.size, check_properties_crc
        )
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


# -- properties ---------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
def _find_units(data: cython.const[cython.uchar][::1], record: _Record) -> cython.void:
    """Find tag, unique id and keys in the properties of a record, as a tolerant reader does: the last of each counts.

    A value ends with 0x02 or with the text, and may hold 0x01; a unit without a value counts as none.
    """
    name: cython.Py_ssize_t = record.properties
    stop: cython.Py_ssize_t = name + record.properties_size
    end: cython.Py_ssize_t
    value: cython.Py_ssize_t
    record.tag = record.unique_id = record.keys = name
    record.tag_size = record.unique_id_size = record.keys_size = 0
    while name < stop:
        end = _find(data, 2, name, stop)
        value = _find(data, 1, name, end) + 1
        if value < end:
            if value - name == 5:
                if _has(data, name, end, _TAGS):
                    record.tag = value
                    record.tag_size = end - value
                elif _has(data, name, end, _KEYS):
                    record.keys = value
                    record.keys_size = end - value
            elif value - name == 9 and _has(data, name, end, _UNIQ_KEY):
                record.unique_id = value
                record.unique_id_size = end - value
        name = end + 1


@cython.cfunc
def _properties_fault(
    buffer: object,
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> object:
    """Say why a properties text may not be put, or return None if it may (`properties.properties_fault`)."""
    name: cython.Py_ssize_t = start
    end: cython.Py_ssize_t
    value: cython.Py_ssize_t
    if start == stop:
        return None
    while name < stop:
        end = _find(data, 2, name, stop)
        value = _find(data, 1, name, end) + 1
        if end == stop or value == name + 1 or value >= end or _may_be_reserved(data, name):
            break
        if _find(data, 1, value, end) < end:
            break
        name = end + 1
    if name == stop and _is_ascii(data, start, stop):
        return None
    return properties_fault(bytes(memoryview(buffer)[start:stop]))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _may_be_reserved(data: cython.const[cython.uchar][::1], name: cython.Py_ssize_t) -> cython.bint:
    """Tell whether a name, which is not empty, begins like one that only the broker may write."""
    first: cython.uchar = data[name]
    second: cython.uchar = data[name + 1]
    return (
        (first == 0x54 and (second == 0x49 or second == 0x52))  # TI, TR
        or (first == 0x49 and second == 0x4E)  # IN
        or (first == 0x52 and second == 0x45)  # RE
        or (first == 0x50 and second == 0x4F)  # PO
        or (first == 0x44 and second == 0x45)  # DE
        or (first == 0x5F and second == 0x5F)  # __
    )


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_ascii(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.bint:
    if cython.compiled:
        at: cython.Py_ssize_t
        for at in range(start, stop):
            if data[at] > 0x7F:
                return False
        return True
    return bytes(data[start:stop]).isascii()


_TAGS: Final = b"TAGS"
_KEYS: Final = b"KEYS"
_UNIQ_KEY: Final = b"UNIQ_KEY"
_CHECKSUM_NAME: Final = b"__CRC32#"


# -- frames -------------------------------------------------------------------------------------------------------


def cut_frames(
    buffer: object,
    start: cython.Py_ssize_t,
    total_max: cython.longlong,
    header_max: cython.longlong,
    made: object,
) -> tuple[list[Any], int, int, tuple[int, int] | None]:
    """Split `buffer` from `start` on into the whole frames that follow each other (`frames`).

    Args:
        buffer: bytes as they were received.
        total_max, header_max: the largest total and the largest header size that a frame may state.
        made: takes header type, header as bytes and body as a view of `buffer`, in one tuple; returns the frame.

    Returns:
        What `made` returned for each; where they end; how many bytes the frame that begins there has, as far as it is
        known; total and header size of that frame if it breaks the rules, else None.
    """
    data: cython.const[cython.uchar][::1] = buffer
    view = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    needed: cython.longlong = 8
    frames: list[Any] = []
    fault = None
    total: cython.longlong
    header_size: cython.longlong
    body: cython.Py_ssize_t
    while end - start >= 4:
        total = cython.cast(cython.uint, _i32(data, start)) if cython.compiled else _i32(data, start) & _U32
        if end - start < 8:
            if total > total_max or total < 4:
                fault = (total, 0)
            break
        header_size = _i32(data, start + 4) & 0xFF_FFFF
        if total > total_max or header_size > header_max or header_size > total - 4:
            fault = (total, header_size)
            break
        if total + 4 > end - start:
            needed = total + 4
            break
        body = start + 8 + header_size
        frames.append(made((data[start + 4], bytes(view[start + 8 : body]), view[body : start + 4 + total])))
        start += 4 + total
    return frames, start, needed, fault


def text_fields(data: bytes, at: cython.Py_ssize_t, fields_max: cython.Py_ssize_t) -> dict[str, str]:
    """Read the named texts that fill `data` from `at` on: of each 2 bytes of size, name, 4 bytes of size, value.

    Raises:
        ValueError: a size reaches past the end, a text is not UTF-8, or there are more than `fields_max`.
    """
    buffer: cython.const[cython.uchar][::1] = data
    end: cython.Py_ssize_t = len(buffer)
    fields: dict[str, str] = {}
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    while at < end:
        if count == fields_max:
            raise ValueError(f"more than {fields_max} fields")
        if end - at < 2:
            raise ValueError(f"{end - at} bytes are left, too few for the size of a field name")
        size = _i16(buffer, at)
        at += 2
        if not 0 <= size <= end - at:
            raise ValueError(f"field name of {size} bytes, but {end - at} are left")
        name = data[at : at + size].decode("utf-8")
        at += size
        if end - at < 4:
            raise ValueError(f"{end - at} bytes are left, too few for the size of a field value")
        size = _i32(buffer, at)
        at += 4
        if not 0 <= size <= end - at:
            raise ValueError(f"field value of {size} bytes, but {end - at} are left")
        fields[name] = data[at : at + size].decode("utf-8")
        at += size
        count += 1
    return fields


def typed_fields(ext: object, integers: tuple[str, ...], flags: tuple[str, ...]) -> dict[str, Any]:
    """Return named fields, in which texts that stand for an integer or a flag are read.

    Args:
        ext: the fields.
        integers: names of fields that are integers: a text of up to 20 decimal digits, after a sign or not, is one.
        flags: names of fields that are `true` or `false`, in any case.
    """
    found: dict[str, Any] = dict(ext)  # type: ignore[call-overload]
    for name in integers:
        value = found.get(name)
        if isinstance(value, str):
            digits: str = value[1:] if value[:1] == "-" or value[:1] == "+" else value
            if len(digits) <= 20 and digits.isascii() and digits.isdigit():
                found[name] = int(value)
    for name in flags:
        value = found.get(name)
        if isinstance(value, str):
            text: str = value.lower()
            if text == "true" or text == "false":
                found[name] = text == "true"
    return found


# -- put blocks ---------------------------------------------------------------------------------------------------


def check_block(
    block: object,
    magic: cython.int,
    topic: bytes,
    queue_id: cython.int,
    count: cython.Py_ssize_t,
    body_bytes_max: cython.Py_ssize_t,
    properties_bytes_max: cython.Py_ssize_t,
) -> int:
    """Check the records of a put block, which is not empty; return how many end with a whole-record checksum.

    Args:
        block: the records back to back.
        magic, topic: what every record must have; the topic with its length before it.
        queue_id: the queue of every record.
        count: how many records there must be. No more are looked at.
        body_bytes_max, properties_bytes_max: the limits of one record.

    Raises:
        Refusal: the first record that breaks a rule, and the first rule that it breaks, in the order of `_judge`.
    """
    data: cython.const[cython.uchar][::1] = _searchable(block)
    end: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t = 0
    sealed: cython.Py_ssize_t = 0
    while index < count and position < end:
        sealed += _judge(
            block, data, index, position, magic, topic, queue_id, body_bytes_max, properties_bytes_max
        )
        position += _i32(data, position)
        index += 1
    if index != count or position != end:
        rest = f"{end - position} bytes follow" if position < end else "nothing follows"
        raise Refusal(index, position, f"the header says {count} records, but after {index} {rest}")
    return sealed


@cython.cfunc
@cython.exceptval(-1)
def _judge(
    block: object,
    data: cython.const[cython.uchar][::1],
    index: cython.Py_ssize_t,
    position: cython.Py_ssize_t,
    magic: cython.int,
    topic: bytes,
    queue_id: cython.int,
    body_bytes_max: cython.Py_ssize_t,
    properties_bytes_max: cython.Py_ssize_t,
) -> cython.int:
    """Return 1 if the record at `position` ends with a checksum property, else 0; lengths are judged first."""
    left: cython.Py_ssize_t = len(data) - position
    least: cython.Py_ssize_t = 90 + len(topic)
    if left < least:
        name = topic[1 if magic == -626_843_481 else 2 :].decode()
        raise Refusal(
            index, position, f"{left} bytes are left, but a record of topic {name!r} has at least {least}"
        )
    size: cython.Py_ssize_t = _i32(data, position)
    if _i32(data, position + 4) != magic:
        version = 1 if magic == -626_843_481 else 2
        length = len(topic[version:].decode())
        raise Refusal(
            index,
            position,
            f"MAGIC is {_i32(data, position + 4) & 0xFFFF_FFFF:#010x}, but a topic of {length} characters takes "
            f"version {version}, {magic & 0xFFFF_FFFF:#010x}",
        )
    if not least <= size <= left:
        raise Refusal(
            index, position, f"TOTALSIZE is {size}, but it must be {least} to {left}, the bytes that are left"
        )
    sys_flag: cython.int = _i32(data, position + 36)
    if sys_flag & ~0x701:
        raise Refusal(
            index,
            position,
            f"SYSFLAG is {sys_flag & 0xFFFF_FFFF:#x}, but a client may set only bits of {0x701:#x}",
        )
    stop: cython.Py_ssize_t = position + size
    body: cython.Py_ssize_t = position + 88
    body_size: cython.Py_ssize_t = _i32(data, body - 4)
    if not 0 <= body_size <= size - least:
        raise Refusal(
            index,
            position,
            f"BODYLEN is {body_size}, but TOTALSIZE {size} leaves room for 0 to {size - least}",
        )
    if body_size > body_bytes_max:
        raise Refusal(
            index,
            position,
            f"the body has {body_size} bytes, but at most {body_bytes_max} are accepted",
            True,
        )
    if not _has(data, body + body_size, stop, topic):
        name = topic[1 if magic == -626_843_481 else 2 :].decode()
        raise Refusal(
            index, position, f"TOPICLEN and TOPIC are not those of {name!r}, the topic in the header"
        )
    properties: cython.Py_ssize_t = body + body_size + len(topic) + 2
    properties_size: cython.Py_ssize_t = _i16(data, properties - 2)
    if properties_size != stop - properties:
        room = stop - properties
        raise Refusal(
            index, position, f"PROPLEN is {properties_size}, but TOTALSIZE {size} leaves {room} bytes for it"
        )
    if properties_size > properties_bytes_max:
        raise Refusal(
            index,
            position,
            f"the properties have {properties_size} bytes, but at most {properties_bytes_max} are accepted",
            True,
        )
    if _i32(data, position + 12) != queue_id:
        raise Refusal(
            index, position, f"QUEUEID is {_i32(data, position + 12)}, but the header says {queue_id}"
        )
    set_by_broker: cython.longlong = _i64(data, position + 20) | _i64(data, position + 28)  # both offsets
    # Born host, store timestamp, store host; reconsume times and prepared transaction offset.
    set_by_broker |= _i64(data, position + 48) | _i64(data, position + 56) | _i64(data, position + 64)
    set_by_broker |= _i32(data, position + 72) | _i64(data, position + 76)
    if set_by_broker:
        raise Refusal(index, position, _broker_field_fault(block, position))
    crc: cython.int = _crc31(data, body, body + body_size)
    if _i32(data, position + 8) != crc:
        raise Refusal(index, position, _body_fault(_i32(data, position + 8), crc))
    fault: object = _properties_fault(block, data, properties, stop)
    if fault is not None:
        raise Refusal(index, position, str(fault))
    return _ends_with_checksum(data, properties, stop)


def _broker_field_fault(block: Any, position: int) -> str:
    head = bytes(memoryview(block)[position : position + 88])
    for name, unpack, at in _BROKER_NUMBERS:
        (value,) = unpack(head, at)
        if value:
            return f"{name} is {value}, but it must be 0: the broker fills it in"
    name, host = ("BORNHOST", head[48:56]) if any(head[48:56]) else ("STOREHOST", head[64:72])
    return f"{name} is {host.hex()}, but it must be 8 zero bytes: the broker fills it in"


_BROKER_NUMBERS: Final = (
    ("QUEUEOFFSET", _I64, 20),
    ("PHYSICALOFFSET", _I64, 28),
    ("STORETIMESTAMP", _I64, 56),
    ("RECONSUMETIMES", _I32, 72),
    ("PREPARED_TRANSACTION_OFFSET", _I64, 76),
)


def encode_block(
    bodies: object,
    texts: object,
    flags: object,
    magic: cython.int,
    topic: bytes,
    queue_id: cython.int,
    born_timestamp_ms: cython.longlong,
    id_prefix: bytes,
    id_number: cython.uint,
) -> tuple[bytearray, array[int]]:
    """Make the put block of some bodies, with zeros in all that the broker fills in.

    Args:
        bodies: a list; of each body, which is bytes-like, `len` is its bytes.
        texts: the properties text of each as bytes; a single one is that of all.
        flags: of each, or a single one of all.
        magic, topic: of all records; the topic with its length before it.
        queue_id, born_timestamp_ms: of all records.
        id_prefix, id_number: a text that does not begin with a unique id gets one: the prefix, and four digits that
            count on from `id_number` with every record. No prefix, no ids.

    Returns:
        The records back to back, and where each of them begins.

    Raises:
        InvalidMessage: a properties text is too long with its id, or the block would have 2 GiB or more.
        ValueError: there are other numbers of texts or flags.
    """
    count: cython.Py_ssize_t = len(bodies)
    has_own_texts: cython.bint = len(texts) != 1
    has_own_flags: cython.bint = len(flags) != 1
    if (has_own_texts and len(texts) != count) or (has_own_flags and len(flags) != count):
        raise ValueError(
            f"{len(texts)} texts and {len(flags)} flags are given for {count} bodies; give one or {count}"
        )
    id_start: bytes = _ID_NAME + id_prefix
    id_size: cython.Py_ssize_t = len(id_start) + 5 if id_prefix else 0
    text: bytes = b"" if has_own_texts else texts[0]
    text_size: cython.Py_ssize_t
    flag: cython.int = 0 if has_own_flags else flags[0]
    index: cython.Py_ssize_t
    end: cython.Py_ssize_t = 0
    positions = _integers(count)
    starts: cython.longlong[::1] = positions
    for index in range(count):
        if has_own_texts:
            text = texts[index]
        text_size = len(text)
        if id_size and not text.startswith(_ID_NAME):
            text_size += id_size
        if text_size > 0x7FFF:
            check_properties_size(text_size)
        starts[index] = end
        end += 90 + len(topic) + len(bodies[index]) + text_size
    if end > 0x7FFF_FFFF:
        raise InvalidMessage(f"a block of {end} bytes has no room for its sizes; split it")
    block = bytearray(end)
    records: cython.uchar[::1] = block
    at: cython.Py_ssize_t
    body_end: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    has_id: cython.bint
    for index in range(count):
        at = starts[index]
        stop = starts[index + 1] if index + 1 < count else end
        if has_own_texts:
            text = texts[index]
        if has_own_flags:
            flag = flags[index]
        body_end = _put(bodies[index], records, at + 88, stop)
        _put_head(records, at, body_end, stop, magic, queue_id, flag, 0, born_timestamp_ms)
        text_size = stop - body_end - len(topic) - 2
        has_id = id_size > 0 and text_size == id_size + len(text)
        at = _put_middle(records, body_end, stop, topic, id_start if has_id else b"", id_number + index)
        if _put(text, records, at, stop) != stop:
            raise BufferError("a body has fewer bytes than its length")
    return block, positions


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_head(
    records: cython.uchar[::1],
    at: cython.Py_ssize_t,
    body_end: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    magic: cython.int,
    queue_id: cython.int,
    flag: cython.int,
    sys_flag: cython.int,
    born_timestamp_ms: cython.longlong,
) -> cython.void:
    """Write what comes before the body of the record at `[at, stop)`, which is in its place."""
    body_size: cython.Py_ssize_t = body_end - at - 88
    crc: cython.int = _crc31(records, at + 88, body_end)
    if cython.compiled:
        _put_i32(records, at, stop - at)
        _put_i32(records, at + 4, magic)
        _put_i32(records, at + 8, crc)
        _put_i32(records, at + 12, queue_id)
        _put_i32(records, at + 16, flag)
        _put_i32(records, at + 36, sys_flag)
        _put_i64(records, at + 40, born_timestamp_ms)
        _put_i32(records, at + 84, body_size)
    else:
        _PUT_HEAD(records, at, stop - at, magic, crc, queue_id, flag, sys_flag, born_timestamp_ms, body_size)


@cython.cfunc
@cython.exceptval(-1)
def _put_middle(
    records: cython.uchar[::1],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    topic: bytes,
    id_start: bytes,
    id_number: cython.uint,
) -> cython.Py_ssize_t:
    """Write topic, size of the properties and, if `id_start` has any bytes, a unique id; return where that ends."""
    at = _put(topic, records, at, stop - 2)
    _put_i16(records, at, stop - at - 2)
    at += 2
    if id_start:
        at = _put(id_start, records, at, stop - 5)
        _put_hex(records, at, id_number & 0xFFFF)
        records[at + 4] = 2
        at += 5
    return at


def property_texts(
    rows: cython.Py_ssize_t,
    tags: object,
    tag_edges: cython.const[cython.longlong][::1],
    keys: object,
    key_edges: cython.const[cython.longlong][::1],
    names: object,
    name_edges: cython.const[cython.longlong][::1],
    values: object,
    value_edges: cython.const[cython.longlong][::1],
    is_set: cython.const[cython.uchar][::1],
    entry_edges: cython.const[cython.longlong][::1],
) -> tuple[bytearray, array[int]]:
    """Make the properties texts of some messages from columns of UTF-8 text.

    A column is all its values back to back, and where each begins and the last ends; without edges, none is given.

    Args:
        tags, keys: of each message; one without bytes is none. Several keys have blanks between them.
        names, values: of the other properties of all messages. A name that has a column of its own is left out, as is
            a checksum of the whole record.
        is_set: 0 for each property that has no value and is left out; without any bytes, all count.
        entry_edges: where the properties of each message begin among all, and the last end; none if there are none.

    Returns:
        The texts back to back, a unique id first in each that has one, and where each begins and the last ends.

    Raises:
        Refusal: index and reason of the first message with a property that may not be put.
        ValueError: edges that do not fit.
    """
    tag_data: cython.const[cython.uchar][::1] = _searchable(tags)
    key_data: cython.const[cython.uchar][::1] = _searchable(keys)
    name_data: cython.const[cython.uchar][::1] = _searchable(names)
    value_data: cython.const[cython.uchar][::1] = _searchable(values)
    has_tags: cython.bint = len(tag_edges) > 0
    has_keys: cython.bint = len(key_edges) > 0
    has_entries: cython.bint = len(entry_edges) > 0
    entries: cython.Py_ssize_t = max(len(name_edges) - 1, 0)
    if (
        (has_tags and not _edges_fit(tag_edges, rows, len(tag_data)))
        or (has_keys and not _edges_fit(key_edges, rows, len(key_data)))
        or (has_entries and not _edges_fit(entry_edges, rows, entries))
        or (has_entries and not _edges_fit(name_edges, entries, len(name_data)))
        or (has_entries and not _edges_fit(value_edges, entries, len(value_data)))
        or (has_entries and len(is_set) > 0 and len(is_set) != entries)
    ):
        raise ValueError(f"the columns are not those of {rows} messages")
    # No value is used twice, and each name or value ends with a separator.
    room: cython.Py_ssize_t = len(tag_data) + len(key_data) + rows * 12
    block = bytearray(room + len(name_data) + len(value_data) + 2 * entries)
    texts: cython.uchar[::1] = block
    found = _integers(rows + 1)
    edges: cython.longlong[::1] = found
    at: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    for row in range(rows):
        if has_entries:
            for entry in range(entry_edges[row], entry_edges[row + 1]):
                if _is_entry(name_data, name_edges, entry, _UNIQ_KEY) and (len(is_set) == 0 or is_set[entry]):
                    at = _put_entry(name_data, name_edges, value_data, value_edges, entry, texts, at, row)
        if has_tags and tag_edges[row] < tag_edges[row + 1]:
            at = _put(b"TAGS\x01", texts, at, len(texts))
            at = _put_value(tag_data, tag_edges[row], tag_edges[row + 1], 2, texts, at, row)
        if has_keys and key_edges[row] < key_edges[row + 1]:
            at = _put(b"KEYS\x01", texts, at, len(texts))
            at = _put_value(key_data, key_edges[row], key_edges[row + 1], 2, texts, at, row)
        if has_entries:
            for entry in range(entry_edges[row], entry_edges[row + 1]):
                if (
                    (len(is_set) > 0 and not is_set[entry])
                    or _is_entry(name_data, name_edges, entry, _UNIQ_KEY)
                    or _is_entry(name_data, name_edges, entry, _CHECKSUM_NAME)
                    or (has_tags and _is_entry(name_data, name_edges, entry, _TAGS))
                    or (has_keys and _is_entry(name_data, name_edges, entry, _KEYS))
                ):
                    continue
                at = _put_entry(name_data, name_edges, value_data, value_edges, entry, texts, at, row)
        edges[row + 1] = at
    return block, found


@cython.cfunc
@cython.exceptval(check=False)
def _edges_fit(
    edges: cython.const[cython.longlong][::1], count: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Tell whether these are where `count` values begin, and the last ends, in a column of `size` bytes."""
    if count < 0 or len(edges) != count + 1 or edges[0] < 0 or edges[count] > size:
        return False
    index: cython.Py_ssize_t
    for index in range(count):
        if edges[index] > edges[index + 1]:
            return False
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_entry(
    names: cython.const[cython.uchar][::1],
    edges: cython.const[cython.longlong][::1],
    entry: cython.Py_ssize_t,
    name: bytes,
) -> cython.bint:
    start: cython.Py_ssize_t = edges[entry]
    stop: cython.Py_ssize_t = edges[entry + 1]
    return stop - start == len(name) and _has(names, start, stop, name)


@cython.cfunc
@cython.exceptval(-1)
def _put_entry(
    names: cython.const[cython.uchar][::1],
    name_edges: cython.const[cython.longlong][::1],
    values: cython.const[cython.uchar][::1],
    value_edges: cython.const[cython.longlong][::1],
    entry: cython.Py_ssize_t,
    texts: cython.uchar[::1],
    at: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a property and return where it ends."""
    start: cython.Py_ssize_t = name_edges[entry]
    stop: cython.Py_ssize_t = name_edges[entry + 1]
    if start == stop:
        raise Refusal(row, 0, "has a property with an empty name; give it one")
    if stop - start > 1 and _may_be_reserved(names, start):
        name = reserved_property(bytes(names[start:stop]) + b"\x01x\x02")
        if name is not None:
            raise Refusal(row, 0, f"has the property {name!r}, which only the broker may set; leave it out")
    if value_edges[entry] == value_edges[entry + 1]:
        raise Refusal(row, 0, "has a property without a value; leave it out, or make it null")
    at = _put_value(names, start, stop, 1, texts, at, row)
    return _put_value(values, value_edges[entry], value_edges[entry + 1], 2, texts, at, row)


@cython.cfunc
@cython.exceptval(-1)
def _put_value(
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    separator: cython.uchar,
    texts: cython.uchar[::1],
    at: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a value, or name, and what ends it; return where that ends."""
    if _find(data, 1, start, stop) < stop or _find(data, 2, start, stop) < stop:
        raise Refusal(
            row,
            0,
            "has a tag, key or property with one of the characters U+0001 and U+0002, which separate properties; "
            "leave them out",
        )
    at = _copy(data, start, stop - start, texts, at)
    texts[at] = separator
    return at + 1


def encode_rows(
    bodies: cython.const[cython.uchar][::1],
    body_edges: cython.const[cython.longlong][::1],
    texts: cython.const[cython.uchar][::1],
    text_edges: cython.const[cython.longlong][::1],
    flags: cython.const[cython.longlong][::1],
    born_timestamps_ms: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
    bytes_max: cython.Py_ssize_t,
    magic: cython.int,
    topic: bytes,
    queue_id: cython.int,
    ids: object,
) -> tuple[bytearray, int]:
    """Make a put block of columns, with zeros in all that the broker fills in.

    Args:
        bodies, body_edges: of all messages back to back, and where each begins and the last ends.
        texts, text_edges: their properties texts (`property_texts`).
        flags, born_timestamps_ms: of each message, or a single one of all.
        start: the message with which the block begins.
        bytes_max: how large the block becomes at most, unless one message alone is larger.
        magic, topic: of all records; the topic with its length before it.
        queue_id: of all records.
        ids: a generator of unique ids for the texts that do not begin with one.

    Returns:
        The records back to back, and the message with which the next block begins.

    Raises:
        Refusal: index and reason of the first message whose properties text is too long with its id.
        ValueError: edges that do not fit.
    """
    count: cython.Py_ssize_t = len(body_edges) - 1
    if not (
        0 <= start < count
        and len(text_edges) == count + 1
        and (len(flags) == 1 or len(flags) == count)
        and (len(born_timestamps_ms) == 1 or len(born_timestamps_ms) == count)
    ):
        raise ValueError(f"the columns are not those of {count} messages, or have none at {start}")
    id_size: cython.Py_ssize_t = len(_ID_NAME) + ids.id_size + 1
    fixed: cython.Py_ssize_t = 90 + len(topic)
    size: cython.Py_ssize_t
    body_size: cython.Py_ssize_t
    text_size: cython.Py_ssize_t
    end: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t = start
    while stop < count:
        body_size = body_edges[stop + 1] - body_edges[stop]
        text_size = text_edges[stop + 1] - text_edges[stop]
        if (
            body_edges[stop] < 0
            or text_edges[stop] < 0
            or body_size < 0
            or text_size < 0
            or body_edges[stop + 1] > len(bodies)
            or text_edges[stop + 1] > len(texts)
        ):
            raise ValueError(f"body or text {stop} is not within its column")
        if not _has(texts, text_edges[stop], text_edges[stop + 1], _ID_NAME):
            text_size += id_size
        if text_size > 0x7FFF:
            raise Refusal(
                stop,
                0,
                f"has tag, keys and properties of {text_size} bytes, but at most 32767 fit; "
                "move the rest into the body",
            )
        size = fixed + body_size + text_size
        if stop > start and end + size > bytes_max:
            break
        end += size
        stop += 1
    if end > 0x7FFF_FFFF:
        raise Refusal(start, 0, f"has {end} bytes in all, too many for a record")
    run = ids.next_run(stop - start)
    id_start: bytes = _ID_NAME + run.prefix.encode()
    id_number: cython.uint = run.first
    if len(id_start) + 5 != id_size:
        raise ValueError(f"ids with the prefix {run.prefix!r} do not have {ids.id_size} characters")
    block = bytearray(end)
    records: cython.uchar[::1] = block
    at: cython.Py_ssize_t = 0
    body_end: cython.Py_ssize_t
    row: cython.Py_ssize_t
    has_id: cython.bint
    for row in range(start, stop):
        body_size = body_edges[row + 1] - body_edges[row]
        text_size = text_edges[row + 1] - text_edges[row]
        has_id = not _has(texts, text_edges[row], text_edges[row + 1], _ID_NAME)
        size = fixed + body_size + text_size + (id_size if has_id else 0)
        body_end = _copy(bodies, body_edges[row], body_size, records, at + 88)
        _put_head(
            records,
            at,
            body_end,
            at + size,
            magic,
            queue_id,
            flags[row if len(flags) > 1 else 0],
            0,
            born_timestamps_ms[row if len(born_timestamps_ms) > 1 else 0],
        )
        end = _put_middle(
            records, body_end, at + size, topic, id_start if has_id else b"", id_number + row - start
        )
        at = _copy(texts, text_edges[row], text_size, records, end)
    return block, stop


_PUT_HEAD: Final = Struct(">iiiii16xiq36xi").pack_into
_ID_NAME: Final = b"UNIQ_KEY\x01"


def encode_record(
    body: object,
    properties: bytes,
    magic: cython.int,
    topic: bytes,
    queue_id: cython.int,
    flag: cython.int,
    queue_offset: cython.longlong,
    physical_offset: cython.longlong,
    sys_flag: cython.int,
    born_timestamp_ms: cython.longlong,
    born_host: bytes,
    store_timestamp_ms: cython.longlong,
    store_host: bytes,
    reconsume_times: cython.int,
    prepared_transaction_offset: cython.longlong,
) -> bytearray:
    """Make one record with all its fields.

    Args:
        body: bytes-like; its `len` is its bytes.
        topic: with its length before it.
        born_host, store_host: 8 bytes, or 20 if `sys_flag` has the bit for an IPv6 address.

    Raises:
        InvalidMessage: the properties are too long, or the record would have 2 GiB or more.
        ValueError: a host has another size than the flag says.
    """
    if len(born_host) != (20 if sys_flag & 0x10 else 8) or len(store_host) != (20 if sys_flag & 0x20 else 8):
        raise ValueError(
            f"hosts of {len(born_host)} and {len(store_host)} bytes, but SYSFLAG is {sys_flag:#x}"
        )
    if len(properties) > 0x7FFF:
        check_properties_size(len(properties))
    body_size: cython.Py_ssize_t = len(body)
    size: cython.longlong = 74 + len(born_host) + len(store_host) + body_size + len(topic) + len(properties)
    if size > 0x7FFF_FFFF:
        raise InvalidMessage(f"a record of {size} bytes has no room for its size")
    record = bytearray(size)
    data: cython.uchar[::1] = record
    _put_i32(data, 0, size)
    _put_i32(data, 4, magic)
    _put_i32(data, 12, queue_id)
    _put_i32(data, 16, flag)
    _put_i64(data, 20, queue_offset)
    _put_i64(data, 28, physical_offset)
    _put_i32(data, 36, sys_flag)
    _put_i64(data, 40, born_timestamp_ms)
    at: cython.Py_ssize_t = _put(born_host, data, 48, size)
    _put_i64(data, at, store_timestamp_ms)
    at = _put(store_host, data, at + 8, size)
    _put_i32(data, at, reconsume_times)
    _put_i64(data, at + 4, prepared_transaction_offset)
    _put_i32(data, at + 12, body_size)
    at += 16
    if _put(body, data, at, at + body_size) != at + body_size:
        raise BufferError("a body has fewer bytes than its length")
    _put_i32(data, 8, _crc31(data, at, at + body_size))
    at = _put(topic, data, at + body_size, size - 2)
    _put_i16(data, at, len(properties))
    _put(properties, data, at + 2, size)
    return record


def batch_to_block(
    batch: object,
    magic: cython.int,
    topic: bytes,
    queue_id: cython.int,
    sys_flag: cython.int,
    born_timestamp_ms: cython.longlong,
    count_max: cython.Py_ssize_t,
    body_bytes_max: cython.Py_ssize_t,
    properties_bytes_max: cython.Py_ssize_t,
) -> tuple[bytearray, int] | None:
    """Make records of the units of a client's batch (`client_batch`); None if anything is wrong with one.

    Args:
        batch: the units.
        magic, topic: of the records; the topic with its length before it.
        queue_id, sys_flag, born_timestamp_ms: of all records.
        count_max: how many units there may be.
        body_bytes_max, properties_bytes_max: the limits of one of them.

    Returns:
        The records back to back, with zeros in all that the broker fills in, and how many there are.
    """
    data: cython.const[cython.uchar][::1] = batch
    end: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    body_size: cython.Py_ssize_t
    text_size: cython.Py_ssize_t
    size: cython.Py_ssize_t
    while position < end:
        if count == count_max or end - position < 22:
            return None
        size = _i32(data, position)
        body_size = _i32(data, position + 16)
        text_size = size - 22 - body_size
        if not (
            22 <= size <= end - position
            and 0 <= body_size <= body_bytes_max
            and 0 <= text_size <= properties_bytes_max
            and _i16(data, position + 20 + body_size) == text_size
        ):
            return None
        position += size
        count += 1
    block = bytearray(end + count * (68 + len(topic)))
    records: cython.uchar[::1] = block
    at: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    body_end: cython.Py_ssize_t
    position = 0
    while position < end:
        size = _i32(data, position)
        body_size = _i32(data, position + 16)
        stop = at + size + 68 + len(topic)
        body_end = _copy(data, position + 20, body_size, records, at + 88)
        _put_head(
            records,
            at,
            body_end,
            stop,
            magic,
            queue_id,
            _i32(data, position + 12),
            sys_flag,
            born_timestamp_ms,
        )
        at = _put(topic, records, body_end, stop)
        at = _copy(data, position + 20 + body_size, size - 20 - body_size, records, at)
        position += size
    return block, count


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
    """Write the broker's fields into the sound records at `[start, stop)`, which go to the log together.

    Args:
        queue_offset: of the first record.
        step: how much higher that of each following record is.
        physical_offset: where the first record goes in the log.
        hosts: 8 bytes of the born host and 8 of the store host; empty to leave the hosts that the records have.
        is_sealed: whether any record ends with a whole-record checksum, which is then computed again.
    """
    position: cython.Py_ssize_t = start
    while position < stop:
        _put_i64(buffer, position + 20, queue_offset)
        _put_i64(buffer, position + 28, physical_offset + position - start)
        if len(hosts) == 16:
            _copy(hosts, 0, 8, buffer, position + 48)
            _copy(hosts, 8, 8, buffer, position + 64)
        _put_i64(buffer, position + (68 if buffer[position + 39] & 0x10 else 56), store_timestamp_ms)
        if is_sealed:
            seal_record(buffer, position)
        queue_offset += step
        position += _i32(buffer, position)


def seal_record(buffer: cython.uchar[::1], position: cython.Py_ssize_t) -> None:
    """Compute the whole-record checksum of the sound record at `position` again; without one, do nothing."""
    record: _Record = _Record()
    stop: cython.Py_ssize_t = position + _i32(buffer, position)
    # One byte is enough to rule out nearly every record.
    if buffer[stop - 20] != 0x5F or _read(buffer, position, stop, record) != RECORD:
        return
    if _ends_with_checksum(buffer, record.properties, stop):
        text: bytes = checksum_property(_crc31(buffer, position, stop - 20))
        index: cython.Py_ssize_t
        for index in range(20):
            buffer[stop - 20 + index] = text[index]


# -- tables of records --------------------------------------------------------------------------------------------


def scan_records(
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    physical_offset: cython.longlong = -1,
) -> tuple[Any, int, int, int, str]:
    """Read the sound records that follow each other from `start` on; checksums are not verified.

    Args:
        buffer: bytes of the log.
        start, end: which of them.
        physical_offset: where `start` is in the log: a record that says otherwise is invalid. -1: not compared.

    Returns:
        The table, an `array('q')` of `len(COLUMNS)` numbers a record; where the records end; what is there (RECORD
        means the end of the buffer); the size that it states, and why it is no record.
    """
    data: cython.const[cython.uchar][::1] = _searchable(buffer)
    _check_range(start, end, len(data))
    record: _Record = _Record()
    record.size = 0
    status: cython.int = RECORD
    position: cython.Py_ssize_t = start
    rows: cython.Py_ssize_t = _count_sizes(data, start, end)
    found = _integers(24 * rows)
    reason = ""
    row: cython.Py_ssize_t = 0
    if rows:
        table: cython.longlong[::1] = found
        while row < rows:
            status = _read(data, position, end, record)
            if status != RECORD:
                break
            if physical_offset >= 0 and _i64(data, position + 28) != physical_offset + position - start:
                status = INVALID
                record.reason = (
                    f"PHYSICALOFFSET is {_i64(data, position + 28)}, but the record lies at "
                    f"{physical_offset + position - start}"
                )
                break
            _find_units(data, record)
            _fill_row(data, position, record, table, 24 * row)
            position += record.size
            row += 1
        if cython.compiled:
            table = None  # an array with a view cannot be cut
    if status == RECORD and position < end:
        status = _read(data, position, end, record)
        assert status != RECORD, "sizes were followed to the end"
    if status != RECORD:
        reason = str(record.reason)
    del found[24 * row :]
    return found, position, status, record.size, reason


def properties_have_any(buffer: object, parts: tuple[bytes, ...]) -> bool:
    """Tell whether the properties text of any of the sound records that fill `buffer` has one of `parts` in it."""
    data: cython.const[cython.uchar][::1] = _searchable(buffer)
    record: _Record = _Record()
    position: cython.Py_ssize_t = 0
    while _read(data, position, len(data), record) == _RECORD:
        at: cython.Py_ssize_t
        stop: cython.Py_ssize_t = record.properties + record.properties_size
        for part in parts:
            for at in range(record.properties, stop - len(part) + 1):
                if data[at] == part[0] and _has(data, at, stop, part):
                    return True
        position += record.size
    return False


def record_starts(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> Any:
    """Return where records start that follow each other from `position` on, going by nothing but their sizes."""
    _check_range(position, end, len(data))
    rows: cython.Py_ssize_t = _count_sizes(data, position, end)
    found = _integers(rows)
    if rows:
        starts: cython.longlong[::1] = found
        row: cython.Py_ssize_t
        for row in range(rows):
            starts[row] = position
            position += _i32(data, position)
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
    """Count the records that there are at most, by following their sizes."""
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    while end - position >= 92:
        size = _i32(data, position)
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
    table[at + 2] = _i32(data, position + 12)
    table[at + 3] = _i64(data, position + 20)
    table[at + 4] = _i64(data, position + 28)
    table[at + 5] = _i64(data, record.store_timestamp)
    table[at + 6] = record.sys_flag
    table[at + 7] = _i32(data, position + 16)
    table[at + 8] = _i64(data, position + 40)
    table[at + 9] = _i32(data, record.back)
    table[at + 10] = _i64(data, record.back + 4)
    table[at + 11] = _i32(data, position + 8)
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
    buffer: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    bodies: cython.bint = True,
) -> list[tuple[int, str]]:
    """Return the rows whose record does not match its body's checksum or, where it has one, that of the whole record.

    Args:
        bodies: False verifies only records with a checksum of the whole, for a reader that returns no bodies.

    Returns:
        Of each such row its number and what is wrong.
    """
    found = []
    row: cython.Py_ssize_t
    for row in range(len(table) // 24):
        at: cython.Py_ssize_t = 24 * row
        stop: cython.Py_ssize_t = table[at] + table[at + 1]
        is_inside: cython.bint = 0 <= table[at] < stop <= len(buffer) and table[at] <= table[at + 16] <= stop
        if (
            not is_inside
            or not table[at] <= table[at + 12] <= stop
            or not 0 <= table[at + 13] <= stop - table[at + 12]
        ):
            raise ValueError(f"row {row} of the table is not of a buffer of {len(buffer)} bytes")
        is_sealed: cython.bint = _ends_with_checksum(buffer, table[at + 16], stop)
        if not bodies and not is_sealed:
            continue
        crc: cython.int = _crc31(buffer, table[at + 12], table[at + 12] + table[at + 13])
        if crc != table[at + 11]:
            found.append((row, _body_fault(table[at + 11], crc)))
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
    """Read the records of one queue that follow each other from `start` on; checksums are not verified.

    Ends before the first bytes that are not a sound record of this queue with the queue offset that comes next.

    Args:
        buffer: bytes of records.
        start, end: which of them.
        topic, queue_id: the queue.
        queue_offset: of the first record.
        is_gapless: whether queue offsets are consecutive from there on; otherwise they ascend.

    Returns:
        The table, and where the records end.
    """
    data: cython.const[cython.uchar][::1] = _searchable(buffer)
    _check_range(start, end, len(data))
    record: _Record = _Record()
    position: cython.Py_ssize_t = start
    rows: cython.Py_ssize_t = _count_sizes(data, start, end)
    found = _integers(24 * rows)
    if not rows:
        return found, position
    row: cython.Py_ssize_t = 0
    table: cython.longlong[::1] = found
    while row < rows and _read(data, position, end, record) == _RECORD:
        number: cython.longlong = _i64(data, position + 20)
        if (
            _i32(data, position + 12) != queue_id
            or number < queue_offset
            or (is_gapless and number != queue_offset)
            or record.topic_size != len(topic)
            or not _has(data, record.topic, record.properties, topic)
        ):
            break
        _find_units(data, record)
        _fill_row(data, position, record, table, 24 * row)
        position += record.size
        row += 1
        if number == 0x7FFF_FFFF_FFFF_FFFF:
            break  # there is no next one
        queue_offset = number + 1
    if cython.compiled:
        table = None  # an array with a view cannot be cut
    del found[24 * row :]
    return found, position


def unit_records(
    buffer: object,
    base_offset: cython.longlong,
    units: cython.const[cython.longlong][::1],
    queues: list[tuple[bytes, int]],
) -> tuple[Any, list[int]]:
    """Read the records that ConsumeQueue units point at; checksums are not verified.

    Args:
        buffer: bytes of the log.
        base_offset: where the first of them is in the log.
        units: of each its place in the log, its size, its queue offset, and which of the queues it is of.
        queues: topic and queue id of each.

    Returns:
        The table of those that are sound and the very records that their units mean; which units have no such record.
    """
    data: cython.const[cython.uchar][::1] = buffer
    record: _Record = _Record()
    rows: cython.Py_ssize_t = len(units) // 4
    found = _integers(24 * rows)
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
            or _i32(data, at) != size
            or _read(data, at, at + size, record) != _RECORD
            or _i64(data, at + 28) != place
            or _i64(data, at + 20) != units[4 * row + 2]
            or _i32(data, at + 12) != queue_id
            or record.topic_size != len(topic)
            or not _has(data, record.topic, record.properties, topic)
        ):
            wrong.append(row)
            continue
        _find_units(data, record)
        _fill_row(data, at, record, table, 24 * count)
        count += 1
    if cython.compiled:
        table = None  # an array with a view cannot be cut
    del found[24 * count :]
    return found, wrong


# -- columns ------------------------------------------------------------------------------------------------------
# Values are given as places: a row has where its value starts at `places[first + row * step]`, and its size next.


@cython.cfunc
@cython.exceptval(-1)
def _rows_of(
    places: cython.const[cython.longlong][::1], first: cython.Py_ssize_t, step: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return how many rows the places are of."""
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


def gather(
    buffer: cython.const[cython.uchar][::1],
    places: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    step: cython.Py_ssize_t,
    is_text: cython.bint = False,
    replaced: dict[int, bytes] | None = None,
) -> tuple[Any, bytearray, bytearray, int]:
    """Copy values out of a buffer, as Arrow lays them out.

    Args:
        buffer, places, first, step: the values.
        is_text: replace what is not UTF-8 as `bytes.decode` does.
        replaced: by row, what comes in the place of a value.

    Returns:
        Where the values begin and the last one ends, an `array('i')`; the values back to back; a bit for each row that
        says whether it has a value, which is not empty; how many have none.

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
    value: bytes
    for row in range(rows):
        start = places[first + row * step]
        size = places[first + row * step + 1]
        _check_place(start, size, len(buffer))
        if is_text and not _is_ascii(buffer, start, start + size):
            value = _bytes(buffer, start, size)
            others[row] = value.decode("utf-8", "replace").encode()
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
    joined = bytearray(total)
    if total:
        data: cython.uchar[::1] = joined
        for row in range(rows):
            size = ends[row + 1] - ends[row]
            if others and row in others:
                value = others[row]
                _copy(value, 0, size, data, ends[row])
            else:
                _copy(buffer, places[first + row * step], size, data, ends[row])
    return bounds, joined, has_value, missing


def distinct(
    buffer: cython.const[cython.uchar][::1],
    places: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    step: cython.Py_ssize_t,
) -> tuple[list[bytes], Any]:
    """Return each value once, in the order of their first rows, and an `array('q')` that says which one a row has."""
    rows: cython.Py_ssize_t = _rows_of(places, first, step)
    found = _integers(rows)
    numbers: dict[bytes, int] = {}
    codes: cython.longlong[::1] = found
    row: cython.Py_ssize_t
    for row in range(rows):
        start: cython.longlong = places[first + row * step]
        size: cython.longlong = places[first + row * step + 1]
        _check_place(start, size, len(buffer))
        value: bytes = _bytes(buffer, start, size)
        number = numbers.get(value)
        if number is None:
            number = numbers[value] = len(numbers)
        codes[row] = number
    return list(numbers), found


def property_places(
    buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1], name: bytes
) -> Any:
    """Return where each record has the value of a property: its last unit of this name that has one.

    Returns:
        An `array('q')` of two numbers a row, the place and the size, which is 0 for a record without the property.
    """
    rows: cython.Py_ssize_t = _rows_of(table, 16, 24)
    found = _integers(2 * rows)
    places: cython.longlong[::1] = found
    row: cython.Py_ssize_t
    for row in range(rows):
        at: cython.Py_ssize_t = table[24 * row + 16]
        _check_place(at, table[24 * row + 17], len(buffer))
        stop: cython.Py_ssize_t = at + table[24 * row + 17]
        while at < stop:
            end: cython.Py_ssize_t = _find(buffer, 2, at, stop)
            value: cython.Py_ssize_t = _find(buffer, 1, at, end) + 1
            if at + 1 < value < end and value - at == len(name) + 1 and _has(buffer, at, end, name):
                places[2 * row] = value
                places[2 * row + 1] = end - value
            at = end + 1
    return found


def property_units(
    buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1]
) -> tuple[Any, Any]:
    """Return where all properties of the records are, as a tolerant reader takes them (`decode_properties`).

    Returns:
        Which are the first units of each record, and last how many units there are, an `array('i')`; of each unit the
        places and sizes of name and value, an `array('q')` of four numbers. A record has a name once, where it came
        first, with the last value.
    """
    rows: cython.Py_ssize_t = _rows_of(table, 16, 24)
    firsts = array("i", bytes(4 * rows + 4))
    bounds: cython.int[::1] = firsts
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    end: cython.Py_ssize_t
    value: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    for row in range(rows):
        at = table[24 * row + 16]
        _check_place(at, table[24 * row + 17], len(buffer))
        stop = at + table[24 * row + 17]
        while at < stop:
            at = _find(buffer, 2, at, stop) + 1
            count += 1
    found = _integers(4 * count)
    count = 0
    if len(found):
        units: cython.longlong[::1] = found
        for row in range(rows):
            at = table[24 * row + 16]
            stop = at + table[24 * row + 17]
            numbers: dict[Any, int] = {}
            while at < stop:
                end = _find(buffer, 2, at, stop)
                value = _find(buffer, 1, at, end) + 1
                if at + 1 < value < end:
                    name: Any = _bytes(buffer, at, value - 1 - at)
                    if not _is_ascii(buffer, at, value - 1):
                        name = name.decode("utf-8", "replace")
                    known = numbers.get(name)
                    number: cython.Py_ssize_t
                    if known is None:
                        number = numbers[name] = count
                        count += 1
                        units[4 * number] = at
                        units[4 * number + 1] = value - 1 - at
                    else:
                        number = known
                    units[4 * number + 2] = value
                    units[4 * number + 3] = end - value
                at = end + 1
            bounds[row + 1] = count
        if cython.compiled:
            units = None  # an array with a view cannot be cut
    del found[4 * count :]
    return firsts, found


# -- hashes -------------------------------------------------------------------------------------------------------


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of `text`: signed 32 bits, over UTF-16 code units.

    A character beyond the basic plane counts as its two surrogates, as it does in Java.
    """
    return _signed(_hash_units(text.encode("utf-16-be", "surrogatepass"), 0))


@cython.cfunc
def _hash_units(units: bytes, value: cython.uint) -> cython.uint:
    """Continue Java's hash `value` with UTF-16 code units, big-endian."""
    index: cython.Py_ssize_t
    for index in range(0, len(units), 2):
        value = _hash_unit(value, cython.cast(cython.uint, units[index]) << 8 | units[index + 1])
    return value


@cython.cfunc
def _hash_bytes(
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    value: cython.uint,
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
    """Return what a ConsumeQueue unit says of the tag of each record: its hash, or 0 without a tag."""
    rows: cython.Py_ssize_t = len(table) // 24
    found = _integers(rows)
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
    """Return the keys of the rows `[start, stop)`: of each its index hash, physical offset and store time.

    Args:
        topic_hash: Java's hash, unsigned, of `TOPIC#`, which comes before every key of these records.

    Returns:
        An `array('q')` of three numbers a key. The unique id of a record comes first, then its keys in their order.
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
    found = _integers(3 * count)
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
    """Return the hash under which the index files a key: the absolute value, and 0 for the one that has none."""
    signed: cython.longlong = _signed(value)
    return signed if signed >= 0 else -signed if signed > -2_147_483_647 - 1 else 0


def runs(
    buffer: cython.const[cython.uchar][::1], table: cython.const[cython.longlong][::1]
) -> list[tuple[bytes, int, int, int, int]]:
    """Return which rows follow each other in one queue: topic, queue id, first row, row after the last, transaction.

    The last are the transaction bits of the system flag, which all records of a run have in common. The queue offsets
    of a run are consecutive; those of prepared and rolled back transaction records, which take no place in a queue, are
    not looked at.
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
        table: of all records.
        tags_codes: of all records.
        runs: the first row and the row after the last of each.

    Raises:
        ValueError: a run has rows that the table has not.
    """
    rows: cython.Py_ssize_t = min(len(table) // 24, len(tags_codes))
    count: cython.Py_ssize_t = 0
    run: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for run in range(len(runs) // 2):
        if not 0 <= runs[2 * run] <= runs[2 * run + 1] <= rows:
            raise ValueError(f"rows {runs[2 * run]} to {runs[2 * run + 1]} are not in a table of {rows}")
        count += runs[2 * run + 1] - runs[2 * run]
    found = (_integers(count), _integers(count), _integers(count), _integers(count))
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
    """Tell whether the record of the row at `at` is the next one of the queue of the row before it."""
    index: cython.Py_ssize_t
    before: cython.Py_ssize_t = at - 24
    if (
        table[at + 2] != table[before + 2]
        or table[at + 15] != table[before + 15]
        or table[at + 6] & 0xC != table[before + 6] & 0xC
        or (table[at + 3] != table[before + 3] + 1 and (table[at + 6] & 0xC == 0 or table[at + 6] & 0xC == 8))
    ):
        return False
    for index in range(table[at + 15]):
        if data[table[at + 14] + index] != data[table[before + 14] + index]:
            return False
    return True


def follow_records(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base_offset: cython.longlong,
    check_crc: cython.bint,
    found: dict[tuple[bytes, int], Any],
) -> tuple[int, int]:
    """Follow sound records of a log file that have a place in a known queue; the first other one ends that.

    Args:
        position: where the first of them is to start.
        stop: none that starts there or later is looked at.
        end: none may reach beyond.
        base_offset: where the file begins in the log. Every record has to name its place.
        check_crc: verify checksums.
        found: of each known queue, by topic and queue id, an `array('q')` that gets the queue offset, the place in the
            log and the size of each of its records.

    Returns:
        Where the records end, and where the last of them starts; -1 if there is none.
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
            break  # a prepared or rolled back record has no place in a queue
        if _i64(data, position + 28) != base_offset + position:
            break
        if check_crc:
            if _crc31(data, record.body, record.body + record.body_size) != _i32(data, position + 8):
                break
            stop_of_record: cython.Py_ssize_t = position + record.size
            if _checksum_fault(data, position, record.properties, stop_of_record, False) is not None:
                break
        if (
            _i32(data, position + 12) != queue_id
            or record.topic_size != topic_size
            or not _same(data, record.topic, topic, topic_size)
        ):
            queue_id = _i32(data, position + 12)
            topic = record.topic
            topic_size = record.topic_size
            rows = found.get((bytes(data[topic : topic + topic_size]), queue_id))
            if rows is None:
                break
        rows.extend((_i64(data, position + 20), base_offset + position, record.size))
        last = position
        position += record.size
    return position, last


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _same(
    data: cython.const[cython.uchar][::1],
    one: cython.Py_ssize_t,
    other: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    """Tell whether the same bytes are at two places."""
    if cython.compiled:
        index: cython.Py_ssize_t
        for index in range(size):
            if data[one + index] != data[other + index]:
                return False
        return True
    return data[one : one + size] == data[other : other + size]


# -- ConsumeQueue units -------------------------------------------------------------------------------------------


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
    numbers = _integers(count)
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
            _put_i64(units, 20 * rows, physical_offsets[row])
            _put_i32(units, 20 * rows + 8, sizes[row])
            _put_i64(units, 20 * rows + 12, tags_codes[row])
            taken[rows] = row
            rows += 1
            end += 1
            max_physical_offset = record_end
        queue_offset += 1
    if cython.compiled:
        units = taken = None  # what has a view cannot be cut
    del made[20 * rows :]
    del numbers[rows:]
    return made, numbers, max_physical_offset, wrong, wrong_offset, wrong_end


# -- index files --------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(-1)
def _entries_at(
    size: cython.Py_ssize_t, slots: cython.Py_ssize_t, entries: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return where the entries of an index file begin, which has `size` bytes and must hold so many of both."""
    at: cython.Py_ssize_t = 40 + 4 * slots
    if slots <= 0 or entries < 0 or size < at + 20 * entries:
        raise ValueError(f"{size} bytes are no index file of {slots} slots and {entries} entries")
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _slot_at(key_hash: cython.longlong, slots: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the slot of a hash is in an index file, which has at least one."""
    slot: cython.Py_ssize_t = key_hash % slots
    return 40 + 4 * (slot if slot >= 0 else slot + slots)


def insert_keys(
    file: cython.uchar[::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    keys: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    begin_ms: cython.longlong,
    before_ms: cython.longlong,
) -> tuple[int, int, int, bool]:
    """Write the keys `[start, stop)` into an index file: of each its entry, then the slot that leads to it.

    Args:
        file: the whole file.
        slots, entries: how many it has room for, the unused entry counted.
        keys: a hash, which is not negative, a physical offset and a store time of each key.
        first: the number of the first entry.
        begin_ms: the first store time that the header has so far; entry 1 makes its own the first one.
        before_ms: the store time of the entry before.

    Returns:
        How many slots were empty; the earliest and the latest store time; whether no time is before the one before it.
    """
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    if not (0 <= start < stop and 3 * stop <= len(keys) and 0 < first <= entries - (stop - start)):
        raise ValueError(
            f"keys {start} to {stop} of {len(keys) // 3} do not fit from entry {first} to {entries}"
        )
    used: cython.Py_ssize_t = 0
    earliest: cython.longlong = keys[3 * start + 2]
    latest: cython.longlong = earliest
    ascending: cython.bint = True
    number: cython.Py_ssize_t = first
    index: cython.Py_ssize_t
    for index in range(3 * start, 3 * stop, 3):
        stored_ms: cython.longlong = keys[index + 2]
        slot: cython.Py_ssize_t = _slot_at(keys[index], slots)
        previous: cython.Py_ssize_t = _i32(file, slot)
        if not 0 < previous <= number:
            previous = 0
            used += 1
        seconds: cython.longlong = 0
        if begin_ms > 0 and stored_ms > begin_ms:
            seconds = (stored_ms - begin_ms) // 1000
            if seconds > 0x7FFF_FFFF:
                seconds = 0x7FFF_FFFF
        at: cython.Py_ssize_t = entries_at + 20 * number
        _put_i32(file, at, keys[index])
        _put_i64(file, at + 4, keys[index + 1])
        _put_i32(file, at + 12, seconds)
        _put_i32(file, at + 16, previous)
        _put_i32(file, slot, number)
        if number == 1:
            begin_ms = stored_ms
        if stored_ms < before_ms:
            ascending = False
        before_ms = stored_ms
        if stored_ms < earliest:
            earliest = stored_ms
        if stored_ms > latest:
            latest = stored_ms
        number += 1
    return used, earliest, latest, ascending


def follow_chain(
    file: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    number: cython.Py_ssize_t,
    key_hash: cython.longlong,
    steps: cython.Py_ssize_t,
) -> tuple[int, int, int, int]:
    """Follow a chain of an index file from entry `number` to the first entry of a hash, `steps` entries at most.

    Returns:
        That entry's number, 0 if it was not met; its physical offset and its seconds; the entry that the chain leads to
        from there, 0 if to none.
    """
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    looked_at: cython.Py_ssize_t = 0
    while 0 < number < entries and looked_at < steps:
        at: cython.Py_ssize_t = entries_at + 20 * number
        looked_at += 1
        following: cython.Py_ssize_t = _i32(file, at + 16)
        if not 0 < following < number:  # chains lead to older entries only
            following = 0
        if _i32(file, at) == key_hash:
            return number, _i64(file, at + 4), _i32(file, at + 12), following
        number = following
    return 0, 0, 0, number if 0 < number < entries else 0


def seconds_ascend(
    file: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> bool:
    """Tell whether none of the entries `[start, stop)` of an index file has fewer seconds than the one before it."""
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    if not start >= 0 or stop > entries:
        raise ValueError(f"entries {start} to {stop} are not in a file of {entries}")
    number: cython.Py_ssize_t
    for number in range(start + 1, stop):
        at: cython.Py_ssize_t = entries_at + 20 * number + 12
        if _i32(file, at) < _i32(file, at - 20):
            return False
    return True


def fitting_slots(
    file: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    step: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    begin_offset: cython.longlong,
    end_offset: cython.longlong,
) -> int:
    """Return the first of some numbers of slots that an index file may have; 0 if it can have none of them.

    The first and the last of its entries have to be of these physical offsets, and a slot has to lead to the last.

    Args:
        first, stop, step: the numbers that are tried.
        entries: how many are in use, entry 0 counted.
    """
    most: cython.Py_ssize_t = len(file) // 4
    if not 2 <= entries <= most or step <= 0:
        raise ValueError(f"{len(file)} bytes have no {entries} entries, and {step} is not a step")
    slots: cython.Py_ssize_t
    for slots in range(max(first, 1), min(stop, most + 1), step):
        entry: cython.Py_ssize_t = 40 + 4 * slots + 20
        last: cython.Py_ssize_t = entry + 20 * (entries - 2)
        if last + 20 > len(file):
            break
        if _i64(file, entry + 4) != begin_offset or _i64(file, last + 4) != end_offset:
            continue
        key_hash: cython.int = _i32(file, last)
        if key_hash >= 0 and _i32(file, _slot_at(key_hash, slots)) == entries - 1:
            return slots
    return 0


def index_chains(
    file: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    faults_max: cython.Py_ssize_t,
) -> tuple[bytearray, int, list[int], list[tuple[int, int, int]]]:
    """Follow the entries of an index file in the order in which they were written.

    Args:
        entries: how many are in use, entry 0 counted.
        faults_max: no more of each kind are returned.

    Returns:
        The slots as the entries make them, and how many of them are in use; entries with a negative hash; entries that
        do not name the one before them in their slot: of each its number, the one that it names and the right one.
    """
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    made = bytearray(4 * slots)
    heads: cython.uchar[::1] = made
    used: cython.Py_ssize_t = 0
    negative: list[int] = []
    wrong: list[tuple[int, int, int]] = []
    number: cython.Py_ssize_t
    for number in range(1, entries):
        at: cython.Py_ssize_t = entries_at + 20 * number
        key_hash: cython.int = _i32(file, at)
        slot: cython.Py_ssize_t = _slot_at(key_hash, slots) - 40
        before: cython.Py_ssize_t = _i32(heads, slot)
        if before == 0:
            used += 1
        if key_hash < 0 and len(negative) < faults_max:
            negative.append(number)
        if _i32(file, at + 16) != before and len(wrong) < faults_max:
            wrong.append((number, _i32(file, at + 16), before))
        _put_i32(heads, slot, number)
    return made, used, negative, wrong


@cython.cfunc
@cython.exceptval(-1)
def _entries_of_keys(
    size: cython.Py_ssize_t, numbers: cython.Py_ssize_t, start: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return how many entries `size` bytes are; so many keys there must be from `start` on, three numbers each."""
    rows: cython.Py_ssize_t = size // 20
    if not 0 <= start <= numbers // 3 - rows:
        raise ValueError(f"{rows} entries have no keys from {start} on, of {numbers // 3}")
    return rows


def are_entries_of(
    entries: cython.const[cython.uchar][::1],
    keys: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
) -> bool:
    """Tell whether entries of an index file have hash and physical offset of the keys from `start` on."""
    row: cython.Py_ssize_t
    for row in range(_entries_of_keys(len(entries), len(keys), start)):
        key: cython.Py_ssize_t = 3 * (start + row)
        if _i32(entries, 20 * row) != keys[key] or _i64(entries, 20 * row + 4) != keys[key + 1]:
            return False
    return True


def wrong_seconds(
    entries: cython.const[cython.uchar][::1],
    keys: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
    begin_ms: cython.longlong,
) -> list[tuple[int, int, int]]:
    """Return the entries whose seconds are not those from `begin_ms` to the store time of their key.

    Returns:
        Of each which entry it is, its seconds and the right ones.
    """
    wrong = []
    row: cython.Py_ssize_t
    for row in range(_entries_of_keys(len(entries), len(keys), start)):
        seconds: cython.longlong = _seconds_since(begin_ms, keys[3 * (start + row) + 2])
        if _i32(entries, 20 * row + 12) != seconds:
            wrong.append((row, _i32(entries, 20 * row + 12), seconds))
    return wrong


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _seconds_since(begin_ms: cython.longlong, stored_ms: cython.longlong) -> cython.longlong:
    """Return whole seconds between two times, from 0 to what an entry can hold."""
    if stored_ms <= begin_ms:
        return 0
    # Their difference may be larger than a signed number.
    seconds: cython.ulonglong = cython.cast(cython.ulonglong, stored_ms)
    seconds = (seconds - cython.cast(cython.ulonglong, begin_ms)) // 1000
    return 0x7FFF_FFFF if seconds > 0x7FFF_FFFF else cython.cast(cython.longlong, seconds)


# -- reading ConsumeQueue units -----------------------------------------------------------------------------------


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
        place: cython.longlong = _i64(units, at)
        size: cython.longlong = _i32(units, at + 8)
        messages_max: cython.longlong = memory_messages if place >= memory_from else disk_messages
        bytes_max: cython.longlong = memory_bytes if place >= memory_from else disk_bytes
        if taken and (taken >= messages_max or total >= max_bytes or total + size > bytes_max):
            scanned = row
            break
        if not any_tag and _i64(units, at + 12) >= -2_147_483_648:
            code: cython.longlong = _i32(units, at + 16)
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
        place: cython.longlong = _i64(units, 20 * row)
        size: cython.longlong = _i32(units, 20 * row + 8)
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
        place: cython.longlong = _i64(units, 20 * row)
        size: cython.longlong = _i32(units, 20 * row + 8)
        if log_start <= place and size > 0 and place <= log_end - size and place // file_size != last:
            last = place // file_size
            places.setdefault(last, place)
    return list(places.values())


def valid_units(units: cython.const[cython.uchar][::1], place_limit: cython.longlong) -> int:
    """Return how many units come before the first that is not valid, or whose record lies at or after a place."""
    row: cython.Py_ssize_t
    for row in range(len(units) // 20):
        place: cython.longlong = _i64(units, 20 * row)
        if not 0 <= place < place_limit or _i32(units, 20 * row + 8) <= 0:
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
        if _i64(units, 20 * row + 12) < -2_147_483_648 and _i64(units, 20 * row) >= log_start:
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
        place: cython.longlong = _i64(units, 20 * row)
        size: cython.longlong = _i32(units, 20 * row + 8)
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
        if _i64(units, 20 * row) != records[at + 1] or _i32(units, 20 * row + 8) != records[at + 2]:
            wrong.append(start + row)
    return wrong


# -- the timer's files --------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_timer_unit(units: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.bint:
    return _i32(units, at) == 52 and 0 <= _i32(units, at + 12) <= 0xF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _timer_slot(units: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.longlong:
    """Return the time of the slot of a unit of the timer log; -1 for one that no timer can have written."""
    write_time: cython.longlong = _i64(units, at + 16)
    if not 0 <= write_time < 0x4000_0000_0000_0000:
        return -1
    return write_time + _i32(units, at + 24)


def timer_units(units: cython.const[cython.uchar][::1]) -> int:
    """Return how many units of the timer log come before what is none."""
    row: cython.Py_ssize_t
    for row in range(len(units) // 52):
        if not _is_timer_unit(units, 52 * row):
            return row
    return len(units) // 52


def timer_units_ahead(units: cython.const[cython.uchar][::1], since_ms: cython.longlong) -> Any:
    """Return the units of slots at or after a time: of each its slot's time and the place of its record."""
    rows: cython.Py_ssize_t = len(units) // 52
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    found = _integers(2 * rows)
    ahead: cython.longlong[::1] = found
    for row in range(rows):
        slot_ms: cython.longlong = _timer_slot(units, 52 * row)
        if _is_timer_unit(units, 52 * row) and slot_ms >= since_ms:
            ahead[count] = slot_ms
            ahead[count + 1] = _i64(units, 52 * row + 28)
            count += 2
    if cython.compiled:
        ahead = None  # what has a view cannot be cut
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
    """Put units of the timer log that follow those before into the slots of a wheel.

    Args:
        wheel: all slots; one of second 0 is empty.
        units: what is no unit is left out.
        position: where the first of them lies in the timer log.
        since_ms: slots before this time, which is not negative, are done with.
        done: places of records that are done with, ascending.
        waiting: for the hash of each topic how many messages wait; counted up here.

    Returns:
        The earliest time of a slot that got a unit, and the latest of one that holds a record which is done with; -1
        where there is none.
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
        place: cython.longlong = _i64(units, at + 28)
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
        sign: cython.int = -1 if _i32(units, at + 12) & 4 else 1
        if _i64(wheel, slot) == 0:
            _put_i64(wheel, slot + 8, position + at)
        _put_i64(wheel, slot, second)
        _put_i64(wheel, slot + 16, position + at)
        _put_i32(wheel, slot + 24, _i32(wheel, slot + 24) + sign)
        topic_hash = _i32(units, at + 40)
        waiting[topic_hash] = waiting.get(topic_hash, 0) + sign
        if first_ms < 0 or 1000 * second < first_ms:
            first_ms = 1000 * second
    return first_ms, done_ms


def filled_slots(slots: cython.const[cython.uchar][::1], second: cython.longlong) -> list[int]:
    """Return which slots of a wheel have a chain; the first is that of a second, the others follow."""
    return [
        row
        for row in range(len(slots) // 32)
        if _i64(slots, 32 * row) == second + row and _i64(slots, 32 * row + 16) >= 0
    ]
