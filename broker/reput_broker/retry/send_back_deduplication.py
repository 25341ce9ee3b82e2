"""Store a returned message once although its consumer repeats the request after a lost answer.

The stored message holds in `SEND_BACK_ID` the log offset of the record that the consumer received, and the id that our
client assigns to each delivery (RocketMQ's clients send none). Another request of the same group for the same record
repeats the first one

- if it has the same id;
- if the first made a dead letter that still exists;
- while the first is still delayed, since the group will get the message anyway.

Otherwise the group's offset was reset and it received the message again.

A client without an answer to 36 may send the message to the retry topic instead. Ours repeats the `SEND_BACK_ID` there;
RocketMQ's are recognised by unique id, body and number of attempts while the first one is delayed.

The latest requests are in memory. If our client says that it repeats a request, the index is searched for older ones by
unique id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

import trio

from reput_broker.put.appender import StoredBefore
from reput_broker.remoting.request import Handled, Refusal, Result
from reput_broker.send.deduplication import MakePut, Work
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.index.query import Doubt
from reput_broker.store.message_store import MessageStore
from reput_broker.tenure.core import Core
from reput_protocol import properties as names
from reput_protocol.errors import ErrorCode
from reput_protocol.names import SCHEDULE_TOPIC, dlq_topic, retry_topic
from reput_protocol.properties import find_property
from reput_protocol.record.delays import DELAY_LEVELS_MS, deliver_time
from reput_protocol.record.record import Record, decode_record

SEND_BACK_ID_MAX: Final = 64
"""Maximum length of a client's id, in characters."""
_LOOKS_AT_ONCE: Final = 4
_REMEMBERED_MAX: Final = 16_384
_WINDOW_MS: Final = 3_600_000
"""How far back the index is searched: longer than any client repeats."""


_Key = TypeVar("_Key")


class SendBackKey(NamedTuple):
    """Which message a group returns."""

    group: str
    physical_offset: int
    """Log offset of the record that the consumer received."""
    id: str = ""
    """Shared by the repetitions of one request; empty if the client sends none."""

    @property
    def text(self) -> str:
        """The value of the property."""
        return f"{self.physical_offset}-{self.id}" if self.id else str(self.physical_offset)

    @classmethod
    def of_text(cls, group: str, text: str | None) -> SendBackKey | None:
        """Parse the value of the property; None if this broker would not have written it."""
        offset, _, request_id = (text or "").partition("-")
        if not (offset.isascii() and offset.isdecimal() and len(offset) < 20) or not is_id(request_id):
            return None
        return cls(group, int(offset), request_id)


def is_id(text: str) -> bool:
    """Whether a client may use this text as an id."""
    return len(text) <= SEND_BACK_ID_MAX and text.isascii() and (text.isalnum() or not text)


@dataclass(slots=True)
class _Stored:
    key: SendBackKey | None
    topic: str
    """The topic that the message finally goes to."""
    due_ms: int
    """When it is due; 0 for a dead letter."""
    result: StoredBefore
    body_crc: int


class SendBackDeduplication:
    """The returned messages whose requests may be repeated. One owner, the event loop; but see `find`.

    Without an index only the latest `_REMEMBERED_MAX` requests are known.
    """

    def __init__(self, store: MessageStore, *, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._by_offset: OrderedDict[tuple[str, int], _Stored] = OrderedDict()
        self._by_unique_id: OrderedDict[tuple[str, str, int], _Stored] = OrderedDict()

    # -- what is remembered --------------------------------------------------------------------------------

    def stored_before(
        self, key: SendBackKey | None, group: str, record: Record, known: StoredBefore | None = None
    ) -> StoredBefore | None:
        """Return the outcome of the first request if this is a repetition. Under the put lock.

        Args:
            key: None for a message that its client sent to the retry topic without a key.
            group: whose retry topic or dead letters they are.
            record: to be stored: a dead letter, or a message for the retry topic, delayed or not.
            known: the result of `find`, or None.
        """
        if known is not None:
            return known
        if key is not None:
            stored = self._by_offset.get((group, key.physical_offset))
            if stored is not None and self._is_repeated(stored, key):
                return stored.result
            if key.id:
                return None
        stored = self._by_unique_id.get(_unique(group, record))
        if stored is None or stored.body_crc != crc32(record.body) or not self._is_still_due(stored):
            return None
        return stored.result

    def _is_repeated(self, stored: _Stored, key: SendBackKey) -> bool:
        if self._store.is_deleted(stored.topic, stored.result.physical_offset):
            return False
        same = stored.key is not None and bool(key.id) and stored.key.id == key.id
        return same or self._is_still_due(stored)

    def _is_still_due(self, stored: _Stored) -> bool:
        if self._store.is_deleted(stored.topic, stored.result.physical_offset):
            return False
        return stored.due_ms == 0 or stored.due_ms > self._clock_ms()

    def remember(self, key: SendBackKey | None, group: str, record: Record, result: PutResult) -> None:
        """Remember what has just been put: `record`, a dead letter or a message for the retry topic."""
        stored = _stored_of(key, group, record, _before(record.queue_id, result))
        if key is not None:
            self._by_offset[group, key.physical_offset] = stored
            self._by_offset.move_to_end((group, key.physical_offset))
        if record.unique_key is not None:
            self._by_unique_id[_unique(group, record)] = stored
            self._by_unique_id.move_to_end(_unique(group, record))
        self._forget_oldest(self._by_offset)
        self._forget_oldest(self._by_unique_id)

    def _forget_oldest(self, table: OrderedDict[_Key, _Stored]) -> None:
        while len(table) > _REMEMBERED_MAX:
            oldest = next(iter(table.values()))
            if oldest.result.end_offset > self._store.dispatched_offset:
                return  # not in the index yet
            table.popitem(last=False)

    # -- what the index knows ------------------------------------------------------------------------------

    def find(self, key: SendBackKey, unique_id: str) -> StoredBefore | None:
        """Return the outcome of the first request if the index contains it. Reads the disk: call it in a
        worker thread.

        Raises:
            Refusal: the answer is unknown for the moment (`NOT_READY`).
        """
        since_ms = self._clock_ms() - _WINDOW_MS
        for topic in (SCHEDULE_TOPIC, dlq_topic(key.group), retry_topic(key.group)):
            found = self._store.find_by_unique_key(
                topic, unique_id, since_ms, accept=lambda data: self._is_of(key, data)
            )
            if found.record is not None:
                return _before_of(found.record)
            if found.doubt is Doubt.BEHIND:
                raise Refusal(
                    ErrorCode.NOT_READY,
                    f"{found.doubt.value}, so it is unknown whether the message was sent back before; send it back "
                    "again shortly",
                )
        return None

    def _is_of(self, key: SendBackKey, data: bytes) -> bool:
        record = decode_record(data, check_crc=False)
        text = find_property(record.properties, names.SEND_BACK_ID.encode())
        named = SendBackKey.of_text(key.group, None if text is None else text.decode("utf-8", "replace"))
        if named is None or named.physical_offset != key.physical_offset:
            return False
        if record.topic == SCHEDULE_TOPIC and record.property_map().get(names.REAL_TOPIC) != retry_topic(key.group):
            return False
        return self._is_repeated(_stored_of(named, key.group, record, _before_of(data)), key)


def _stored_of(key: SendBackKey | None, group: str, record: Record, result: StoredBefore) -> _Stored:
    if record.topic == dlq_topic(group):
        return _Stored(key, record.topic, 0, result, crc32(record.body))
    delay = find_property(record.properties, names.DELAY.encode())
    due_ms = deliver_time(delay, result.store_timestamp_ms, DELAY_LEVELS_MS)
    return _Stored(key, retry_topic(group), due_ms or 1, result, crc32(record.body))


def _unique(group: str, record: Record) -> tuple[str, str, int]:
    return group, record.unique_key or "", record.reconsume_times


def _before(queue_id: int, result: PutResult) -> StoredBefore:
    return StoredBefore.at(
        queue_id, result.queue_offset, result.physical_offset, result.end_offset, result.store_timestamp_ms
    )


def _before_of(data: bytes) -> StoredBefore:
    record = decode_record(data, check_crc=False)
    begin = record.physical_offset
    return StoredBefore.at(record.queue_id, record.queue_offset, begin, begin + len(data), record.store_timestamp_ms)


class DeduplicatedReturns:
    """Appends messages that consumers send back and that are not stored yet."""

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._puts = core.puts
        self._sent_back = SendBackDeduplication(core.store, clock_ms=core.clock_ms)
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)

    def append(
        self, key: SendBackKey | None, group: str, record: Record, work: Work, make_put: MakePut, *, look: bool
    ) -> Result:
        """Make a put of `work`, or return the outcome that the message had the first time.

        Args:
            key: names the message; None if its client does not name it.
            work, make_put: as of `DeduplicatedPuts.append`.
            look: whether it may have been stored so long ago that only the index has it.

        Raises:
            Refusal: it is not known yet whether it is stored. Nothing was stored.
        """
        if look and key is not None and record.unique_key is not None:
            return self._look_and_append(key, record, record.unique_key, work, make_put)
        return make_put(partial(self._put_once, key, group, record, work, None))

    async def _look_and_append(
        self, key: SendBackKey, record: Record, unique_id: str, work: Work, make_put: MakePut
    ) -> Handled:
        known = None
        if self._store.options.index_enabled:
            self._puts.reput.complete_index("what was sent back")
            known = await trio.to_thread.run_sync(self._sent_back.find, key, unique_id, limiter=self._limiter)
        result = make_put(partial(self._put_once, key, key.group, record, work, known))
        return await self._puts.appender.resolve(result)

    def _put_once(
        self, key: SendBackKey | None, group: str, record: Record, work: Work, known: StoredBefore | None
    ) -> PutResult:
        before = self._sent_back.stored_before(key, group, record, known)
        if before is not None:
            return before
        result = work()
        if result.status is PutStatus.PUT_OK:
            self._sent_back.remember(key, group, record, result)
        return result
