"""Deduplicated puts: looked up before they are appended, remembered afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from reput_broker.put.appender import StoredBefore
from reput_broker.remoting.request import Handled, Put, Refusal, Request, Result
from reput_broker.send.deduplication import Deduplication, StoredAt
from reput_broker.send.message_content import Content
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tenure.core import Core
from reput_protocol.buffers import Buffer
from reput_protocol.codes import Dedup
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.errors import ErrorCode
from reput_protocol.properties import UNIQ_KEY, find_property_in
from reput_protocol.record.head import body_size_at, size_at
from reput_protocol.record.layout import HEAD_BYTES, topic_field

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
T = TypeVar("T")


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
            core.store,
            clock_ms=core.clock_ms,
            window_s=lambda: core.config.dedup.window,
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
