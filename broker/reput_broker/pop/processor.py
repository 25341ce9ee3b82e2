"""Pops (200050), peeks (200052), notifications (200054) and how many pops wait (200055).

(RocketMQ: PopMessageProcessor, PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor.)

A pop takes messages from the queues of a topic, beginning at any of them, and from the group's retry topic of it; at
every fifth pop from that one first. In a topic of the type PRIORITY it begins with the highest queue, which has the
highest priority. For each queue a check point is put before the answer (`pop.checkpoints`), which
need not be on disk: the group's offset follows only when it can be read (`pop.positions`). Ordered pops have no check
point; they block their queue instead (`pop.order_info`).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from reput_broker.observe.counters import PULL_WAIT_CODE
from reput_broker.pop.checkpoints import CheckPoint, CheckPointKey
from reput_broker.pop.polling import PollingKey
from reput_broker.pop.positions import PoppedQueue
from reput_broker.pop.state import WRONG_OFFSET, PopState, size_of
from reput_broker.put.held_pulls import ColdReads
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.retry.expired_messages import ExpiredMessages
from reput_broker.send.retry_records import fitted_properties
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.base.results import GetMessageResult, GetStatus, PutStatus
from reput_broker.store.message_reader import FilteredGet
from reput_broker.tenure.core import Core
from reput_protocol import properties as names
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pop import (
    ORDERED_REVIVE_QUEUE,
    POP_MESSAGES_MAX,
    NotificationHeader,
    NotificationResult,
    PeekMessageHeader,
    PollingInfoHeader,
    PollingInfoResult,
    PopHandle,
    PopMessageHeader,
    PopMessageResult,
    msg_offset_info,
    order_count_info,
    retry_mark,
    start_offset_info,
)
from reput_protocol.errors import ErrorCode
from reput_protocol.filter.tags import MessageFilter
from reput_protocol.names import RETRY_PREFIX
from reput_protocol.record.record import RecordView, record_views, redirect_record

log = structlog.get_logger(__name__)

_TIMEOUT: Final = int(ResponseCode.POLLING_TIMEOUT)
_FULL: Final = int(ResponseCode.POLLING_FULL)
_PASSED = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_FOUND_NULL)
_OFFSETS = struct.Struct(">qq")
_OFFSETS_AT = 20
_HANDLE_NAME = names.POP_CK.encode() + b"\x01"
_COLD_READS_AT_ONCE = 4
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_COLD_PEEKS_AT_ONCE: Final = 2


@dataclass(slots=True)
class _Pop:
    """One pop while it is under way or held."""

    request: Request
    header: PopMessageHeader
    message_filter: MessageFilter | None
    deadline: float
    """When it is answered in any case, by trio's clock."""


@dataclass(slots=True)
class _Taken:
    """What a pop found in one queue, which it has locked."""

    place: PoppedQueue
    offset: int
    found: GetMessageResult | FilteredGet
    body: bytes = b""
    offsets: list[int] = field(default_factory=list)

    @property
    def result(self) -> GetMessageResult:
        assert isinstance(self.found, GetMessageResult), "the filter was evaluated"
        return self.found


@dataclass(slots=True)
class _Selection:
    taken: list[_Taken] = field(default_factory=list)
    rest: int = 0
    """How many messages it leaves."""
    count: int = 0
    has_expired: bool = False
    """Whether messages were left out because they have expired."""
    is_filtered: bool = False
    """Whether what fits the filter is still to be found in what was taken last."""

    @property
    def is_cold(self) -> bool:
        return any(taken.found.cold for taken in self.taken)


class PopProcessor(Processor):
    """Serves messages to groups that pop."""

    def __init__(self, core: Core, state: PopState) -> None:
        self._core = core
        self._state = state
        self._expired = ExpiredMessages(core)
        self._expiring = core.tables.topics.expiring
        self._cold_reads = ColdReads(_COLD_READS_AT_ONCE, "pop again")

    # -- pops ----------------------------------------------------------------------------------------------

    @serves(RequestCode.POP_MESSAGE)
    async def pop(self, request: Request) -> Response | None:
        """Answer with messages, or hold the request until there are some or its time is up."""
        header = PopMessageHeader.from_ext(request.ext)
        if not 0 < header.max_msg_nums <= POP_MESSAGES_MAX:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT, f"a pop takes 1 to {POP_MESSAGES_MAX} messages, not {header.max_msg_nums}"
            )
        if header.invisible_time <= 0:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"an invisible time of {header.invisible_time} ms is not possible; use at least 1",
            )
        if not self._core.config.delay.timer_wheel:
            raise Refusal(
                ErrorCode.UNSUPPORTED_REQUEST,
                "popped messages need the timer, which is disabled here (delay.timer_wheel is false); pull instead",
                response_code=int(ResponseCode.SYSTEM_ERROR),
            )
        self._state.queues.check(header, creates=True)
        # What it pops can be acknowledged, and is redelivered, only as long as the group exists.
        await self._core.group_access.save_if_new(header.consumer_group)
        self._core.groups.readers.asked(header.consumer_group, request.client.peer)
        if header.exp and self._core.filter_check.takes_long(header.exp_type, header.exp):
            await self._core.filter_check.prepare(header.exp)
        message_filter = self._core.filter_check.filter_of(header.exp_type, header.exp) if header.exp else None
        if not self._state.revive_log.is_ready:
            await self._state.revive_log.make_topic()
        deadline = trio.current_time() + max(0, header.poll_time) / 1000
        return await self._run(_Pop(request, header, message_filter, deadline))

    async def _run(self, pop: _Pop) -> Response | None:
        """Take messages and answer; read those that are not in memory without delaying the client's next requests."""
        selection = self._select(pop)
        if selection.is_cold:
            pop.request.client.spawn(self._reply, pop, lambda: self._finish(pop, selection))
            return None
        return await self._finish(pop, selection)

    async def _reply(self, pop: _Pop, work: Callable[[], Awaitable[Response | None]]) -> None:
        try:
            response = await work()
        except Refusal as refusal:
            response = refusal.response()
        except Exception as error:
            log.error("pop_failed", peer=pop.request.client.peer, hint="a defect of the broker", exc_info=error)
            response = Refusal(ErrorCode.INTERNAL, f"the pop failed: {error}; pop again").response()
        if response is not None:
            pop.request.reply(response)

    # -- selecting -----------------------------------------------------------------------------------------

    def _select(self, pop: _Pop) -> _Selection:
        """Find messages and lock their queues; `_finish` unlocks them."""
        selection = _Selection()
        try:
            for place in self._state.queues.places(pop.header, with_retries=not pop.header.order):
                self._select_of(pop, place, selection)
        except BaseException:
            self._unlock(selection)
            raise
        return selection

    def _select_of(self, pop: _Pop, place: PoppedQueue, selection: _Selection) -> None:
        header, positions = pop.header, self._state.positions
        wanted = header.max_msg_nums - selection.count
        if wanted <= 0 or selection.is_filtered or not positions.lock(place):
            if not header.order:
                selection.rest += self._state.queues.left(place)
            return
        try:
            taken = self._look(pop, place, wanted)
        except BaseException:
            positions.unlock(place)
            raise
        if taken is None:
            positions.unlock(place)
            return
        selection.taken.append(taken)
        if isinstance(taken.found, GetMessageResult):
            selection.count += taken.found.count
            selection.rest += max(0, taken.found.max_offset - taken.found.next_begin_offset)
        else:
            selection.is_filtered = True

    def _look(self, pop: _Pop, place: PoppedQueue, wanted: int) -> _Taken | None:
        header = pop.header
        offset = self._state.positions.begin(place, header.init_mode)
        if header.order:
            if self._state.orders.is_blocked(place, header.attempt_id):
                return None
            self._state.in_flight.begins_again(*place)
        found = self._get(pop, place, offset, wanted)
        if isinstance(found, GetMessageResult) and found.status in WRONG_OFFSET:
            # The queue begins later, for example because messages have expired.
            offset = found.next_begin_offset
            self._state.positions.forget_place(place)
            self._state.positions.commit(place, offset)
            found = self._get(pop, place, offset, wanted)
        if isinstance(found, GetMessageResult) and found.next_begin_offset == offset == found.max_offset:
            return None  # most queues of a topic that has thousands
        return _Taken(place, offset, found)

    def _get(self, pop: _Pop, place: PoppedQueue, offset: int, wanted: int) -> GetMessageResult | FilteredGet:
        size = min(self._core.config.limits.pull_bytes, pop.request.client.share)
        return self._core.store.get_message(place.topic, place.queue_id, offset, wanted, size, pop.message_filter)

    def _unlock(self, selection: _Selection) -> None:
        for taken in selection.taken:
            self._state.positions.unlock(taken.place)
            if isinstance(taken.found, FilteredGet):
                taken.found.release()

    # -- taking --------------------------------------------------------------------------------------------

    async def _finish(self, pop: _Pop, selection: _Selection) -> Response | None:
        header = pop.header
        try:
            if selection.is_cold:
                await self._read_cold(pop, selection)
            for taken in selection.taken:
                if taken.result.count and not taken.body:
                    taken.body = self._core.store.read_extents(taken.result.extents)
                if taken.body and (taken.place.topic in self._expiring or taken.place.topic[0] == "%"):
                    selection.has_expired |= await self._leave_out_expired(taken)
                taken.offsets = [view.queue_offset for view in record_views(taken.body, check_crc=False)]
            pop_time = self._core.clock_ms()
            revive_queue_id = ORDERED_REVIVE_QUEUE if header.order else self._state.revive_log.next_queue_id()
            if header.order:
                counts = self._block(pop, selection, pop_time)
            else:
                counts = None
                await self._put_check_points(pop, selection, pop_time, revive_queue_id)
            self._pass_unmatched(pop, selection)
        finally:
            self._unlock(selection)
        found = [taken for taken in selection.taken if taken.offsets]
        key = PollingKey(header.topic, header.consumer_group, header.queue_id)
        if not found:
            if selection.has_expired and trio.current_time() < pop.deadline:
                # Those took the places of messages that are there. Not from here: there may be many such rounds.
                pop.request.client.spawn(self._reply, pop, lambda: self._run(pop))
                return None
            return self._hold(pop, key, selection)
        if selection.rest > 0:
            for is_notification in (False, True):
                self._state.polling.wake(key._replace(is_notification=is_notification))
        self._count(found)
        result = PopMessageResult(
            pop_time,
            header.invisible_time,
            revive_queue_id,
            selection.rest,
            ";".join(start_offset_info(t.place.topic, t.place.queue_id, t.offset) for t in found),
            ";".join(msg_offset_info(t.place.topic, t.place.queue_id, t.offsets) for t in found),
            counts,
        )
        body = b"".join([self._as_answered(pop, taken, pop_time, revive_queue_id) for taken in found])
        return Response(0, result.to_ext(pop.request.header_type), body, "FOUND")

    async def _read_cold(self, pop: _Pop, selection: _Selection) -> None:
        """Evaluate filters and read records in a worker thread."""
        client = pop.request.client
        for taken in selection.taken:
            found = taken.found
            if isinstance(found, FilteredGet):
                result, taken.body = await self._cold_reads.read(client, found, found.run_and_read)
                taken.found = result
                self._core.store.count_get(result)
                selection.count += result.count
                selection.rest += max(0, result.max_offset - result.next_begin_offset)
            elif found.cold:
                held = self._core.store.hold_extents(found.extents)
                taken.body = await self._cold_reads.read(client, held, held.read)

    async def _leave_out_expired(self, taken: _Taken) -> bool:
        """Leave out messages that have expired, and tell whether there were some; the group's position passes them with
        the others.
        """
        place = taken.place
        sifted = self._expired.sift(place.topic, place.group, taken.body)
        if sifted is None:
            return False
        await self._expired.bury(place.group, sifted.expired)
        result = taken.result
        result.count, result.size = sifted.left, len(sifted.body)
        if not sifted.left:
            result.status = GetStatus.NO_MATCHED_MESSAGE
        taken.body = sifted.body
        return True

    async def _put_check_points(self, pop: _Pop, selection: _Selection, pop_time: int, revive_queue_id: int) -> None:
        """Put the check points of all queues together, then move the positions."""
        header = pop.header
        found = [taken for taken in selection.taken if taken.offsets]
        if not found:
            return
        records = [
            self._state.revive_log.check_point(
                CheckPoint(
                    CheckPointKey(
                        taken.place.topic,
                        taken.place.group,
                        taken.place.queue_id,
                        taken.offset,
                        pop_time,
                        self._core.config.broker_name,
                    ),
                    header.invisible_time,
                    tuple(taken.offsets),
                ),
                revive_queue_id,
                self._state.positions.passing(taken.place, taken.offset, taken.result.next_begin_offset),
            )
            for taken in found
        ]

        def put() -> None:
            result, written = self._state.revive_log.put(records)
            if result.status is not PutStatus.PUT_OK:
                raise _not_put(str(result.status))
            for taken, at in zip(found, written, strict=True):
                self._state.positions.passed(taken.place, taken.offset, taken.result.next_begin_offset, at)

        try:
            await self._core.puts.own.under_lock(size_of(records), put)
        except (DiskFull, FileNotMade, StoreClosed) as error:
            raise _not_put(str(error)) from error
        self._core.puts.own.wrote()
        for taken in found:
            self._state.in_flight.popped(*taken.place, len(taken.offsets))

    def _block(self, pop: _Pop, selection: _Selection, pop_time: int) -> str:
        """Block the queues of an ordered pop; return how often the messages were popped before."""
        header = pop.header
        parts = []
        for taken in selection.taken:
            if not taken.offsets:
                continue
            place = taken.place
            counts = self._state.orders.popped(place, header.attempt_id, pop_time, header.invisible_time, taken.offsets)
            self._state.positions.commit(place, taken.offset)
            self._state.in_flight.popped(*place, len(taken.offsets))
            self._state.free_queues.blocked(place, pop_time + header.invisible_time)
            parts.append(order_count_info(place.topic, place.queue_id, taken.offsets, counts))
        return ";".join(parts)

    def _pass_unmatched(self, pop: _Pop, selection: _Selection) -> None:
        """Pass messages that do not fit the filter, or have expired."""
        for taken in selection.taken:
            result = taken.result
            if result.status in _PASSED and result.next_begin_offset > taken.offset:
                if pop.header.order:
                    self._state.orders.clear(taken.place)  # of a pop before: its messages are passed
                    self._state.positions.commit(taken.place, result.next_begin_offset)
                else:
                    self._state.positions.passed(taken.place, taken.offset, result.next_begin_offset, None)

    def _as_answered(self, pop: _Pop, taken: _Taken, pop_time: int, revive_queue_id: int) -> bytes:
        """Return the records of one queue; retried messages under the topic that the group consumes, with their
        handles, which their clients could not make. Clients make those of other messages, unless a record has one:
        in a log of an earlier version its producer may have set it.
        """
        place = taken.place
        if not place.topic.startswith(RETRY_PREFIX):
            if _HANDLE_NAME not in taken.body:
                return taken.body
            return b"".join([_renamed(view, place.topic, None) for view in record_views(taken.body, check_crc=False)])
        header, parts = pop.header, []
        for view in record_views(taken.body, check_crc=False):
            handle = PopHandle(
                taken.offset,
                pop_time,
                header.invisible_time,
                revive_queue_id,
                retry_mark(place.topic),
                self._core.config.broker_name,
                place.queue_id,
                view.queue_offset,
            )
            parts.append(_renamed(view, header.topic, handle))
        return b"".join(parts)

    def _count(self, found: list[_Taken]) -> None:
        for taken in found:
            topic, group = taken.place.topic, taken.place.group
            self._core.counters.groups[topic, group].count_out(taken.result.count, taken.result.size)

    # -- holding -------------------------------------------------------------------------------------------

    def _hold(self, pop: _Pop, key: PollingKey, selection: _Selection) -> Response | None:
        wait_s = pop.deadline - trio.current_time()
        if wait_s <= 0 or self._state.polling.is_stopping:
            return self._empty(pop, _TIMEOUT, selection.rest)
        waiting = self._core.counters.requests[pop.request.header_type, PULL_WAIT_CODE]
        held_since = time.monotonic()

        async def again() -> Response | None:
            header = pop.header
            self._state.queues.check(header, creates=False)
            return await self._run(pop)

        def resume(may_get_messages: bool) -> None:
            waiting.done(0, time.monotonic() - held_since)
            if may_get_messages:
                pop.request.client.spawn(self._reply, pop, again)
            else:
                pop.request.reply(self._empty(pop, _TIMEOUT, 0))

        try:
            self._state.polling.hold(pop.request, key, pop.message_filter, wait_s, resume, waiting.abandoned)
        except Refusal:
            self._core.counters.pulls_throttled += 1
            return self._empty(pop, _FULL, selection.rest)
        waiting.begin()
        pop.request.note_held()
        if selection.rest > 0 and any(taken.result.status in _PASSED for taken in selection.taken):
            self._state.polling.wake(key)  # one look goes over a limited number of messages that do not fit the filter
        return None

    def _empty(self, pop: _Pop, code: int, rest: int) -> Response:
        revive_queue_id = ORDERED_REVIVE_QUEUE if pop.header.order else 0
        result = PopMessageResult(self._core.clock_ms(), pop.header.invisible_time, revive_queue_id, rest)
        ext = result.to_ext(pop.request.header_type)
        return Response(code, ext, remark=GetStatus.NO_MESSAGE_IN_QUEUE.name)


def _renamed(view: RecordView, topic: str, handle: PopHandle | None) -> bytes:
    """Return a record under another topic, with this handle or none."""
    properties = view.property_map()
    for name in (names.CRC32, names.POP_ORIGIN, names.ORIGIN_UNPROVEN, names.POP_CK):
        properties.pop(name, None)
    if handle is not None:
        properties[names.POP_CK] = str(handle)
    record = bytearray(
        redirect_record(
            view,
            topic=topic,
            queue_id=view.queue_id,
            properties=fitted_properties(properties, topic),
            prepared_transaction_offset=view.prepared_transaction_offset,
            store_host=bytes(view.packed_store_host),
        )
    )
    _OFFSETS.pack_into(record, _OFFSETS_AT, view.queue_offset, view.physical_offset)
    return bytes(record)


def _not_put(reason: str) -> Refusal:
    return Refusal(
        ErrorCode.READ_ONLY,
        f"the check point of the popped messages was not stored: {reason}; nothing was popped: pop again",
    )


@dataclass(eq=False, repr=False)
class PeekProcessor(Processor):
    """Answers requests that pop nothing."""

    _core: Core
    _state: PopState
    _cold_reads: ColdReads = field(default_factory=lambda: ColdReads(_COLD_PEEKS_AT_ONCE, "peek again"), init=False)

    @serves(RequestCode.PEEK_MESSAGE)
    async def peek(self, request: Request) -> Response:
        """Answer with the messages that a pop would take now; nothing changes."""
        header = PeekMessageHeader.from_ext(request.ext)
        self._state.queues.check(header, creates=False)
        wanted = min(max(1, header.max_msg_nums), POP_MESSAGES_MAX)
        size = min(self._core.config.limits.pull_bytes, request.client.share)
        bodies, rest = [], 0
        for place in self._state.queues.places(header, with_retries=True):
            offset = self._state.positions.look(place)
            rest += self._state.queues.left(place)
            if wanted <= 0:
                continue
            result = self._core.store.get_message(place.topic, place.queue_id, offset, wanted, size)
            if result.status in WRONG_OFFSET:
                offset = result.next_begin_offset
                result = self._core.store.get_message(place.topic, place.queue_id, offset, wanted, size)
            if result.count:
                wanted -= result.count
                if result.cold:
                    held = self._core.store.hold_extents(result.extents)
                    bodies.append(await self._cold_reads.read(request.client, held, held.read))
                else:
                    bodies.append(self._core.store.read_extents(result.extents))
        ext = PopMessageResult(self._core.clock_ms(), rest_num=rest).to_ext(request.header_type)
        if not bodies:
            return Response(_NOT_FOUND, ext, remark=GetStatus.NO_MESSAGE_IN_QUEUE.name)
        return Response(0, ext, b"".join(bodies), "FOUND")

    @serves(RequestCode.NOTIFICATION)
    def notify(self, request: Request) -> Response | None:
        """Answer once there is something to pop, or the time is up."""
        header = NotificationHeader.from_ext(request.ext)
        self._state.queues.check(header, creates=True)
        deadline = trio.current_time() + max(0, header.poll_time) / 1000
        return self._notify(request, header, request.header_type, deadline)

    def _notify(
        self, request: Request, header: NotificationHeader, header_type: int, deadline: float
    ) -> Response | None:
        def answer(has_msg: bool, polling_full: bool = False) -> Response:
            return Response(0, NotificationResult(has_msg, polling_full).to_ext(header_type))

        if any(
            self._has_messages(header, place)
            for place in self._state.queues.places(header, with_retries=not header.order)
        ):
            return answer(True)
        wait_s = deadline - trio.current_time()
        if wait_s <= 0 or self._state.polling.is_stopping:
            return answer(False)

        def resume(may_get_messages: bool) -> None:
            response: Response | None = answer(False)
            try:
                if may_get_messages:
                    self._state.queues.check(header, creates=False)
                    response = self._notify(request, header, header_type, deadline)
            except Refusal as refusal:
                response = refusal.response()
            if response is not None:
                request.reply(response)

        key = PollingKey(header.topic, header.consumer_group, header.queue_id, is_notification=True)
        try:
            self._state.polling.hold(request, key, None, wait_s, resume, lambda: None)
        except Refusal:
            return answer(False, polling_full=True)
        request.note_held()
        return None

    def _has_messages(self, header: NotificationHeader, place: PoppedQueue) -> bool:
        if header.order and self._state.orders.is_blocked(place, header.attempt_id):
            return False
        return self._state.queues.left(place) > 0

    @serves(RequestCode.POLLING_INFO)
    def polling_info(self, request: Request) -> Response:
        """Answer with the number of pops that wait."""
        header = PollingInfoHeader.from_ext(request.ext)
        self._core.group_access.existing(header.consumer_group)
        self._state.queues.check(header, creates=False)
        count = self._state.polling.count(PollingKey(header.topic, header.consumer_group, header.queue_id))
        return Response(0, PollingInfoResult(count).to_ext(request.header_type))
