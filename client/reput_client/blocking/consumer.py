"""The synchronous consumer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Self

from reput_client.blocking.client import blocking, locked, on_blocking_runtime
from reput_client.blocking.offset_store import OffsetStore
from reput_client.blocking.subscriber import BlockingSubscriber, check_plain, run_in_threads
from reput_client.consume.group import consumer as asynchronous
from reput_client.consume.group.options import ConsumerOptions
from reput_client.consume.group.subscriber import StopSignals
from reput_client.errors import ClientClosed, ReputError
from reput_client.received import ReceivedMessage, V
from reput_client.transport.options import takes
from reput_protocol.record.message import MessageQueue

_Consumer = on_blocking_runtime(asynchronous.Consumer)


@dataclass(frozen=True, kw_only=True)
class BlockingConsumerOptions(ConsumerOptions[V]):
    """See `Consumer`."""

    offset_store: OffsetStore | None = None  # type: ignore[assignment]


class Consumer(BlockingSubscriber[asynchronous.Consumer[V]], Generic[V]):
    """A member of a consumer group; a context manager and an iterator. See `reput_client.Consumer`.

    One thread iterates; any thread may close the consumer, which ends the iteration. A daemon thread keeps the
    membership and commits while the application is busy, until the consumer is closed. A forked child that continues to
    use the consumer becomes a new member without messages.
    """

    @takes(BlockingConsumerOptions)
    def __init__(self, options: BlockingConsumerOptions[V]) -> None:
        store = options.offset_store
        own = None if store is None else store._client
        super().__init__(_Consumer(**{**vars(options), "offset_store": own}))

    @property
    def client_id(self) -> str:
        """The id of this member in the group; empty before it has joined."""
        return self._client.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """This member's queues now, including those of the retry topic."""
        return self._runtime.call(lambda: self._client.assignment)

    @property
    def paused(self) -> list[MessageQueue]:
        """The assigned queues that are paused."""
        return self._runtime.call(lambda: self._client.paused)

    positions = locked(asynchronous.Consumer.positions)
    lag = blocking(asynchronous.Consumer.lag)
    seek = locked(asynchronous.Consumer.seek)
    seek_to_time = blocking(asynchronous.Consumer.seek_to_time)
    seek_to_beginning = blocking(asynchronous.Consumer.seek_to_beginning)
    seek_to_end = blocking(asynchronous.Consumer.seek_to_end)
    pause = locked(asynchronous.Consumer.pause)
    resume = locked(asynchronous.Consumer.resume)
    members = blocking(asynchronous.Consumer.members)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage[V]:
        message = self._runtime.call(self._client._iteration.next_now)
        if message is None:
            message = self.receive()
            if message is None:
                raise StopIteration
        return message

    receive = blocking(asynchronous.Consumer[V].receive)
    take = blocking(asynchronous.Consumer[V].take)
    receive_many = blocking(asynchronous.Consumer[V].receive_many)
    commit = blocking(asynchronous.Consumer.commit)
    failed = blocking(asynchronous.Consumer.failed)
    rewind = locked(asynchronous.Consumer.rewind)

    def stop(self) -> None:
        """Deliver no more messages: an iteration ends at its next message, `run` when its handlers are done.

        Never waits; any thread or signal handler may call it.
        """
        self._runtime.call_soon(self._client.stop)

    def run(
        self,
        handler: Callable[[ReceivedMessage[V]], object],
        *,
        concurrency: int = 1,
        handle_signals: bool = True,
    ) -> None:
        """Call `handler` with every message, in `concurrency` threads, until the consumer is stopped or closed.

        With `concurrency=1` it runs in the calling thread. When a handler raises, `on_failure` decides. If that ends
        `run`, the first exception is raised once the handlers in progress are done; its message is not handled.

        SIGTERM and SIGINT (Ctrl-C) stop the consumer: `run` returns when the handlers in progress are done, with their
        progress committed. A second signal has its usual effect. That applies in the main thread, unless the program
        has set a handler for the signal, and not with `handle_signals=False`.

        Raises:
            TypeError: `handler` takes other arguments, or is a coroutine function.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        check_plain(handler)
        if self._client._tracing is not None:
            handler = self._client._tracing.plain_handler(handler, self.group)
        with StopSignals(self._runtime, self.stop, enabled=handle_signals) as signals:
            self._run(handler, concurrency)
            if signals.received:
                with suppress(ReputError):  # the end of the consumer tries again
                    self.commit()

    def _run(self, handler: Callable[[ReceivedMessage[V]], object], concurrency: int) -> None:
        handlers = self._client._member.handlers
        handlers.begin(concurrency)
        try:
            if concurrency == 1:
                for message in self:
                    try:
                        handler(message)
                    except Exception as error:
                        self.failed(message, error)
            else:
                run_in_threads(
                    self.take,
                    lambda: self._client.stopped,
                    lambda m: self._handle(m, handler),
                    handlers.slots,
                )
        finally:
            handlers.end()
            with suppress(ClientClosed):  # from an interrupt
                self.rewind()

    def _handle(self, message: ReceivedMessage[V], handler: Callable[[ReceivedMessage[V]], object]) -> None:
        try:
            handler(message)
        except Exception as error:
            self.failed(message, error)
        else:
            message.ack()
