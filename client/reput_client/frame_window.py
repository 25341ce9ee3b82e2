"""Many frames in flight on one connection: what sends of many messages have in common.

The window is refilled in halves: while the broker works on one half, the other is encoded, and both sides read and
write many frames at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple

from reput_client.connection import Connection
from reput_client.core import Call, RequestTemplate, Waiter
from reput_client.errors import AckNotReached, ClientClosed, PartlySent
from reput_client.puts import Putter, check_ack, outcome_unknown, receipts_of, result_of, single_receipt
from reput_client.queue_selector import RoundRobin, queue_by_id, queue_by_key
from reput_client.receipts import BlockReceipts, SendReceipt
from reput_client.routing import Route
from reput_client.session import Session
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.commands_send import PutMessageResult
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.message import MessageQueue
from reput_protocol.message_id import UniqueIdGenerator

_FLUSHES_PER_WINDOW: Final = 2


class Lane(NamedTuple):
    """A queue with all that sending a frame of so many messages to it needs."""

    queue: MessageQueue
    connection: Connection
    template: RequestTemplate


class Sent(NamedTuple):
    """A frame in flight."""

    number: int
    """Index of its first message."""
    call: Call
    lane: Lane
    unique_ids: Sequence[str | None]
    """One for each of its messages."""
    block: Buffer
    """Its body if it has several messages."""
    positions: Sequence[int] | None = None
    """Where the records in the block begin, if that is known: then receipts are made when they are looked at."""

    def receipts(self, result: PutMessageResult) -> Sequence[SendReceipt]:
        """Return the receipts of its messages, which lie where `result` says."""
        topic = self.lane.queue.topic
        if self.positions is not None:
            return BlockReceipts(topic, result, self.positions, self.unique_ids)
        return receipts_of(topic, self.block, result, self.unique_ids)


class FrameWindow:
    """One send of many messages: fills the window, takes answers, refills, until all are answered or one fails.

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
        self._ids = ids
        self._in_flight = in_flight
        self._flush_every = max(1, in_flight // _FLUSHES_PER_WINDOW)
        self._ack = ack
        self._queue_id = queue_id
        self._key = key
        self._timeout_s = timeout_s
        self._waiter = Waiter()
        self._window: deque[Sent] = deque()
        self._lanes: dict[tuple[MessageQueue, int, bool], Lane] = {}
        self._begun = 0
        """Messages taken up so far: the last of them is the one that fails if something is raised."""
        self._stored: list[tuple[int, Sequence[SendReceipt]]] = []
        """The receipts of each stored frame, with the index of its first message; the order is that of the answers."""
        self._errors: dict[int, ReputError] = {}

    async def _run(self, send: Awaitable[None]) -> list[Sequence[SendReceipt]]:
        """Await `send`, which fills the window, then all answers; return the receipts of the frames in order.

        Raises:
            PartlySent: some are stored and some are not; what failed and what was not sent are told apart.
            ReputError: the first message could not be sent, and nothing was.
        """
        window = self._window
        try:
            await send
            while window:
                await self._take_answers()
        except ReputError as error:
            await self._settle(error)
        finally:
            for sent in window:
                sent.lane.connection.abandon(sent.call)
        if self._errors:
            receipts: list[SendReceipt | None] = [None] * self._begun
            for number, stored in self._stored:
                receipts[number : number + len(stored)] = stored
            raise PartlySent(receipts, self._errors) from self._errors[min(self._errors)]
        return [stored for _, stored in self._stored]

    def _choose(self, route: Route) -> MessageQueue:
        if self._queue_id is not None:
            return queue_by_id(route, self._queue_id)
        if self._key is not None:
            return queue_by_key(route, self._key)
        return self._selector.choose(route)

    async def _lane(self, queue: MessageQueue, count: int, *, has_own_ids: bool) -> Lane:
        lane = self._lanes.get((queue, count, has_own_ids))
        if lane is None or not lane.connection.is_open:
            deadline = self._session.deadline(self._timeout_s)
            connection = await self._putter.connection(queue, deadline)
            template = self._putter.template(queue, count, self._ack, may_be_stored=has_own_ids)
            lane = self._lanes[queue, count, has_own_ids] = Lane(queue, connection, template)
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
            try:
                answered = await self._session.pump.wait(self._waiter, deadline)
            except ClientClosed as closed:  # by an interrupt
                self._give_up(str(closed))
                return
            if not answered:
                self._give_up(f"no answer within {self._timeout_s:.3g} s")
                return
        while window and window[0].call.done:
            self._take(window.popleft())

    def _take(self, sent: Sent) -> None:
        call = sent.call
        result = call.put_result
        if result is not None and not sent.block and sent.positions is None:
            # A message by itself, stored as it was asked: nothing is left to look at.
            receipt = single_receipt(sent.lane.queue.topic, result, sent.unique_ids[0])
            self._stored.append((sent.number, (receipt,)))
            return
        if call.error is not None:
            self._failed(sent, call.error)
            return
        try:
            receipts = sent.receipts(result_of(call))
            self._stored.append((sent.number, receipts))
            check_ack(call, self._ack, receipts)
        except (BrokerError, AckNotReached) as error:
            self._note(sent, error)

    def _failed(self, sent: Sent, error: ReputError) -> None:
        if sent.call.sent:
            error = outcome_unknown(sent.lane.queue, sent.unique_ids, str(error))
        self._note(sent, error)

    def _note(self, sent: Sent, error: ReputError) -> None:
        for number in range(sent.number, sent.number + len(sent.unique_ids)):
            self._errors.setdefault(number, error)

    def _give_up(self, reason: str) -> None:
        for sent in self._window:
            sent.lane.connection.abandon(sent.call)
            self._note(sent, outcome_unknown(sent.lane.queue, sent.unique_ids, reason))
        self._window.clear()

    async def _settle(self, error: ReputError) -> None:
        """The last message taken up could not be sent: learn what became of those before it."""
        if not self._window and not self._stored:
            raise error
        self._errors[max(0, self._begun - 1)] = error
        while self._window:
            await self._take_answers()
