"""Messages are stored once although their producer sent them again, known by topic and unique id.

What was dispatched is in the index of keys, which lies on the disk, is completed from the log after a crash, and so
knows after a restart what it knew before. What was put since then is remembered here, and nothing else: memory does
not grow with the window. A message sent for the first time with an id made for it is only remembered; one that may be
there already is looked for. The first attempt may still lie in the buffers of a connection that its producer has given
up, so what was looked for and not found stays remembered, to be recognised when the first attempt comes in late.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from reput_broker.put.appender import StoredBefore
from reput_broker.request import Refusal
from reput_broker.retry.message_content import PARKING_TOPICS, Content, single_message_of
from reput_broker.store.errors import DiskFull
from reput_broker.store.index.query import Doubt
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import PutResult, PutStatus
from reput_protocol.errors import ErrorCode
from reput_protocol.record.record import decode_record

_CHECKED_MAX: Final = 65_536


class Place(NamedTuple):
    """Where a message is stored."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    end_offset: int
    store_timestamp_ms: int
    content: Content | None = None
    """Of a message that was sent alone. The queue is then the one that it is for, wherever it waits."""


Identity = tuple[str, str]
"""Topic and unique id."""


class Deduplication:
    """The messages that may come twice.

    Args:
        store: keeps the index. Where it keeps none, nothing can be looked for.
        dispatch: brings what can be read of the log into the index.
        clock_ms: the store's clock.
        window_s: how long a stored message is known.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        dispatch: Callable[[], None],
        clock_ms: Callable[[], int],
        window_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._dispatch = dispatch
        self._clock_ms = clock_ms
        self._window_s = window_s
        self._undispatched: dict[Identity, Place] = {}
        self._order: deque[tuple[int, list[Identity]]] = deque()  # by end offset
        self._checked: OrderedDict[Identity, Place] = OrderedDict()
        self._looking: dict[object, int] = {}  # by look: what had been dispatched when it began

    @contextmanager
    def look(self) -> Iterator[None]:
        """What is put while somebody looks into the index is remembered at least until the look has ended."""
        token = object()
        self._looking[token] = self._store.dispatched_offset
        try:
            yield
        finally:
            del self._looking[token]

    def settle(self) -> None:
        """Have found by key what has been dispatched; in the event loop, before `find_all`.

        Raises:
            Refusal: nobody can say what is stored: there is no index, or no room for it.
        """
        if not self._store.options.index_enabled:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "deduplication finds messages by the index, which is off; set store.index, or send without it",
            )
        self._dispatch()
        try:
            self._store.settle_index()
        except DiskFull as error:
            raise Refusal(ErrorCode.DISK_FULL, f"{error}; what is stored cannot be looked up") from error

    def find_all(self, topic: str, unique_ids: Iterable[str]) -> list[Place | None]:
        """Return where the index knows messages of the window to be, also those that wait for their time.

        Reads the disk: call it in a worker thread.

        Raises:
            Refusal: nobody can say, as yet (`NOT_READY`) or until somebody does something about it (`INTERNAL`).
        """
        since_ms = self._since_ms()
        places: list[Place | None] = []
        for unique_id in unique_ids:
            found = self._store.find_by_unique_key(topic, unique_id, since_ms)
            if found.record is not None:
                record = decode_record(found.record, check_crc=False)
                places.append(
                    Place(
                        record.queue_id,
                        record.queue_offset,
                        record.physical_offset,
                        record.physical_offset + len(found.record),
                        record.store_timestamp_ms,
                    )
                )
            elif found.doubt is None:
                # One that waits for its time is another message: it was sent alone, and this one in a block.
                places.append(self._find_in(PARKING_TOPICS, topic, unique_id, since_ms))
            else:
                raise Refusal(*_refusal_for(found.doubt, unique_id))
        return places

    def stored_before(
        self, topic: str, unique_ids: Sequence[str], sizes: Sequence[int], known: Sequence[Place | None]
    ) -> StoredBefore | None:
        """Return the first outcome if all of these messages are stored, None if none is. Under the put lock.

        Args:
            topic: of all of them.
            unique_ids: one for each message.
            sizes: of their records, in bytes.
            known: what `find_all` has found, or nothing where it was not asked.

        Raises:
            Refusal: some are stored and some not, or not side by side as they come now.
        """
        since_ms = self._since_ms()
        places = [
            self._remembered(topic, unique_id, since_ms) or place
            for unique_id, place in zip(unique_ids, known or [None] * len(unique_ids), strict=True)
        ]
        first = places[0]
        if not any(places):
            return None
        if first is None or not _side_by_side(places, sizes):
            stored = [unique_id for unique_id, place in zip(unique_ids, places, strict=True) if place]
            if first is not None and len(places) == 1:
                raise Refusal(
                    ErrorCode.DUPLICATE,
                    f"another message with the unique id {stored[0]!r} is stored {_where(first)}; one with other "
                    "content or another delay needs an id of its own",
                )
            if len(stored) == len(places):
                raise Refusal(
                    ErrorCode.DUPLICATE,
                    "all messages of the block are stored already, but not side by side or with other content, for "
                    f"instance {stored[0]!r}; send them one by one for their receipts",
                )
            raise Refusal(
                ErrorCode.DUPLICATE,
                f"{len(stored)} of {len(places)} messages are stored already, for instance {stored[0]!r}; send the "
                "others again without them",
            )
        last = places[-1]
        assert last is not None, "all are stored"
        return StoredBefore(
            PutStatus.PUT_OK,
            first.queue_offset,
            first.physical_offset,
            last.end_offset,
            first.store_timestamp_ms,
            len(places),
            first.queue_id,
        )

    def find_alone(self, topic: str, unique_id: str) -> Place | None:
        """Return where the index knows a message for `topic` to be, delivered or waiting for its time, or None.

        Reads the disk: call it in a worker thread.

        Raises:
            Refusal: as `find_all`.
        """
        return self._find_in((topic, *PARKING_TOPICS), topic, unique_id, self._since_ms())

    def _find_in(self, topics: Iterable[str], topic: str, unique_id: str, since_ms: int) -> Place | None:
        """Return the first message for `topic` that was sent alone and lies in one of `topics`."""
        doubt: Doubt | None = None
        places: list[Place] = []
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
        alone = single_message_of(data)
        return (
            alone is not None
            and alone.topic == topic
            and not self._store.is_deleted(topic, alone.record.physical_offset)
        )

    def alone_before(
        self, topic: str, unique_id: str, content: Content, known: Place | None
    ) -> StoredBefore | None:
        """Return the first outcome if a message that is sent alone is stored, else None. Under the put lock.

        Args:
            topic: that it is for.
            content: what it says.
            known: what `find_alone` has found, or None.

        Raises:
            Refusal: another message with that id is stored.
        """
        place = self._remembered(topic, unique_id, self._since_ms()) or known
        if place is None:
            return None
        if place.content is None or not place.content.is_like(content):
            raise Refusal(
                ErrorCode.DUPLICATE,
                f"another message with the unique id {unique_id!r} is stored for queue {place.queue_id}; one with "
                "other content or another delay needs an id of its own",
            )
        return StoredBefore(
            PutStatus.PUT_OK,
            place.queue_offset,
            place.physical_offset,
            place.end_offset,
            place.store_timestamp_ms,
            1,
            place.queue_id,
        )

    def _remembered(self, topic: str, unique_id: str, since_ms: int) -> Place | None:
        identity = (topic, unique_id)
        place = self._undispatched.get(identity) or self._checked.get(identity)
        if place is None or place.store_timestamp_ms < since_ms:
            return None
        return None if self._store.is_deleted(topic, place.physical_offset) else place

    def _since_ms(self) -> int:
        """The window's beginning."""
        return self._clock_ms() - int(self._window_s() * 1000)

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
        """Note messages that have just been put; `checked`: they had been looked for."""
        places: dict[Identity, Place] = {}
        position = result.physical_offset
        for index, (unique_id, size) in enumerate(zip(unique_ids, sizes, strict=True)):
            end = position + size
            place = Place(queue_id, result.queue_offset + index, position, end, result.store_timestamp_ms)
            position = end
            places[topic, unique_id] = place
        self._remember(places, position, checked)

    def remember_alone(
        self, topic: str, queue_id: int, unique_id: str, content: Content, result: PutResult, *, checked: bool
    ) -> None:
        """Note a message for `topic` that was sent alone and has just been put; `checked`: it had been looked for."""
        place = Place(
            queue_id,
            result.queue_offset,
            result.physical_offset,
            result.end_offset,
            result.store_timestamp_ms,
            content,
        )
        self._remember({(topic, unique_id): place}, result.end_offset, checked)

    def _remember(self, places: dict[Identity, Place], end_offset: int, checked: bool) -> None:
        self._forget_dispatched()
        self._undispatched |= places
        if checked:
            self._checked |= places
        self._order.append((end_offset, [*places]))
        while len(self._checked) > _CHECKED_MAX:
            self._checked.popitem(last=False)

    def _forget_dispatched(self) -> None:
        """Leave to the index what it has."""
        until = min(self._looking.values(), default=self._store.dispatched_offset)
        while self._order and self._order[0][0] <= until:
            end, identities = self._order.popleft()
            for identity in identities:
                place = self._undispatched.get(identity)
                if place is not None and place.end_offset <= end:
                    del self._undispatched[identity]


def _place_of(data: bytes) -> Place:
    alone = single_message_of(data)
    assert alone is not None, "it was looked at before"
    record = alone.record
    begin = record.physical_offset
    return Place(
        alone.queue_id,
        record.queue_offset,
        begin,
        begin + len(data),
        record.store_timestamp_ms,
        alone.content,
    )


def _refusal_for(doubt: Doubt, unique_id: str) -> tuple[ErrorCode, str]:
    """Return the code and the text for a message of which nobody can say whether it is stored."""
    text = f"{doubt.value}, so that nobody can say whether the message with unique id {unique_id!r} is stored"
    if doubt is Doubt.BEHIND:
        return ErrorCode.NOT_READY, f"{text}; send it again shortly"
    if doubt is Doubt.TOO_MANY:
        return ErrorCode.INTERNAL, f"{text}; give every message a unique id of its own"
    return (
        ErrorCode.INTERNAL,
        f"{text}; stop the broker, see what `reput store verify` says and do it, then `reput store rebuild`; until "
        "then send without deduplication",
    )


def _where(place: Place) -> str:
    if place.content is not None:  # perhaps it lies elsewhere still
        return f"for queue {place.queue_id}"
    return f"at queue {place.queue_id}, offset {place.queue_offset}"


def _side_by_side(places: Sequence[Place | None], sizes: Sequence[int]) -> bool:
    """Whether these are records of such sizes, one after the other in one queue and in the log."""
    first = places[0]
    assert first is not None
    position = first.physical_offset
    for index, (place, size) in enumerate(zip(places, sizes, strict=True)):
        if (
            place is None
            or (place.content is not None and place.content.delay)  # waits for its time: another message
            or place.queue_id != first.queue_id
            or place.queue_offset != first.queue_offset + index
            or place.physical_offset != position
            or place.end_offset != position + size
        ):
            return False
        position += size
    return True
