"""Store a message once although its producer sent it several times; topic and unique id identify it.

A message that is sent again is searched for in the key index, once everything put before is dispatched; a crash leaves
the index complete. A first attempt costs nothing, except while a search runs and for a while after it: it can still be
in the buffers of an abandoned connection, so a message that was searched for and not found stays remembered in case it
arrives late, and what is put meanwhile is remembered until it is dispatched.

Attempts of a message that was sent alone are compared by `Content`. If it is delayed, the broker makes another record
of it, and one more when it delivers it; to the sender, all of them are the same message.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

import trio

from reput_broker.delay.delayed_record import BROKER_PROPERTIES, decode_delayed, number_of
from reput_broker.put.appender import StoredBefore
from reput_broker.remoting.request import Handled, Put, Refusal, Request, Result
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.index.query import Doubt
from reput_broker.store.message_store import MessageStore
from reput_broker.tenure.core import Core
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.codes import Dedup
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.errors import ErrorCode
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.properties import UNIQ_KEY, find_property_in
from reput_protocol.record.layout import HEAD_BYTES, body_size_at, size_at, topic_field
from reput_protocol.record.record import RecordView, decode_record

T = TypeVar("T")

DELAY_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Where delayed messages wait."""
_ADDED: Final = tuple(
    name.encode() + b"\x01" for name in (*BROKER_PROPERTIES, names.MSG_REGION, names.TRACE_ON, names.CLUSTER)
)
"""Properties that a broker may add, remove or change."""
_TIMES: Final = tuple(name.encode() for name in (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS))
_DELAY: Final = names.DELAY.encode()


class Content(NamedTuple):
    """Distinguishes messages with the same unique id."""

    body_crc: int
    properties_crc: int
    """Of the sender's properties."""
    delay: bytes | None
    """The requested level or time, empty for none; None in a delivered copy, which does not hold it."""

    def is_like(self, other: Content) -> bool:
        """Whether both may be the same message."""
        return self[:2] == other[:2] and (self.delay is None or other.delay is None or self.delay == other.delay)


class SingleMessage(NamedTuple):
    """A record and the message that it stands for."""

    record: RecordView
    topic: str
    """The destination."""
    queue_id: int
    content: Content


def single_message_of(data: bytes) -> SingleMessage | None:
    """Decode a record; None if it is a delete message."""
    record = RecordView(data, 0)
    if record.topic not in DELAY_TOPICS:
        is_copy = record.prepared_transaction_offset != 0
        content = content_of(record.body, record.properties, is_copy=is_copy)
        return SingleMessage(record, record.topic, record.queue_id, content)
    delayed = decode_delayed(data)
    if delayed is None or delayed.cancels is not None:
        return None
    content = content_of(record.body, record.properties)
    return SingleMessage(record, delayed.topic, delayed.queue_id, content)


def content_of(body: Buffer, properties: bytes, *, is_copy: bool = False) -> Content:
    """Return the content of a record with this body and properties text, delayed or not.

    `is_copy`: it is a delivered or committed copy, and its text lacks the requested delay.
    """
    units = properties.split(b"\x02")
    kept = b"\x02".join(unit for unit in units if unit and not unit.startswith(_ADDED))
    return Content(crc32(body), crc32(kept), None if is_copy else _delay_of(units))


def _delay_of(units: Iterable[bytes]) -> bytes:
    """Return the requested delay, in the broker's order of precedence (`delay.delayed_record`)."""
    found = dict(unit.split(b"\x01", 1) for unit in units if b"\x01" in unit)
    if (number_of(found.get(_DELAY)) or 0) > 0:
        return b"%s %s" % (_DELAY, found[_DELAY])
    for name in _TIMES:
        if name in found:
            return b"%s %s" % (name, found[name])
    return b""


_CHECKED_MAX: Final = 65_536
_LATE_MS: Final = 300_000
"""How long after a search first attempts may arrive late."""


class StoredAt(NamedTuple):
    """Where a message is stored."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    end_offset: int
    store_timestamp_ms: int
    content: Content | None = None
    """Set for a message sent alone; `queue_id` is then its destination, wherever it waits."""


Identity = tuple[str, str]
"""Topic and unique id."""


class Deduplication:
    """The messages that may arrive again.

    Args:
        store: without an index, nothing can be found.
        clock_ms: the store's clock.
        window_s: how long a stored message is recognised.
    """

    def __init__(self, store: MessageStore, *, clock_ms: Callable[[], int], window_s: Callable[[], float]) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._window_s = window_s
        self._undispatched: dict[Identity, StoredAt] = {}
        self._order: deque[tuple[int, list[Identity]]] = deque()  # by end offset
        self._checked: OrderedDict[Identity, StoredAt] = OrderedDict()
        self._searches: dict[object, int] = {}  # what was dispatched at the start of each
        self._alert_until_ms: int | None = None

    def looks_at(self, dedup: Dedup | None) -> bool:
        """Whether a put may be stored already, so that it is compared and remembered: a repeated one, and while first
        attempts may arrive late, these too.
        """
        if dedup is not Dedup.MARK:
            return dedup is Dedup.CHECK
        if self._searches:
            return True
        return self._alert_until_ms is not None and self._clock_ms() < self._alert_until_ms

    @contextmanager
    def look(self) -> Iterator[None]:
        """Keep everything that is put while the index is searched, at least until the search has
        ended."""
        token = object()
        self._searches[token] = self._store.dispatched_offset
        try:
            yield
        finally:
            del self._searches[token]
            self._alert_until_ms = self._clock_ms() + _LATE_MS

    def find_all(self, topic: str, unique_ids: Iterable[str], within_ms: int | None = None) -> list[StoredAt | None]:
        """Return the places of messages that the index finds within the window, delayed ones included.

        `within_ms`: how long a stored message is recognised by this request, if that is longer than the window; so in
        the other methods.

        Reads the disk: call it in a worker thread, once the index is complete (`ReputMessageService.complete_index`).

        Raises:
            Refusal: the answer is unknown, for the moment (`NOT_READY`) or until the cause is repaired (`INTERNAL`).
        """
        since_ms = self._since_ms(within_ms)
        places: list[StoredAt | None] = []
        for unique_id in unique_ids:
            found = self._store.find_by_unique_key(topic, unique_id, since_ms)
            if found.record is not None:
                record = decode_record(found.record, check_crc=False)
                places.append(
                    StoredAt(
                        record.queue_id,
                        record.queue_offset,
                        record.physical_offset,
                        record.physical_offset + len(found.record),
                        record.store_timestamp_ms,
                    )
                )
            elif found.doubt is None:
                # A delayed message was sent alone; this one was sent in a block.
                places.append(self._find_in(DELAY_TOPICS, topic, unique_id, since_ms))
            else:
                raise Refusal(*_refusal_for(found.doubt, unique_id))
        return places

    def stored_before(
        self,
        topic: str,
        unique_ids: Sequence[str],
        sizes: Sequence[int],
        known: Sequence[StoredAt | None],
        within_ms: int | None = None,
    ) -> StoredBefore | None:
        """Return the first outcome if all of these messages are stored, None if none is. Under the put lock.

        Args:
            sizes: of their records, in bytes.
            known: the result of `find_all`, or empty if it was not called.

        Raises:
            Refusal: only some are stored, or not consecutively in this order.
        """
        since_ms = self._since_ms(within_ms)
        places = [
            self._remembered(topic, unique_id, since_ms) or place
            for unique_id, place in zip(unique_ids, known or [None] * len(unique_ids), strict=True)
        ]
        first = places[0]
        if not any(places):
            return None
        if first is None or not _are_consecutive(places, sizes):
            stored = [unique_id for unique_id, place in zip(unique_ids, places, strict=True) if place]
            if first is not None and len(places) == 1:
                raise Refusal(
                    ErrorCode.DUPLICATE,
                    f"another message with the unique id {stored[0]!r} is stored {_where(first)}; one with other "
                    "content or another delay needs another id",
                )
            if len(stored) == len(places):
                raise Refusal(
                    ErrorCode.DUPLICATE,
                    "all messages of the block are stored already, but not consecutively or with other content, for "
                    f"instance {stored[0]!r}; send them one by one for their receipts",
                )
            raise Refusal(
                ErrorCode.DUPLICATE,
                f"{len(stored)} of {len(places)} messages are stored already, for instance {stored[0]!r}; send the "
                "others again without them",
            )
        last = places[-1]
        assert last is not None, "all are stored"
        return StoredBefore.at(
            first.queue_id,
            first.queue_offset,
            first.physical_offset,
            last.end_offset,
            first.store_timestamp_ms,
            len(places),
        )

    def find_single(self, topic: str, unique_id: str, within_ms: int | None = None) -> StoredAt | None:
        """Return where the index finds a message for `topic` that was sent alone, delivered or delayed,
        or None.

        Reads the disk: call it in a worker thread.

        Raises:
            Refusal: as `find_all`.
        """
        return self._find_in((topic, *DELAY_TOPICS), topic, unique_id, self._since_ms(within_ms))

    def _find_in(self, topics: Iterable[str], topic: str, unique_id: str, since_ms: int) -> StoredAt | None:
        doubt: Doubt | None = None
        places: list[StoredAt] = []
        for stored_in in topics:
            found = self._store.find_by_unique_key(
                stored_in, unique_id, since_ms, accept=lambda data: self._is_for(topic, data)
            )
            if found.record is not None:
                places.append(_place_of(found.record))
            doubt = doubt or found.doubt
        if not places and doubt is not None:
            raise Refusal(*_refusal_for(doubt, unique_id))
        return min(places, key=lambda place: place.physical_offset, default=None)

    def _is_for(self, topic: str, data: bytes) -> bool:
        single = single_message_of(data)
        return (
            single is not None
            and single.topic == topic
            and not self._store.is_deleted(topic, single.record.physical_offset)
        )

    def single_stored_before(
        self, topic: str, unique_id: str, content: Content, known: StoredAt | None, within_ms: int | None = None
    ) -> StoredBefore | None:
        """Return the first outcome if a message sent alone is stored, else None. Under the put lock.

        `known` is the result of `find_single`, or None.

        Raises:
            Refusal: another message with that id is stored.
        """
        place = self._remembered(topic, unique_id, self._since_ms(within_ms)) or known
        if place is None:
            return None
        if place.content is None or not place.content.is_like(content):
            raise Refusal(
                ErrorCode.DUPLICATE,
                f"another message with the unique id {unique_id!r} is stored for queue {place.queue_id}; one with "
                "other content or another delay needs another id",
            )
        return StoredBefore.at(
            place.queue_id, place.queue_offset, place.physical_offset, place.end_offset, place.store_timestamp_ms
        )

    def _remembered(self, topic: str, unique_id: str, since_ms: int) -> StoredAt | None:
        identity = (topic, unique_id)
        place = self._undispatched.get(identity) or self._checked.get(identity)
        if place is None or place.store_timestamp_ms < since_ms:
            return None
        return None if self._store.is_deleted(topic, place.physical_offset) else place

    def _since_ms(self, within_ms: int | None) -> int:
        return max(0, self._clock_ms() - max(int(self._window_s() * 1000), within_ms or 0))

    def remember(
        self,
        topic: str,
        queue_id: int,
        unique_ids: Sequence[str],
        sizes: Sequence[int],
        result: PutResult,
        *,
        checked: bool,
    ) -> None:
        """Remember messages that have just been put; `checked`: they had been searched for."""
        places: dict[Identity, StoredAt] = {}
        position = result.physical_offset
        for index, (unique_id, size) in enumerate(zip(unique_ids, sizes, strict=True)):
            end = position + size
            place = StoredAt(queue_id, result.queue_offset + index, position, end, result.store_timestamp_ms)
            position = end
            places[topic, unique_id] = place
        self._remember(places, position, checked)

    def remember_single(
        self, topic: str, queue_id: int, unique_id: str, content: Content, result: PutResult, *, checked: bool
    ) -> None:
        """Remember a message for `topic` that was sent alone and has just been put; `checked`: it
        had been searched for."""
        place = StoredAt(
            queue_id, result.queue_offset, result.physical_offset, result.end_offset, result.store_timestamp_ms, content
        )
        self._remember({(topic, unique_id): place}, result.end_offset, checked)

    def _remember(self, places: dict[Identity, StoredAt], end_offset: int, checked: bool) -> None:
        self._forget_dispatched()
        self._undispatched |= places
        if checked:
            self._checked |= places
        self._order.append((end_offset, [*places]))
        while len(self._checked) > _CHECKED_MAX:
            self._checked.popitem(last=False)

    def _forget_dispatched(self) -> None:
        until = min(self._searches.values(), default=self._store.dispatched_offset)
        while self._order and self._order[0][0] <= until:
            end, identities = self._order.popleft()
            for identity in identities:
                place = self._undispatched.get(identity)
                if place is not None and place.end_offset <= end:
                    del self._undispatched[identity]


def _place_of(data: bytes) -> StoredAt:
    single = single_message_of(data)
    assert single is not None, "`_is_for` has accepted it"
    record = single.record
    begin = record.physical_offset
    return StoredAt(
        single.queue_id, record.queue_offset, begin, begin + len(data), record.store_timestamp_ms, single.content
    )


def _refusal_for(doubt: Doubt, unique_id: str) -> tuple[ErrorCode, str]:
    text = f"{doubt.value}, so it is unknown whether the message with unique id {unique_id!r} is stored"
    if doubt is Doubt.BEHIND:
        return ErrorCode.NOT_READY, f"{text}; send it again shortly"
    if doubt is Doubt.TOO_MANY:
        return ErrorCode.INTERNAL, f"{text}; give every message its own unique id"
    return (
        ErrorCode.INTERNAL,
        f"{text}; stop the broker, follow what `reput store verify` reports, then run `reput store rebuild`; until "
        "then send without deduplication",
    )


def _where(place: StoredAt) -> str:
    if place.content is not None:  # it may be delayed still
        return f"for queue {place.queue_id}"
    return f"at queue {place.queue_id}, offset {place.queue_offset}"


def _are_consecutive(places: Sequence[StoredAt | None], sizes: Sequence[int]) -> bool:
    first = places[0]
    assert first is not None
    position = first.physical_offset
    for index, (place, size) in enumerate(zip(places, sizes, strict=True)):
        if (
            place is None
            or (place.content is not None and place.content.delay)  # delayed: another message
            or place.queue_id != first.queue_id
            or place.queue_offset != first.queue_offset + index
            or place.physical_offset != position
            or place.end_offset != position + size
        ):
            return False
        position += size
    return True


_UNIQ_KEY: Final = UNIQ_KEY.encode()


def unique_ids_of(block: Buffer, topic: str, count: int) -> tuple[list[str], list[int]]:
    """Return the unique ids and the sizes of the records of a block.

    The result for an invalid block is arbitrary; the store refuses the block.

    Raises:
        Refusal: a record has no unique id, or the same one as an earlier record.
    """
    data = bytes(block)
    after_body = len(topic_field(topic.encode())[1]) + 2
    unique_ids: list[str] = []
    sizes: list[int] = []
    position, end = 0, len(data)
    while position + HEAD_BYTES <= end and len(unique_ids) < count:
        size, body_size = size_at(data, position), body_size_at(data, position)
        properties_at = position + HEAD_BYTES + max(0, body_size) + after_body
        if not properties_at <= position + size <= end:
            break
        found = find_property_in(data, _UNIQ_KEY, properties_at, position + size)
        if found is None:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"deduplication needs the unique id of each message, but record {len(unique_ids)} has none; add the "
                f"property {UNIQ_KEY}",
            )
        unique_ids.append(found.decode(errors="replace"))
        sizes.append(size)
        position += size
    if len(set(unique_ids)) < len(unique_ids):
        twice = next(one for index, one in enumerate(unique_ids) if one in unique_ids[:index])
        raise Refusal(
            ErrorCode.DUPLICATE,
            f"two messages of the block have the unique id {twice!r}; send one of them, or give each its own",
        )
    return unique_ids, sizes


_LOOKS_AT_ONCE: Final = 4
_SETTLE_S: Final = 5.0
Work = Callable[[], PutResult]
MakePut = Callable[[Work], Put]


class SingleSend(NamedTuple):
    """A message that is sent alone."""

    topic: str
    """The topic and queue that it is sent to, wherever it is put."""
    queue_id: int
    unique_id: str
    content: Content
    within_ms: int | None
    """How long a stored one is recognised, if longer than the broker's window."""


class _Remember(Protocol):
    def __call__(self, result: PutResult, *, checked: bool) -> None: ...


class _Sought(NamedTuple, Generic[T]):
    """How the messages of one put are looked up and remembered (see `Deduplication`)."""

    find: Callable[[], T]
    """Finds them in the index; for a worker thread."""
    unlooked: T
    """What is known of them if it was not called."""
    stored_before: Callable[[T], StoredBefore | None]
    remember: _Remember


class DeduplicatedPuts:
    """Appends messages that are not stored yet: in blocks, or alone."""

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._appender = core.puts.appender
        self._reput = core.puts.reput
        self._progress = core.puts.progress
        self._deduplication = Deduplication(
            core.store, clock_ms=core.clock_ms, window_s=lambda: core.config.dedup.window
        )
        self.looks_at = self._deduplication.looks_at
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)

    def append(self, request: Request, header: PutMessageHeader, work: Work, make_put: MakePut) -> Result:
        """Make a put of `work`, or return the outcome that the messages had the first time.

        Args:
            work: appends the block; does not wait.
            make_put: returns the `Put` whose work is its argument, which the connection appends, or a look for the ids
                that comes first.

        Raises:
            Refusal: it is unknown whether the messages are stored, or only some are. Nothing was stored.
        """
        unique_ids, sizes = unique_ids_of(request.body, header.topic, header.count)
        if len(unique_ids) != header.count or not unique_ids:
            return make_put(work)  # which refuses the block with the reason
        deduplication, topic, within_ms = self._deduplication, header.topic, header.dedup_within
        sought = _Sought[Sequence[StoredAt | None]](
            partial(deduplication.find_all, topic, unique_ids, within_ms),
            (),
            lambda known: deduplication.stored_before(topic, unique_ids, sizes, known, within_ms),
            partial(deduplication.remember, topic, header.queue_id, unique_ids, sizes),
        )
        return self._append(sought, header.dedup is Dedup.CHECK, work, make_put)

    def append_single(self, single: SingleSend, dedup: Dedup, work: Work, make_put: MakePut) -> Result:
        """As `append`, for one message that is sent alone."""
        deduplication, (topic, queue_id, unique_id, content, within_ms) = self._deduplication, single
        sought = _Sought[StoredAt | None](
            partial(deduplication.find_single, topic, unique_id, within_ms),
            None,
            lambda known: deduplication.single_stored_before(topic, unique_id, content, known, within_ms),
            partial(deduplication.remember_single, topic, queue_id, unique_id, content),
        )
        return self._append(sought, dedup is Dedup.CHECK, work, make_put)

    def _append(self, sought: _Sought[T], looks: bool, work: Work, make_put: MakePut) -> Result:
        if looks:
            return self._look_and_append(sought, work, make_put)
        return make_put(partial(_put_once, sought, work, sought.unlooked, checked=False))

    async def _look_and_append(self, sought: _Sought[T], work: Work, make_put: MakePut) -> Handled:
        with self._deduplication.look():
            await self._settle()
            known = await trio.to_thread.run_sync(sought.find, limiter=self._limiter)
            result = make_put(partial(_put_once, sought, work, known, checked=True))
            return await self._appender.resolve(result)

    async def _settle(self) -> None:
        """Bring everything that was put before into the index.

        Raises:
            Refusal: it takes too long, or there is no index, or no disk space for it.
        """
        if not self._store.options.index_enabled:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "deduplication finds messages by the index, which is disabled; set store.index, or send without "
                "deduplication",
            )
        await self._appender.passed()
        with trio.move_on_after(_SETTLE_S):
            await self._progress.dispatched.reached(self._progress.appended.offset)
            self._reput.complete_index("what is stored")
            return
        raise Refusal(
            ErrorCode.NOT_READY,
            f"it is unknown whether the message is stored: earlier messages are not readable after {_SETTLE_S:.0f} s;"
            " send it again shortly",
        )


def _put_once(sought: _Sought[T], work: Work, known: T, *, checked: bool) -> PutResult:
    before = sought.stored_before(known)
    if before is not None:
        return before
    result = work()
    if result.status is PutStatus.PUT_OK:
        sought.remember(result, checked=checked)
    return result
