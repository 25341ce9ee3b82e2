"""The synchronous consumers: `Consumer` with its offset stores, and `PopConsumer`."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from reput_client import offset_store
from reput_client.blocking.client import BlockingClient, blocking, constructor, locked, on_blocking_runtime
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.consume.group.consumer import Consumer as AsyncConsumer
from reput_client.consume.group.options import ConsumerOptions
from reput_client.consume.group.subscriber import StopSignals, Subscriber, check_takes_a_message
from reput_client.errors import ClientClosed, ReputError
from reput_client.pop.consumer import PopConsumer as AsyncPopConsumer
from reput_client.pop.handling import Run
from reput_client.pop.popped import Popped
from reput_client.pop.popped import PoppedMessage as AsyncPoppedMessage
from reput_client.received import R, ReceivedMessage, V
from reput_client.transport.options import takes
from reput_protocol.commands.pop import POP_MESSAGES_MAX
from reput_protocol.record.message import MessageQueue

if TYPE_CHECKING:
    from reput_client.blocking.pull_consumer import PullConsumer


class OffsetStore:
    """An offset store with blocking reads and writes; see `reput_client.offset_store`."""

    _client: offset_store.OffsetStore
    _runtime: BlockingRuntime

    @property
    def failure(self) -> Exception | None:
        """Why the last `read` returned -1 or -2; None if there was simply no offset."""
        return self._client.failure

    read = blocking(offset_store.OffsetStore.read)
    persist = blocking(offset_store.OffsetStore.persist)
    persist_all = blocking(offset_store.OffsetStore.persist_all)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Keep `offset` in memory; with `increase_only` a lower one is ignored."""
        self._client.update(queue, offset, increase_only=increase_only)

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue from memory; the stored offset remains."""
        self._client.remove(queue)

    def clone(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return a copy of the table, of one topic or of all."""
        return self._client.clone(topic)


class RemoteOffsetStore(OffsetStore):
    """Offsets at the broker, over the connection of a `PullConsumer`."""

    def __init__(self, group: PullConsumer) -> None:
        self._client, self._runtime = offset_store.RemoteOffsetStore(group._client), group._runtime


class LocalFileOffsetStore(OffsetStore):
    """Offsets in a local file; see `reput_client.LocalFileOffsetStore`."""

    def __init__(self, path: str | Path) -> None:
        self._client = offset_store.LocalFileOffsetStore(path, in_thread=_at_once)
        self._runtime = BlockingRuntime()


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()


_LOOK_ROUND_S: Final = 0.5

SubscriberT = TypeVar("SubscriberT", bound=Subscriber)


class BlockingSubscriber(BlockingClient[SubscriberT]):
    """A client that gets the messages of some topics for a group."""

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The consumed topics; with a pattern, those found so far."""
        return self._client.topics

    @property
    def topic(self) -> str:
        """The topic, or the first of several; "" while a pattern has found none."""
        return self._client.topic

    @property
    def connected(self) -> bool:
        """Whether any connection is open."""
        return self._client.connected

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._client.closed

    @property
    def stopped(self) -> bool:
        """Whether no more messages are delivered, because the consumer was stopped or closed."""
        return self._client.stopped


def check_plain(handler: Callable[[R], object]) -> None:
    """Raise TypeError if `handler` cannot be called with a message alone, or is a coroutine function.

    Its coroutines would never run, and count as handled.
    """
    check_takes_a_message(handler)
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        raise TypeError(
            f"{handler!r} is a coroutine function, and the synchronous API does not await it; pass a plain function, "
            "or import the consumer from reput_client instead of reput_client.blocking"
        )


def run_in_threads(
    take: Callable[[float], R | None], is_over: Callable[[], bool], handle: Callable[[R], None], slots: list[R | None]
) -> None:
    """Take and handle messages, in a thread for each slot, until it is over or `handle` raises.

    Each thread takes one message at a time, which its slot has, so a slow handler delays no other message while a
    thread is free. Returns when all threads have ended.

    Raises:
        BaseException: the first exception of `handle` or `take`, or what interrupted the calling thread.
    """
    gate = threading.Lock()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while True:
                with gate:
                    # Bounded, to notice another handler's failure.
                    message = None
                    while message is None and not failures and not is_over():
                        message = take(_LOOK_ROUND_S)
                if message is None:
                    return
                slots[number] = message
                handle(message)
                slots[number] = None
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=work, name=f"reput-handler-{n}", args=(n,)) for n in range(len(slots))]
    try:
        for thread in started:
            thread.start()
        for thread in started:
            # Python runs signal handlers in the main thread. If another thread received the signal, the main thread
            # notices only when its wait returns.
            while thread.is_alive():
                thread.join(_LOOK_ROUND_S)
    except BaseException as error:
        failures.append(error)
        for thread in started:
            if thread.ident is not None:
                thread.join()
    if failures:
        raise failures[0]


_Consumer = on_blocking_runtime(AsyncConsumer)


@dataclass(frozen=True, kw_only=True)
class BlockingConsumerOptions(ConsumerOptions[V]):
    """See `Consumer`."""

    offset_store: OffsetStore | None = None  # type: ignore[assignment]


class Consumer(BlockingSubscriber[AsyncConsumer[V]], Generic[V]):
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

    positions = locked(AsyncConsumer.positions)
    lag = blocking(AsyncConsumer.lag)
    seek = locked(AsyncConsumer.seek)
    seek_to_time = blocking(AsyncConsumer.seek_to_time)
    seek_to_beginning = blocking(AsyncConsumer.seek_to_beginning)
    seek_to_end = blocking(AsyncConsumer.seek_to_end)
    pause = locked(AsyncConsumer.pause)
    resume = locked(AsyncConsumer.resume)
    members = blocking(AsyncConsumer.members)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage[V]:
        message = self._runtime.call(self._client._iteration.next_now)
        if message is None:
            message = self.receive()
            if message is None:
                raise StopIteration
        return message

    receive = blocking(AsyncConsumer[V].receive)
    take = blocking(AsyncConsumer[V].take)
    receive_many = blocking(AsyncConsumer[V].receive_many)
    commit = blocking(AsyncConsumer.commit)
    failed = blocking(AsyncConsumer.failed)
    rewind = locked(AsyncConsumer.rewind)

    def stop(self) -> None:
        """Deliver no more messages: an iteration ends at its next message, `run` when its handlers are done.

        Never waits; any thread or signal handler may call it.
        """
        self._runtime.call_soon(self._client.stop)

    def run(
        self, handler: Callable[[ReceivedMessage[V]], object], *, concurrency: int = 1, handle_signals: bool = True
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
                    self.take, lambda: self._client.stopped, lambda m: self._handle(m, handler), handlers.slots
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


class PoppedMessage(Popped[V]):
    """A message of a `PopConsumer`. See `reput_client.PoppedMessage`."""

    __slots__ = ()

    @property
    def _client(self) -> PoppedMessage[V]:
        return self

    @property
    def _runtime(self) -> BlockingRuntime:
        runtime = self._settling.session.runtime
        assert isinstance(runtime, BlockingRuntime), "it was received by a synchronous client"
        return runtime

    ack = blocking(AsyncPoppedMessage.ack)
    nack = blocking(AsyncPoppedMessage.nack)  # type: ignore[arg-type]  # done on return
    extend = blocking(AsyncPoppedMessage.extend)
    reject = blocking(AsyncPoppedMessage.reject)  # type: ignore[arg-type]


class PopConsumer(BlockingSubscriber[AsyncPopConsumer[V]], Generic[V]):
    """Receives messages that no other member of the group has meanwhile; a context manager.

    Arguments and errors are those of `reput_client.PopConsumer`. Threads may share one. While `run` is active, a daemon
    thread acknowledges handled messages and extends the invisible times of the others.
    """

    @constructor(AsyncPopConsumer)
    def __init__(self, client: AsyncPopConsumer[V]) -> None:
        super().__init__(client)

    @property
    def orderly(self) -> bool:
        """Whether messages are received in order; known once the consumer is entered."""
        return self._client.orderly

    def receive(
        self, max_messages: int = POP_MESSAGES_MAX, *, invisible_s: float = 60.0, wait_s: float = 15.0
    ) -> list[PoppedMessage[V]]:
        """Return up to `max_messages` messages, at most 32; waits up to `wait_s` seconds if there are none.

        See `reput_client.PopConsumer.receive`.
        """
        return self._runtime.run(self._client._receive_as(PoppedMessage, max_messages, invisible_s, wait_s))

    def ack(self, messages: Iterable[PoppedMessage[V]]) -> None:
        """Acknowledge several messages, with one request for each broker.

        See `reput_client.PopConsumer.ack`.
        """
        self._runtime.run(self._client._settling.ack_all(messages))

    def stop(self) -> None:
        """Receive no more messages: `receive` returns, and `run` does when its handlers are done.

        Never waits; any thread or signal handler may call it.
        """
        self._runtime.call_soon(self._client.stop)

    def run(
        self,
        handler: Callable[[PoppedMessage[V]], object],
        *,
        concurrency: int = 1,
        invisible_s: float = 60.0,
        handle_signals: bool = True,
    ) -> None:
        """Call `handler` with every message, in `concurrency` threads, until the consumer is stopped or closed.

        With `concurrency=1` it runs in the calling thread. If `on_failure` ends `run`, the first exception is raised
        once the handlers in progress are done. Otherwise as `reput_client.PopConsumer.run`.

        Raises:
            TypeError: `handler` takes other arguments, or is a coroutine function.
        """
        check_plain(handler)
        with StopSignals(self._runtime, self.stop, enabled=handle_signals):
            BlockingRun(self, concurrency, invisible_s).handle_all(handler)


class BlockingRun(Generic[V]):
    """A run of a `PopConsumer` for code that takes messages one by one and handles them in its own way, in any thread.

    A daemon thread acknowledges handled messages and extends the invisible times of the others.

    Args:
        concurrency: how many messages are handled at a time.
        ahead: pop more than that, as far as they are handled soon.
    """

    def __init__(self, consumer: PopConsumer[V], concurrency: int, invisible_s: float, *, ahead: bool = True) -> None:
        self._runtime = consumer._runtime
        self._client = consumer._client
        self._run: Run[PoppedMessage[V]] = self._runtime.call(
            lambda: self._client._begin_run(PoppedMessage, concurrency, invisible_s, ahead=ahead)
        )

    def handle_all(self, handler: Callable[[PoppedMessage[V]], object]) -> None:
        """Call `handler` with every message until stopped or closed, and finish. See `PopConsumer.run`."""
        client, concurrency = self._client, self._run.concurrency
        if client._tracing is not None:
            handler = client._tracing.plain_handler(handler, client.group)

        def handle(message: PoppedMessage[V]) -> None:
            try:
                handler(message)
            except Exception as error:
                self.failed(message, error)
            else:
                self.handled(message)

        slots: list[PoppedMessage[V] | None] = [None] * concurrency
        try:
            if concurrency == 1:
                while (message := self.take()) is not None:
                    handle(message)
            else:
                run_in_threads(self.take, lambda: self.stopped or client.closed, handle, slots)
        finally:
            self.finish()

    @property
    def stopped(self) -> bool:
        """Whether no more messages are taken."""
        return self._run.stopped

    def make_room(self, messages: int) -> None:
        """Handle so many messages, at least 1, besides those in hand; without `ahead`, `take` waits then."""
        self._run.concurrency = len(self._run._running) + messages

    def take(self, timeout_s: float = math.inf) -> PoppedMessage[V] | None:
        """Return a message, for one caller at a time; None after `timeout_s`, or when stopped or closed."""
        return self._runtime.run(self._run.take(timeout_s))

    def handled(self, message: PoppedMessage[V]) -> None:
        """Note that a message is handled: it is acknowledged soon, unless it is settled already."""
        self._runtime.call(lambda: self._run.handled(message))

    def failed(self, message: PoppedMessage[V], error: Exception) -> None:
        """Apply `on_failure` to a message; raises `error` if that ends the run."""
        self._runtime.run(self._run.failed(message, error))

    def stop(self) -> None:
        """Take no more messages. Never waits."""
        self._runtime.call_soon(self._run.stop)

    def give_back_waiting(self) -> None:
        """Give back what was popped and not taken; after `stop`."""
        self._runtime.call(self._run.give_back_waiting)

    def finish(self) -> None:
        """Acknowledge what is handled, and give back all others."""
        with suppress(ClientClosed):  # from an interrupt
            self._runtime.run(self._client._end_run(self._run))
