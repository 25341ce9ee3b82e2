"""Transactional messages: sent with a local transaction, delivered only if it commits (docs/transactions.md)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

from reput_client.errors import AckNotReached
from reput_client.produce.block import OutgoingBlock
from reput_client.produce.contents import contents_of_one
from reput_client.produce.producer import Producer, ProducerOptions
from reput_client.produce.queue_selector import choice_of, ordered
from reput_client.produce.traced import of_transaction, traced
from reput_client.produce.transaction_checks import HalfPlace, TransactionCheck, TransactionChecks, TransactionEnds
from reput_client.receipts import SendReceipt, TransactionReceipt
from reput_client.transport.options import takes
from reput_protocol import properties as names
from reput_protocol.codes import AckLevel, MessageSysFlag, TransactionState
from reput_protocol.errors import InvalidMessage
from reput_protocol.names import check_client_group
from reput_protocol.record.message import Message

LocalTransaction: TypeAlias = Callable[[Message], Awaitable[TransactionState]]
"""Executes the local transaction and returns how it went. The message's `unique_id` is the transaction's id."""

_STOP_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class TransactionProducerOptions(ProducerOptions):
    """See `TransactionProducer`."""

    group: str = field()
    check: TransactionCheck
    checks_at_once: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checks_at_once < 1:
            raise ValueError("checks_at_once must be 1 or more")
        if not self.unique_ids:
            raise ValueError("a transaction is identified by the unique id of its message; leave unique_ids on")


class TransactionProducer(Producer):
    """A producer of messages that are part of local transactions; it can send other messages as well.

        async with TransactionProducer(address, group="shop", check=was_paid) as producer:
            receipt = await producer.send_in_transaction(Message("orders", body), pay)

    An async context manager for trio and asyncio. While entered it has a task for heartbeats, by which the broker finds
    a producer to check with, and a task for each check being answered.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        group: the producer group; its members can answer checks for each other's transactions.
        check: called with a message whose transaction has not ended; returns how it went, by looking up what the local
            transaction has left under `message_id`. If the transaction never began, the answer is ROLLBACK. If it
            raises, the broker repeats the check.
        checks_at_once: how many checks are answered at a time.
        heartbeat_interval_s: seconds between heartbeats; well below the broker's `groups.heartbeat_timeout`.
        serializer, ack, timeout_s, connect_timeout_s, retries, deduplicate, linger_s, batch_bytes, buffer_bytes: as for
            `Producer`, for messages sent without a transaction. Half messages are flushed, with
            `ack="replicated"` replicated too, and never sent twice.

    Raises:
        ValueError: an argument is out of range.
        InvalidName: the group's name is not valid.
    """

    @takes(TransactionProducerOptions)
    def __init__(self, options: TransactionProducerOptions) -> None:
        check_client_group(options.group)
        self._begin(options)
        self._ends = TransactionEnds(self._session, self.group)
        self._checks = TransactionChecks(self._session, self.group, options.check, self._ends, options.checks_at_once)

    async def __aenter__(self) -> Self:
        """Connect and register with the broker.

        Raises:
            ConnectFailed: no broker responds at the given addresses.
            BrokerError: the broker refuses the registration.
        """
        await super().__aenter__()
        try:
            await self._presence.begin()
        except BaseException:
            self._session.close()
            raise
        return self

    async def aclose(self) -> None:
        """Unregister and close the connections; checks in progress have a few seconds to finish.

        Local transactions that run meanwhile finish, and the broker checks with another producer.
        """
        await super().aclose()

    async def _leave(self) -> None:
        await self._presence.leave()
        await self._checks.finish(_STOP_S)
        await self._presence.stop(_STOP_S)

    @traced(of_transaction)
    async def send_in_transaction(
        self,
        message: Message,
        local_transaction: LocalTransaction,
        *,
        check_after_s: float | None = None,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        timeout_s: float | None = None,
    ) -> TransactionReceipt:
        """Store a message, run a local transaction, and commit or roll back the message accordingly.

        A delay of the message counts from the commit. It is not an error if the broker cannot be told the outcome: it
        will check.

        Args:
            local_transaction: called once, with the message, when the half message is stored. UNKNOWN leaves the
                decision to `check`, and so does an exception, which is raised here.
            check_after_s: seconds before the broker's first check; at least the broker's own `transactions.timeout`.
                After the first check only `check` counts, not the result of this call.
            queue_id, ordering_key, timeout_s: as for `send`; the timeout is for the half message.

        Raises:
            TransactionEnded: `check` has meanwhile ended it the other way, or it was put aside.
            SendOutcomeUnknown: it is unknown whether the half message is stored. The local transaction has not run; if
                the broker has the message, it will check.
            AckNotReached: the half message may not be on disk, or not replicated. It is rolled back; the local
                transaction has not run.
            BrokerError, ConnectFailed, RequestTimeout, ClientClosed, InvalidMessage: as for `send`; it has not run.
        """
        assert self._ids is not None, "it writes unique ids"
        message = copy(ordered(self._serialized(message), ordering_key))
        message.unique_id = message.unique_id or self._ids.next()
        half, place = await self._send_half(message, check_after_s, queue_id, ordering_key, timeout_s)
        state = await local_transaction(message)
        if not isinstance(state, TransactionState):
            raise TypeError(
                f"the local transaction returned {state!r}, not a TransactionState; the broker will ask check what "
                "became of it"
            )
        confirmed = state is not TransactionState.UNKNOWN and await self._ends.end(place, state)
        return TransactionReceipt(message.topic, half.queue_id, message.unique_id, state, confirmed, half)

    async def _send_half(
        self,
        message: Message,
        check_after_s: float | None,
        queue_id: int | None,
        ordering_key: str | None,
        timeout_s: float | None,
    ) -> tuple[SendReceipt, HalfPlace]:
        self._session.check_open()
        added = {names.TRAN_MSG: "true", names.PRODUCER_GROUP: self.group}
        if check_after_s is not None:
            if not 0 < check_after_s < math.inf:
                raise InvalidMessage(f"check_after_s {check_after_s!r} must be more than 0 seconds")
            added[names.CHECK_IMMUNITY_TIME] = str(math.ceil(check_after_s))
        await self._presence.begin()
        # A local transaction must not have run for a half message that the loss of one machine takes away.
        level = AckLevel.REPLICATED if self._ack is AckLevel.REPLICATED else AckLevel.FLUSHED
        terms = self._terms(level, timeout_s, is_personal=True)
        contents = contents_of_one(message, 0, added, MessageSysFlag.TRANSACTION_PREPARED)
        block = await self._block_for(contents, terms, choice_of(queue_id, ordering_key))
        try:
            await self._sender.deliver(block)
        except AckNotReached as error:
            await self._ends.end(_place_of(block, error.receipts[0]), TransactionState.ROLLBACK)
            raise
        half = block.outcome(0)
        return half, _place_of(block, half)

    def _after_fork(self) -> None:
        """In a forked child: abandon the parent's connections; the next transaction registers again."""
        super()._after_fork()
        self._checks.forget()


def _place_of(block: OutgoingBlock, half: SendReceipt) -> HalfPlace:
    assert half.unique_id is not None, "it is the transaction's id"
    return HalfPlace(block.queue, half.queue_offset, half.physical_offset, half.unique_id)
