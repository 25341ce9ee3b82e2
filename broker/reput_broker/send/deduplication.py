"""Store a message once although its producer sent it several times; topic and unique id identify it.

A message that is sent again is searched for in the key index, once everything put before is dispatched; a crash leaves
the index complete. A first attempt costs nothing, except while a search runs and for a while after it: it can still be
in the buffers of an abandoned connection, so a message that was searched for and not found stays remembered in case it
arrives late, and what is put meanwhile is remembered until it is dispatched.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from reput_broker.put.appender import StoredBefore
from reput_broker.remoting.request import Refusal
from reput_broker.send.message_content import DELAY_TOPICS, Content, single_message_of
from reput_broker.store.base.results import PutResult
from reput_broker.store.index.query import Doubt
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import Dedup
from reput_protocol.errors import ErrorCode
from reput_protocol.record.record import decode_record

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

    def __init__(
        self,
        store: MessageStore,
        *,
        clock_ms: Callable[[], int],
        window_s: Callable[[], float],
    ) -> None:
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

    def find_all(
        self, topic: str, unique_ids: Iterable[str], within_ms: int | None = None
    ) -> list[StoredAt | None]:
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
        self,
        topic: str,
        unique_id: str,
        content: Content,
        known: StoredAt | None,
        within_ms: int | None = None,
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
            place.queue_id,
            place.queue_offset,
            place.physical_offset,
            place.end_offset,
            place.store_timestamp_ms,
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
            queue_id,
            result.queue_offset,
            result.physical_offset,
            result.end_offset,
            result.store_timestamp_ms,
            content,
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
        single.queue_id,
        record.queue_offset,
        begin,
        begin + len(data),
        record.store_timestamp_ms,
        single.content,
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
