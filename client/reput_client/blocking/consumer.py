"""The blocking consumer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Self

from reput_client import consumer as asynchronous
from reput_client.backoff import Backoff
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.handler_threads import run_in_threads
from reput_client.blocking.offset_store import BlockingOffsetStore
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.errors import ClientClosed
from reput_client.group.allocation import AllocationStrategy, averagely
from reput_client.group.failures import OnFailure
from reput_client.group.starting import Start
from reput_client.received import ReceivedMessage
from reput_client.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
from reput_protocol.message import MessageQueue


class Consumer(BlockingClient):
    """A member of a consumer group; a context manager and an iterator.

    Arguments, errors and what counts as handled are those of `reput_client.Consumer`. One thread iterates; any thread
    may close the consumer, which ends the iteration. A thread of its own keeps the membership alive and commits while
    the application is busy; it ends when the consumer is closed, and holds up no exit of the program. A forked child
    that goes on using the consumer becomes a member of its own, with nothing in hand.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        group: str,
        topic: str | None = None,
        topics: Iterable[str] | Mapping[str, str] | None = None,
        tags: str = "*",
        sql: str | None = None,
        start: Start = "earliest",
        mode: str = "clustering",
        orderly: bool = False,
        allocation: AllocationStrategy = averagely,
        on_failure: OnFailure | None = None,
        handler_timeout_s: float = asynchronous.HANDLER_TIMEOUT_S,
        prefetch_messages: int = 2048,
        prefetch_bytes: int = 16 * 1024 * 1024,
        queue_messages_max: int = 1000,
        queue_bytes_max: int = 100 * 1024 * 1024,
        queue_span_max: int = 2000,
        commit_interval_s: float = 5.0,
        heartbeat_interval_s: float = 30.0,
        offset_store: BlockingOffsetStore | None = None,
        wait_for_topic: bool = True,
        instance: str = "DEFAULT",
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()
        self._consumer = asynchronous.Consumer(
            address,
            group=group,
            topic=topic,
            topics=topics,
            tags=tags,
            sql=sql,
            start=start,
            mode=mode,
            orderly=orderly,
            allocation=allocation,
            on_failure=on_failure,
            handler_timeout_s=handler_timeout_s,
            prefetch_messages=prefetch_messages,
            prefetch_bytes=prefetch_bytes,
            queue_messages_max=queue_messages_max,
            queue_bytes_max=queue_bytes_max,
            queue_span_max=queue_span_max,
            commit_interval_s=commit_interval_s,
            heartbeat_interval_s=heartbeat_interval_s,
            offset_store=offset_store.asynchronous if offset_store is not None else None,
            wait_for_topic=wait_for_topic,
            instance=instance,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        super().__init__(self._consumer, runtime)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._consumer.group

    @property
    def topic(self) -> str:
        """The topic; of several the first."""
        return self._consumer.topic

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are consumed."""
        return self._consumer.topics

    @property
    def client_id(self) -> str:
        """What the group knows this member by; empty before it was entered."""
        return self._consumer.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this member's now, those of the retry topic included."""
        return self._runtime.call(lambda: self._consumer.assignment)

    @property
    def connected(self) -> bool:
        """Whether there is a connection that has not failed yet."""
        return self._consumer.connected

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._consumer.closed

    @property
    def stopped(self) -> bool:
        """Whether nothing more is handed out, because the consumer was stopped or closed."""
        return self._consumer.stopped

    def positions(self) -> dict[MessageQueue, int]:
        """Return, for each queue of the assignment, the offset of its first message that is not handled."""
        return self._runtime.call(self._consumer.positions)

    def members(self) -> list[str]:
        """Return the client ids of the group's members, sorted."""
        return self._runtime.run(self._consumer.members())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        message = self._runtime.call(self._consumer.next_in_turn)
        if message is None:
            message = self.receive()
            if message is None:
                raise StopIteration
        return message

    def receive(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """Return the next message, or None when time is up or the consumer was closed.

        Asking for a message says that the one before is handled.
        """
        return self._runtime.run(self._consumer.receive(timeout_s))

    def take(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """As `receive`, but the message counts as handled only when `done` is called with it."""
        return self._runtime.run(self._consumer.take(timeout_s))

    def done(self, message: ReceivedMessage) -> None:
        """A message from `take` is handled; any thread may say so."""
        self._runtime.call(lambda: self._consumer.done(message))

    def again(self, message: ReceivedMessage, after_s: float = 1.0) -> None:
        """A message is not handled: it comes again, after `after_s` seconds. In order, its queue waits that long."""
        self._runtime.call(lambda: self._consumer.again(message, after_s))

    def give_back(self, message: ReceivedMessage, *, delay_level: int = 0, reason: str | None = None) -> None:
        """A message could not be handled: the broker takes it, and the group gets it again later."""
        self._runtime.run(self._consumer.give_back(message, delay_level=delay_level, reason=reason))

    def commit(self) -> None:
        """Commit all progress now, the message last received through iteration included."""
        self._runtime.run(self._consumer.commit())

    def rewind(self) -> None:
        """Hand out again, next, what was taken and is not handled."""
        self._runtime.call(self._consumer.rewind)

    def stop(self) -> None:
        """Hand out nothing more: an iteration ends when its loop comes back, `run` when its handlers are done.

        Never waits; any thread may call it, and a signal handler.
        """
        self._runtime.call_soon(self._consumer.stop)

    def run(self, handler: Callable[[ReceivedMessage], object], *, concurrency: int = 1) -> None:
        """Call `handler` with every message, in `concurrency` threads, until the consumer is stopped or closed.

        With `concurrency=1` the handler runs in the calling thread. When a handler raises, `on_failure` decides. If
        that ends `run`, the first exception comes out once the handlers in progress are done; its message is not
        handled.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        hands = self._consumer.hands
        hands.begin(concurrency)
        try:
            if concurrency == 1:
                for message in self:
                    try:
                        handler(message)
                    except Exception as error:
                        self._runtime.run(self._consumer.failed(message, error))
            else:
                run_in_threads(
                    self.take, lambda: self._consumer.stopped, lambda m: self._handle(m, handler), hands
                )
        finally:
            hands.end()
            with suppress(ClientClosed):  # by an interrupt
                self.rewind()

    def _handle(self, message: ReceivedMessage, handler: Callable[[ReceivedMessage], object]) -> None:
        try:
            handler(message)
        except Exception as error:
            self._runtime.run(self._consumer.failed(message, error))
        else:
            self.done(message)
