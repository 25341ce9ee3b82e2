"""A message as a consumer sees it: a view of its record that decodes a field when it is asked for.

Nothing is decoded twice that costs anything, and nothing is handed out unchecked: the first look at the body
or the properties verifies the body's CRC and, where the record carries one, the CRC of the whole record.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from reput_client.compression import compression_method, inflate
from reput_client.errors import DamagedMessage, UnsupportedCompression
from reput_protocol.buffers import Buffer
from reput_protocol.errors import RecordMalformed
from reput_protocol.host import Host
from reput_protocol.message_id import offset_message_id_of
from reput_protocol.properties import decode_properties, find_property_in
from reput_protocol.record import scan_record
from reput_protocol.record_layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

_HEAD: Final = struct.Struct(">4xiiiiqqiq")  # magic to born timestamp, at byte 0
_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_HOSTS_AT: Final = 48
_BODY_LENGTH_AT: Final = 84
_V1_LAST_BYTE: Final = 0xA7
_CRC_UNIT: Final = b"__CRC32#\x01"
_SIZE_MAGIC = struct.Struct(">ii").unpack_from
_UNPACK_I32 = _I32.unpack_from
_UNPACK_HEAD = _HEAD.unpack_from


class ReceivedMessage:
    """One message of a pull.

    It keeps the bytes of its whole pull alive: copy what you want to keep for long.

    Attributes:
        topic, broker_name, queue_id, queue_offset: where it was read.
        physical_offset: its byte position in the broker's commit log.
        born_timestamp_ms: the producer's clock when it sent the message.
        flag: the application's own 32 bits. sys_flag: RocketMQ's (MessageSysFlag).
    """

    __slots__ = (
        "_body_at",
        "_body_crc",
        "_body_size",
        "_checked",
        "_end",
        "_record",
        "_start",
        "born_timestamp_ms",
        "broker_name",
        "flag",
        "physical_offset",
        "queue_id",
        "queue_offset",
        "sys_flag",
        "topic",
    )

    def __init__(self, topic: str, record: bytes, start: int, end: int, broker_name: str = "") -> None:
        """Look at the record at `[start, end)` of `record`, whose sizes were checked (`message_positions`)."""
        self.topic = topic
        self.broker_name = broker_name
        self._record = record
        self._start = start
        self._end = end
        (
            _,
            self._body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            sys_flag,
            self.born_timestamp_ms,
        ) = _UNPACK_HEAD(record, start)
        self.sys_flag = sys_flag
        length_at = start + 84
        if sys_flag & 0x30:
            length_at += _host_growth(sys_flag)
        self._body_at = length_at + 4
        (self._body_size,) = _UNPACK_I32(record, length_at)
        self._checked = False

    # -- content -----------------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body, decompressed if the producer compressed it.

        Raises:
            DamagedMessage: it fails its checksum or cannot be decompressed.
            UnsupportedCompression: it is compressed with LZ4 or Zstandard.
        """
        if not self._checked:
            self._check()
        at = self._body_at
        body = self._record[at : at + self._body_size]
        return self._inflated(body) if self.sys_flag & 1 else body

    @property
    def raw_body(self) -> bytes:
        """The body as it is stored, possibly compressed.

        Raises:
            DamagedMessage: it fails its checksum.
        """
        if not self._checked:
            self._check()
        return self._record[self._body_at : self._body_at + self._body_size]

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        value = self._property(b"TAGS")
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the producer's order."""
        value = self._property(b"KEYS")
        return () if value is None else tuple(value.decode("utf-8", "replace").split())

    @property
    def properties(self) -> dict[str, str]:
        """All properties, system ones (`TAGS`, `KEYS`, `UNIQ_KEY`, ...) included; a new dict each time."""
        if not self._checked:
            self._check()
        return decode_properties(self._record[self._properties_at() : self._end])

    def get_property(self, name: str) -> str | None:
        """One property, or None; cheaper than `properties` when only one is wanted."""
        value = self._property(name.encode())
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def message_id(self) -> str:
        """The producer's unique id (`UNIQ_KEY`), or the offset id where there is none."""
        return self.get_property("UNIQ_KEY") or self.offset_message_id

    # -- what the broker filled in -----------------------------------------------------------------------------

    @property
    def offset_message_id(self) -> str:
        """The id that names the broker and the place in its log."""
        return offset_message_id_of(self._store_host_bytes(), self.physical_offset)

    @property
    def store_timestamp_ms(self) -> int:
        """The broker's clock when it stored the message."""
        at = self._start + _HOSTS_AT + (20 if self.sys_flag & 0x10 else 8)
        return int(_I64.unpack_from(self._record, at)[0])

    @property
    def born_host(self) -> str:
        """The producer's address, `ip:port`."""
        at = self._start + _HOSTS_AT
        return str(Host.unpack(self._record[at : at + (20 if self.sys_flag & 0x10 else 8)]))

    @property
    def store_host(self) -> str:
        """The broker's address, `ip:port`."""
        return str(Host.unpack(self._store_host_bytes()))

    @property
    def reconsume_times(self) -> int:
        """How often a consumer has sent the message back."""
        return int(_I32.unpack_from(self._record, self._body_at - 16)[0])

    @property
    def record(self) -> bytes:
        """The whole record, byte for byte as the broker stores it; a copy."""
        return self._record[self._start : self._end]

    @property
    def record_bytes(self) -> int:
        """The size of the whole record."""
        return self._end - self._start

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.topic}/{self.queue_id} at {self.queue_offset}, {self._body_size} body bytes>"

    # -- inside ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        record = self._record
        at = self._body_at
        if crc32(memoryview(record)[at : at + self._body_size]) & 0x7FFF_FFFF != self._body_crc:
            raise self._damaged("the body does not match its checksum")
        end = self._end
        if record[end - 20 : end - 11] == _CRC_UNIT:
            scan = scan_record(record, self._start, end, check_crc=True, check_properties_crc=True)
            if scan.reason:
                raise self._damaged(scan.reason)
        self._checked = True

    def _damaged(self, reason: str) -> DamagedMessage:
        return DamagedMessage(self.topic, self.queue_id, self.queue_offset, reason)

    def _inflated(self, body: bytes) -> bytes:
        method = compression_method(self.sys_flag)
        if method != "zlib":
            raise UnsupportedCompression(str(method), self.queue_offset)
        try:
            return inflate(body)
        except ValueError as error:
            raise self._damaged(str(error)) from None

    def _store_host_bytes(self) -> bytes:
        at = self._start + _HOSTS_AT + (20 if self.sys_flag & 0x10 else 8) + 8
        return self._record[at : at + (20 if self.sys_flag & 0x20 else 8)]

    def _property(self, name: bytes) -> bytes | None:
        if not self._checked:
            self._check()
        return find_property_in(self._record, name, self._properties_at(), self._end)

    def _properties_at(self) -> int:
        """Where the properties start; they end where the record ends."""
        record = self._record
        at: int = self._body_at + self._body_size
        if record[self._start + 7] == _V1_LAST_BYTE:
            return at + 3 + record[at]
        topic_size: int = _I16.unpack_from(record, at)[0]
        return at + 4 + topic_size

    def unchecked_tag(self) -> str | None:
        """The tag, without looking at checksums: for a filter, which must not stop at a damaged message."""
        value = find_property_in(self._record, b"TAGS", self._properties_at(), self._end)
        return None if value is None else value.decode("utf-8", "replace")


def _host_growth(sys_flag: int) -> int:
    return (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)


def message_positions(records: Buffer) -> list[int]:
    """Return where each record of back-to-back `records` starts, plus the end; the sizes of each are checked.

    Raises:
        RecordMalformed: sizes do not add up or a magic is wrong; `index` and `position` name the record.
    """
    positions: list[int] = []
    position = 0
    end = len(records)
    append = positions.append
    while position < end:
        append(position)
        position += _checked_size(records, position, end, len(positions) - 1)
    append(position)
    return positions


def _checked_size(records: Buffer, position: int, end: int, index: int) -> int:
    if end - position < RECORD_BYTES_MIN:
        raise RecordMalformed(index, position, f"{end - position} bytes left, too few for a record")
    size, magic = _SIZE_MAGIC(records, position)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordMalformed(index, position, f"unknown magic {magic & 0xFFFF_FFFF:#010x}")
    at: int = position + _BODY_LENGTH_AT
    sys_flag = records[position + 39]
    if sys_flag & 0x30:
        at += _host_growth(sys_flag)
    record_end = position + size
    if size < RECORD_BYTES_MIN or record_end > end:
        raise RecordMalformed(
            index, position, f"size {size} does not fit into the {end - position} bytes left"
        )
    (body_size,) = _UNPACK_I32(records, at)
    at += 4 + body_size
    if body_size < 0 or at + 3 > record_end:
        raise RecordMalformed(index, position, f"body of {body_size} bytes does not fit into the record")
    if magic == MAGIC_V2:
        at += 2 + _I16.unpack_from(records, at)[0]
    else:
        at += 1 + records[at]
    if at + 2 > record_end or at + 2 + _I16.unpack_from(records, at)[0] != record_end:
        raise RecordMalformed(index, position, "topic and properties do not add up to the record's size")
    return size
