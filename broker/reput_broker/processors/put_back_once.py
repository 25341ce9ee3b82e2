"""Messages that are sent back are looked for before they are appended, and remembered after."""

from __future__ import annotations

from functools import partial

import trio

from reput_broker.delivery.deduplication import StoredBefore
from reput_broker.delivery.sent_back import SendBackKey, SentBack
from reput_broker.processors.appender import Appender
from reput_broker.processors.put_once import Append, Work
from reput_broker.request import Outcome, Result
from reput_broker.store.results import PutResult, PutStatus
from reput_protocol.record import Record

_LOOKS_AT_ONCE = 4


class PutBackOnce:
    """Has them appended that are not stored yet."""

    def __init__(self, sent_back: SentBack, appender: Appender) -> None:
        self._appender = appender
        self._sent_back = sent_back
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)

    def append(
        self, key: SendBackKey | None, group: str, record: Record, put: Work, append: Append, *, look: bool
    ) -> Result:
        """Have `put` run by `append`, or the outcome that it had the first time.

        Args:
            key: names the message; None for one that its client does not name.
            group: sends it back.
            record: what `put` appends.
            put: appends it; does not wait.
            append: runs under the put lock what it is given, and answers.
            look: whether it may have been stored so long ago that only the index knows it.

        Raises:
            Refusal: it cannot be told as yet whether it is stored. Nothing was stored.
        """
        if look and key is not None and record.unique_key is not None:
            return self._look_and_append(key, record, record.unique_key, put, append)
        return append(partial(self._put_once, key, group, record, put, None))

    async def _look_and_append(
        self, key: SendBackKey, record: Record, unique_id: str, put: Work, append: Append
    ) -> Outcome:
        known = None
        if self._sent_back.settle():
            known = await trio.to_thread.run_sync(self._sent_back.find, key, unique_id, limiter=self._limiter)
        result = append(partial(self._put_once, key, key.group, record, put, known))
        return await self._appender.finish(result)

    def _put_once(
        self, key: SendBackKey | None, group: str, record: Record, put: Work, known: StoredBefore | None
    ) -> PutResult:
        before = self._sent_back.stored_before(key, group, record, known)
        if before is not None:
            return before
        result = put()
        if result.status is PutStatus.PUT_OK:
            self._sent_back.remember(key, group, record, result)
        return result
