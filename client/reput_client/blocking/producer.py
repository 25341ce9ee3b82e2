"""The synchronous producers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from reput_client.blocking.client import BlockingClient, blocking, constructor, on_blocking_runtime, signature_of
from reput_client.errors import ClientClosed, PostsFailed
from reput_client.produce import transactions
from reput_client.produce.producer import Producer as AsyncProducer
from reput_client.receipts import Posted, SendReceipt, TransactionReceipt
from reput_client.received import ReceivedMessage
from reput_client.transport.options import takes
from reput_protocol.buffers import Buffer
from reput_protocol.codes import TransactionState
from reput_protocol.record.message import Message

log = logging.getLogger("reput_client")

T = TypeVar("T")


def _copy(items: Sequence[T]) -> Sequence[T]:
    """Read the application's `items` outside the lock: an exception from them leaves the client usable."""
    return items if type(items) in (list, tuple) else list(items)


class Producer(BlockingClient[AsyncProducer]):
    """Sends messages; a context manager. Arguments and errors are those of `reput_client.Producer`.

    Threads may share one; their sends wait concurrently on one connection. From the first `request` until the producer
    is closed, a daemon thread sends heartbeats.
    """

    @constructor(AsyncProducer)
    def __init__(self, client: AsyncProducer) -> None:
        super().__init__(client)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush what was posted, and close; see `reput_client.Producer.__aexit__`."""
        try:
            self._runtime.run(self._client._flush_at_exit(error))
        except ClientClosed:
            if self._runtime.interruption is None:
                raise
            if error is None:
                self._client._report_interrupted()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections; any thread may call it. See `reput_client.Producer.aclose`."""
        super().close()
        if self._runtime.interruption is not None:
            try:
                self._client._report_interrupted()
            except PostsFailed as failed:
                log.error("an interrupted producer was closed: %s", failed)

    @property
    def group(self) -> str:
        """The producer's group."""
        return self._client.group

    @property
    def client_id(self) -> str:
        """The id that brokers know this producer by; empty until needed."""
        return self._client.client_id

    @property
    def late_replies(self) -> int:
        """How many replies came after their request timed out."""
        return self._client.late_replies

    send = blocking(AsyncProducer.send)
    forward = blocking(AsyncProducer.forward)
    send_oneway = blocking(AsyncProducer.send_oneway)
    request = blocking(AsyncProducer.request)
    reply = blocking(AsyncProducer.reply)

    @signature_of(AsyncProducer.send_batch)
    def send_batch(self, messages: Sequence[Message], **options: Any) -> list[SendReceipt]:
        """`messages` other than a list or tuple are copied before the first one is sent."""
        return self._runtime.run(self._client.send_batch(_copy(messages), **options))

    @signature_of(AsyncProducer.send_many)
    def send_many(
        self,
        topic: str,
        bodies: Iterable[Buffer] | None = None,
        *,
        values: Iterable[Any] | None = None,
        tags: Sequence[str | None] | None = None,
        keys: Sequence[Sequence[str]] | None = None,
        **options: Any,
    ) -> Sequence[SendReceipt]:
        """`bodies` and `values` are read under the client's lock: an iterator that waits delays other threads."""
        return self._runtime.run(
            self._client.send_many(
                topic,
                None if bodies is None else self._runtime.read(bodies),
                values=None if values is None else self._runtime.read(values),
                tags=None if tags is None else _copy(tags),
                keys=None if keys is None else _copy(keys),
                **options,
            )
        )

    @signature_of(AsyncProducer.post)
    def post(self, message: Message, **options: Any) -> Posted:
        """In the synchronous API `post` blocks where the async one waits, and so does `result()`.

        There is no thread: blocks are sent, answers are taken and `on_done` is called during calls of `post`, `flush`,
        `close` and `result()`, in the calling thread. Call `flush` after the last `post`: a message whose `linger_s`
        has passed is sent by the next of these calls. `on_done` may use the producer; a `KeyboardInterrupt` or
        `SystemExit` that it raises reaches that call, and the producer stays usable. A broker that neither accepts nor
        refuses a connection blocks the caller for `connect_timeout_s` at each attempt. Whether an interrupted `post`
        has taken its message is unknown.
        """
        return self._runtime.run(self._client.post(message, **options))

    @signature_of(AsyncProducer.flush)
    def flush(self) -> None:
        """An interrupted producer raises `ClientClosed` after it has called the remaining callbacks."""
        try:
            self._runtime.run(self._client.flush())
        except ClientClosed:
            if self._runtime.interruption is not None:
                self._client._report_interrupted()
            raise


TransactionCheck: TypeAlias = Callable[[ReceivedMessage], TransactionState]
"""Returns how a transaction has ended; see `TransactionProducer`."""
LocalTransaction: TypeAlias = Callable[[Message], TransactionState]
"""Executes a local transaction and returns how it went."""

_TransactionProducer = on_blocking_runtime(transactions.TransactionProducer)


@dataclass(frozen=True, kw_only=True)
class BlockingTransactionOptions(transactions.TransactionProducerOptions):
    """See `TransactionProducer`."""

    check: TransactionCheck = field()  # type: ignore[assignment]


class TransactionProducer(Producer):
    """A producer of messages that are part of local transactions; a context manager.

    As `reput_client.TransactionProducer`, but `check` and local transactions are ordinary functions: `check` runs in up
    to `checks_at_once` threads of its own, local transactions in the sending thread. A daemon thread sends heartbeats
    until the producer is closed. A forked child that continues to use the producer registers again with its first
    transaction.
    """

    _client: transactions.TransactionProducer

    @takes(BlockingTransactionOptions)
    def __init__(self, options: BlockingTransactionOptions) -> None:
        async def checked(message: ReceivedMessage) -> TransactionState:
            return await self._runtime.in_thread(lambda: options.check(message))

        client = _TransactionProducer(**{**vars(options), "check": checked})
        BlockingClient.__init__(self, client)  # not Producer's, which makes a client without transactions

    def send_in_transaction(
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

        See `reput_client.TransactionProducer.send_in_transaction`.
        """

        async def transaction(sent: Message) -> TransactionState:
            return await self._runtime.in_thread(lambda: local_transaction(sent))

        return self._runtime.run(
            self._client.send_in_transaction(
                message,
                transaction,
                check_after_s=check_after_s,
                queue_id=queue_id,
                ordering_key=ordering_key,
                timeout_s=timeout_s,
            )
        )
