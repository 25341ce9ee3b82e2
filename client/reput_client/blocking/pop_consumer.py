"""The synchronous POP consumer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic

from reput_client.blocking.client import blocking, constructor
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.blocking.subscriber import BlockingSubscriber, check_plain, run_in_threads
from reput_client.consume.group.subscriber import StopSignals
from reput_client.errors import ClientClosed
from reput_client.pop import consumer as asynchronous
from reput_client.pop import popped
from reput_client.pop.handling import Run
from reput_client.pop.settling import Popped
from reput_client.received import V
from reput_protocol.commands.pop import POP_MESSAGES_MAX


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

    ack = blocking(popped.PoppedMessage.ack)
    nack = blocking(popped.PoppedMessage.nack)  # type: ignore[arg-type]  # done on return
    extend = blocking(popped.PoppedMessage.extend)
    reject = blocking(popped.PoppedMessage.reject)  # type: ignore[arg-type]


class PopConsumer(BlockingSubscriber[asynchronous.PopConsumer[V]], Generic[V]):
    """Receives messages that no other member of the group has meanwhile; a context manager.

    Arguments and errors are those of `reput_client.PopConsumer`. Threads may share one. While `run` is active, a daemon
    thread acknowledges handled messages and extends the invisible times of the others.
    """

    @constructor(asynchronous.PopConsumer)
    def __init__(self, client: asynchronous.PopConsumer[V]) -> None:
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

    def __init__(
        self, consumer: PopConsumer[V], concurrency: int, invisible_s: float, *, ahead: bool = True
    ) -> None:
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
