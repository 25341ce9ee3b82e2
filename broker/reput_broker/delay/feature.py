"""Delayed messages of one broker: the requests that list them (700010), cancel them (700011), recall one (370) and show
the progress of the levels (45); their background tasks and their figures.

The tasks deliver, feed the wheel, load its slots, count, save and clean (RocketMQ: the services of
ScheduleMessageService and TimerMessageStore). Each does a bounded step and then yields to the event loop. Without work
it sleeps until the next message is due or one arrives; a changed wall clock is noticed within a second.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import trio
from typing_extensions import override

from reput_broker.delay.delayed_record import DelayedRecord, DelayRedirects
from reput_broker.delay.deliverer import LOADED_MAX, Deliverer, LevelCounts, Stuck, TimerFeed
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.delay.waiting_messages import Cancelled, Canceller, WaitingMessages, WalkCursor, has_key
from reput_broker.observe.metrics import DelaySources
from reput_broker.put.progress import PendingRequest
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.tables.config_file import encode
from reput_broker.tenure.core import Core
from reput_protocol.codes import AckLevel, RequestCode, ResponseCode
from reput_protocol.commands import delay as commands
from reput_protocol.errors import ErrorCode, HeaderFieldError, ReputError, refusal_remark
from reput_protocol.names import REVIVE_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, check_send_topic
from reput_protocol.record.message_id import offset_message_id

log = structlog.get_logger(__name__)

_POLL_S = 1.0
_WAIT_MIN_S = 0.001
_STUCK_S = 0.1
_RETRY_S = 1.0
_FLUSHED_POLL_S = 0.05
_CLEAN_S = 30.0
_COUNT_PAUSE_S = 0.001
_LISTED_MAX = 1000
_LOOKED_AT_MAX = 5000
_AT_ONCE = 128


@dataclass(eq=False, repr=False)
class DelayProcessor(Processor):
    """Answers requests about delayed messages.

    Args:
        figures: how many messages wait, and how late they are.
    """

    _core: Core
    _state: DelayState
    _waiting: WaitingMessages
    _cancelling: Canceller
    _figures: DelaySources

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def delay_offsets(self, _request: Request) -> Response:
        """Answer with how far each level has been delivered."""
        return Response(0, body=encode(self._state.offset_members()))

    # Listing

    @serves(RequestCode.LIST_DELAYED_MESSAGES)
    def list_delayed(self, request: Request) -> None:
        """Answer with delayed messages, the soonest first; requests behind this one do not wait."""
        header = commands.ListDelayedHeader.from_ext(request.ext)
        try:
            cursor = WalkCursor() if header.cursor is None else WalkCursor.parse(header.cursor)
        except ValueError as error:
            raise HeaderFieldError("cursor", str(error)) from error
        request.client.spawn(_answering, request, lambda: self._list(header, cursor))

    async def _list(self, header: commands.ListDelayedHeader, cursor: WalkCursor) -> Response:
        wanted = min(max(1, header.max_num), _LISTED_MAX)
        counts = self._figures.stats.waiting
        waiting = sum(counts.values()) if header.topic is None else counts[header.topic]
        found = commands.DelayedMessageList(waiting=max(0, waiting), due_seconds=self._figures.due_s())
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

    def _described(self, delayed: DelayedRecord) -> commands.DelayedMessage:
        record = delayed.record
        return commands.DelayedMessage(
            delayed.topic,
            delayed.queue_id,
            offset_message_id(self._core.store.options.host, record.physical_offset),
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
        header = commands.CancelDelayedHeader.from_ext(request.ext)
        check_send_topic(header.topic)
        if not header.key:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, "the key is empty; name a unique id or a key")
        request.client.spawn(_answering, request, lambda: self._cancel(request, header))

    async def _cancel(self, request: Request, header: commands.CancelDelayedHeader) -> Response | None:
        results = await self._cancelling.cancel(header.topic, header.key)
        if not results:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"no delayed message for topic {header.topic} has the key {header.key!r}; nothing was cancelled",
            )
        response = Response(0, body=commands.CancelResult([self._told(result) for result in results]).to_json())
        self._answer_when_flushed(request, response, results)
        return None

    @serves(RequestCode.RECALL_MESSAGE)
    def recall(self, request: Request) -> None:
        """Cancel the message of a recall handle, and answer once that is on disk (RocketMQ: RecallMessageProcessor).

        Unlike RocketMQ's, the answer says whether it was in time.
        """
        header = commands.RecallMessageHeader.from_ext(request.ext)
        check_send_topic(header.topic)
        if self._core.tables.topics.get(header.topic) is None:
            raise Refusal(ErrorCode.NO_TOPIC, f"topic {header.topic!r} does not exist; there is nothing to recall")
        try:
            handle = commands.RecallHandle.parse(header.recall_handle)
        except ValueError as error:
            raise _not_recalled(str(error)) from None
        if handle.topic != header.topic:
            raise _not_recalled(f"the handle is of topic {handle.topic!r}; name that one")
        if handle.broker_name != self._core.config.broker_name:
            raise _not_recalled(f"the handle is of broker {handle.broker_name!r}; ask that one")
        request.client.spawn(_answering, request, lambda: self._recall(request, handle))

    async def _recall(self, request: Request, handle: commands.RecallHandle) -> None:
        results = await self._cancelling.cancel(handle.topic, handle.unique_id, is_unique_id=True)
        done = (commands.CancelOutcome.CANCELLED, commands.CancelOutcome.ALREADY_CANCELLED)
        if not results or any(result.outcome not in done for result in results):
            raise _not_recalled("the message does not wait any more: it was delivered, or is not stored here")
        result = commands.RecallMessageResult(handle.unique_id)
        response = Response(0, result.to_ext(request.header_type))
        self._answer_when_flushed(request, response, results)

    def _answer_when_flushed(self, request: Request, response: Response, results: Sequence[Cancelled]) -> None:
        end = max(result.end_offset for result in results)
        pending = _PendingCancel(request, response, 0, self._core.puts.fence, 0)
        self._core.puts.progress.answer_when(AckLevel.FLUSHED, end, pending)

    def _told(self, result: Cancelled) -> commands.CancelledMessage:
        delayed = result.delayed
        message_id = offset_message_id(self._core.store.options.host, delayed.physical_offset)
        return commands.CancelledMessage(message_id, result.outcome, delayed.unique_key)


class _PendingCancel(PendingRequest):
    """A cancellation whose answer waits for the disk; not counted as a put."""

    __slots__ = ()

    @override
    def admit(self, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> None:
        text = f"cancelled, but possibly not on disk: {reason}; ask again whether it was in time"
        remark = refusal_remark(error, text)
        self.client.answer(self.request, Response(int(error.response_code), body=self.response.body, remark=remark))

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


def _is_wanted(delayed: DelayedRecord, header: commands.ListDelayedHeader) -> bool:
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
        self.delay_redirects = DelayRedirects(core.config.delay, core.clock_ms)
        self._core = core
        self._state = state
        reader = RecordReader(core.store, core.warm_from)
        self._counts = counts = LevelCounts(state, core.store, reader)
        state.on_lost = counts.recount
        self._deliverer = Deliverer(core, state, counts, reader)
        self._feed = TimerFeed(state, core.store, reader)
        waiting = WaitingMessages(state, core.store, reader, core.clock_ms)
        canceller = Canceller(core, state, counts, waiting)
        core.sources.delays = DelaySources(state.stats, self.due_s, state.timers_behind)
        self.processors = (DelayProcessor(core, state, waiting, canceller, core.sources.delays),)
        self._due = trio.Event()
        self._next_ms: float = math.inf
        """When the message is due that deliveries wait for."""
        self._arrived = trio.Event()
        self._activated = trio.Event()
        self._uncounted = trio.Event()
        self._caught_up = trio.Event()
        core.arrivals.watch(TIMER_TOPIC, self._on_timer)
        core.arrivals.watch(SCHEDULE_TOPIC, self._on_level)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks, which run concurrently until cancelled."""
        return (self._deliver, self._feed_wheel, self._load_slots, self._count_levels, self._save, self._clean)

    def due_s(self) -> float:
        """Return how late the most overdue message is, in seconds; 0 if none is."""
        next_ms = self._deliverer.next_ms
        return 0.0 if next_ms is None else max(0, self._core.clock_ms() - next_ms) / 1000

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

    # -- tasks -------------------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self._arrived.set()

    def _on_level(self) -> None:
        self._due.set()
        self._uncounted.set()

    def _wake_if_earlier(self) -> None:
        """Deliver earlier than planned if the wheel has a message that is due before."""
        next_ms = self._state.timers.active.next_ms
        if next_ms is not None and next_ms < self._next_ms:
            self._due.set()

    async def _deliver(self) -> None:
        """Deliver due messages, and retry while the store refuses them."""
        while True:
            self._due = trio.Event()
            try:
                done = await self._deliverer.step(with_timers=self._caught_up.is_set())
            except Stuck:
                await trio.sleep(_STUCK_S)
                continue
            except (ReputError, OSError) as error:
                log.error("delayed_delivery_failed", detail=str(error), hint="the broker retries")
                await trio.sleep(_RETRY_S)
                continue
            if done:
                await trio.lowlevel.checkpoint()
                continue
            next_ms = self._deliverer.next_ms if self._caught_up.is_set() else None
            self._next_ms = math.inf if next_ms is None else next_ms
            wait_s = min(_POLL_S, max(_WAIT_MIN_S, (self._next_ms - self._core.clock_ms()) / 1000))
            with trio.move_on_after(wait_s):
                await self._due.wait()

    async def _feed_wheel(self) -> None:
        """Put the messages of the timer's queue into the wheel."""
        logged = self._state.timers.wheel_refusal or ""
        while True:
            self._arrived = trio.Event()
            if not self._feed.is_behind:
                if not self._caught_up.is_set():
                    self._caught_up.set()
                    self._due.set()
                await self._arrived.wait()
                continue
            try:
                taken = await self._feed.take_from_queue(self._core.clock_ms())
            except (ReputError, OSError, MemoryError) as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning(
                        "timer_files_not_made",
                        detail=logged,
                        hint="free disk space or memory; the broker retries, and messages with a deliver time wait "
                        "until it succeeds",
                    )
                await trio.sleep(_RETRY_S)
                continue
            logged = ""
            self._wake_if_earlier()
            if self._state.timers.chains:
                self._activated.set()
            if taken:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(_STUCK_S)

    async def _load_slots(self) -> None:
        """Load the slots of the wheel that are due soon."""
        await self._caught_up.wait()
        timers = self._state.timers
        while True:
            self._activated = trio.Event()
            self._feed.finish_slots(self._core.clock_ms())
            before = timers.active_until
            timers.activate_slots(self._core.clock_ms())
            while timers.chains:
                while len(timers.active) > LOADED_MAX:  # noqa: ASYNC110 - an event would cost every delivery
                    await trio.sleep(_STUCK_S)
                await self._feed.load(timers.chains.popleft())
                self._wake_if_earlier()
            if timers.active_until - before > 1000 * _POLL_S:
                await trio.lowlevel.checkpoint()  # more slots may be due
                continue
            with trio.move_on_after(_POLL_S):
                await self._activated.wait()

    async def _count_levels(self) -> None:
        """Count the messages that wait in the levels' queues."""
        while True:
            self._uncounted = trio.Event()
            try:
                counted = await self._counts.step()
            except (ReputError, OSError) as error:
                log.warning("delayed_messages_not_counted", detail=str(error), hint="the broker retries")
                counted = 0
            if counted:
                await trio.sleep(_COUNT_PAUSE_S)
            else:
                await self._uncounted.wait()

    async def _save(self) -> None:
        """Save the progress at each interval in which it has changed."""
        while True:
            await trio.sleep(self._core.config.delay.flush_interval)
            self._feed.finish_slots(self._core.clock_ms())
            self._state.note_queues()
            progress = self._state.progress()
            if progress is None:
                continue
            while self._core.store.flushed_offset < progress.log_end:  # noqa: ASYNC110 - once a save
                await trio.sleep(_FLUSHED_POLL_S)
            try:
                await trio.to_thread.run_sync(self._state.save, progress)
            except (ReputError, OSError) as error:
                log.error(
                    "delay_progress_not_saved",
                    detail=str(error),
                    hint="free disk space; the next start reads more of the log",
                )
                await trio.sleep(_RETRY_S)

    async def _clean(self) -> None:
        """Delete files of the timer log that no slot needs any more."""
        timers = self._state.timers
        while True:
            await trio.sleep(_CLEAN_S)
            try:
                await trio.to_thread.run_sync(timers.log.drop_first_before, timers.read_ms)
            except (ReputError, OSError) as error:
                log.warning("timer_log_not_cleaned", detail=str(error), hint="the broker retries")
