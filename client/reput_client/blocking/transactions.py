"""The blocking producer of messages that are part of local transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from reput_client.backoff import Backoff
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.producer import Producer
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.produce import transactions as asynchronous
from reput_client.produce.producer import SEND_TIMEOUT_S
from reput_client.produce.producer_membership import HEARTBEAT_INTERVAL_S
from reput_client.produce.transactions import TransactionReceipt
from reput_client.received import ReceivedMessage
from reput_client.session import CONNECT_TIMEOUT_S
from reput_protocol.codes import AckLevel
from reput_protocol.group_terms import TransactionState
from reput_protocol.message import Message

BlockingCheck: TypeAlias = Callable[[ReceivedMessage], TransactionState]
BlockingLocalTransaction: TypeAlias = Callable[[Message], TransactionState]


class TransactionProducer(Producer):
    """A producer whose messages can be part of local transactions; a context manager.

    Arguments and errors are those of `reput_client.TransactionProducer`; `check` and local transactions are ordinary
    functions. `check` is called in threads of its own, up to `checks_at_once` at a time, the others in the thread that
    sends. A thread sends heartbeats; it ends when the producer is closed, and holds up no exit of the program. A forked
    child that goes on using the producer registers anew with its first transaction.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        group: str,
        check: BlockingCheck,
        checks_at_once: int = 1,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        ack: str = AckLevel.FLUSHED,
        timeout_s: float = SEND_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        retries: int = 0,
        linger_s: float = 0.0,
        batch_bytes: int = 1024 * 1024,
        max_in_flight: int = 64,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()

        async def in_this_thread(message: ReceivedMessage) -> TransactionState:
            return await runtime.in_thread(lambda: check(message))

        self._producer = self._transactional = asynchronous.TransactionProducer(
            address,
            group=group,
            check=in_this_thread,
            checks_at_once=checks_at_once,
            heartbeat_interval_s=heartbeat_interval_s,
            ack=ack,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            retries=retries,
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        BlockingClient.__init__(self, self._producer, runtime)  # not Producer's, which makes an ordinary one

    def send_in_transaction(
        self,
        message: Message,
        local_transaction: BlockingLocalTransaction,
        *,
        check_after_s: float | None = None,
        queue_id: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> TransactionReceipt:
        """Store a message, run a local transaction, and commit the message or roll it back as that says.

        See `reput_client.TransactionProducer.send_in_transaction`.
        """
        runtime = self._runtime

        async def in_this_thread(sent: Message) -> TransactionState:
            return await runtime.in_thread(lambda: local_transaction(sent))

        return runtime.run(
            self._transactional.send_in_transaction(
                message,
                in_this_thread,
                check_after_s=check_after_s,
                queue_id=queue_id,
                key=key,
                timeout_s=timeout_s,
            )
        )
