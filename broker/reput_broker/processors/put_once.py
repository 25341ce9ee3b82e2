"""Puts that may come twice: looked for before they are appended, remembered after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from reput_broker.delivery.block_ids import unique_ids_of
from reput_broker.delivery.deduplication import Deduplication, Place
from reput_broker.delivery.sent_alone import Content
from reput_broker.processors.appender import Appender
from reput_broker.request import Outcome, Request, Result
from reput_broker.store.results import PutResult, PutStatus
from reput_protocol.codes import Dedup
from reput_protocol.commands import PutMessageHeader

_LOOKS_AT_ONCE = 4
Work = Callable[[], PutResult]
Append = Callable[[Work], Result]


class Alone(NamedTuple):
    """A message that is sent alone."""

    topic: str
    """For which topic and queue it is, wherever it is put."""
    queue_id: int
    unique_id: str
    content: Content


class PutOnce:
    """Has messages appended that are not stored yet: in blocks, or alone."""

    def __init__(self, deduplication: Deduplication, appender: Appender) -> None:
        self._appender = appender
        self._deduplication = deduplication
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)

    def append(self, request: Request, header: PutMessageHeader, put: Work, append: Append) -> Result:
        """Have `put` run by `append`, or the outcome that it had the first time.

        Args:
            request: brings the block.
            header: of the put; its `dedup` is set.
            put: appends the block; does not wait.
            append: runs under the put lock what it is given, and answers.

        Raises:
            Refusal: it cannot be told whether the messages are stored, or only some of them are. Nothing was stored.
        """
        unique_ids, sizes = unique_ids_of(request.body, header.topic, header.count)
        if len(unique_ids) != header.count or not unique_ids:
            return append(put)  # which says what is wrong with the block
        if header.dedup is Dedup.CHECK:
            return self._look_and_append(header, put, append, unique_ids, sizes)
        return append(self._once(header, put, unique_ids, sizes, ()))

    async def _look_and_append(
        self,
        header: PutMessageHeader,
        put: Work,
        append: Append,
        unique_ids: Sequence[str],
        sizes: Sequence[int],
    ) -> Outcome:
        with self._deduplication.look():
            self._deduplication.settle()
            known = await trio.to_thread.run_sync(
                self._deduplication.find_all, header.topic, unique_ids, limiter=self._limiter
            )
            result = append(self._once(header, put, unique_ids, sizes, known))
            return await self._appender.finish(result)

    def _once(
        self,
        header: PutMessageHeader,
        put: Work,
        unique_ids: Sequence[str],
        sizes: Sequence[int],
        known: Sequence[Place | None],
    ) -> Work:
        def put_once() -> PutResult:
            before = self._deduplication.stored_before(header.topic, unique_ids, sizes, known)
            if before is not None:
                return before
            result = put()
            if result.status is PutStatus.PUT_OK:
                checked = header.dedup is Dedup.CHECK
                self._deduplication.remember(
                    header.topic, header.queue_id, unique_ids, sizes, result, checked=checked
                )
            return result

        return put_once

    # Messages that are sent alone

    def append_alone(self, alone: Alone, dedup: Dedup, put: Work, append: Append) -> Result:
        """Have `put` run by `append`, or the outcome that the message had the first time; otherwise as `append`."""
        if dedup is Dedup.CHECK:
            return self._look_and_append_alone(alone, put, append)
        return append(self._alone_once(alone, put, None, checked=False))

    async def _look_and_append_alone(self, alone: Alone, put: Work, append: Append) -> Outcome:
        with self._deduplication.look():
            self._deduplication.settle()
            known = await trio.to_thread.run_sync(
                self._deduplication.find_alone, alone.topic, alone.unique_id, limiter=self._limiter
            )
            result = append(self._alone_once(alone, put, known, checked=True))
            return await self._appender.finish(result)

    def _alone_once(self, alone: Alone, put: Work, known: Place | None, *, checked: bool) -> Work:
        topic, queue_id, unique_id, content = alone

        def put_once() -> PutResult:
            before = self._deduplication.alone_before(topic, unique_id, content, known)
            if before is not None:
                return before
            result = put()
            if result.status is PutStatus.PUT_OK:
                self._deduplication.remember_alone(
                    topic, queue_id, unique_id, content, result, checked=checked
                )
            return result

        return put_once
