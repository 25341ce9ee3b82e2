"""The blocking producer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from reput_client.backoff import Backoff
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.errors import ClientClosed, PostsFailed
from reput_client.produce import producer as asynchronous
from reput_client.produce.accumulator import OnDone
from reput_client.produce.posted import Posted
from reput_client.produce.posts import BUFFER_BYTES
from reput_client.produce.producer import MANY_BATCH, MANY_IN_FLIGHT, SEND_TIMEOUT_S
from reput_client.produce.producer_membership import HEARTBEAT_INTERVAL_S
from reput_client.produce.replies import REPLY_TIMEOUT_S
from reput_client.receipts import SendReceipt
from reput_client.received import ReceivedMessage
from reput_client.session import CONNECT_TIMEOUT_S
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.message import Message

log = logging.getLogger("reput_client")

T = TypeVar("T")


def _copy(items: Sequence[T]) -> Sequence[T]:
    """Return the application's `items`, read without the client's lock: an error of theirs leaves the client whole."""
    return items if type(items) in (list, tuple) else list(items)


class Producer(BlockingClient):
    """Sends messages; a context manager. Arguments and errors are those of `reput_client.Producer`.

    Threads may share one: their sends travel side by side on one connection. From the first `request` on a thread sends
    heartbeats; it ends when the producer is closed, and holds up no exit of the program.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        group: str = "reput-producer",
        ack: str = AckLevel.FLUSHED,
        timeout_s: float = SEND_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        retries: int = 0,
        linger_s: float = 0.0,
        batch_bytes: int = 1024 * 1024,
        buffer_bytes: int = BUFFER_BYTES,
        max_in_flight: int = 64,
        unique_ids: bool = True,
        deduplicate: bool = False,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()
        self._producer = asynchronous.Producer(
            address,
            group=group,
            ack=ack,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            retries=retries,
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            max_in_flight=max_in_flight,
            unique_ids=unique_ids,
            deduplicate=deduplicate,
            heartbeat_interval_s=heartbeat_interval_s,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        super().__init__(self._producer, runtime)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush what was posted, and close; see `reput_client.Producer.__aexit__`."""
        try:
            self._runtime.run(self._producer.flush_at_exit(error))
        except ClientClosed:
            if self._runtime.interruption is None:
                raise
            if error is None:
                self._producer.tell_interrupted()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections; any thread may. See `reput_client.Producer.aclose`."""
        super().close()
        if self._runtime.interruption is not None:
            try:
                self._producer.tell_interrupted()
            except PostsFailed as failed:
                log.error("an interrupted producer was closed: %s", failed)

    @property
    def group(self) -> str:
        """The producer's group."""
        return self._producer.group

    @property
    def client_id(self) -> str:
        """What brokers know this producer by; empty as long as they need not know it."""
        return self._producer.client_id

    @property
    def late_replies(self) -> int:
        """How many replies came when their requests waited no more."""
        return self._producer.late_replies

    def send(
        self,
        message: Message,
        *,
        ack: str | None = None,
        queue_id: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send one message and return its receipt; see `reput_client.Producer.send`."""
        return self._runtime.run(
            self._producer.send(message, ack=ack, queue_id=queue_id, key=key, timeout_s=timeout_s)
        )

    def forward(
        self,
        message: ReceivedMessage,
        topic: str,
        *,
        properties: Mapping[str, str] | None = None,
        ack: str | None = None,
        queue_id: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send a message that was received to another topic; see `reput_client.Producer.forward`."""
        return self._runtime.run(
            self._producer.forward(
                message,
                topic,
                properties=properties,
                ack=ack,
                queue_id=queue_id,
                key=key,
                timeout_s=timeout_s,
            )
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Send one message and wait for no answer; see `reput_client.Producer.send_oneway`."""
        self._runtime.run(
            self._producer.send_oneway(message, queue_id=queue_id, key=key, timeout_s=timeout_s)
        )

    def request(
        self,
        message: Message,
        *,
        timeout_s: float | None = None,
        ack: str | None = None,
        queue_id: int | None = None,
        key: str | None = None,
    ) -> ReceivedMessage:
        """Send one message and return the reply to it; see `reput_client.Producer.request`."""
        return self._runtime.run(
            self._producer.request(message, timeout_s=timeout_s, ack=ack, queue_id=queue_id, key=key)
        )

    def reply(
        self,
        request: ReceivedMessage,
        body: Buffer,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Reply to a request that a consumer has got; see `reput_client.Producer.reply`."""
        self._runtime.run(
            self._producer.reply(
                request,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                flag=flag,
                timeout_s=timeout_s,
            )
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        ack: str | None = None,
        queue_id: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic to one queue, in order; see `reput_client.Producer.send_batch`."""
        return self._runtime.run(
            self._producer.send_batch(
                _copy(messages), ack=ack, queue_id=queue_id, key=key, timeout_s=timeout_s
            )
        )

    def send_pipelined(
        self,
        messages: Iterable[Message],
        *,
        in_flight: int | None = None,
        batch: int = 1,
        ack: str | None = None,
        queue_id: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages with many frames unanswered at a time; see `reput_client.Producer.send_pipelined`.

        `messages` is read while the client's lock is held: an iterator that waits holds up other threads.
        """
        return self._runtime.run(
            self._producer.send_pipelined(
                self._runtime.read(messages),
                in_flight=in_flight,
                batch=batch,
                ack=ack,
                queue_id=queue_id,
                key=key,
                timeout_s=timeout_s,
            )
        )

    def send_many(
        self,
        topic: str,
        bodies: Iterable[Buffer],
        *,
        tag: str | None = None,
        tags: Sequence[str | None] | None = None,
        keys: Sequence[Sequence[str]] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        batch: int = MANY_BATCH,
        in_flight: int = MANY_IN_FLIGHT,
        ack: str | None = None,
        queue_id: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Sequence[SendReceipt]:
        """Send a message for each body, in blocks; see `reput_client.Producer.send_many`.

        `bodies` is read while the client's lock is held: an iterator that waits holds up other threads.
        """
        return self._runtime.run(
            self._producer.send_many(
                topic,
                self._runtime.read(bodies),
                tag=tag,
                tags=None if tags is None else _copy(tags),
                keys=None if keys is None else _copy(keys),
                properties=properties,
                flag=flag,
                batch=batch,
                in_flight=in_flight,
                ack=ack,
                queue_id=queue_id,
                key=key,
                timeout_s=timeout_s,
            )
        )

    def post(
        self,
        message: Message,
        *,
        ack: str | None = None,
        queue_id: int | None = None,
        key: str | None = None,
        on_done: OnDone | None = None,
    ) -> Posted:
        """Hand over one message and return; see `reput_client.Producer.post`. What that waits for, this blocks for.

        There is no thread: blocks leave, answers are taken and `on_done` is called during calls of `post`, `flush`,
        `close` and the answers' `result()`, in the calling thread. So a message whose `linger_s` is over leaves with
        the next of these calls, and not before: call `flush` after the last `post`. `on_done` may use the producer. A
        broker that neither takes nor refuses a connection blocks the caller for `connect_timeout_s` at each attempt.
        A `KeyboardInterrupt` or `SystemExit` of `on_done` is raised by that call, and the producer stays usable.
        Whether an interrupted `post` has taken its message is not known.
        """
        return self._runtime.run(
            self._producer.post(message, ack=ack, queue_id=queue_id, key=key, on_done=on_done)
        )

    def flush(self) -> None:
        """Send at once what was posted and wait until all is done; see `reput_client.Producer.flush`."""
        try:
            self._runtime.run(self._producer.flush())
        except ClientClosed:
            if self._runtime.interruption is not None:
                self._producer.tell_interrupted()
            raise
