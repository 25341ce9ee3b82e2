"""A received message: a view of its record, which decodes each field on access.

A record's checksums are verified before a message is created from it.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from reput_client.errors import (
    DamagedMessage,
    NotDelivered,
    NotDeserialized,
    RegistryRefused,
    RegistryUnavailable,
    UnsupportedCompression,
)
from reput_protocol.codes import MessageSysFlag
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import checksum_faults, scan_records
from reput_protocol.properties import PRIORITY, SHARDING_KEY, decode_properties, find_property, split_keys
from reput_protocol.record.compression import compression_method, inflate
from reput_protocol.record.delays import expiry_in, moment_of, priority_of
from reput_protocol.record.layout import born_host_in, store_host_in
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import Host, offset_message_id_of
from reput_protocol.record.scan import (
    BODY,
    BODY_SIZE,
    BORN_TIMESTAMP_MS,
    FLAG,
    PHYSICAL_OFFSET,
    POSITION,
    PROPERTIES,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    STORE_TIMESTAMP_MS,
    SYS_FLAG,
    TAG,
    TAG_SIZE,
    TOPIC,
    WIDTH,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    V = TypeVarWithDefault("V", default=Any)
    """The type of the values of messages: what a deserializer returns."""
else:  # Python 3.11 has no defaults
    V = TypeVar("V")


R = TypeVar("R", bound="ReceivedMessage")

_COMPRESSED: Final = int(MessageSysFlag.COMPRESSED)


class Deliverer(Protocol):
    """The member of a group that has delivered a message."""

    def ack(self, message: ReceivedMessage) -> None:
        """See `ReceivedMessage`."""

    def nack(self, message: ReceivedMessage, delay_s: float | None, reason: str | None) -> Awaitable[None]:
        """See `ReceivedMessage`."""

    def reject(self, message: ReceivedMessage, reason: str | None) -> Awaitable[None]:
        """See `ReceivedMessage`."""


class PulledRecords:
    """The records of a pull, shared by its messages.

    Attributes:
        deliverer: the member of a group that pulled them, or None.
        deserializer: returns the value of a message for its body; None: the body is the value.
        topic, broker_name: where they were pulled from.
        data: the records.
        table: the kernel's numbers for them (`COLUMNS`).
        faults: checksum failures, by the number of the record's row in the table.
    """

    __slots__ = ("broker_name", "data", "deliverer", "deserializer", "faults", "table", "topic")

    def __init__(self, topic: str, broker_name: str, data: bytes, table: array[int]) -> None:
        self.deliverer: Deliverer | None = None
        self.deserializer: Callable[[bytes], Any] | None = None
        self.topic = topic
        self.broker_name = broker_name
        self.data = data
        self.table = table
        self.faults = dict(checksum_faults(data, table))

    def alone(self, at: int) -> PulledRecords:
        """Return only the record of the row that starts at `at`."""
        start, size = self.table[at + POSITION : at + POSITION + 2]
        return _SingleRecord(self.data[start : start + size], self.broker_name, self.topic, self.deserializer)


class _SingleRecord(PulledRecords):
    """The record of a message that is no part of a pull."""

    __slots__ = ()

    def __init__(
        self,
        record: bytes,
        broker_name: str,
        topic: str | None = None,
        deserializer: Callable[[bytes], Any] | None = None,
    ) -> None:
        """Read the record; by default the topic is the one that it names.

        Raises:
            RecordMalformed: `record` is not one whole record.
        """
        table, end, _, _, reason = scan_records(record, 0, len(record))
        if len(table) != WIDTH or end < len(record):
            row = min(len(table) // WIDTH, 1)
            position = table[SIZE] if row else 0
            raise RecordMalformed(row, position, reason or f"{len(record) - position} bytes follow")
        if topic is None:
            start, size = table[TOPIC : TOPIC + 2]
            topic = record[start : start + size].decode("utf-8", "replace")
        super().__init__(topic, broker_name, record, table)
        self.deserializer = deserializer

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the table, whose columns may change."""
        return type(self), (self.data, self.broker_name, self.topic, self.deserializer)


class ReceivedMessage(Generic[V]):
    """One message of a pull; `V` is the type of its `value`.

    It keeps the bytes of the whole pull in memory; a copy (`copy.copy`, or a pickle) keeps only its own. A pickle
    includes the deserializer, if there is one.

    Attributes:
        send_back_id: identifies it in all requests that give it back.
    """

    __slots__ = ("_at", "_records", "_value", "send_back_id")

    def __init__(self, records: PulledRecords, at: int) -> None:
        """Create the message for the row that starts at `at` in the table."""
        self._records = records
        self._at = at
        self.send_back_id: str | None = None

    @classmethod
    def of_record(cls, record: bytes, broker_name: str = "") -> Self:
        """Return the message of a single record.

        Raises:
            RecordMalformed: `record` is not one whole record.
        """
        return cls(_SingleRecord(record, broker_name), 0)

    def __getstate__(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return the state of a copy, which does not keep the pull."""
        state: Any = object.__getstate__(self)
        others, slots = state
        slots.pop("_value", None)  # deserialized again where it is used
        return others, {**slots, "_records": self._records.alone(self._at), "_at": 0}

    # -- content -----------------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body, decompressed if the producer compressed it.

        Raises:
            DamagedMessage: it fails its checksum or cannot be decompressed.
            UnsupportedCompression: it is compressed with LZ4 or Zstandard.
        """
        records = self._records
        at = self._at
        if records.faults:
            self._check()
        table = records.table
        start = table[at + BODY]
        body = records.data[start : start + table[at + BODY_SIZE]]
        return self._inflated(body) if table[at + SYS_FLAG] & _COMPRESSED else body

    @property
    def value(self) -> V:
        """What the consumer's `deserializer` returns for the body, called on the first access; without one, the body.

        Raises:
            NotDeserialized: the deserializer raised an exception, which is the cause.
            RegistryUnavailable, RegistryRefused: a schema registry did not give the body's schema.
            DamagedMessage, UnsupportedCompression: as `body`.
        """
        with suppress(AttributeError):  # not set yet
            return self._value
        body: Any = self.body
        deserializer = self._records.deserializer
        try:
            self._value: V = body if deserializer is None else deserializer(body)
        except (RegistryRefused, RegistryUnavailable):
            raise  # the body may be right
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise NotDeserialized(self.topic, self.queue_id, self.queue_offset, reason) from error
        return self._value

    @property
    def raw_body(self) -> bytes:
        """The body as stored, possibly compressed.

        Raises:
            DamagedMessage: it fails its checksum.
        """
        self._check()
        return self._bytes(BODY)

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        records = self._records
        at = self._at
        if records.faults:
            self._check()
        table = records.table
        size = table[at + TAG_SIZE]
        if not size:
            return None
        start = table[at + TAG]
        return records.data[start : start + size].decode("utf-8", "replace")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the producer's order."""
        return split_keys(self.get_property("KEYS"))

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including system ones (`TAGS`, `KEYS`, `UNIQ_KEY`, ...); a new dict each time."""
        self._check()
        return decode_properties(self._bytes(PROPERTIES))

    @property
    def ordering_key(self) -> str | None:
        """What its producer ordered it by (RocketMQ: sharding key, message group), or None."""
        return self.get_property(SHARDING_KEY)

    @property
    def priority(self) -> int | None:
        """What its producer has given as priority; None without one that is valid."""
        return priority_of(self.get_property(PRIORITY))

    @property
    def expires_at_ms(self) -> int | None:
        """When it expires, in ms since 1970, by the broker's clock; None if it never does."""
        self._check()
        return expiry_in(self._bytes(PROPERTIES), self.store_timestamp_ms)

    def get_property(self, name: str) -> str | None:
        """One property, or None; cheaper than `properties`."""
        self._check()
        value = find_property(self._bytes(PROPERTIES), name.encode())
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def wants_reply(self) -> bool:
        """Whether it is a request, whose sender waits or has waited for a reply."""
        return self.get_property("REPLY_TO_CLIENT") is not None and self.get_property("MSG_TYPE") != "reply"

    @property
    def message_id(self) -> str:
        """The producer's unique id (`UNIQ_KEY`), or the offset id if there is none."""
        return self.get_property("UNIQ_KEY") or self.offset_message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was pulled from."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def _with_class(self, kind: type[R]) -> R:
        """Return this message as an object of another message class."""
        return kind(self._records, self._at)

    # -- settling ----------------------------------------------------------------------------------------------

    def ack(self) -> None:
        """Mark it as handled; progress advances once all before it in its queue are handled. Never waits.

        Like the other methods here: no effect if it is handled already, or its queue has moved to another member, which
        may get it again.

        Raises:
            NotDelivered: no `Consumer` delivered it.
        """
        self._deliverer().ack(self)

    def nack(self, delay_s: float | None = None, *, reason: str | None = None) -> Awaitable[None]:
        """Give it back: the broker redelivers it to the group later, and here it counts as handled.

        Await it, except in the synchronous API, where it is done on return. After too many attempts it becomes a dead
        letter, as with `GiveBack`. In order and broadcasting the broker does not take it: it is redelivered here, and
        in order its queue waits.

        Args:
            delay_s: seconds until the redelivery, rounded up to one of RocketMQ's delay levels (1 s to 2 h), but exact
                where it is redelivered here. None: 10 s, 30 s, 1 min, ..., longer with each attempt; here 1 s.
            reason: stored with the message, for people.

        Raises:
            BrokerError: refused; it is not handled.
            ConnectFailed, RequestTimeout: it is unknown whether the broker has it; repeating is safe.
            DamagedMessage: it is unknown which message it is.
            ValueError: the delay is negative or longer than 2 h.
            NotDelivered: no `Consumer` delivered it.
        """
        return self._deliverer().nack(self, delay_s, reason)

    def reject(self, *, reason: str | None = None) -> Awaitable[None]:
        """Make it a dead letter of the group; here it counts as handled. Otherwise like `nack`.

        A broadcasting member has no dead letters: it logs the message and counts it as handled.
        """
        return self._deliverer().reject(self, reason)

    def _deliverer(self) -> Deliverer:
        deliverer = self._records.deliverer
        if deliverer is None:
            raise NotDelivered(self)
        return deliverer

    # -- fields of the record ----------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic that it was pulled from."""
        return self._records.topic

    @property
    def broker_name(self) -> str:
        """The broker that holds it."""
        return self._records.broker_name

    @property
    def queue_id(self) -> int:
        """The queue."""
        return self._records.table[self._at + QUEUE_ID]

    @property
    def queue_offset(self) -> int:
        """Its number in its queue."""
        return self._records.table[self._at + QUEUE_OFFSET]

    @property
    def physical_offset(self) -> int:
        """Its byte position in the broker's commit log."""
        return self._records.table[self._at + PHYSICAL_OFFSET]

    @property
    def flag(self) -> int:
        """The application's 32 bits."""
        return self._records.table[self._at + FLAG]

    @property
    def sys_flag(self) -> int:
        """Bits of RocketMQ's MessageSysFlag."""
        return self._records.table[self._at + SYS_FLAG]

    @property
    def born_timestamp_ms(self) -> int:
        """The producer's clock at the send, in ms since 1970."""
        return self._records.table[self._at + BORN_TIMESTAMP_MS]

    @property
    def born_at(self) -> datetime:
        """The producer's clock at the send, in UTC.

        Raises:
            OverflowError: the producer wrote a time beyond the years 1 to 9999.
        """
        return moment_of(self.born_timestamp_ms)

    @property
    def store_timestamp_ms(self) -> int:
        """The broker's clock at the store, in ms since 1970."""
        return self._records.table[self._at + STORE_TIMESTAMP_MS]

    @property
    def stored_at(self) -> datetime:
        """The broker's clock at the store, in UTC."""
        return moment_of(self.store_timestamp_ms)

    @property
    def reconsume_times(self) -> int:
        """How often the message was given back."""
        return self._records.table[self._at + RECONSUME_TIMES]

    @property
    def delivery_attempt(self) -> int:
        """The number of this delivery, from 1; a delivery after which the message was not given back is not counted."""
        return self.reconsume_times + 1

    @property
    def record_bytes(self) -> int:
        """The size of the whole record."""
        return self._records.table[self._at + SIZE]

    @property
    def offset_message_id(self) -> str:
        """The id that encodes broker and log position."""
        return offset_message_id_of(self._store_host_bytes(), self.physical_offset)

    @property
    def born_host(self) -> str:
        """The producer's address, `ip:port`."""
        position = self._records.table[self._at + POSITION]
        return str(Host.unpack(self._records.data[born_host_in(position, self.sys_flag)]))

    @property
    def store_host(self) -> str:
        """The broker's address, `ip:port`."""
        return str(Host.unpack(self._store_host_bytes()))

    @property
    def record(self) -> bytes:
        """A copy of the whole record as the broker stores it."""
        return self._bytes(POSITION)

    def __repr__(self) -> str:
        size = self._records.table[self._at + BODY_SIZE]
        return f"<ReceivedMessage {self.topic}/{self.queue_id} at {self.queue_offset}, {size} body bytes>"

    # -- inside ------------------------------------------------------------------------------------------------

    def _bytes(self, number: int) -> bytes:
        """Return a part of the record; `number` is the column of its position, before that of its size."""
        start, size = self._records.table[self._at + number : self._at + number + 2]
        return self._records.data[start : start + size]

    def _check(self) -> None:
        reason = self._records.faults.get(self._at // WIDTH)
        if reason is not None:
            raise self._damaged(reason)

    def _damaged(self, reason: str) -> DamagedMessage:
        return DamagedMessage(self.topic, self.queue_id, self.queue_offset, reason)

    def _inflated(self, body: bytes) -> bytes:
        method = compression_method(self.sys_flag)
        if method != "zlib":
            raise UnsupportedCompression(self.topic, self.queue_id, self.queue_offset, str(method))
        try:
            return inflate(body)
        except ValueError as error:
            raise self._damaged(str(error)) from None

    def _store_host_bytes(self) -> bytes:
        return self._records.data[store_host_in(self._records.table[self._at + BODY], self.sys_flag)]


class DamagedRecord(ReceivedMessage[V]):
    """A message whose record is unreadable or another message's.

    Access to any field of the record raises `DamagedMessage`. Topic, queue id and queue offset are the pulled ones;
    `record` is what was received instead.
    """

    __slots__ = ("_found", "_queue_id", "_queue_offset")

    def __init__(
        self, topic: str, broker_name: str, queue_id: int, queue_offset: int, found: bytes, reason: str
    ) -> None:
        super().__init__(_NoRecords(topic, broker_name, queue_id, queue_offset, reason), 0)
        self._found = found
        self._queue_id = queue_id
        self._queue_offset = queue_offset

    @property
    def queue_id(self) -> int:
        """The queue that was pulled from."""
        return self._queue_id

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""
        return self._queue_offset

    @property
    def record(self) -> bytes:
        """What was received instead of the record."""
        return self._found

    @property
    def record_bytes(self) -> int:
        """The size of what was received."""
        return len(self._found)

    def __repr__(self) -> str:
        reason = self._records.faults[0]
        return f"<DamagedRecord {self.topic}/{self.queue_id} at {self.queue_offset}: {reason}>"


class _NoRecords(PulledRecords):
    """The records of a damaged message: none."""

    __slots__ = ("_queue_id", "_queue_offset")

    def __init__(self, topic: str, broker_name: str, queue_id: int, queue_offset: int, reason: str) -> None:
        self.deliverer = None
        self.topic = topic
        self.broker_name = broker_name
        self._queue_id = queue_id
        self._queue_offset = queue_offset
        self.faults = {0: reason}

    def alone(self, at: int) -> PulledRecords:
        """Return itself."""
        del at
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.topic, self.broker_name, self._queue_id, self._queue_offset
        return type(self), (*place, self.faults[0])

    @property
    def table(self) -> array[int]:  # type: ignore[override]
        """Raise `DamagedMessage`."""
        raise DamagedMessage(self.topic, self._queue_id, self._queue_offset, self.faults[0])
