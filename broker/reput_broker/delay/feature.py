"""Delayed messages of one broker: the requests that list them (700010), cancel them (700011), recall one (370) and show
the progress of the levels (45); their services and their figures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from typing_extensions import override

from reput_broker.delay.canceller import Cancelled, Canceller, has_key
from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.delay.delayed_record import DelayedRecord
from reput_broker.delay.deliverer import Deliverer
from reput_broker.delay.level_counts import LevelCounts
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.service import DelayService
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_feed import TimerFeed
from reput_broker.delay.waiting_messages import WaitingMessages, WalkCursor
from reput_broker.observe.metrics import DelaySources
from reput_broker.put.progress import PendingRequest
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.tables.config_file import encode
from reput_broker.tenure import Core
from reput_protocol.codes import AckLevel, RequestCode, ResponseCode
from reput_protocol.commands.delay import (
    CancelDelayedHeader,
    CancelledMessage,
    CancelOutcome,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
    ListDelayedHeader,
    RecallHandle,
    RecallMessageHeader,
    RecallMessageResult,
)
from reput_protocol.errors import ErrorCode, HeaderFieldError, refusal_remark
from reput_protocol.names import REVIVE_PREFIX, check_send_topic
from reput_protocol.record.message_id import offset_message_id

_LISTED_MAX = 1000
_LOOKED_AT_MAX = 5000
_AT_ONCE = 128


class DelayProcessor(Processor):
    """Answers requests about delayed messages.

    Args:
        figures: how many messages wait, and how late they are.
    """

    def __init__(
        self,
        core: Core,
        state: DelayState,
        waiting: WaitingMessages,
        cancelling: Canceller,
        figures: DelaySources,
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._cancelling = cancelling
        self._figures = figures
        self._puts = core.puts
        self._topics = core.tables.topics
        self._host = core.store.options.host
        self._broker_name = core.config.broker_name

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def delay_offsets(self, _request: Request) -> Response:
        """Answer with how far each level has been delivered."""
        return Response(0, body=encode(self._state.offset_members()))

    # Listing

    @serves(RequestCode.LIST_DELAYED_MESSAGES)
    def list_delayed(self, request: Request) -> None:
        """Answer with delayed messages, the soonest first; requests behind this one do not wait."""
        header = ListDelayedHeader.from_ext(request.ext)
        try:
            cursor = WalkCursor() if header.cursor is None else WalkCursor.parse(header.cursor)
        except ValueError as error:
            raise HeaderFieldError("cursor", str(error)) from error
        request.client.spawn(_answering, request, lambda: self._list(header, cursor))

    async def _list(self, header: ListDelayedHeader, cursor: WalkCursor) -> Response:
        wanted = min(max(1, header.max_num), _LISTED_MAX)
        counts = self._figures.stats.waiting
        waiting = sum(counts.values()) if header.topic is None else counts[header.topic]
        found = DelayedMessageList(waiting=max(0, waiting), due_seconds=self._figures.due_s())
        looked_at = 0
        await self._waiting.until_walked()
        while len(found.messages) < wanted and looked_at < _LOOKED_AT_MAX:
            count = min(_AT_ONCE, wanted - len(found.messages))
            some = await self._waiting.next(cursor, count)
            if some is None:
                return Response(0, body=found.to_json())
            looked_at += max(1, len(some))
            found.messages += [self._described(one) for one in some if _is_wanted(one, header)]
        found.cursor = str(cursor)
        return Response(0, body=found.to_json())

    def _described(self, delayed: DelayedRecord) -> DelayedMessage:
        record = delayed.record
        return DelayedMessage(
            delayed.topic,
            delayed.queue_id,
            offset_message_id(self._host, record.physical_offset),
            delayed.due_ms,
            record.store_timestamp_ms,
            delayed.level,
            len(record.body_view),
            delayed.unique_key,
            record.tag,
            [*record.keys],
        )

    # Cancelling

    @serves(RequestCode.CANCEL_DELAYED_MESSAGE)
    def cancel_delayed(self, request: Request) -> None:
        """Cancel, and answer with the result once it is on disk; requests behind this one do not wait."""
        header = CancelDelayedHeader.from_ext(request.ext)
        check_send_topic(header.topic)
        if not header.key:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, "the key is empty; name a unique id or a key")
        request.client.spawn(_answering, request, lambda: self._cancel(request, header))

    async def _cancel(self, request: Request, header: CancelDelayedHeader) -> Response | None:
        results = await self._cancelling.cancel(header.topic, header.key)
        if not results:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"no delayed message for topic {header.topic} has the key {header.key!r}; nothing was cancelled",
            )
        response = Response(0, body=CancelResult([self._told(result) for result in results]).to_json())
        self._answer_when_flushed(request, response, results)
        return None

    @serves(RequestCode.RECALL_MESSAGE)
    def recall(self, request: Request) -> None:
        """Cancel the message of a recall handle, and answer once that is on disk (RocketMQ: RecallMessageProcessor).

        Unlike RocketMQ's, the answer says whether it was in time.
        """
        header = RecallMessageHeader.from_ext(request.ext)
        check_send_topic(header.topic)
        if self._topics.get(header.topic) is None:
            raise Refusal(
                ErrorCode.NO_TOPIC, f"topic {header.topic!r} does not exist; there is nothing to recall"
            )
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except ValueError as error:
            raise _not_recalled(str(error)) from None
        if handle.topic != header.topic:
            raise _not_recalled(f"the handle is of topic {handle.topic!r}; name that one")
        if handle.broker_name != self._broker_name:
            raise _not_recalled(f"the handle is of broker {handle.broker_name!r}; ask that one")
        request.client.spawn(_answering, request, lambda: self._recall(request, handle))

    async def _recall(self, request: Request, handle: RecallHandle) -> None:
        results = await self._cancelling.cancel(handle.topic, handle.unique_id, is_unique_id=True)
        done = (CancelOutcome.CANCELLED, CancelOutcome.ALREADY_CANCELLED)
        if not results or any(result.outcome not in done for result in results):
            raise _not_recalled("the message does not wait any more: it was delivered, or is not stored here")
        result = RecallMessageResult(handle.unique_id)
        response = Response(0, result.to_ext(request.header_type))
        self._answer_when_flushed(request, response, results)

    def _answer_when_flushed(
        self, request: Request, response: Response, results: Sequence[Cancelled]
    ) -> None:
        end = max(result.end_offset for result in results)
        pending = _PendingCancel(request, response, 0, self._puts.fence, 0)
        self._puts.progress.answer_when(AckLevel.FLUSHED, end, pending)

    def _told(self, result: Cancelled) -> CancelledMessage:
        delayed = result.delayed
        message_id = offset_message_id(self._host, delayed.physical_offset)
        return CancelledMessage(message_id, result.outcome, delayed.unique_key)


class _PendingCancel(PendingRequest):
    """A cancellation whose answer waits for the disk; not counted as a put."""

    __slots__ = ()

    @override
    def admit(self, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> None:
        text = f"cancelled, but possibly not on disk: {reason}; ask again whether it was in time"
        remark = refusal_remark(error, text)
        self.client.answer(
            self.request, Response(int(error.response_code), body=self.response.body, remark=remark)
        )

    @override
    def refuse(self, reason: str) -> None:
        text = f"possibly not cancelled: {reason}; ask again once the broker takes messages"
        self.client.answer(self.request, Refusal(ErrorCode.READ_ONLY, text).response())


def _not_recalled(reason: str) -> Refusal:
    return Refusal(
        ErrorCode.NOT_FOUND,
        f"the message was not recalled: {reason}",
        response_code=int(ResponseCode.ILLEGAL_OPERATION),
    )


def _is_wanted(delayed: DelayedRecord, header: ListDelayedHeader) -> bool:
    if header.topic is None:
        if delayed.topic.startswith(REVIVE_PREFIX):  # check points of popped messages
            return False
    elif delayed.topic != header.topic:
        return False
    return header.key is None or has_key(delayed, header.key)


async def _answering(request: Request, work: Callable[[], Awaitable[Response | None]]) -> None:
    """Answer with the result of `work`; None is answered elsewhere."""
    try:
        response = await work()
    except Refusal as refusal:
        response = refusal.response()
    except Exception as error:
        response = Refusal(ErrorCode.INTERNAL, f"it failed: {error}; ask again").response()
    if response is not None:
        request.reply(response)


class DelayFeature:
    """Delayed delivery, over an open storage."""

    def __init__(self, core: Core, state: DelayState) -> None:
        config, store, puts, clock_ms = core.config, core.store, core.puts, core.clock_ms
        self.delay_redirects = DelayRedirects(config.delay, clock_ms)
        self._state = state
        self._clock_ms = clock_ms
        reader = RecordReader(store, core.warm_from)
        counts = LevelCounts(state, store, reader)
        state.on_lost = counts.recount
        self._deliverer = Deliverer(
            state, counts, store, puts.own, reader, core.tables.topics, clock_ms=clock_ms
        )
        self._feed = TimerFeed(state, store, reader)
        self._service = DelayService(
            state,
            store,
            self._deliverer,
            self._feed,
            counts,
            core.arrivals,
            clock_ms=clock_ms,
            flush_interval_s=lambda: config.delay.flush_interval,
        )
        waiting = WaitingMessages(state, store, reader, clock_ms)
        canceller = Canceller(state, counts, store, puts.own, waiting, clock_ms=clock_ms)
        core.sources.delays = DelaySources(state.stats, self.due_s, state.timers_behind)
        self.processors = (DelayProcessor(core, state, waiting, canceller, core.sources.delays),)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return self._service.tasks()

    def due_s(self) -> float:
        """Return how late the most overdue message is, in seconds; 0 if none is."""
        next_ms = self._deliverer.next_ms
        return 0.0 if next_ms is None else max(0, self._clock_ms() - next_ms) / 1000

    def status(self) -> dict[str, Any]:
        """Return what /status shows."""
        stats = self._state.stats
        return {
            "waiting": sum(stats.waiting.values()) + self._feed.behind,
            "delivered": stats.error_seconds.count,
            "cancelled": sum(stats.cancelled.values()),
            "dropped": sum(stats.dropped.values()),
            "due_s": self.due_s(),
        }
