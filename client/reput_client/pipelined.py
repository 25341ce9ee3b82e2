"""Many single messages in flight on one connection: the bulk path for messages that travel one a frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from reput_client.connection import Connection
from reput_client.core import Call, RequestTemplate, Waiter
from reput_client.errors import AckNotReached, PartlySent
from reput_client.puts import Putter, check_ack, outcome_unknown, result_of, single_receipt
from reput_client.queue_selector import RoundRobin, queue_by_id, queue_by_key
from reput_client.receipts import SendReceipt
from reput_client.routing import Route
from reput_client.session import Session, wall_clock_ms
from reput_protocol.codes import AckLevel
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.message import Message, MessageQueue, encode_properties_text
from reput_protocol.message_id import UniqueIdGenerator
from reput_protocol.record import encode_put_record

_FLUSHES_PER_WINDOW: Final = 2


class _Lane(NamedTuple):
    """A queue with all that sending one message to it needs."""

    queue: MessageQueue
    connection: Connection
    template: RequestTemplate


class _Sent(NamedTuple):
    """A message in flight."""

    number: int
    call: Call
    lane: _Lane
    unique_id: str | None


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
        ack: AckLevel,
        queue_id: int | None,
        key: str | None,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._putter = putter
        self._selector = selector
        self._next_id = ids.next if ids is not None else None
        self._in_flight = in_flight
        self._flush_every = max(1, in_flight // _FLUSHES_PER_WINDOW)
        self._ack = ack
        self._queue_id = queue_id
        self._key = key
        self._timeout_s = timeout_s
        self._waiter = Waiter()
        self._window: list[_Sent] = []
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._receipts: list[SendReceipt | None] = []
        self._errors: dict[int, ReputError] = {}

    async def run(self, messages: Iterable[Message]) -> list[SendReceipt]:
        """Send all and return their receipts in order.

        Raises:
            PartlySent: some are stored and some are not; what failed and what was not sent are told apart.
            ReputError: the first message could not be sent, and nothing was.
        """
        route: Route | None = None
        topic = None
        receipts = self._receipts
        window = self._window
        unflushed = 0
        try:
            for index, message in enumerate(messages):
                if message.topic != topic:
                    topic = message.topic
                    route = await self._session.publish_route(topic, self._session.deadline(self._timeout_s))
                assert route is not None
                receipts.append(None)
                lane = self._lanes.get(queue := self._choose(route))
                if lane is None or not lane.connection.is_open:
                    lane = await self._new_lane(queue)
                unique_id = message.unique_id
                if unique_id is None and self._next_id is not None:
                    unique_id = self._next_id()
                record = encode_put_record(
                    topic.encode(),
                    queue.queue_id,
                    message.body,
                    encode_properties_text(message, unique_id),
                    message.flag,
                    0,
                    wall_clock_ms(),
                )
                call = lane.connection.start_template(lane.template, self._waiter, record)
                window.append(_Sent(index, call, lane, unique_id))
                unflushed += 1
                if unflushed >= self._flush_every:
                    # Early, so that the broker works on these while the next ones are encoded.
                    lane.connection.flush_now()
                    unflushed = 0
                if len(window) >= self._in_flight:
                    await self._take_answers()
                    if self._errors:
                        break
            while window:
                await self._take_answers()
        except ReputError as error:
            await self._settle(error)
        finally:
            for sent in window:
                sent.lane.connection.abandon(sent.call)
        if self._errors:
            raise PartlySent(receipts, self._errors) from self._errors[min(self._errors)]
        return [receipt for receipt in receipts if receipt is not None]

    def _choose(self, route: Route) -> MessageQueue:
        if self._queue_id is not None:
            return queue_by_id(route, self._queue_id)
        if self._key is not None:
            return queue_by_key(route, self._key)
        return self._selector.choose(route)

    async def _new_lane(self, queue: MessageQueue) -> _Lane:
        deadline = self._session.deadline(self._timeout_s)
        connection = await self._putter.connection(queue, deadline)
        lane = self._lanes[queue] = _Lane(queue, connection, self._putter.template(queue, 1, self._ack))
        return lane

    async def _take_answers(self) -> None:
        """Wait until at least one message of the window is answered and take all answers that are here."""
        self._waiter.ready = False
        window = self._window
        if not any(sent.call.done for sent in window):
            deadline = self._session.deadline(self._timeout_s)
            if not await self._session.pump.wait(self._waiter, deadline):
                self._time_out()
                return
        still_out = []
        for sent in window:
            if sent.call.done:
                self._take(sent)
            else:
                still_out.append(sent)
        window[:] = still_out

    def _take(self, sent: _Sent) -> None:
        call = sent.call
        if call.error is not None:
            if call.sent:
                self._errors[sent.number] = outcome_unknown(
                    sent.lane.queue, [sent.unique_id], str(call.error)
                )
            else:
                self._errors.setdefault(sent.number, call.error)
            return
        try:
            receipt = single_receipt(sent.lane.queue.topic, result_of(call), sent.unique_id)
            self._receipts[sent.number] = receipt
            check_ack(call, self._ack, [receipt])
        except (BrokerError, AckNotReached) as error:
            self._errors[sent.number] = error

    def _time_out(self) -> None:
        reason = f"no answer within {self._timeout_s:.2g} s"
        for sent in self._window:
            sent.lane.connection.abandon(sent.call)
            self._errors[sent.number] = outcome_unknown(sent.lane.queue, [sent.unique_id], reason)
        self._window.clear()

    async def _settle(self, error: ReputError) -> None:
        """Message `len(receipts) - 1` could not be sent: learn what became of those before it."""
        if not self._window and not any(self._receipts):
            raise error
        self._errors[max(0, len(self._receipts) - 1)] = error
        while self._window:
            await self._take_answers()
