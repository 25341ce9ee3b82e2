"""One stored record in its buffer, whose parts are decoded on access."""

from __future__ import annotations

from array import array

from reput_protocol.buffers import Buffer
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import checksum_faults, scan_records
from reput_protocol.properties import decode_properties, split_keys
from reput_protocol.record import scan as number
from reput_protocol.record.head import born_host_in, size_at, store_host_in
from reput_protocol.record.message_id import Host, offset_message_id_of

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


def record_views(
    buffer: Buffer, start: int = 0, end: int | None = None, *, check_crc: bool = True
) -> list[RecordView]:
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
