"""Many frames in flight on one connection: the bulk path, for single messages and for blocks of them.

The window is refilled in halves: while the broker works on one half, the other is encoded, and both sides read and
write many frames at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from reput_client.connection import Connection
from reput_client.core import Call, RequestTemplate, Waiter
from reput_client.errors import AckNotReached, PartlySent
from reput_client.puts import Putter, check_ack, outcome_unknown, receipts_of, result_of
from reput_client.queue_selector import RoundRobin, queue_by_id, queue_by_key
from reput_client.receipts import SendReceipt
from reput_client.routing import Route
from reput_client.session import Session, wall_clock_ms
from reput_client.unique_ids import ids_for
from reput_protocol.codes import AckLevel
from reput_protocol.errors import BrokerError, InvalidMessage, ReputError
from reput_protocol.message import Message, MessageQueue, encode_properties_text
from reput_protocol.message_id import UniqueIdGenerator
from reput_protocol.record import encode_put_record
from reput_protocol.record_batch import BLOCK_BYTES_MAX, encode_put_block

_FLUSHES_PER_WINDOW: Final = 2


class _Lane(NamedTuple):
    """A queue with all that sending a frame of so many messages to it needs."""

    queue: MessageQueue
    connection: Connection
    template: RequestTemplate


class _Sent(NamedTuple):
    """A frame in flight."""

    number: int
    """Index of its first message."""
    call: Call
    lane: _Lane
    unique_ids: Sequence[str | None]
    """One for each of its messages."""
    block: bytes
    """Its body if it has several messages."""


class PipelinedSend:
    """One `send_pipelined` call: fills the window, takes answers, refills, until all are answered or one fails.

    Invariant: at most `in_flight` calls are unanswered, and every frame queued so far is either answered, in
    `_window`, or failed. After a failure nothing more is sent, but what is in flight is awaited.
    """

    def __init__(
        self,
        session: Session,
        putter: Putter,
        selector: RoundRobin,
        ids: UniqueIdGenerator | None,
        *,
        in_flight: int,
        batch: int,
        ack: AckLevel,
        queue_id: int | None,
        key: str | None,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._putter = putter
        self._selector = selector
        self._ids = ids
        self._in_flight = in_flight
        self._batch = batch
        self._flush_every = max(1, in_flight // _FLUSHES_PER_WINDOW)
        self._ack = ack
        self._queue_id = queue_id
        self._key = key
        self._timeout_s = timeout_s
        self._waiter = Waiter()
        self._window: deque[_Sent] = deque()
        self._lanes: dict[tuple[MessageQueue, int, bool], _Lane] = {}
        self._receipts: list[SendReceipt | None] = []
        self._errors: dict[int, ReputError] = {}

    async def run(self, messages: Iterable[Message]) -> list[SendReceipt]:
        """Send all and return their receipts in order.

        Raises:
            PartlySent: some are stored and some are not; what failed and what was not sent are told apart.
            ReputError: the first message could not be sent, and nothing was.
        """
        window = self._window
        try:
            if self._batch == 1:
                await self._send_singles(messages)
            else:
                await self._send_blocks(messages)
            while window:
                await self._take_answers()
        except ReputError as error:
            await self._settle(error)
        finally:
            for sent in window:
                sent.lane.connection.abandon(sent.call)
        if self._errors:
            raise PartlySent(self._receipts, self._errors) from self._errors[min(self._errors)]
        return [receipt for receipt in self._receipts if receipt is not None]

    async def _send_singles(self, messages: Iterable[Message]) -> None:
        route: Route | None = None
        topic = None
        receipts, window = self._receipts, self._window
        unflushed = 0
        for index, message in enumerate(messages):
            if message.topic != topic:
                topic = message.topic
                topic_bytes = topic.encode()
                route = await self._session.publish_route(topic, self._session.deadline(self._timeout_s))
            assert route is not None
            receipts.append(None)
            queue = self._choose(route)
            has_own_id = message.unique_id is not None
            lane = self._lanes.get((queue, 1, has_own_id))
            if lane is None or not lane.connection.is_open:
                lane = await self._new_lane(queue, 1, has_own_id)
            unique_id = message.unique_id
            if unique_id is None and self._ids is not None:
                unique_id = self._ids.next()
            if message.delay is not None:
                call = self._start_single(lane, message, unique_id)
            else:
                text = encode_properties_text(message, unique_id)
                record = encode_put_record(
                    topic_bytes, queue.queue_id, message.body, text, message.flag, 0, wall_clock_ms()
                )
                call = lane.connection.start_template(lane.template, self._waiter, record)
            window.append(_Sent(index, call, lane, (unique_id,), b""))
            unflushed += 1
            if unflushed >= self._flush_every:
                # Early, so that the broker works on these while the next ones are encoded.
                lane.connection.flush_now()
                unflushed = 0
            if len(window) >= self._in_flight and not await self._make_room():
                return

    async def _send_blocks(self, messages: Iterable[Message]) -> None:
        iterator = iter(messages)
        receipts, window = self._receipts, self._window
        held: list[Message] = []
        while group := held or list(islice(iterator, self._batch)):
            topic = group[0].topic
            if group[0].is_delayed:
                end = 1
            else:
                strange = (i for i, m in enumerate(group) if m.topic != topic or m.delay is not None)
                end = next(strange, len(group))
            group, held = group[:end], group[end:]
            route = await self._session.publish_route(topic, self._session.deadline(self._timeout_s))
            index = len(receipts)
            receipts += [None] * len(group)
            queue = self._choose(route)
            has_own_ids = any(message.unique_id is not None for message in group)
            lane = self._lanes.get((queue, len(group), has_own_ids))
            if lane is None or not lane.connection.is_open:
                lane = await self._new_lane(queue, len(group), has_own_ids)
            unique_ids = ids_for(group, self._ids)
            block = b""
            if group[0].is_delayed:
                call = self._start_single(lane, group[0], unique_ids[0])
            else:
                block = encode_put_block(group, topic, queue.queue_id, wall_clock_ms(), unique_ids)
                if len(block) > BLOCK_BYTES_MAX:
                    raise InvalidMessage(
                        f"{len(group)} messages make a block of {len(block)} bytes, but at most {BLOCK_BYTES_MAX} "
                        "travel at once; choose a smaller batch"
                    )
                call = lane.connection.start_template(lane.template, self._waiter, block)
            window.append(_Sent(index, call, lane, unique_ids, block))
            lane.connection.flush_now()
            if len(window) >= self._in_flight and not await self._make_room():
                return

    def _start_single(self, lane: _Lane, message: Message, unique_id: str | None) -> Call:
        has_own_id = message.unique_id is not None
        template = self._putter.single(lane.queue, message, unique_id, self._ack, may_be_stored=has_own_id)
        return lane.connection.start_template(template, self._waiter, message.body)

    def _choose(self, route: Route) -> MessageQueue:
        if self._queue_id is not None:
            return queue_by_id(route, self._queue_id)
        if self._key is not None:
            return queue_by_key(route, self._key)
        return self._selector.choose(route)

    async def _new_lane(self, queue: MessageQueue, count: int, has_own_ids: bool) -> _Lane:
        deadline = self._session.deadline(self._timeout_s)
        connection = await self._putter.connection(queue, deadline)
        template = self._putter.template(queue, count, self._ack, may_be_stored=has_own_ids)
        lane = self._lanes[queue, count, has_own_ids] = _Lane(queue, connection, template)
        return lane

    async def _make_room(self) -> bool:
        """Take answers until a good part of the window is free; return whether to go on sending."""
        room_from = self._in_flight - self._flush_every
        while len(self._window) > room_from and not self._errors:
            await self._take_answers()
        return not self._errors

    async def _take_answers(self) -> None:
        """Wait until the oldest frame of the window is answered and take all answers that follow it.

        A connection answers puts of one ack level in their order, so nothing is gained by looking further.
        """
        window = self._window
        while not window[0].call.done:
            self._waiter.ready = False
            deadline = self._session.deadline(self._timeout_s)
            if not await self._session.pump.wait(self._waiter, deadline):
                self._time_out()
                return
        while window and window[0].call.done:
            self._take(window.popleft())

    def _take(self, sent: _Sent) -> None:
        call = sent.call
        if call.error is not None:
            self._failed(sent, call.error)
            return
        topic, ids = sent.lane.queue.topic, sent.unique_ids
        try:
            result = result_of(call)
            receipts = receipts_of(topic, sent.block, result, ids)
            self._receipts[sent.number : sent.number + len(ids)] = receipts
            check_ack(call, self._ack, receipts)
        except (BrokerError, AckNotReached) as error:
            self._note(sent, error)

    def _failed(self, sent: _Sent, error: ReputError) -> None:
        if sent.call.sent:
            error = outcome_unknown(sent.lane.queue, sent.unique_ids, str(error))
        self._note(sent, error)

    def _note(self, sent: _Sent, error: ReputError) -> None:
        for number in range(sent.number, sent.number + len(sent.unique_ids)):
            self._errors.setdefault(number, error)

    def _time_out(self) -> None:
        reason = f"no answer within {self._timeout_s:.3g} s"
        for sent in self._window:
            sent.lane.connection.abandon(sent.call)
            self._note(sent, outcome_unknown(sent.lane.queue, sent.unique_ids, reason))
        self._window.clear()

    async def _settle(self, error: ReputError) -> None:
        """Message `len(receipts) - 1` could not be sent: learn what became of those before it."""
        if not self._window and not any(self._receipts):
            raise error
        self._errors[max(0, len(self._receipts) - 1)] = error
        while self._window:
            await self._take_answers()
