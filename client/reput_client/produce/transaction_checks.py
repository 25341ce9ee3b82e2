"""Ending transactions (37), and answering the broker's checks of unfinished ones (39).

(RocketMQ: DefaultMQProducerImpl.endTransaction, checkTransactionState.) The first end counts, so one whose answer was
lost is repeated. RocketMQ's clients expect no answer; Reput's broker says whether it has the end.

Checks come on the heartbeat connection and are answered by the application's `check`, a limited number at a time, each
in a task, or a thread in the synchronous API. An unanswered check is repeated in the broker's next round, perhaps with
another producer of the group.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from reput_client.errors import ClientClosed
from reput_client.received import ReceivedMessage
from reput_client.transport.broker_requests import BrokerRequest
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode, TransactionState
from reput_protocol.commands.transaction import CheckTransactionHeader, EndTransactionHeader
from reput_protocol.errors import ReputError, TransactionEnded
from reput_protocol.properties import PRODUCER_GROUP
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType

log = logging.getLogger("reput_client")
TransactionCheck: TypeAlias = Callable[[ReceivedMessage], Awaitable[TransactionState]]
"""Returns how a message's local transaction went; `message_id` is the transaction's id."""
_WAITING_MAX: Final = 1000


class HalfPlace(NamedTuple):
    """A half message's place at its broker, and its identity."""

    queue: MessageQueue
    """The message's; it says at which broker the half message is."""
    queue_offset: int
    """In the half queue."""
    physical_offset: int
    unique_id: str


@dataclass(eq=False, repr=False)
class TransactionEnds:
    """Ends the transactions of one producer group."""

    _session: Session
    _group: str

    async def end(self, half: HalfPlace, state: TransactionState, *, from_check: bool = False) -> bool:
        """Tell the broker of the half message how it ended; return whether the broker has accepted that.

        An unreachable broker is logged and not an error: it will check. `from_check`: this answers a check.

        Raises:
            TransactionEnded: the transaction has been ended the other way.
            ClientClosed: the client was closed.
        """
        header = EndTransactionHeader(
            self._group,
            half.queue_offset,
            half.physical_offset,
            int(state),
            from_transaction_check=from_check,
            msg_id=half.unique_id,
            transaction_id=half.unique_id,
            topic=half.queue.topic,
        )
        try:
            await self._session.ask_ok(
                RequestCode.END_TRANSACTION,
                header.to_ext(HeaderType.MSGPACK),
                what=f"end of transaction {half.unique_id}",
                queue=half.queue,
            )
        except TransactionEnded:
            raise
        except ReputError as error:
            self._session.check_open()
            log.warning("transaction %s: %s not accepted: %s", half.unique_id, state.name, error)
            return False
        return True


class _Question(NamedTuple):
    message: ReceivedMessage
    half: HalfPlace


class TransactionChecks:
    """Answers the checks for one producer group by the application's `check`, up to `at_once` at a time."""

    def __init__(
        self, session: Session, group: str, check: TransactionCheck, ends: TransactionEnds, at_once: int
    ) -> None:
        self._session = session
        self._group = group
        self._check = check
        self._ends = ends
        self._at_once = at_once
        self._waiting: deque[_Question] = deque()
        self._known: set[str] = set()  # with waiting or running checks
        self._working = 0
        self._stopping = False
        self._idle: Event | None = None
        session.requests.register(RequestCode.CHECK_TRANSACTION_STATE, self._take)

    def _take(self, request: BrokerRequest) -> None:
        header = CheckTransactionHeader.from_ext(request.ext)
        names = self._session.brokers.names_at(request.connection.address)
        broker_name = header.broker_name or (names[0] if names else "")
        message = ReceivedMessage.of_record(bytes(request.body), broker_name)
        request.answer()
        unique_id = message.message_id
        if self._stopping or message.get_property(PRODUCER_GROUP) != self._group or unique_id in self._known:
            return
        if len(self._waiting) >= _WAITING_MAX:
            log.warning("%d transaction checks wait already; the one of %s is dropped", _WAITING_MAX, unique_id)
            return
        half = HalfPlace(message.queue, header.tran_state_table_offset, header.commit_log_offset, unique_id)
        self._known.add(unique_id)
        self._waiting.append(_Question(message, half))
        if self._working < self._at_once:
            self._working += 1
            self._session.runtime.spawn(self._work)

    async def _work(self) -> None:
        try:
            while self._waiting and not self._stopping:
                question = self._waiting.popleft()
                try:
                    await self._answer(question)
                finally:
                    self._known.discard(question.half.unique_id)
        except ClientClosed:
            pass
        finally:
            self._working -= 1
            if not self._working and self._idle is not None:
                self._idle.set()

    async def _answer(self, question: _Question) -> None:
        half = question.half
        state = await self._decide(question.message)
        try:
            await self._ends.end(half, state, from_check=True)
        except TransactionEnded as error:
            log.warning("transaction %s: check says %s, but %s", half.unique_id, state.name, error)

    async def _decide(self, message: ReceivedMessage) -> TransactionState:
        """Call the application's `check`. A failure is logged and leaves the transaction undecided."""
        try:
            state = await self._check(message)
        except Exception:
            log.exception("check of transaction %s failed; the broker will ask again", message.message_id)
            return TransactionState.UNKNOWN
        if not isinstance(state, TransactionState):
            log.error("check of transaction %s returned %r, not a TransactionState", message.message_id, state)
            return TransactionState.UNKNOWN
        return state

    async def finish(self, timeout_s: float) -> None:
        """Take no more checks; return when running ones are answered, or after `timeout_s`."""
        self._stopping = True
        self._waiting.clear()
        if self._working:
            self._idle = self._session.runtime.event()
            await self._idle.wait(timeout_s)

    def forget(self) -> None:
        """In a forked child: drop the parent's checks."""
        self._waiting.clear()
        self._known.clear()
        self._working = 0
        self._stopping = False
