"""Acknowledgements of popped messages (200051, 200151) and changes of their invisible times (200053).

(RocketMQ: AckMessageProcessor, ChangeInvisibleTimeProcessor.)

An acknowledgement is a record in the log, and its answer waits for the ack level of the broker as that of a message
does. It counts if it arrives before the check point's time is over; a later one is answered alike and without effect.

What has become of messages in hand (their times were changed, or they were acknowledged) is known in memory only,
until the times of their check points are over. After a restart or a failover the broker takes a message by the handle
that the client gives.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from sys import intern
from typing import Final, NamedTuple

from reput_broker.groups.group_state import check_not_brokers
from reput_broker.pop.checkpoints import REVIVE_QUEUES, Ack, CheckPoint, CheckPointKey
from reput_broker.pop.positions import PoppedQueue
from reput_broker.pop.state import PopState, size_of
from reput_broker.remoting.request import Processor, Put, Refusal, Request, Response, Result, serves
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pop import (
    ORDERED_REVIVE_QUEUE,
    AckMessageHeader,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResult,
    PopHandle,
    marked_topic,
)
from reput_protocol.errors import BodyMalformed, ErrorCode, HeaderFieldError
from reput_protocol.record.record import Record

_ILLEGAL = int(ResponseCode.MESSAGE_ILLEGAL)
_NO_MESSAGE = int(ResponseCode.NO_MESSAGE)
_LATE_MS: Final = 30_000
"""How long after a check point's time its handle may still come, in a request that was held up."""
_ACKNOWLEDGED_MAX: Final = 100_000
_BITS: Final = 64


class AckProcessor(Processor):
    """Stores acknowledgements."""

    def __init__(self, core: Core, state: PopState) -> None:
        self._core = core
        self._state = state
        self._changed = ChangedTimes(core.clock_ms)
        self._acknowledged = Acknowledged(core.clock_ms)

    # -- acknowledging -------------------------------------------------------------------------------------

    @serves(RequestCode.ACK_MESSAGE)
    def ack(self, request: Request) -> Result:
        """Acknowledge one message."""
        header = AckMessageHeader.from_ext(request.ext)
        handle = self._handle(header.extra_info)
        place = PoppedQueue(header.consumer_group, header.topic, header.queue_id)
        self._check(request, place, header.offset, can_be_end=True)
        if handle.is_ordered:
            self._check_ordered(place, header.offset, handle.pop_time)
            self._ack_ordered(place, header.offset, handle.pop_time)
            return Response()
        one = self._changed.latest(_in_hand(place, handle, header.offset))
        record = self._ack_record(one, handle.revive_queue_id)
        return self._put(request, [record], Response(), [one])

    @serves(RequestCode.BATCH_ACK_MESSAGE)
    def ack_batch(self, request: Request) -> Result:
        """Acknowledge messages of several check points; those outside of their queues are left out.

        All are checked first, so a refusal has acknowledged none.
        """
        body = request.content(BatchAckBody)
        if not body.acks:
            return Response(_NO_MESSAGE, remark="the request names no message")
        records: list[Record] = []
        done: list[InHand] = []
        ordered: list[tuple[PoppedQueue, int, int]] = []
        for one in body.acks:
            self._ack_some(one, body.broker_name, records, done, ordered)
        for place, offset, pop_time in ordered:
            self._ack_ordered(place, offset, pop_time)
        if not records:
            return Response()
        return self._put(request, records, Response(), done)

    def _ack_some(
        self,
        one: BatchAck,
        broker_name: str,
        records: list[Record],
        done: list[InHand],
        ordered: list[tuple[PoppedQueue, int, int]],
    ) -> None:
        """Check acknowledgements and add them to the lists."""
        try:
            topic = marked_topic(one.topic, one.consumer_group, one.mark)
        except ValueError as error:
            raise BodyMalformed(str(error)) from None
        self._check_revive_queue(one.revive_queue_id)
        check_not_brokers(one.consumer_group)
        place = PoppedQueue(one.consumer_group, topic, one.queue_id)
        low, high = self._bounds(place)
        offsets = tuple(offset for offset in one.offsets() if low <= offset <= high)
        if self._core.topic_access.known(topic) is None or not offsets:
            return
        if one.revive_queue_id == ORDERED_REVIVE_QUEUE:
            for offset in offsets:
                self._check_ordered(place, offset, one.pop_time)
                ordered.append((place, offset, one.pop_time))
            return
        key = CheckPointKey(topic, one.consumer_group, one.queue_id, one.start_offset, one.pop_time, broker_name)
        deliver_ms = one.pop_time + one.invisible_time
        kept = []
        for offset in offsets:
            latest = self._changed.latest(InHand(key, offset, deliver_ms))
            done.append(latest)
            if latest.key == key:
                kept.append(offset)
            else:
                records.append(self._ack_record(latest, one.revive_queue_id))
        if kept:
            ack = Ack(key, tuple(kept))
            records.append(self._state.revive_log.ack(ack, deliver_ms, one.revive_queue_id, is_batch=True))

    def _ack_record(self, one: InHand, revive_queue_id: int) -> Record:
        return self._state.revive_log.ack(Ack(one.key, (one.offset,)), one.deliver_ms, revive_queue_id)

    def _check_ordered(self, place: PoppedQueue, offset: int, pop_time: int) -> None:
        if self._is_committed(place, offset) or self._state.orders.can_be_acknowledged(place, offset, pop_time):
            return
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"message {offset} of queue {place.queue_id} of {place.topic!r} is not one that group "
            f"{place.group!r} popped last; pop again",
            response_code=_ILLEGAL,
        )

    def _ack_ordered(self, place: PoppedQueue, offset: int, pop_time: int) -> None:
        """Commit what is acknowledged without a gap; it survives `kill -9`."""
        if self._is_committed(place, offset):
            return
        next_offset = self._state.orders.acknowledge(place, offset, pop_time)
        if next_offset is None:
            return
        self._state.positions.commit(place, next_offset)
        self._count(CheckPointKey(place.topic, place.group, place.queue_id, 0, pop_time, ""), 1)
        self._state.free_queues.changed(place)

    def _is_committed(self, place: PoppedQueue, offset: int) -> bool:
        committed = self._state.positions.committed(place)
        return committed is not None and offset < committed

    # -- changing times ------------------------------------------------------------------------------------

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change_invisible_time(self, request: Request) -> Result:
        """Make a message visible at another time: a new check point replaces the old one.

        A repeated request replaces the check point of the first one; when its time is over too, it changes nothing.
        """
        header = ChangeInvisibleTimeHeader.from_ext(request.ext)
        handle = self._handle(header.extra_info)
        place = PoppedQueue(header.consumer_group, header.topic, header.queue_id)
        self._check(request, place, header.offset, can_be_end=False)
        if header.invisible_time < 0:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"an invisible time of {header.invisible_time} ms is in the past")
        now_ms = self._core.clock_ms()
        if handle.is_ordered:
            return self._change_ordered(request, header, handle, place, now_ms)
        given = _in_hand(place, handle, header.offset)
        before = self._changed.latest(given)
        if before in self._acknowledged:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"group {place.group!r} has acknowledged message {header.offset} of queue {place.queue_id} of "
                f"{place.topic!r}; it does not receive it again",
                response_code=_ILLEGAL,
            )
        if before is not given and before.deliver_ms <= now_ms:
            pop_time = before.key.pop_time
            return self._is_changed(request, pop_time, before.deliver_ms - pop_time, handle.revive_queue_id)
        # With the time of the old check point it would have the same key, and be acknowledged with it.
        pop_time = max(now_ms, before.key.pop_time + 1)
        key = CheckPointKey(place.topic, place.group, place.queue_id, header.offset, pop_time, handle.broker_name)
        point = CheckPoint(key, header.invisible_time, (header.offset,), header.suspend)
        queue_id = handle.revive_queue_id
        records = [  # in this order: a crash in between leaves the message visible too early and not never
            self._state.revive_log.check_point(point, queue_id),
            self._ack_record(before, queue_id),
        ]
        response = self._is_changed(request, pop_time, header.invisible_time, queue_id)

        def stored() -> None:
            self._changed.replaced(before, InHand(key, header.offset, point.revive_time))
            self._state.in_flight.done(*place, before.key.pop_time)
            self._state.in_flight.popped(*place, 1)

        return self._put(request, records, response, [], stored)

    def _is_changed(self, request: Request, pop_time: int, invisible_time: int, revive_queue_id: int) -> Response:
        result = ChangeInvisibleTimeResult(pop_time, invisible_time, revive_queue_id)
        return Response(0, result.to_ext(request.header_type))

    def _change_ordered(
        self, request: Request, header: ChangeInvisibleTimeHeader, handle: PopHandle, place: PoppedQueue, now_ms: int
    ) -> Response:
        result = ChangeInvisibleTimeResult()
        if not self._is_committed(place, header.offset):
            visible_at = now_ms + header.invisible_time
            self._state.orders.change_time(
                place, header.offset, handle.pop_time, visible_at, is_suspended=header.suspend
            )
            self._state.free_queues.changed(place)
            # The handle keeps its pop time, by which its acknowledgement is known.
            result = ChangeInvisibleTimeResult(handle.pop_time, visible_at - handle.pop_time, ORDERED_REVIVE_QUEUE)
        return Response(0, result.to_ext(request.header_type))

    # -- common --------------------------------------------------------------------------------------------

    def _handle(self, text: str) -> PopHandle:
        try:
            handle = PopHandle.parse(text)
        except ValueError as error:
            raise HeaderFieldError("extraInfo", str(error)) from None
        self._check_revive_queue(handle.revive_queue_id)
        return handle

    def _check_revive_queue(self, queue_id: int) -> None:
        if queue_id != ORDERED_REVIVE_QUEUE and not 0 <= queue_id < REVIVE_QUEUES:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"there is no revive queue {queue_id}; use the handle as it was in the response",
                response_code=_ILLEGAL,
            )

    def _bounds(self, place: PoppedQueue) -> tuple[int, int]:
        return (
            self._core.store.min_offset_in_queue(place.topic, place.queue_id),
            self._core.store.max_offset_in_queue(place.topic, place.queue_id),
        )

    def _check(self, request: Request, place: PoppedQueue, offset: int, *, can_be_end: bool) -> None:
        """Refuse what cannot be a popped message of this queue; note that the client consumes for the group."""
        self._core.group_access.existing(place.group)
        self._core.groups.readers.asked(place.group, request.client.peer)
        config = self._core.topic_access.existing(place.topic)
        if not 0 <= place.queue_id < config.read_queue_nums:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"topic {place.topic!r} has no queue {place.queue_id}; its queues are 0 to "
                f"{config.read_queue_nums - 1}",
                response_code=_ILLEGAL,
            )
        low, high = self._bounds(place)
        if not low <= offset < high + can_be_end:
            raise Refusal(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"message {offset} is not in queue {place.queue_id} of {place.topic!r}, which has {low} to {high - 1}",
                response_code=_NO_MESSAGE,
            )

    def _put(
        self,
        request: Request,
        records: Sequence[Record],
        response: Response,
        done: Sequence[InHand],
        stored: Callable[[], None] = lambda: None,
    ) -> Put:
        def put() -> PutResult:
            result, _ = self._state.revive_log.put(records)
            if result.status is PutStatus.PUT_OK:
                for key, group in groupby(done, attrgetter("key")):
                    acknowledged = [*group]
                    self._count(key, len(acknowledged))
                    for one in acknowledged:
                        self._acknowledged.add(one)
                stored()
            return result

        return Put(
            request,
            size_of(records),
            put,
            lambda _: response,
            self._state.revive_log.topic,
            self._core.puts.default_ack(),
        )

    def _count(self, key: CheckPointKey, count: int) -> None:
        self._core.counters.note_acks(key.group, "ack", count)
        self._state.in_flight.done(key.group, key.topic, key.queue_id, key.pop_time, count)


def _in_hand(place: PoppedQueue, handle: PopHandle, offset: int) -> InHand:
    key = CheckPointKey(
        place.topic, place.group, place.queue_id, handle.start_offset, handle.pop_time, handle.broker_name
    )
    return InHand(key, offset, handle.pop_time + handle.invisible_time)


class InHand(NamedTuple):
    """One message by the check point that it is in."""

    key: CheckPointKey
    offset: int
    deliver_ms: int
    """When it becomes visible, unless it is acknowledged."""


class ChangedTimes:
    """Which check points have replaced others, since a message's invisible time was changed. One owner.

    A client whose connection was lost does not know whether its change was made, and repeats it with the old handle, or
    acknowledges with that. Either is then about the check point that counts: otherwise the message would have two, and
    be redelivered by the one that its consumer does not know. After a restart such a message may come twice.

    The first handle of a message is known for as long as its time is changed: a proxy renews it for a client, which
    goes on to use that, through whichever proxy.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._later: dict[tuple[CheckPointKey, int], InHand] = {}
        self._first: dict[tuple[CheckPointKey, int], tuple[CheckPointKey, int]] = {}
        """By the check point that counts: the one that the message had first."""
        self._ends: list[tuple[int, CheckPointKey, int]] = []

    def latest(self, one: InHand) -> InHand:
        """Return what has replaced a check point, or the same if nothing has."""
        while later := self._later.get((one.key, one.offset)):
            one = later
        return one

    def replaced(self, before: InHand, after: InHand) -> None:
        """Note that a check point is replaced."""
        place = before.key, before.offset
        at_once = self._later.get(place)  # of two changes at a time, the later one counts
        first = self._first.pop(place if at_once is None else (at_once.key, at_once.offset), place)
        self._first[after.key, after.offset] = first
        self._later[first] = self._later[place] = after
        now_ms = self._clock_ms()
        self._forget_at(max(now_ms, before.deliver_ms), place)
        while self._ends[0][0] <= now_ms:
            _, key, offset = heapq.heappop(self._ends)
            last = self._later.pop((key, offset), None)
            if last is None or self._first.get((last.key, last.offset)) != (key, offset):
                continue
            if last.deliver_ms + _LATE_MS > now_ms:
                self._later[key, offset] = last
                self._forget_at(last.deliver_ms, (key, offset))
            else:
                del self._first[last.key, last.offset]

    def _forget_at(self, time_ms: int, place: tuple[CheckPointKey, int]) -> None:
        heapq.heappush(self._ends, (time_ms + _LATE_MS, *place))


class Acknowledged:
    """Which messages are acknowledged. One owner.

    The handle of a message may be known in two places: a proxy renews it for a client that has acknowledged it through
    another proxy. Its new check point would redeliver it. After a restart that is possible.

    The messages of a check point share entries, one for each 64 offsets; those whose times end in the same second are
    forgotten together. With more entries than `entries_max` those that end first are forgotten, since a client that
    does not know of the acknowledgement is likely to have the most of its time left. The default is about 30 MB, and
    enough for 1,000 pops per second of messages that are invisible for a minute.
    """

    def __init__(self, clock_ms: Callable[[], int], entries_max: int = _ACKNOWLEDGED_MAX) -> None:
        self._clock_ms = clock_ms
        self._entries_max = entries_max
        self._ending: dict[int, dict[tuple[CheckPointKey, int], int]] = {}
        """By the second in which the times end: the offsets of a check point, as bits of a number."""
        self._seconds: list[int] = []
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def __contains__(self, one: InHand) -> bool:
        entries = self._ending.get(one.deliver_ms // 1000)
        if entries is None:
            return False
        block, bit = divmod(one.offset, _BITS)
        return bool(entries.get((one.key, block), 0) >> bit & 1)

    def add(self, one: InHand) -> None:
        """Note an acknowledgement."""
        second = one.deliver_ms // 1000
        entries = self._ending.get(second)
        if entries is None:
            self._forget_over()
            entries = self._ending[second] = {}
            heapq.heappush(self._seconds, second)
        block, bit = divmod(one.offset, _BITS)
        place = one.key, block
        bits = entries.get(place)
        if bits is not None:
            entries[place] = bits | 1 << bit
            return
        topic, group, queue_id, start, pop_time, broker_name = one.key
        # Each request has texts of its own.
        key = CheckPointKey(intern(topic), intern(group), queue_id, start, pop_time, intern(broker_name))
        entries[key, block] = 1 << bit
        self._entries += 1
        while self._entries > self._entries_max:
            self._forget_first()

    def _forget_over(self) -> None:
        over = (self._clock_ms() - _LATE_MS) // 1000
        while self._seconds and self._seconds[0] < over:
            self._forget_first()

    def _forget_first(self) -> None:
        self._entries -= len(self._ending.pop(heapq.heappop(self._seconds)))
