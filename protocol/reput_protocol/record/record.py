"""A stored record: as a value, as a view of its buffer whose parts are decoded on access, and its copy for another
queue; layout.py is about its bytes.

A copy with other properties (`redirect_record`) equals `encode_record` of the decoded record with other fields (a
property test compares them), but body, its checksum and born host are copied unchanged.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.kernel import put_blocks
from reput_protocol.kernel.records import checksum_faults, scan_records
from reput_protocol.properties import (
    CRC_PROPERTY_BYTES,
    PROPERTIES_BYTES_MAX,
    decode_properties,
    ends_with_crc_property,
    find_property,
    split_keys,
)
from reput_protocol.record import scan as number
from reput_protocol.record.layout import (
    BACK,
    BORN_HOST_IPV6,
    FRONT,
    HOST_BITS,
    I16,
    I64,
    STORE_HOST_IPV6,
    born_host_in,
    crc_property,
    record_version_for,
    size_at,
    store_host_in,
    topic_field,
)
from reput_protocol.record.message_id import ZERO_HOST, Host, offset_message_id, offset_message_id_of
from reput_protocol.record.scan import ScanStatus, scan_record

_BLANK = "a blank record, the end of a file"


class RecordView:
    """The valid record at `position` of `buffer`, which is not copied and must not change.

    Checksums are not verified. Attributes are those of `Record`, decoded on every access.

    Raises:
        RecordMalformed: there is no valid record.
    """

    __slots__ = ("_at", "_table", "buffer")

    def __init__(self, buffer: Buffer, position: int, table: array[int] | None = None, at: int = 0) -> None:
        if table is None:
            left = len(buffer) - position
            size = size_at(buffer, position) if left >= 4 else left
            end = position + size if 0 < size <= left else len(buffer)  # only this record
            table, _, _, _, reason = scan_records(buffer, position, end)
            if not table:
                raise RecordMalformed(0, position, reason or _BLANK)
        self.buffer = buffer
        self._table = table
        self._at = at

    @property
    def position(self) -> int:
        """Where the record starts."""
        return self._table[self._at + number.POSITION]

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return self._table[self._at + number.SIZE]

    @property
    def version(self) -> int:
        """1 or 2: the size of the topic's length field."""
        row = self._table[self._at : self._at + number.WIDTH]
        return row[number.TOPIC] - row[number.BODY] - row[number.BODY_SIZE]

    @property
    def queue_id(self) -> int:
        """The queue."""
        return self._table[self._at + number.QUEUE_ID]

    @property
    def flag(self) -> int:
        """The application's 32 bits."""
        return self._table[self._at + number.FLAG]

    @property
    def queue_offset(self) -> int:
        """The message's number in its queue."""
        return self._table[self._at + number.QUEUE_OFFSET]

    @property
    def physical_offset(self) -> int:
        """The commit-log position that the record states."""
        return self._table[self._at + number.PHYSICAL_OFFSET]

    @property
    def sys_flag(self) -> int:
        """Bits of MessageSysFlag."""
        return self._table[self._at + number.SYS_FLAG]

    @property
    def born_timestamp_ms(self) -> int:
        """The producer's clock at the send."""
        return self._table[self._at + number.BORN_TIMESTAMP_MS]

    @property
    def store_timestamp_ms(self) -> int:
        """The broker's clock at the store."""
        return self._table[self._at + number.STORE_TIMESTAMP_MS]

    @property
    def reconsume_times(self) -> int:
        """How often the message was given back."""
        return self._table[self._at + number.RECONSUME_TIMES]

    @property
    def prepared_transaction_offset(self) -> int:
        """The position of a committed message's prepared half, else 0."""
        return self._table[self._at + number.PREPARED_TRANSACTION_OFFSET]

    @property
    def body_crc(self) -> int:
        """The body's checksum that the record states."""
        return self._table[self._at + number.BODY_CRC]

    @property
    def topic(self) -> str:
        """The topic."""
        return str(self._part(number.TOPIC), "utf-8", "replace")

    @property
    def body(self) -> bytes:
        """A copy of the body as stored, possibly compressed."""
        return bytes(self._part(number.BODY))

    @property
    def body_view(self) -> memoryview:
        """The body in place."""
        return self._part(number.BODY)

    @property
    def properties(self) -> bytes:
        """A copy of the encoded properties."""
        return bytes(self._part(number.PROPERTIES))

    def property_map(self) -> dict[str, str]:
        """Return all properties, decoded tolerantly."""
        return decode_properties(self.properties)

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        return self._text(number.TAG)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the producer's order."""
        return split_keys(self._text(number.KEYS))

    @property
    def unique_key(self) -> str | None:
        """The producer's unique id, or None."""
        return self._text(number.UNIQUE_ID)

    @property
    def packed_born_host(self) -> memoryview:
        """The producer's address as stored."""
        return memoryview(self.buffer)[born_host_in(self.position, self.sys_flag)]

    @property
    def packed_store_host(self) -> memoryview:
        """The broker's address as stored."""
        return memoryview(self.buffer)[store_host_in(self._table[self._at + number.BODY], self.sys_flag)]

    @property
    def born_host(self) -> Host:
        """The producer's address."""
        return Host.unpack(self.packed_born_host)

    @property
    def store_host(self) -> Host:
        """The broker's address."""
        return Host.unpack(self.packed_store_host)

    @property
    def offset_message_id(self) -> str:
        """The id that encodes broker and log position."""
        return offset_message_id_of(bytes(self.packed_store_host), self.physical_offset)

    def _part(self, part: int) -> memoryview:
        start, size = self._table[self._at + part : self._at + part + 2]
        return memoryview(self.buffer)[start : start + size]

    def _text(self, part: int) -> str | None:
        return str(self._part(part), "utf-8", "replace") or None


def record_views(buffer: Buffer, start: int = 0, end: int | None = None, *, check_crc: bool = True) -> list[RecordView]:
    """Return a view of every record in `[start, end)` of `buffer`.

    Raises:
        RecordMalformed: for the first invalid record, or bytes that are not a record.
    """
    end = len(buffer) if end is None else end
    table, stop, _, _, reason = scan_records(buffer, start, end)
    for row, fault in checksum_faults(buffer, table) if check_crc else ():
        raise RecordMalformed(row, table[number.WIDTH * row + number.POSITION], fault)
    if stop < end:
        raise RecordMalformed(len(table) // number.WIDTH, stop, reason or _BLANK)
    return [RecordView(buffer, 0, table, at) for at in range(0, len(table), number.WIDTH)]


@dataclass(slots=True)
class Record:
    """One message as it is stored: the producer's fields and the broker's.

    `properties` is encoded, `body` as stored (possibly compressed, see `sys_flag`). `version` is 1 or 2; 0 chooses by
    the topic's length, as RocketMQ does.
    """

    topic: str
    body: bytes
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = ZERO_HOST
    store_timestamp_ms: int = 0
    store_host: Host = ZERO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties: bytes = b""
    version: int = 0

    def __post_init__(self) -> None:
        if self.version == 0:
            self.version = record_version_for(self.topic)

    def property_map(self) -> dict[str, str]:
        """Return all properties, decoded tolerantly."""
        return decode_properties(self.properties)

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        return self._property(b"TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the producer's order."""
        return split_keys(self._property(b"KEYS"))

    @property
    def unique_key(self) -> str | None:
        """The producer's unique id, or None."""
        return self._property(b"UNIQ_KEY")

    @property
    def offset_message_id(self) -> str:
        """The id that encodes broker and log position."""
        return offset_message_id(self.store_host, self.physical_offset)

    def _property(self, name: bytes) -> str | None:
        value = find_property(self.properties, name)
        return None if value is None else value.decode("utf-8", "replace")


def encode_record(record: Record, *, with_crc: bool = False, store_host: Host | None = None) -> bytearray:
    """Return the bytes of `record`, which the caller may change; its hosts set the host bits of its sysFlag.

    With `store_host` they are those of a broker that stores it: with this address, and the version for the topic. With
    `with_crc` a checksum of the whole record becomes its last property, replacing an existing one; only
    `kernel.records.patch_block` keeps it valid.

    Raises:
        InvalidMessage: the topic or the properties do not fit into a record.
    """
    magic, topic = topic_field(record.topic.encode(), record.version if store_host is None else 0)
    properties = record.properties
    if with_crc:
        if ends_with_crc_property(properties):
            properties = properties[:-CRC_PROPERTY_BYTES]
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += bytes(CRC_PROPERTY_BYTES)
    born_host = record.born_host.packed()
    stored_at = (record.store_host if store_host is None else store_host).packed()
    sys_flag = record.sys_flag & ~HOST_BITS
    if len(born_host) == 20:
        sys_flag |= BORN_HOST_IPV6
    if len(stored_at) == 20:
        sys_flag |= STORE_HOST_IPV6
    encoded = put_blocks.encode_record(
        record.body,
        properties,
        magic,
        topic,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        sys_flag,
        record.born_timestamp_ms,
        born_host,
        record.store_timestamp_ms,
        stored_at,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )
    if with_crc:
        encoded[-CRC_PROPERTY_BYTES:] = crc_property(encoded[:-CRC_PROPERTY_BYTES])
    return encoded


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> Record:
    """Return the record at `position` of `buffer`; its bytes are copied.

    Raises:
        RecordMalformed: with index 0, if there is no whole, valid record.
    """
    scan = scan_record(buffer, position, len(buffer), check_crc=check_crc)
    if scan.status is not ScanStatus.RECORD:
        raise RecordMalformed(0, position, scan.reason or "a blank record, the end of a file")
    view = RecordView(buffer, position)
    return Record(
        topic=view.topic,
        body=view.body,
        queue_id=view.queue_id,
        flag=view.flag,
        queue_offset=view.queue_offset,
        physical_offset=view.physical_offset,
        sys_flag=view.sys_flag,
        born_timestamp_ms=view.born_timestamp_ms,
        born_host=view.born_host,
        store_timestamp_ms=view.store_timestamp_ms,
        store_host=view.store_host,
        reconsume_times=view.reconsume_times,
        prepared_transaction_offset=view.prepared_transaction_offset,
        properties=view.properties,
        version=view.version,
    )


def redirect_record(
    record: RecordView,
    *,
    topic: str,
    queue_id: int,
    properties: bytes,
    prepared_transaction_offset: int,
    store_host: bytes,
    with_crc: bool = False,
) -> bytes:
    """Return a record of the message in `record`; its offsets are still zero.

    Args:
        record: a valid record.
        topic, queue_id: the target; the version follows from the topic.
        properties: encoded, without a whole-record checksum.
        prepared_transaction_offset: of the new record.
        store_host: the packed address, as in a record.
        with_crc: whether to add a whole-record checksum as the last property.

    Raises:
        InvalidMessage: the topic or the properties do not fit into a record.
    """
    magic, topic_bytes = topic_field(topic.encode())
    if with_crc:
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += bytes(CRC_PROPERTY_BYTES)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"properties of {len(properties)} bytes, but at most {PROPERTIES_BYTES_MAX} fit")
    body, born_host = record.body_view, record.packed_born_host
    sys_flag = record.sys_flag & ~STORE_HOST_IPV6 | (STORE_HOST_IPV6 if len(store_host) == 20 else 0)
    fixed = FRONT.size + len(born_host) + I64.size + len(store_host) + BACK.size
    size = fixed + len(body) + len(topic_bytes) + I16.size + len(properties)
    redirected = b"".join(
        (
            FRONT.pack(size, magic, record.body_crc, queue_id, record.flag, 0, 0, sys_flag, record.born_timestamp_ms),
            born_host,
            I64.pack(record.store_timestamp_ms),
            store_host,
            BACK.pack(record.reconsume_times, prepared_transaction_offset, len(body)),
            body,
            topic_bytes,
            I16.pack(len(properties)),
            properties,
        )
    )
    if not with_crc:
        return redirected
    covered = redirected[:-CRC_PROPERTY_BYTES]
    return covered + crc_property(covered)
