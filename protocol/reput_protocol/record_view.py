"""One stored record where it lies: fields are decoded when they are asked for.

For whoever needs a few fields of each record and not its whole value. Where array operations pay, use columns.py.
"""

from __future__ import annotations

import struct
from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.errors import RecordMalformed
from reput_protocol.host import Host
from reput_protocol.message_id import offset_message_id_of
from reput_protocol.properties import decode_properties, find_property, find_property_in, split_keys
from reput_protocol.record_layout import BACK, BORN_HOST_AT, HEAD_BYTES, I16, I64, MAGIC_V1
from reput_protocol.record_scan import locate


class RecordView:
    """The sound record at `position` of `buffer`, which is not copied and must not change meanwhile.

    The constructor trusts the record: use `record_views` for bytes that came from elsewhere. Attributes are those of
    `Record`; what costs something to decode is a property and decoded on every access.
    """

    __slots__ = (
        "_body",
        "_body_size",
        "born_timestamp_ms",
        "buffer",
        "flag",
        "magic",
        "physical_offset",
        "position",
        "queue_id",
        "queue_offset",
        "size",
        "sys_flag",
    )

    def __init__(self, buffer: Buffer, position: int) -> None:
        self.buffer = buffer
        self.position = position
        (
            self.size,
            self.magic,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            sys_flag,
            self.born_timestamp_ms,
            self._body_size,
        ) = _HEAD(buffer, position)
        self.sys_flag = sys_flag
        self._body = position + HEAD_BYTES
        if sys_flag & 0x30:
            self._body += (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
            self._body_size = BACK.unpack_from(buffer, self._body - BACK.size)[2]

    @property
    def version(self) -> int:
        """Record version, 1 or 2."""
        return 1 if self.magic == MAGIC_V1 else 2

    @property
    def topic(self) -> str:
        """The topic."""
        start, size = self._topic()
        return str(memoryview(self.buffer)[start : start + size], "utf-8", "replace")

    @property
    def body(self) -> bytes:
        """A copy of the body as stored, possibly compressed."""
        start = self._body
        return bytes(self.buffer[start : start + self._body_size])

    @property
    def body_view(self) -> memoryview:
        """The body in place."""
        return memoryview(self.buffer)[self._body : self._body + self._body_size]

    @property
    def properties(self) -> bytes:
        """A copy of the raw properties text."""
        start, size = self._topic()
        return bytes(self.buffer[start + size + 2 : self.position + self.size])

    def property_map(self) -> dict[str, str]:
        """Return all properties, decoded the tolerant way."""
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
    def store_timestamp_ms(self) -> int:
        """The broker's clock when it stored the record."""
        return I64.unpack_from(self.buffer, self._store_timestamp_at())[0]  # type: ignore[no-any-return]

    @property
    def born_host(self) -> Host:
        """The producer's address."""
        return Host.unpack(self.buffer[self.position + BORN_HOST_AT : self._store_timestamp_at()])

    @property
    def store_host(self) -> Host:
        """The broker's address."""
        return Host.unpack(self.buffer[self._store_timestamp_at() + 8 : self._body - BACK.size])

    @property
    def reconsume_times(self) -> int:
        """How often a consumer sent it back."""
        return BACK.unpack_from(self.buffer, self._body - BACK.size)[0]  # type: ignore[no-any-return]

    @property
    def prepared_transaction_offset(self) -> int:
        """Where the prepared half of a committed message lies, else 0."""
        return BACK.unpack_from(self.buffer, self._body - BACK.size)[1]  # type: ignore[no-any-return]

    @property
    def offset_message_id(self) -> str:
        """The id that names the broker and the place in its log."""
        host = bytes(self.buffer[self._store_timestamp_at() + 8 : self._body - BACK.size])
        return offset_message_id_of(host, self.physical_offset)

    def body_crc_matches(self) -> bool:
        """Tell whether the body is what its checksum was made of."""
        return crc32(self.body_view) & 0x7FFF_FFFF == int.from_bytes(
            self.buffer[self.position + 8 : self.position + 12]
        )

    def _topic(self) -> tuple[int, int]:
        """Return where the topic lies and its size."""
        end = self._body + self._body_size
        if self.magic == MAGIC_V1:
            return end + 1, self.buffer[end]
        return end + 2, I16.unpack_from(self.buffer, end)[0]

    def _store_timestamp_at(self) -> int:
        return self.position + BORN_HOST_AT + (20 if self.sys_flag & 0x10 else 8)

    def _property(self, name: bytes) -> str | None:
        buffer = self.buffer
        end = self.position + self.size
        start = self._body + self._body_size
        # Version 1, the usual one, inline: one property of each message is what a consumer's filter asks for.
        start += buffer[start] + 3 if self.magic == MAGIC_V1 else I16.unpack_from(buffer, start)[0] + 4
        if type(buffer) is memoryview:  # which cannot be searched
            value = find_property(bytes(buffer[start:end]), name)
        else:
            value = find_property_in(buffer, name, start, end)
        return None if value is None else value.decode("utf-8", "replace")


def record_views(
    buffer: Buffer, start: int = 0, end: int | None = None, *, check_crc: bool = True
) -> list[RecordView]:
    """Return a view of every record that fills `[start, end)` of `buffer`.

    Raises:
        RecordMalformed: the first record that is not sound, or where the bytes stop being records.
    """
    end = len(buffer) if end is None else end
    views: list[RecordView] = []
    position = start
    while position < end:
        scan, extent = locate(buffer, position, end, check_crc=check_crc)
        if extent is None:
            raise RecordMalformed(len(views), position, scan.reason or "a blank record, the end of a file")
        views.append(RecordView(buffer, position))
        position += scan.size
    return views


_HEAD: Final = struct.Struct(">ii4xiiqqiq36xi").unpack_from
