"""The blocking producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from reput_client import producer as asynchronous
from reput_client.backoff import Backoff
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.post_gathering import OnDone
from reput_client.posted import Posted
from reput_client.posting import BUFFER_BYTES
from reput_client.producer import MANY_BATCH, MANY_IN_FLIGHT, SEND_TIMEOUT_S
from reput_client.producer_membership import HEARTBEAT_INTERVAL_S
from reput_client.receipts import SendReceipt
from reput_client.received import ReceivedMessage
from reput_client.replying import REPLY_TIMEOUT_S
from reput_client.session import CONNECT_TIMEOUT_S
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.message import Message


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
        runtime.on_interrupt(self._producer.after_interrupt)

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
            self._producer.send_batch(messages, ack=ack, queue_id=queue_id, key=key, timeout_s=timeout_s)
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
                messages,
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
                bodies,
                tag=tag,
                tags=tags,
                keys=keys,
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
        """Hand over one message and go on; see `reput_client.Producer.post`. What that waits for, this blocks for.

        There is no thread: blocks leave, answers are taken and `on_done` is called during calls of `post`, `flush`,
        `close` and the answers' `result()`, by whoever calls. So a message whose `linger_s` is over leaves with the
        next of these calls, and not before; who posts no more flushes. `on_done` may use the producer. A broker
        that neither takes nor refuses a connection holds up the caller for `connect_timeout_s` with each attempt.
        A `KeyboardInterrupt` or `SystemExit` of `on_done` goes to whoever calls. One that interrupts a call leaves the
        producer usable; whether an interrupted `post` has taken its message is not known.
        """
        return self._runtime.run(
            self._producer.post(message, ack=ack, queue_id=queue_id, key=key, on_done=on_done)
        )

    def flush(self) -> None:
        """Send at once what was posted and wait until all is done; see `reput_client.Producer.flush`."""
        self._runtime.run(self._producer.flush())
