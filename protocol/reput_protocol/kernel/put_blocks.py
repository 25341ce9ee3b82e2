"""Put blocks, the records of one queue back to back: the broker's check, and encoding."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Any, Final

try:
    import cython
except ImportError:
    from reput_protocol.kernel import uncompiled as cython

from reput_protocol.errors import InvalidMessage
from reput_protocol.kernel.records import body_fault
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX
from reput_protocol.properties import PROPERTIES_BYTES_MAX, check_properties_size
from reput_protocol.property_rules import properties_fault, reserved_property

if cython.compiled:
    from cython.cimports.reput_protocol.kernel import raw
else:
    from reput_protocol.kernel import raw

_NUMBERS: Final = array("q")
_ID_NAME: Final = b"UNIQ_KEY\x01"
_RETRY_TOPICS: Final = (RETRY_PREFIX.encode(), DLQ_PREFIX.encode())


class Refusal(Exception):
    """A put block is invalid.

    Attributes:
        index, position: of the invalid record.
        reason: the rule, with the values that violate it.
        is_size: the record is valid but too large.
    """

    def __init__(self, index: int, position: int, reason: str, is_size: bool = False) -> None:
        super().__init__(index, position, reason, is_size)
        self.index = index
        self.position = position
        self.reason = reason
        self.is_size = is_size


def check_block(
    block: object,
    magic: cython.int,
    topic: bytes,
    queue_id: cython.int,
    count: cython.Py_ssize_t,
    body_bytes_max: cython.Py_ssize_t,
    properties_bytes_max: cython.Py_ssize_t,
) -> int:
    """Check the records of a non-empty put block; return how many end with a whole-record checksum.

    Args:
        magic, topic: required in every record; the topic with its length field.
        queue_id: required in every record.
        count: the required number of records; no more are examined.
        body_bytes_max, properties_bytes_max: the limits of one record.

    Raises:
        Refusal: for the first invalid record, and its first violated rule in the order of `_judge`.
    """
    data: cython.const[cython.uchar][::1] = raw.searchable(block)
    end: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t = 0
    sealed: cython.Py_ssize_t = 0
    in_retries: cython.bint = topic.startswith(_RETRY_TOPICS, 1 if magic == -626_843_481 else 2)
    while index < count and position < end:
        sealed += _judge(
            block, data, index, position, magic, topic, in_retries, queue_id, body_bytes_max, properties_bytes_max
        )
        position += raw.i32(data, position)
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
    in_retries: cython.bint,
    queue_id: cython.int,
    body_bytes_max: cython.Py_ssize_t,
    properties_bytes_max: cython.Py_ssize_t,
) -> cython.int:
    """Check the record at `position`, lengths first; return 1 if it ends with a checksum property, else 0."""
    left: cython.Py_ssize_t = len(data) - position
    least: cython.Py_ssize_t = 90 + len(topic)
    if left < least:
        name = topic[1 if magic == -626_843_481 else 2 :].decode()
        raise Refusal(index, position, f"{left} bytes are left, but a record of topic {name!r} has at least {least}")
    size: cython.Py_ssize_t = raw.i32(data, position)
    if raw.i32(data, position + 4) != magic:
        version = 1 if magic == -626_843_481 else 2
        length = len(topic[version:].decode())
        raise Refusal(
            index,
            position,
            f"MAGIC is {raw.i32(data, position + 4) & 0xFFFF_FFFF:#010x}, but a topic of {length} characters takes "
            f"version {version}, {magic & 0xFFFF_FFFF:#010x}",
        )
    if not least <= size <= left:
        raise Refusal(
            index, position, f"TOTALSIZE is {size}, but it must be {least} to {left}, the bytes that are left"
        )
    sys_flag: cython.int = raw.i32(data, position + 36)
    if sys_flag & ~0x701:
        raise Refusal(
            index, position, f"SYSFLAG is {sys_flag & 0xFFFF_FFFF:#x}, but a client may set only bits of {0x701:#x}"
        )
    stop: cython.Py_ssize_t = position + size
    body: cython.Py_ssize_t = position + 88
    body_size: cython.Py_ssize_t = raw.i32(data, body - 4)
    if not 0 <= body_size <= size - least:
        raise Refusal(
            index, position, f"BODYLEN is {body_size}, but TOTALSIZE {size} leaves room for 0 to {size - least}"
        )
    if body_size > body_bytes_max:
        raise Refusal(
            index, position, f"the body has {body_size} bytes, but at most {body_bytes_max} are accepted", True
        )
    if not raw.has(data, body + body_size, stop, topic):
        name = topic[1 if magic == -626_843_481 else 2 :].decode()
        raise Refusal(index, position, f"TOPICLEN and TOPIC are not those of {name!r}, the topic in the header")
    properties: cython.Py_ssize_t = body + body_size + len(topic) + 2
    properties_size: cython.Py_ssize_t = raw.i16(data, properties - 2)
    if properties_size != stop - properties:
        room = stop - properties
        raise Refusal(index, position, f"PROPLEN is {properties_size}, but TOTALSIZE {size} leaves {room} bytes for it")
    if properties_size > properties_bytes_max:
        raise Refusal(
            index,
            position,
            f"the properties have {properties_size} bytes, but at most {properties_bytes_max} are accepted",
            True,
        )
    if raw.i32(data, position + 12) != queue_id:
        raise Refusal(index, position, f"QUEUEID is {raw.i32(data, position + 12)}, but the header says {queue_id}")
    # Both offsets, born host, store timestamp and store host, reconsume times, prepared transaction offset.
    set_by_broker: cython.longlong = raw.i64(data, position + 20) | raw.i64(data, position + 28)
    set_by_broker |= raw.i64(data, position + 48) | raw.i64(data, position + 56)
    set_by_broker |= raw.i64(data, position + 64)
    set_by_broker |= raw.i32(data, position + 72) | raw.i64(data, position + 76)
    if set_by_broker:
        raise Refusal(index, position, _broker_field_fault(block, position))
    crc: cython.int = raw.crc31(data, body, body + body_size)
    if raw.i32(data, position + 8) != crc:
        raise Refusal(index, position, body_fault(raw.i32(data, position + 8), crc))
    fault: object = _properties_fault(block, data, properties, stop, in_retries)
    if fault is not None:
        raise Refusal(index, position, str(fault))
    return raw.ends_with_checksum(data, properties, stop)


def _broker_field_fault(block: Any, position: int) -> str:
    head = bytes(memoryview(block)[position : position + 88])
    for name, unpack, at in _BROKER_NUMBERS:
        (value,) = unpack(head, at)
        if value:
            return f"{name} is {value}, but it must be 0: the broker fills it in"
    name, host = ("BORNHOST", head[48:56]) if any(head[48:56]) else ("STOREHOST", head[64:72])
    return f"{name} is {host.hex()}, but it must be 8 zero bytes: the broker fills it in"


_I32: Final = Struct(">i").unpack_from
_I64: Final = Struct(">q").unpack_from
_BROKER_NUMBERS: Final = (
    ("QUEUEOFFSET", _I64, 20),
    ("PHYSICALOFFSET", _I64, 28),
    ("STORETIMESTAMP", _I64, 56),
    ("RECONSUMETIMES", _I32, 72),
    ("PREPARED_TRANSACTION_OFFSET", _I64, 76),
)


@cython.cfunc
def _properties_fault(
    buffer: object,
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    in_retries: cython.bint,
) -> object:
    """Return why properties may not be put, or None (`property_rules.properties_fault`)."""
    name: cython.Py_ssize_t = start
    end: cython.Py_ssize_t
    value: cython.Py_ssize_t
    if start == stop:
        return None
    while name < stop and not in_retries:
        end = raw.find(data, 2, name, stop)
        value = raw.find(data, 1, name, end) + 1
        if end == stop or value == name + 1 or value >= end or _may_be_reserved(data, name):
            break
        if raw.find(data, 1, value, end) < end:
            break
        name = end + 1
    if name == stop and raw.is_ascii(data, start, stop):
        return None
    return properties_fault(bytes(memoryview(buffer)[start:stop]), in_retries=in_retries)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _may_be_reserved(data: cython.const[cython.uchar][::1], name: cython.Py_ssize_t) -> cython.bint:
    """Return whether a non-empty name begins like one that only the broker may write."""
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
    """Return a put block for some bodies, with zeros in the broker's fields.

    Args:
        bodies: bytes-like objects; the `len` of each is its size in bytes.
        texts: the encoded properties of each, or one for all.
        flags: of each, or one for all.
        magic, topic: of all records; the topic with its length field.
        queue_id, born_timestamp_ms: of all records.
        id_prefix, id_number: properties that do not begin with a unique id get one: the prefix, and four digits that
            count up from `id_number` with every record. No prefix, no ids.

    Returns:
        The records back to back, and where each begins.

    Raises:
        InvalidMessage: properties are too long with their id, or the block would have 2 GiB or more.
        ValueError: the number of texts or flags is wrong.
    """
    count: cython.Py_ssize_t = len(bodies)
    has_own_texts: cython.bint = len(texts) != 1
    has_own_flags: cython.bint = len(flags) != 1
    if (has_own_texts and len(texts) != count) or (has_own_flags and len(flags) != count):
        raise ValueError(f"{len(texts)} texts and {len(flags)} flags are given for {count} bodies; give one or {count}")
    id_start: bytes = _ID_NAME + id_prefix
    id_size: cython.Py_ssize_t = len(id_start) + 5 if id_prefix else 0
    text: bytes = b"" if has_own_texts else texts[0]
    text_size: cython.Py_ssize_t
    flag: cython.int = 0 if has_own_flags else flags[0]
    index: cython.Py_ssize_t
    end: cython.Py_ssize_t = 0
    positions = raw.zeros(_NUMBERS, count)
    starts: cython.longlong[::1] = positions
    for index in range(count):
        if has_own_texts:
            text = texts[index]
        text_size = len(text)
        if id_size and not text.startswith(_ID_NAME):
            text_size += id_size
        if text_size > 31_743:  # SENT_PROPERTIES_BYTES_MAX
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
        body_end = raw.put(bodies[index], records, at + 88, stop)
        _put_head(records, at, body_end, stop, magic, queue_id, flag, 0, born_timestamp_ms)
        text_size = stop - body_end - len(topic) - 2
        has_id = id_size > 0 and text_size == id_size + len(text)
        at = _put_middle(records, body_end, stop, topic, id_start if has_id else b"", id_number + index)
        if raw.put(text, records, at, stop) != stop:
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
    """Write everything before the body of the record at `[at, stop)`; the body is written already."""
    raw.put_i32(records, at, stop - at)
    raw.put_i32(records, at + 4, magic)
    raw.put_i32(records, at + 8, raw.crc31(records, at + 88, body_end))
    raw.put_i32(records, at + 12, queue_id)
    raw.put_i32(records, at + 16, flag)
    raw.put_i32(records, at + 36, sys_flag)
    raw.put_i64(records, at + 40, born_timestamp_ms)
    raw.put_i32(records, at + 84, body_end - at - 88)


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
    """Write topic, size of the properties and, unless `id_start` is empty, a unique id; return where that ends."""
    at = raw.put(topic, records, at, stop - 2)
    raw.put_i16(records, at, stop - at - 2)
    at += 2
    if id_start:
        at = raw.put(id_start, records, at, stop - 5)
        raw.put_hex(records, at, id_number & 0xFFFF)
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
    """Return the encoded properties of some messages, from columns of UTF-8 text.

    A column has its values back to back, and edges: where each begins and the last ends; without edges it is absent.

    Args:
        tags, keys: of each message; an empty one means none. Several keys are separated by blanks.
        names, values: of the other properties of all messages. Names with a column of their own and whole-record
            checksums are left out.
        is_set: 0 for each property that is null and left out; if empty, none is.
        entry_edges: where each message's properties begin among all, and the last end; empty without properties.

    Returns:
        The encoded properties back to back, each with its unique id first if it has one, and their edges.

    Raises:
        Refusal: with index and reason, for the first message with an invalid property.
        ValueError: the edges do not fit.
    """
    tag_data: cython.const[cython.uchar][::1] = raw.searchable(tags)
    key_data: cython.const[cython.uchar][::1] = raw.searchable(keys)
    name_data: cython.const[cython.uchar][::1] = raw.searchable(names)
    value_data: cython.const[cython.uchar][::1] = raw.searchable(values)
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
    # Each value is used once; each name or value gets a separator.
    room: cython.Py_ssize_t = len(tag_data) + len(key_data) + rows * 12
    block = bytearray(room + len(name_data) + len(value_data) + 2 * entries)
    texts: cython.uchar[::1] = block
    found = raw.zeros(_NUMBERS, rows + 1)
    edges: cython.longlong[::1] = found
    at: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    for row in range(rows):
        if has_entries:
            for entry in range(entry_edges[row], entry_edges[row + 1]):
                if _is_entry(name_data, name_edges, entry, b"UNIQ_KEY") and (len(is_set) == 0 or is_set[entry]):
                    at = _put_entry(name_data, name_edges, value_data, value_edges, entry, texts, at, row)
        if has_tags and tag_edges[row] < tag_edges[row + 1]:
            at = raw.put(b"TAGS\x01", texts, at, len(texts))
            at = _put_value(tag_data, tag_edges[row], tag_edges[row + 1], 2, texts, at, row)
        if has_keys and key_edges[row] < key_edges[row + 1]:
            at = raw.put(b"KEYS\x01", texts, at, len(texts))
            at = _put_value(key_data, key_edges[row], key_edges[row + 1], 2, texts, at, row)
        if has_entries:
            for entry in range(entry_edges[row], entry_edges[row + 1]):
                if (
                    (len(is_set) > 0 and not is_set[entry])
                    or _is_entry(name_data, name_edges, entry, b"UNIQ_KEY")
                    or _is_entry(name_data, name_edges, entry, b"__CRC32#")
                    or (has_tags and _is_entry(name_data, name_edges, entry, b"TAGS"))
                    or (has_keys and _is_entry(name_data, name_edges, entry, b"KEYS"))
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
    """Return whether these are the edges of `count` values in a column of `size` bytes."""
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
    return stop - start == len(name) and raw.has(names, start, stop, name)


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
    """Write a value or name and its separator; return where that ends."""
    if raw.find(data, 1, start, stop) < stop or raw.find(data, 2, start, stop) < stop:
        raise Refusal(
            row,
            0,
            "has a tag, key or property with one of the characters U+0001 and U+0002, which separate properties; "
            "leave them out",
        )
    at = raw.copy(data, start, stop - start, texts, at)
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
    """Return a put block from columns, with zeros in the broker's fields.

    Args:
        bodies, body_edges: bodies back to back; where each begins and the last ends.
        texts, text_edges: the encoded properties (`property_texts`).
        flags, born_timestamps_ms: of each message, or one for all.
        start: the first message of the block.
        bytes_max: maximum size of the block, unless a single message is larger.
        magic, topic: of all records; the topic with its length field.
        queue_id: of all records.
        ids: generates unique ids for properties that do not begin with one.

    Returns:
        The records back to back, and the first message of the next block.

    Raises:
        Refusal: with index and reason, for the first message whose properties are too long with their id, or whose flag
            exceeds 32 bits.
        ValueError: the edges do not fit.
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
    flag: cython.longlong
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
        if not raw.has(texts, text_edges[stop], text_edges[stop + 1], _ID_NAME):
            text_size += id_size
        if text_size > 31_743:
            raise Refusal(
                stop,
                0,
                f"has tag, keys and properties of {text_size} bytes, but at most 31743 fit; "
                "move the rest into the body",
            )
        flag = flags[stop if len(flags) > 1 else 0]
        if not -2_147_483_648 <= flag <= 2_147_483_647:
            raise Refusal(stop, 0, f"has the flag {flag}, but a flag has 32 bits; make it smaller")
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
        has_id = not raw.has(texts, text_edges[row], text_edges[row + 1], _ID_NAME)
        size = fixed + body_size + text_size + (id_size if has_id else 0)
        body_end = raw.copy(bodies, body_edges[row], body_size, records, at + 88)
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
        end = _put_middle(records, body_end, at + size, topic, id_start if has_id else b"", id_number + row - start)
        at = raw.copy(texts, text_edges[row], text_size, records, end)
    return block, stop


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
    """Return one record with all its fields.

    Args:
        body: bytes-like; its `len` is its size in bytes.
        topic: with its length field.
        born_host, store_host: 8 bytes, or 20 if `sys_flag` has the bit for an IPv6 address.

    Raises:
        InvalidMessage: the properties are too long, or the record would have 2 GiB or more.
        ValueError: a host's size does not match `sys_flag`.
    """
    if len(born_host) != (20 if sys_flag & 0x10 else 8) or len(store_host) != (20 if sys_flag & 0x20 else 8):
        raise ValueError(f"hosts of {len(born_host)} and {len(store_host)} bytes, but SYSFLAG is {sys_flag:#x}")
    if len(properties) > 0x7FFF:
        check_properties_size(len(properties), PROPERTIES_BYTES_MAX)
    body_size: cython.Py_ssize_t = len(body)
    size: cython.longlong = 74 + len(born_host) + len(store_host) + body_size + len(topic) + len(properties)
    if size > 0x7FFF_FFFF:
        raise InvalidMessage(f"a record of {size} bytes has no room for its size")
    record = bytearray(size)
    data: cython.uchar[::1] = record
    raw.put_i32(data, 0, size)
    raw.put_i32(data, 4, magic)
    raw.put_i32(data, 12, queue_id)
    raw.put_i32(data, 16, flag)
    raw.put_i64(data, 20, queue_offset)
    raw.put_i64(data, 28, physical_offset)
    raw.put_i32(data, 36, sys_flag)
    raw.put_i64(data, 40, born_timestamp_ms)
    at: cython.Py_ssize_t = raw.put(born_host, data, 48, size)
    raw.put_i64(data, at, store_timestamp_ms)
    at = raw.put(store_host, data, at + 8, size)
    raw.put_i32(data, at, reconsume_times)
    raw.put_i64(data, at + 4, prepared_transaction_offset)
    raw.put_i32(data, at + 12, body_size)
    at += 16
    if raw.put(body, data, at, at + body_size) != at + body_size:
        raise BufferError("a body has fewer bytes than its length")
    raw.put_i32(data, 8, raw.crc31(data, at, at + body_size))
    at = raw.put(topic, data, at + body_size, size - 2)
    raw.put_i16(data, at, len(properties))
    raw.put(properties, data, at + 2, size)
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
    """Return records for the units of a client's batch (`record.put_block`); None if a unit is invalid.

    Args:
        magic, topic: of all records; the topic with its length field.
        queue_id, sys_flag, born_timestamp_ms: of all records.
        count_max: maximum number of units.
        body_bytes_max, properties_bytes_max: the limits of one unit.

    Returns:
        The records back to back, with zeros in the broker's fields, and their number.
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
        size = raw.i32(data, position)
        body_size = raw.i32(data, position + 16)
        text_size = size - 22 - body_size
        if not (
            22 <= size <= end - position
            and 0 <= body_size <= body_bytes_max
            and 0 <= text_size <= properties_bytes_max
            and raw.i16(data, position + 20 + body_size) == text_size
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
        size = raw.i32(data, position)
        body_size = raw.i32(data, position + 16)
        stop = at + size + 68 + len(topic)
        body_end = raw.copy(data, position + 20, body_size, records, at + 88)
        _put_head(
            records, at, body_end, stop, magic, queue_id, raw.i32(data, position + 12), sys_flag, born_timestamp_ms
        )
        at = raw.put(topic, records, body_end, stop)
        at = raw.copy(data, position + 20 + body_size, size - 20 - body_size, records, at)
        position += size
    return block, count
