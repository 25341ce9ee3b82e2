"""A message as a consumer sees it: a view of its record that decodes a field when it is asked for.

Nothing is decoded twice that costs anything, and nothing is handed out unchecked: the first look at the body
or the properties verifies the body's CRC and, where the record carries one, the CRC of the whole record.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

from reput_client.compression import compression_method, inflate
from reput_client.errors import DamagedMessage, UnsupportedCompression
from reput_client.record_positions import host_growth
from reput_protocol.checksum import crc32
from reput_protocol.host import Host
from reput_protocol.message import MessageQueue
from reput_protocol.message_id import offset_message_id_of
from reput_protocol.properties import CRC_PROPERTY_BYTES, decode_properties, find_property_in, split_keys
from reput_protocol.record import scan_record
from reput_protocol.record_layout import (
    BORN_HOST_AT,
    HEAD_BYTES,
    HOST_BITS,
    MAGIC_V1,
)

R = TypeVar("R", bound="ReceivedMessage")

# Magic to born timestamp, then, past two IPv4 hosts, the body's length. With an IPv6 host the last is elsewhere.
_HEAD: Final = struct.Struct(">4xiiiiqqiq36xi")
_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_HOSTS_AT: Final = BORN_HOST_AT
_CRC_UNIT: Final = b"__CRC32#\x01"
_UNPACK_I16: Final = _I16.unpack_from
_UNPACK_I32: Final = _I32.unpack_from
_UNPACK_HEAD: Final = _HEAD.unpack_from

# The places of fields in what `_HEAD` unpacks.
_MAGIC: Final = 0
_BODY_CRC: Final = 1
_QUEUE_ID: Final = 2
_FLAG: Final = 3
_QUEUE_OFFSET: Final = 4
_PHYSICAL_OFFSET: Final = 5
_SYS_FLAG: Final = 6
_BORN_TIMESTAMP: Final = 7
_BODY_SIZE: Final = 8


_TAGS_NAME: Final = b"TAGS\x01"
_VALUE_END: Final = 2

# Messages of one producer tend to end in one tag: the separator before it, its name, the value, the separator after it.
# A record that ends so has that tag. It cannot be a longer text's end by accident: no value holds a separator; nor can
# it begin before the properties: their size would be part of it, whose first byte is 0 there. One tuple, so that
# threads read both or neither.
_last_tag: tuple[bytes, str | None] = (b"\x02TAGS\x01*\x02", "*")
_TAG_UNIT_BYTES_MAX: Final = 255


def _remember_tag(unit: bytes, tag: str) -> None:
    global _last_tag
    if len(unit) <= _TAG_UNIT_BYTES_MAX and b"\x00" not in unit:
        _last_tag = (unit, tag)


class ReceivedMessage:
    """One message of a pull.

    It keeps the bytes of its whole pull alive: copy what you want to keep for long.

    Attributes:
        topic: the topic it was pulled from.
        broker_name: the broker that holds it.
        send_back_id: names it to the broker in every request to take it back, from the first one on.
    """

    __slots__ = (
        "_body_at",
        "_checked",
        "_end",
        "_head",
        "_record",
        "_start",
        "broker_name",
        "send_back_id",
        "topic",
    )

    def __init__(self, topic: str, record: bytes, start: int, end: int, broker_name: str = "") -> None:
        """Look at the record at `[start, end)` of `record`, whose sizes were checked (`record_positions`)."""
        self.topic = topic
        self.broker_name = broker_name
        self.send_back_id: str | None = None
        self._record = record
        self._start = start
        self._end = end
        head: tuple[int, ...] = _UNPACK_HEAD(record, start)
        self._head = head
        self._body_at = start + HEAD_BYTES
        if head[_SYS_FLAG] & HOST_BITS:
            self._body_at += host_growth(head[_SYS_FLAG])
            self._head = (*head[:_BODY_SIZE], _UNPACK_I32(record, self._body_at - 4)[0])
        self._checked = False

    # -- content -----------------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body, decompressed if the producer compressed it.

        Raises:
            DamagedMessage: it fails its checksum or cannot be decompressed.
            UnsupportedCompression: it is compressed with LZ4 or Zstandard.
        """
        head = self._head
        at = self._body_at
        record = self._record
        body = record[at : at + head[_BODY_SIZE]]
        if not self._checked:
            if crc32(body) & 0x7FFF_FFFF != head[_BODY_CRC] or record.startswith(
                _CRC_UNIT, self._end - CRC_PROPERTY_BYTES
            ):
                self._check(body)
            self._checked = True
        return self._inflated(body) if head[_SYS_FLAG] & 1 else body

    @property
    def raw_body(self) -> bytes:
        """The body as it is stored, possibly compressed.

        Raises:
            DamagedMessage: it fails its checksum.
        """
        at = self._body_at
        body = self._record[at : at + self._head[_BODY_SIZE]]
        if not self._checked:
            self._check(body)
        return body

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        if not self._checked:
            self._check(self._body())
        unit, tag = _last_tag
        if self._record.endswith(unit, self._start, self._end):
            return tag
        return self._find_tag()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the producer's order."""
        return split_keys(self.get_property("KEYS"))

    @property
    def properties(self) -> dict[str, str]:
        """All properties, system ones (`TAGS`, `KEYS`, `UNIQ_KEY`, ...) included; a new dict each time."""
        if not self._checked:
            self._check(self._body())
        return decode_properties(self._record[self._properties_at() : self._end])

    def get_property(self, name: str) -> str | None:
        """One property, or None; cheaper than `properties` when only one is wanted."""
        value = self._property(name.encode())
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def wants_reply(self) -> bool:
        """Whether it is a request: somebody waits, or has waited, for a reply to it."""
        return self.get_property("REPLY_TO_CLIENT") is not None and self.get_property("MSG_TYPE") != "reply"

    @property
    def message_id(self) -> str:
        """The producer's unique id (`UNIQ_KEY`), or the offset id where there is none."""
        return self.get_property("UNIQ_KEY") or self.offset_message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was pulled from."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def with_class(self, kind: type[R]) -> R:
        """Return this message as an object of another class of message."""
        return kind(self.topic, self._record, self._start, self._end, self.broker_name)

    # -- the fields of the record -----------------------------------------------------------------------------

    @property
    def queue_id(self) -> int:
        """The queue."""
        return self._head[_QUEUE_ID]

    @property
    def queue_offset(self) -> int:
        """The message's number in its queue."""
        return self._head[_QUEUE_OFFSET]

    @property
    def physical_offset(self) -> int:
        """Its byte position in the broker's commit log."""
        return self._head[_PHYSICAL_OFFSET]

    @property
    def flag(self) -> int:
        """The application's own 32 bits."""
        return self._head[_FLAG]

    @property
    def sys_flag(self) -> int:
        """RocketMQ's bits of the record (RocketMQ: MessageSysFlag)."""
        return self._head[_SYS_FLAG]

    @property
    def born_timestamp_ms(self) -> int:
        """The producer's clock when it sent the message."""
        return self._head[_BORN_TIMESTAMP]

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
        where = f"{self.topic}/{self.queue_id} at {self.queue_offset}"
        return f"<ReceivedMessage {where}, {self._head[_BODY_SIZE]} body bytes>"

    # -- inside ------------------------------------------------------------------------------------------------

    def _body(self) -> bytes:
        return self._record[self._body_at : self._body_at + self._head[_BODY_SIZE]]

    def _check(self, body: bytes) -> None:
        if crc32(body) & 0x7FFF_FFFF != self._head[_BODY_CRC]:
            raise self._damaged("the body does not match its checksum")
        if self._record.startswith(_CRC_UNIT, self._end - CRC_PROPERTY_BYTES):
            scan = scan_record(
                self._record, self._start, self._end, check_crc=True, check_properties_crc=True
            )
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

    def _find_tag(self) -> str | None:
        record, start, end = self._record, self._properties_at(), self._end
        found = record.rfind(_TAGS_NAME, start, end)
        if found < 0:
            return None
        if found == start or record[found - 1] == _VALUE_END:
            # The usual case in few steps: the name stands where a name stands, and nothing like it comes later.
            value_start = found + len(_TAGS_NAME)
            value_end = record.find(_VALUE_END, value_start, end)
            if value_end > value_start:
                tag = record[value_start:value_end].decode("utf-8", "replace")
                if value_end == end - 1 and found > start:
                    _remember_tag(record[found - 1 : end], tag)
                return tag
        value = find_property_in(record, b"TAGS", start, end)
        return None if value is None else value.decode("utf-8", "replace")

    def _property(self, name: bytes) -> bytes | None:
        if not self._checked:
            self._check(self._body())
        return find_property_in(self._record, name, self._properties_at(), self._end)

    def _properties_at(self) -> int:
        """Where the properties start; they end where the record ends."""
        head = self._head
        at: int = self._body_at + head[_BODY_SIZE]
        if head[_MAGIC] == MAGIC_V1:
            return at + 3 + self._record[at]
        topic_size: int = _UNPACK_I16(self._record, at)[0]
        return at + 4 + topic_size

    def unchecked_tag(self) -> str | None:
        """The tag, without looking at checksums: for a filter, which must not stop at a damaged message."""
        value = find_property_in(self._record, b"TAGS", self._properties_at(), self._end)
        return None if value is None else value.decode("utf-8", "replace")


class DamagedRecord(ReceivedMessage):
    """A message of which only its place in its queue is known: the record there cannot be read, or is another one.

    Every look at what the record should say raises `DamagedMessage`, as for a message that fails its checksum. Topic,
    queue id and queue offset are those that were pulled; `record` is what came in its place.
    """

    __slots__ = ("_queue_id", "_queue_offset", "_reason")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        record: bytes,
        start: int,
        end: int,
        reason: str,
        broker_name: str = "",
    ) -> None:
        self.topic = topic
        self.broker_name = broker_name
        self._queue_id = queue_id
        self._queue_offset = queue_offset
        self._record = record
        self._start = start
        self._end = end
        self._reason = reason
        self._body_at = start
        self._checked = False

    @property
    def _head(self) -> tuple[int, ...]:  # type: ignore[override]
        raise self._damaged(self._reason)

    @property
    def queue_id(self) -> int:
        """The queue that was pulled from."""
        return self._queue_id

    @property
    def queue_offset(self) -> int:
        """The message's number in its queue."""
        return self._queue_offset

    def __repr__(self) -> str:
        return f"<DamagedRecord {self.topic}/{self.queue_id} at {self.queue_offset}: {self._reason}>"
