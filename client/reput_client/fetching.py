"""The pulls of a consumer: one long poll for each queue, side by side, and what they brought, in fair order."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator
from typing import Final

from reput_client.connection import Connection
from reput_client.core import Call, Waiter
from reput_client.errors import ClientClosed, ConnectFailed
from reput_client.progress import QueueProgress
from reput_client.pull_result import PullResult, PullStatus
from reput_client.pulling import PULL_BYTES_MAX, PULL_GRACE_S, PULL_MESSAGES_MAX, pull_ext, pull_result
from reput_client.received import ReceivedMessage
from reput_client.session import Session
from reput_client.wanted import Wanted
from reput_protocol.codes import RequestCode
from reput_protocol.errors import BrokerError
from reput_protocol.message import MessageQueue

_POLL_S: Final = 15.0
_PAUSE_AFTER_REFUSAL_S: Final = 1.0
_PAUSE_AFTER_CONNECT_FAILED_S: Final = 0.1
_PULL_BYTES_MIN: Final = 64 * 1024

log = logging.getLogger("reput_client")


class FetchedQueue:
    """One queue of a consumer: its pull in progress, where the next one starts, and how far it is handled."""

    def __init__(self, queue: MessageQueue, start: int, committed: int | None) -> None:
        self.queue = queue
        self.next_offset = start
        self.progress = QueueProgress(start)
        self.committed = committed
        self.connection: Connection | None = None
        self.call: Call | None = None
        self.call_deadline = math.inf
        self.pause_until = -math.inf
        self.waiting_results = 0

    @property
    def uncommitted(self) -> bool:
        """Whether there is progress that no commit has told yet."""
        return self.progress.position != self.committed


class Fetcher:
    """Pulls from several queues at a time and hands their messages out in the order in which they arrived.

    Bounds: a queue has either one pull in progress or one result waiting, and each is at most its share of
    `prefetch_messages` and `prefetch_bytes`; with the result being handed out that is all that is kept.
    Fairness: results are served in order of arrival, and a queue pulls again only when its result's turn has come, so a
    busy queue cannot push ahead of the others.
    """

    def __init__(
        self, session: Session, group: str, wanted: Wanted, prefetch_messages: int, prefetch_bytes: int
    ) -> None:
        self._session = session
        self._group = group
        self._wanted = wanted
        self._prefetch_messages = prefetch_messages
        self._prefetch_bytes = prefetch_bytes
        self.queues: dict[MessageQueue, FetchedQueue] = {}
        self.waiter = Waiter()
        self._results: deque[tuple[FetchedQueue, PullResult]] = deque()
        self._serving: tuple[FetchedQueue, PullResult] | None = None
        self._messages: Iterator[ReceivedMessage] = iter(())
        self._given_back: list[tuple[FetchedQueue, ReceivedMessage]] = []

    @property
    def has_results(self) -> bool:
        """Whether a pull has brought messages that are not handed out yet."""
        return bool(self._results)

    def add(self, fetched: FetchedQueue) -> None:
        """Pull from one more queue."""
        self.queues[fetched.queue] = fetched

    def drop(self, queue: MessageQueue) -> None:
        """Pull from this queue no more; what it brought is still served."""
        fetched = self.queues.pop(queue)
        self._abandon(fetched)

    def take(self) -> tuple[FetchedQueue, ReceivedMessage] | None:
        """Return the next message that is here, or None."""
        if self._given_back:
            return self._given_back.pop()
        while True:
            message = next(self._messages, None)
            if self._serving is None:
                if not self._results:
                    return None
            elif message is not None:
                fetched = self._serving[0]
                fetched.progress.hand_out(message.queue_offset)
                return fetched, message
            else:
                fetched, result = self._serving
                fetched.progress.advance(result.next_begin_offset)
                self._serving = None
                if not self._results:
                    return None
            self._serving = self._results.popleft()
            self._serving[0].waiting_results -= 1
            self._messages = iter(self._serving[1].messages)

    def give_back(self, fetched: FetchedQueue, message: ReceivedMessage) -> None:
        """The message that was just taken could not be handed over; it comes next."""
        self._given_back.append((fetched, message))

    def rewind(self) -> None:
        """Hand out again what was handed out and not handled, by pulling it again."""
        self._given_back.clear()
        for fetched in self.queues.values():
            if not fetched.progress.in_flight:
                continue
            self._abandon(fetched)
            self._results = deque(entry for entry in self._results if entry[0] is not fetched)
            fetched.waiting_results = 0
            if self._serving is not None and self._serving[0] is fetched:
                self._serving = None
                self._messages = iter(())
            fetched.next_offset = fetched.progress.position
            fetched.progress.restart(fetched.next_offset)

    # -- pulls -------------------------------------------------------------------------------------------------

    async def pull_more(self, deadline: float) -> None:
        """Start a pull for every queue that may have one. Waits only to connect, and not beyond `deadline`.

        A broker that cannot be reached is tried again later; `next_wake` says when.
        """
        for fetched in list(self.queues.values()):
            now = self._session.runtime.now()
            if fetched.call is None and not fetched.waiting_results and fetched.pause_until <= now:
                await self._start(fetched, deadline)
        for fetched in self.queues.values():
            if fetched.connection is not None:
                fetched.connection.flush_now()

    async def _start(self, fetched: FetchedQueue, deadline: float) -> None:
        session = self._session
        deadline = min(session.deadline(None), deadline)
        queue = fetched.queue
        try:
            address = await session.broker_address(queue, deadline)
            connection = await session.open(address, deadline)
        except ConnectFailed as error:
            log.warning("consumer of %s: %s", queue.topic, error)
            for other in self.queues.values():
                # All of this broker's queues wait for the same connection; only the first need try.
                if other.queue.broker_name == queue.broker_name:
                    other.pause_until = session.runtime.now() + _PAUSE_AFTER_CONNECT_FAILED_S
            return
        if fetched.queue not in self.queues:
            return  # dropped while it waited for the connection
        share = max(1, len(self.queues))
        ext = pull_ext(
            self._group,
            queue.topic,
            queue.queue_id,
            fetched.next_offset,
            self._wanted,
            max_messages=max(1, min(PULL_MESSAGES_MAX, self._prefetch_messages // share)),
            max_bytes=max(_PULL_BYTES_MIN, min(PULL_BYTES_MAX, self._prefetch_bytes // share)),
            wait_s=_POLL_S,
        )
        fetched.connection = connection
        fetched.call = connection.start(RequestCode.PULL_MESSAGE, ext, self.waiter)
        fetched.call_deadline = session.runtime.now() + _POLL_S + PULL_GRACE_S

    def collect(self) -> None:
        """Take the answers that have come.

        Raises:
            BrokerError: a refusal that waiting does not cure.
            RecordMalformed: what a broker sent is no records.
        """
        self.waiter.ready = False
        now = self._session.runtime.now()
        for fetched in list(self.queues.values()):
            call = fetched.call
            if call is None:
                continue
            if call.done:
                fetched.call = None
                self._take_answer(fetched, call)
            elif now >= fetched.call_deadline:
                log.warning("consumer of %s: no answer to a pull, asking again", fetched.queue.topic)
                self._abandon(fetched)

    def _take_answer(self, fetched: FetchedQueue, call: Call) -> None:
        queue = fetched.queue
        if call.error is not None:
            if not isinstance(call.error, ClientClosed):
                log.warning("consumer of %s/%d: %s", queue.topic, queue.queue_id, call.error)
            return
        try:
            result = pull_result(queue, fetched.next_offset, call, self._wanted)
        except BrokerError as error:
            if not error.retryable:
                raise
            log.warning("consumer of %s/%d: %s", queue.topic, queue.queue_id, error)
            fetched.pause_until = self._session.runtime.now() + _PAUSE_AFTER_REFUSAL_S
            return
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "consumer of %s/%d: offset %d is outside [%d, %d), going on at %d",
                queue.topic,
                queue.queue_id,
                fetched.next_offset,
                result.min_offset,
                result.max_offset,
                result.next_begin_offset,
            )
            fetched.progress.restart(result.next_begin_offset)
            if result.next_begin_offset == fetched.next_offset:
                fetched.pause_until = self._session.runtime.now() + _PAUSE_AFTER_REFUSAL_S
        fetched.next_offset = result.next_begin_offset
        if len(result.messages):
            fetched.waiting_results += 1
            self._results.append((fetched, result))
        elif self._is_drained(fetched):
            fetched.progress.advance(result.next_begin_offset)

    def _is_drained(self, fetched: FetchedQueue) -> bool:
        """Whether every message pulled so far has been handed out."""
        return not fetched.waiting_results and (self._serving is None or self._serving[0] is not fetched)

    def next_wake(self) -> float:
        """Return when `collect` or `pull_more` will have something to do although no answer has come."""
        now = self._session.runtime.now()
        wake = math.inf
        for fetched in self.queues.values():
            if fetched.call is not None:
                wake = min(wake, fetched.call_deadline)
            elif not fetched.waiting_results:
                wake = min(wake, max(now, fetched.pause_until))
        return wake

    def _abandon(self, fetched: FetchedQueue) -> None:
        call, fetched.call = fetched.call, None
        if call is not None and fetched.connection is not None:
            fetched.connection.abandon(call)
