"""The Kombu transport `reput://user:secret@host:port//`.

Its channels declare, send, receive and settle, and have the consumers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import cached_property, partial
from importlib.metadata import version
from queue import Empty
from typing import Any, Final

from kombu.transport import base, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from reput_client.errors import ClientClosed, ConnectFailed, DamagedMessage
from reput_client.produce.queue_selector import AnyBroker
from reput_client.tasks.celery.clients import ConnectionClients, client_options
from reput_client.tasks.celery.receiving import Delivery, Held, Receiver, SharedQueue, TransientQueue
from reput_client.tasks.celery.topics import (
    TRANSIENT,
    Binding,
    Payload,
    exchange_topic,
    is_early,
    is_expired,
    is_of_exchange,
    message_of,
    payload_of,
    priority_of,
    queue_topic,
    tag_of,
    topic_of,
    topics_of,
)
from reput_client.transport.address import DEFAULT_PORT
from reput_protocol.errors import ReputError, TopicNotFound

_PRIORITIES: Final = 10
_TRANSIENT_S: Final = 3.0
_GET_S: Final = 0.1
_GET_AGAIN_S: Final = 1.0
"""How long `basic_get` waits: what was just sent or given back takes some milliseconds to get there."""

log = logging.getLogger("reput_client")


class Channel(virtual.Channel):
    """Sends to the topics of queues and exchanges, and receives from them; see `topics`.

    Messages are received by threads; only the thread of the connection calls consumers.
    """

    QoS = Held
    qos: Held

    def __init__(self, connection: virtual.Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._by_tag: dict[str, Consumer] = {}
        self._cancelled: list[Receiver] = []
        self._getters: dict[str, SharedQueue] = {}
        self.clients: ConnectionClients = connection.clients

    def consumes(self, queue: str) -> bool:
        """Whether the channel has a consumer of a queue."""
        return any(consumer.queue == queue for consumer in [*self._by_tag.values()])

    def _is_consumed(self, queue: str) -> bool:
        """Whether any channel of the connection has a consumer of a queue."""
        return any(channel.consumes(queue) for channel in self.connection.channels)

    # -- queues and exchanges ----------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a queue, with RabbitMQ's names for options such as `expires`."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **kwargs)
        return prepared

    def _new_queue(
        self,
        queue: str,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        clients = self.clients
        if not (exclusive or auto_delete) or "x-max-priority" in (arguments or {}):
            self._ensure_topic(queue_topic(queue))
        elif queue not in clients.transient:
            self._ensure_topic(TRANSIENT)
            reader = TransientQueue(queue, clients.options)
            try:
                reader.read(TRANSIENT, tag_of(queue))
            except BaseException:
                reader.close()
                raise
            clients.transient[queue] = reader

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange: it gets the exchange's messages from now on."""
        exchange = exchange or "amq.direct"
        routing_key = routing_key or ""
        if self.state.has_binding(queue, exchange, routing_key):
            return
        clients, binding = self.clients, Binding(exchange, self._kind(exchange), routing_key)
        reader = clients.transient.get(queue)
        self._ensure_topic(binding.topic)
        if reader is not None:
            reader.read(binding.topic, topics_of([*self._bindings(queue), binding])[binding.topic])
        elif binding.topic != queue_topic(queue):
            clients.begin_at_end(queue_topic(queue), binding.topic)
        self.state.binding_declare(queue, exchange, routing_key, arguments)  # last: after an error, bind again

    def _ensure_topic(self, topic: str) -> None:
        if is_of_exchange(topic):
            self.clients.ensure_topic(topic, queues=1)
        else:
            self.clients.ensure_topic(topic, queues=_PRIORITIES, message_type="PRIORITY")

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kwargs: Any
    ) -> None:
        """Undo a binding: a consumer that begins after this does not get the exchange's messages."""
        self.state.binding_delete(queue, exchange or "amq.direct", routing_key or "")

    def _kind(self, exchange: str) -> str:
        try:
            kind: str = self.state.exchanges[exchange]["type"]
        except KeyError:
            return "direct"
        return kind

    def _bindings(self, queue: str) -> list[Binding]:
        return [
            Binding(each.exchange, self._kind(each.exchange), each.routing_key)
            for each in [*self.state.queue_bindings(queue)]
        ]

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return the bindings to an exchange that this connection knows."""
        return [(key.routing_key, None, key.queue) for key in [*self.state.bindings] if key.exchange == exchange]

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.clients.transient or self.clients.has_topic(queue_topic(queue))

    def _size(self, queue: str) -> int:
        return 0 if queue in self.clients.transient else self.clients.ready(queue_topic(queue))

    def _purge(self, queue: str) -> int:
        return 0 if queue in self.clients.transient else self.clients.skip_all(queue_topic(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue with its messages and its group."""
        if (if_empty and self._size(queue)) or (if_unused and self._is_consumed(queue)):
            return
        self.state.queue_bindings_delete(queue)
        reader = self.clients.transient.pop(queue, None)
        if reader is not None:
            reader.close()
            return
        getter = self._getters.pop(queue, None)
        if getter is not None:
            getter.close()
        self.clients.delete(queue_topic(queue))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange with what its queues have not received from it."""
        for key in [key for key in self.state.bindings if key.exchange == exchange]:
            self.state.binding_delete(*key)
        self.state.exchanges.pop(exchange, None)
        self.clients.delete(exchange_topic(exchange), group=False)

    # -- sending -----------------------------------------------------------------------------------------------

    def basic_publish(self, message: Payload, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Send a message, and return when it is stored.

        What is sent to an exchange that no queue was ever bound to, or to a queue that was never declared, is dropped.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        clients, routing_key = self.clients, routing_key or ""
        if exchange:
            topic = topic_of(exchange, self._kind(exchange), routing_key)
        else:
            topic = queue_topic(routing_key)
            if not clients.has_topic(topic):
                topic = TRANSIENT  # as far as this connection can know
        if clients.has_topic(topic):
            self._send(topic, tag_of(routing_key), message)

    def _send(self, topic: str, tag: str, payload: Payload) -> None:
        clients = self.clients
        is_of_queue = not is_of_exchange(topic)
        message = message_of(topic, tag, payload, clients.wait_max_s, has_priority=is_of_queue)
        # A message that waits has no priority; in the queue of the number it comes in its turn all the same.
        queue_id = AnyBroker(priority_of(payload)) if is_of_queue and message.is_delayed else None
        terms: dict[str, Any] = {"queue_id": queue_id}
        if payload["properties"].get("delivery_mode") == 1:  # events, what is asked of workers and answered
            terms.update(ack="page_cache", timeout_s=_TRANSIENT_S)
        try:
            clients.producer.send(message, **terms)
        except TopicNotFound:  # it was deleted
            clients.forget(topic)
            self._ensure_topic(topic)
            clients.producer.send(message, **terms)

    def _inplace_augment_message(self, message: Payload, exchange: str, routing_key: str) -> None:
        body, encoding = message["body"], "utf-8"
        if isinstance(body, bytes):
            try:
                body = body.decode()
            except UnicodeDecodeError:
                body, encoding = self.encode_body(body, "base64")
        message["body"] = body
        properties = message["properties"]
        properties["body_encoding"] = encoding
        properties["delivery_info"].update(exchange=exchange, routing_key=routing_key)

    # -- receiving ---------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], None], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Receive the messages of a queue until the consumer is cancelled."""
        self._reap()
        consumer = Consumer(self, queue, callback, no_ack=no_ack)
        reader = self.clients.transient.get(queue)
        if reader is None:
            consumer.receiver, consumer.is_shared = self._shared_queue(queue), True
        else:
            reader.room = self.qos.room
            consumer.receiver = reader
        self._by_tag[consumer_tag] = consumer
        consumer.receiver.start(consumer.received, consumer.failed)

    def _shared_queue(self, queue: str) -> SharedQueue:
        topic, clients = queue_topic(queue), self.clients
        topics = {**topics_of(self._bindings(queue)), topic: "*"}
        return SharedQueue(topic, topics, clients.options, clients.invisible_s, self.qos.room)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive no more for a consumer. What was delivered to it can still be settled; the rest is given back."""
        consumer = self._by_tag.pop(consumer_tag, None)
        if consumer is not None:
            consumer.cancel()
            if isinstance(consumer.receiver, SharedQueue):
                self._cancelled.append(consumer.receiver)
        self._reap()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Settle a message: its queue is done with it."""
        self.qos.ack(delivery_tag)
        self._reap()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or make it a dead letter."""
        self.qos.reject(delivery_tag, requeue=requeue)
        self._reap()

    def _reap(self) -> None:
        """Close the receivers of cancelled consumers whose messages are all settled."""
        for receiver in [each for each in self._cancelled if not self.qos.has_any_of(each)]:
            try:
                self._cancelled.remove(receiver)
            except ValueError:
                continue  # another thread closes it
            receiver.close()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message of a queue, or None."""
        if queue in self.clients.transient:
            raise NotImplementedError(
                f"queue {queue!r} is transient (exclusive or auto_delete): a consumer "
                "gets its messages, they cannot be asked for one by one"
            )
        getter = self._getters.get(queue)
        if getter is None:
            getter = self._getters[queue] = self._shared_queue(queue)
        was_given_back = time.monotonic() < self.qos.given_back_at + _GET_AGAIN_S
        while (delivery := getter.get(_GET_AGAIN_S if was_given_back else _GET_S)) is not None:
            payload = self.admit(delivery, queue)
            if payload is not None:
                tag = self.qos.hold(delivery, None, can_refuse=False)
                assert tag is not None, "one that is asked for is in no limit"
                self.qos.begin(tag)
                if no_ack:
                    self.qos.ack(tag)
                return self.delivered(payload, tag)
        return None

    def _get(self, queue: str, timeout: float | None = None) -> Payload:
        raise Empty  # `basic_get` and the threads of consumers receive

    def admit(self, delivery: Delivery, queue: str) -> Payload | None:
        """Return the payload of a message that is for a queue now; settle any other, and return None."""
        message = delivery.message
        try:
            payload = payload_of(message.body)
        except (DamagedMessage, ValueError) as error:
            log.error("queue %s: %r is not Kombu's, and becomes a dead letter: %s", queue, message, error)
            delivery.reject()
            return None
        if not self._is_for(queue, message.topic, payload) or is_expired(
            payload, message.store_timestamp_ms, time.time() * 1000
        ):
            delivery.done()
        elif is_early(payload):  # it is due later than a message may wait at a time
            self._send_again(delivery, payload)
        else:
            if message.reconsume_times:
                payload["properties"]["delivery_info"]["redelivered"] = True
            return payload
        return None

    def _is_for(self, queue: str, topic: str, payload: Payload) -> bool:
        """Whether a message of a topic that a queue reads is for the queue."""
        sent_to = payload["properties"]["delivery_info"]
        exchange, routing_key = sent_to.get("exchange") or "", sent_to.get("routing_key") or ""
        if not exchange or topic == queue_topic(queue):
            return routing_key == queue
        return any(each.exchange == exchange and each.fits(routing_key) for each in self._bindings(queue))

    def _send_again(self, delivery: Delivery, payload: Payload) -> None:
        try:
            self._send(delivery.message.topic, delivery.message.tag or "", payload)
        except ReputError as error:
            log.warning("a task that is due later is received again now: %s", error)
            delivery.give_back(counts=False)
        else:
            delivery.done()

    def delivered(self, payload: Payload, tag: str) -> Any:
        """Return Kombu's message for a payload."""
        payload["properties"]["delivery_tag"] = tag
        return self.Message(payload, channel=self)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """See `Transport.drain_events`: messages of all channels are delivered together."""
        self.connection.drain_events(self.connection, timeout)

    def close(self) -> None:
        """Cancel the consumers, and give back what is not settled; in a forked child, forget the parent's."""
        if self.closed:
            return
        if self.clients.is_forked:
            self._by_tag.clear()
            self._cancelled.clear()
            self._getters.clear()
            super().close()
            return
        for tag in [*self._by_tag]:
            self.basic_cancel(tag)
        self.qos.restore_unacked()
        receivers = [*self._cancelled, *self._getters.values()]
        self._cancelled.clear()
        self._getters.clear()
        for receiver in receivers:
            receiver.close()
        super().close()


class Consumer:
    """A consumer of a queue in one channel.

    Attributes:
        receiver: receives for it.
        queue: the name of its queue.
        is_shared: whether others may have what is too much for it.
    """

    receiver: Receiver

    def __init__(self, channel: Channel, queue: str, callback: Callable[[Any], None], *, no_ack: bool) -> None:
        self._channel = channel
        self._held = channel.qos
        self.queue = queue
        self._callback = callback
        self._no_ack = no_ack
        self.is_shared = False
        self._lock = threading.Lock()
        self._is_cancelled = False

    def received(self, deliveries: list[Delivery]) -> None:
        """In a thread of the receiver: let the connection's thread deliver messages."""
        calls: list[Callable[[], None]] = []
        for delivery in deliveries:
            with self._lock:
                tag = None
                payload = None if self._is_cancelled else self._channel.admit(delivery, self.queue)
                if payload is not None:
                    tag = self._held.hold(delivery, self, can_refuse=self.is_shared)
                is_surplus = self._is_cancelled or (payload is not None and tag is None)
            if is_surplus:
                delivery.give_back(counts=False)
            elif tag is not None and payload is not None:
                calls.append(partial(self._deliver, tag, payload))
        if calls:
            self._channel.clients.inbox.add(calls)

    def failed(self, error: Exception) -> None:
        """In a thread of the receiver: let the connection's thread know that no more is received."""

        def tell() -> None:
            raise ConnectionError(f"queue {self.queue} is not received any more: {error}") from error

        self._channel.clients.inbox.add([tell])

    def _deliver(self, tag: str, payload: Payload) -> None:
        if not self._held.begin(tag):
            return
        if self._no_ack:
            self._held.ack(tag)
        self._callback(self._channel.delivered(payload, tag))

    def cancel(self) -> None:
        """Receive no more. What was delivered can still be settled; the rest is given back."""
        with self._lock:
            self._is_cancelled = True
        self.receiver.stop()
        self._held.give_back_waiting(self)


class Transport(virtual.Transport):
    """Kombu's view of brokers; docs/celery.md has the options.

    Of several URLs, all are the client's addresses, so that it continues with another broker by itself.
    """

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = "reput"
    driver_name = "reput-client"
    connection_errors = (*base.Transport.connection_errors, ConnectFailed, ClientClosed, OSError)
    channel_errors = (*base.Transport.channel_errors, ReputError)
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def driver_version(self) -> str:
        """Return the client's version."""
        return version("reput-client")

    @cached_property
    def client_options(self) -> dict[str, Any]:
        """The addresses and how to connect, for the clients of this connection."""
        client = self.client
        present = f"{client.hostname or '127.0.0.1'}:{client.port or DEFAULT_PORT}"
        options = client_options([*client.alt] or [client.as_uri(include_password=True)], client.ssl)
        options["address"] = [*dict.fromkeys([present, *options["address"]])]
        return options

    # -- life --------------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        """Connect; raises `ConnectFailed`."""
        self.clients = ConnectionClients(self.client_options, self.client.transport_options or {})
        self.clients.open()
        return self

    def create_channel(self, connection: Transport) -> Any:
        """Return a new channel."""
        channel = self.Channel(connection)
        self.channels.append(channel)
        return channel

    def close_connection(self, connection: Transport) -> None:
        """Close the channels and the clients; what is not settled is given back."""
        for channel in [*self.channels]:
            channel.close()
        self.clients.close()

    # -- events ------------------------------------------------------------------------------------------------

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver what was received, after up to `timeout` seconds.

        Raises:
            TimeoutError: nothing was received.
        """
        if not self.clients.inbox.deliver(timeout):
            raise TimeoutError

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Let Celery's event loop deliver messages."""
        loop.add_reader(self.clients.inbox.fileno(), self.on_readable)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        """Undo `register_with_event_loop`."""
        loop.remove_reader(self.clients.inbox.fileno())

    def on_readable(self) -> None:
        """Deliver what was received."""
        self.clients.inbox.deliver(0)
