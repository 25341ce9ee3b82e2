"""The threads that receive the messages of queues, and the inbox where the transport finds them.

`Held` is what a channel has received and not settled.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from kombu.transport import virtual
from kombu.utils import uuid

from reput_client.blocking import PopConsumer, PullConsumer
from reput_client.blocking.consumer import BlockingRun, PoppedMessage
from reput_client.errors import ClientClosed
from reput_client.received import ReceivedMessage
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue

_LOOK_ROUND_S: Final = 0.5
"""How long one wait is at most: whether it still has to is looked at between two."""
_LOOK_S: Final = 0.05
_AT_ONCE: Final = 32
_WAIT_S: Final = 15.0
_PAUSE_S: Final = 1.0
_END_S: Final = 5.0

log = logging.getLogger("reput_client")

OnReceived: TypeAlias = "Callable[[list[Delivery]], None]"
"""Called with received messages, in any thread."""
OnFailed: TypeAlias = "Callable[[Exception], None]"
"""Called with what has ended a receiver, in its thread."""


@dataclass(eq=False, repr=False)
class Delivery:
    """A received message, until it is settled."""

    message: ReceivedMessage
    receiver: Receiver

    def done(self) -> None:
        """The queue is done with the message."""
        self.receiver.done(self.message)

    def give_back(self, *, counts: bool) -> None:
        """The message is delivered again: by a shared queue to any of its consumers.

        Args:
            counts: whether this was an attempt.
        """
        self.receiver.give_back(self.message, counts=counts)

    def reject(self) -> None:
        """The message is a dead letter of its queue; of a transient queue it is dropped."""
        self.receiver.reject(self.message)

    def abandon(self) -> None:
        """Ask the broker for nothing: the message is delivered again when its invisible time has ended."""
        self.receiver.abandon(self.message)


class Inbox:
    """What was received for the consumers of one connection. Threads add, and the connection's thread delivers.

    `fileno` is readable while there is something.
    """

    def __init__(self) -> None:
        self._arrived: deque[Callable[[], None]] = deque()
        self._condition = threading.Condition()
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._fileno = self._reading.fileno()  # also when it is closed
        self._is_marked = False
        self._is_closed = False

    def fileno(self) -> int:
        """The descriptor for an event loop."""
        return self._fileno

    def add(self, deliveries: Sequence[Callable[[], None]]) -> None:
        """Add what the connection's thread is to call."""
        with self._condition:
            if self._is_closed:
                return
            self._arrived.extend(deliveries)
            if not self._is_marked:
                self._is_marked = True
                self._writing.send(b"\0")
            self._condition.notify_all()

    def deliver(self, timeout_s: float | None) -> bool:
        """Wait for something, and deliver what there is then; return whether there was anything.

        What a consumer's callback raises ends this; the rest is delivered by the next call.

        Raises:
            ConnectionError: the connection is closed.
        """
        with self._condition:
            if timeout_s != 0:
                self._condition.wait_for(lambda: self._arrived or self._is_closed, timeout_s)
            count = len(self._arrived)
        for _ in range(count):
            with self._condition:
                if not self._arrived:
                    break
                call = self._arrived.popleft()
                self._unmark()
            call()
        if not count and self._is_closed:
            raise ConnectionError("the connection to the broker was closed")
        return count > 0

    def _unmark(self) -> None:
        if self._is_marked and not self._arrived:
            self._is_marked = False
            with suppress(BlockingIOError):
                self._reading.recv(1)

    def close(self) -> None:
        """Close the descriptors; what was not delivered is dropped."""
        with self._condition:
            self._is_closed = True
            self._arrived.clear()
            self._reading.close()
            self._writing.close()
            self._condition.notify_all()


class Receiver(Protocol):
    """Receives the messages of one queue in threads of its own, and settles them."""

    def start(self, on_received: OnReceived, on_failed: OnFailed) -> None:
        """Begin to receive: `on_received` is called with messages, `on_failed` with what has ended this.

        After `stop` a transient queue may begin again.
        """

    def stop(self) -> None:
        """Receive no more. What was received can still be settled. Never waits."""

    def close(self) -> None:
        """Give back what is not settled, and end."""

    def done(self, message: Any) -> None:
        """See `Delivery`."""

    def give_back(self, message: Any, *, counts: bool) -> None:
        """See `Delivery`."""

    def reject(self, message: Any) -> None:
        """See `Delivery`."""

    def abandon(self, message: Any) -> None:
        """See `Delivery`."""


class SharedQueue:
    """Pops the messages of a queue, and extends their invisible times until they are settled.

    Args:
        topics: with the tags that are wanted of each.
        room: returns how many more messages the channel may have now.

    Raises:
        ConnectFailed: no broker answers.
    """

    def __init__(
        self,
        group: str,
        topics: Mapping[str, str],
        options: Mapping[str, Any],
        invisible_s: float,
        room: Callable[[], int],
    ) -> None:
        self._consumer: PopConsumer[bytes] = PopConsumer(group=group, topics=topics, orderly=False, **options)
        self._consumer.__enter__()
        self._taking = BlockingRun(self._consumer, 1, invisible_s, ahead=False)
        self._room = room
        self._freed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_received: OnReceived, on_failed: OnFailed) -> None:
        """See `Receiver`."""
        self._thread = threading.Thread(
            target=_guarded, args=(self._run, on_received, on_failed), name=f"reput-{self._consumer.group}", daemon=True
        )
        self._thread.start()

    def _run(self, on_received: OnReceived) -> None:
        taking = self._taking
        while not taking.stopped:
            room = self._room()
            if room <= 0:
                self._freed.wait(_LOOK_ROUND_S)
                self._freed.clear()
                continue
            taking.make_room(room)
            try:
                found = self._receive(room)
            except ClientClosed:
                return
            except ReputError as error:
                log.error("queue %s: nothing is received: %s", self._consumer.group, error)
                time.sleep(_PAUSE_S)
            else:
                if found:
                    on_received(found)
        with suppress(ClientClosed):
            taking.give_back_waiting()

    def _receive(self, room: int) -> list[Delivery]:
        found = []
        message = self._taking.take(_LOOK_ROUND_S)
        while message is not None:
            found.append(Delivery(message, self))
            message = self._taking.take(0.0) if len(found) < room else None
        return found

    def get(self, timeout_s: float) -> Delivery | None:
        """Return one message, or None after `timeout_s`; of a queue that is not started."""
        self._taking.make_room(1)
        message = self._taking.take(timeout_s)
        return None if message is None else Delivery(message, self)

    def stop(self) -> None:
        """See `Receiver`."""
        self._taking.stop()
        self._freed.set()

    def close(self) -> None:
        """See `Receiver`."""
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)
        self._taking.finish()
        self._consumer.close()

    def done(self, message: PoppedMessage[bytes]) -> None:
        """See `Receiver`."""
        with suppress(ClientClosed):  # the broker delivers it again
            self._taking.handled(message)
        self._freed.set()

    def give_back(self, message: PoppedMessage[bytes], *, counts: bool) -> None:
        """See `Receiver`."""
        self._end(message, partial(message.nack, counts=counts))  # type: ignore[call-arg]  # the async one's

    def reject(self, message: PoppedMessage[bytes]) -> None:
        """See `Receiver`."""
        self._end(message, partial(message.reject, reason="rejected by its consumer"))

    def _end(self, message: PoppedMessage[bytes], settle: Callable[[], object]) -> None:
        try:
            settle()
        except (ReputError, ClientClosed) as error:
            log.warning("%r is delivered again when its invisible time has ended: %s", message, error)
            self.abandon(message)
        else:
            self.done(message)

    def abandon(self, message: PoppedMessage[bytes]) -> None:
        """See `Receiver`."""
        message.is_given_back = True  # so that its time is not extended
        self.done(message)


class TransientQueue:
    """Reads what is sent for a queue of this process from the time of its declaration; no other process does.

    Nothing of it is kept in the broker.

    Attributes:
        room: returns how many more messages the channel of its consumer may have now.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.room: Callable[[], int] = lambda: _AT_ONCE
        self._name = name
        self._options = options
        self._puller = self._new_puller()
        self._from: dict[MessageQueue, int] = {}
        self._tags: dict[str, str] = {}
        self._returned: list[Delivery] = []
        self._on_received: OnReceived | None = None
        self._on_failed: OnFailed | None = None

    def _new_puller(self) -> PullConsumer[bytes]:
        return PullConsumer(group="kombu", **self._options).__enter__()

    def read(self, topic: str, tags: str) -> None:
        """Read messages of a topic that come from now on and have one of the tags.

        With other tags of a topic that is read already, those that have come since the last pull are read too. After an
        error, nothing has changed.
        """
        if topic not in self._tags:
            ends = {
                queue: self._puller.max_offset(topic, queue.queue_id, broker_name=queue.broker_name)
                for queue in self._puller.queues(topic)
            }
            self._tags[topic] = tags
            self._from.update(ends)
            if self._on_received is not None and self._on_failed is not None:
                for queue in ends:
                    self._begin(queue, self._on_received, self._on_failed)
        elif tags != self._tags[topic]:
            # A pull that waits would pass over messages with a new tag: end it.
            puller = self._new_puller()
            self._tags[topic] = tags
            before, self._puller = self._puller, puller
            before.close()

    def start(self, on_received: OnReceived, on_failed: OnFailed) -> None:
        """See `Receiver`."""
        self._on_received, self._on_failed = on_received, on_failed
        returned, self._returned = self._returned, []
        on_received(returned)
        for queue in [*self._from]:
            self._begin(queue, on_received, on_failed)

    def _begin(self, queue: MessageQueue, on_received: OnReceived, on_failed: OnFailed) -> None:
        run = partial(self._run, queue)
        threading.Thread(
            target=_guarded, args=(run, on_received, on_failed), name=f"reput-{self._name}", daemon=True
        ).start()

    def _run(self, queue: MessageQueue, on_received: OnReceived) -> None:
        while self._on_received is on_received:
            room = min(self.room(), _AT_ONCE)
            if room <= 0:
                time.sleep(_LOOK_S)
                continue
            puller = self._puller  # before its tags
            try:
                result = puller.pull(
                    queue.topic,
                    queue.queue_id,
                    self._from[queue],
                    max_messages=room,
                    wait_s=_WAIT_S,
                    tags=self._tags[queue.topic],
                    broker_name=queue.broker_name,
                )
            except ClientClosed:
                if self._puller is puller:
                    return
                continue
            except ReputError as error:
                log.error("queue %s: nothing is received: %s", self._name, error)
                time.sleep(_PAUSE_S)
                continue
            if self._on_received is not on_received:
                return
            if self._puller is not puller:
                continue
            self._from[queue] = result.next_begin_offset
            if result.messages:
                on_received([Delivery(message, self) for message in result.messages])

    def stop(self) -> None:
        """See `Receiver`."""
        self._on_received = None

    def close(self) -> None:
        """See `Receiver`."""
        self.stop()
        self._puller.close()

    def done(self, message: ReceivedMessage[bytes]) -> None:
        """See `Receiver`: nothing is to be done."""

    def give_back(self, message: ReceivedMessage[bytes], *, counts: bool) -> None:
        """See `Receiver`: to the consumer that there is, or what was not tried to the next one."""
        if counts and self._on_received is not None:
            self._on_received([Delivery(message, self)])
        else:
            self._returned.append(Delivery(message, self))

    def reject(self, message: ReceivedMessage[bytes]) -> None:
        """See `Receiver`: nothing is to be done."""

    def abandon(self, message: ReceivedMessage[bytes]) -> None:
        """See `Receiver`: nothing is to be done."""


def _guarded(run: Callable[[OnReceived], None], on_received: OnReceived, on_failed: OnFailed) -> None:
    """Run the work of a thread; what ends it is told, because a queue that nothing receives looks like an empty one."""
    try:
        run(on_received)
    except Exception as error:
        log.exception("a queue is not received any more")
        on_failed(error)


_UNLIMITED: Final = 64
"""How many messages of a channel without a prefetch limit wait to be delivered."""
_RETURN_S: Final = 5.0


class Held(virtual.QoS):
    """The received messages of a channel by delivery tag. Any thread may settle one.

    Attributes:
        given_back_at: when a message was last given back, on the monotonic clock.
    """

    def __init__(self, channel: virtual.Channel, prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._held: dict[str, Delivery] = {}
        self._lock = threading.Lock()
        self.given_back_at = -math.inf
        self._waiting: dict[str, object] = {}  # of these, the ones that are not delivered yet
        self._ending: dict[str, Delivery] = {}  # those that a thread is settling

    def room(self) -> int:
        """Return how many messages more the channel may receive."""
        if not self.can_consume():
            return 0
        if not self.prefetch_count:
            return max(0, _UNLIMITED - len(self._waiting))
        return max(0, self.prefetch_count - len(self._held))

    def can_consume(self) -> bool:
        """Whether the prefetch limit permits another message."""
        return not self.prefetch_count or len(self._held) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many messages the prefetch limit permits, or None without one."""
        return max(0, self.prefetch_count - len(self._held)) if self.prefetch_count else None

    def hold(self, delivery: Delivery, consumer: object, *, can_refuse: bool) -> str | None:
        """Keep a received message that waits to be delivered to a consumer; return its delivery tag.

        With `can_refuse`, None if it is over the prefetch limit: each queue's thread has asked for itself whether there
        is room.
        """
        tag: str = uuid()
        with self._lock:
            if can_refuse and not self.can_consume():
                return None
            self._held[tag] = delivery
            self._waiting[tag] = consumer
        return tag

    def begin(self, tag: str) -> bool:
        """Note that a message is delivered; return False if it was given back meanwhile."""
        self._waiting.pop(tag, None)
        return tag in self._held

    def give_back_waiting(self, consumer: object) -> None:
        """Give back what was not delivered to a consumer."""
        self._return([tag for tag, waits_for in [*self._waiting.items()] if waits_for is consumer])

    def _return(self, tags: Iterable[str]) -> None:
        """Give back messages that were not tried, as far as this is known; not for long if the broker is away."""
        until = time.monotonic() + _RETURN_S
        for tag in tags:
            with self._settling(tag) as delivery:
                if delivery is None:
                    continue
                if time.monotonic() < until:
                    delivery.give_back(counts=False)
                else:
                    delivery.abandon()

    def has_any_of(self, receiver: Receiver) -> bool:
        """Whether anything that a receiver has received is not settled."""
        with self._lock:
            deliveries = [*self._held.values(), *self._ending.values()]
        return any(delivery.receiver is receiver for delivery in deliveries)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: a message is held since it was received."""

    def get(self, delivery_tag: str) -> Any:
        """Return the received message."""
        return self._held[delivery_tag].message

    def ack(self, delivery_tag: str) -> None:
        """Note that the queue is done with a message. The broker knows soon, but not before this returns."""
        with self._settling(delivery_tag) as delivery:
            if delivery is not None:
                delivery.done()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back to its queue, or make it a dead letter."""
        with self._settling(delivery_tag) as delivery:
            if delivery is None:
                return
            if requeue:
                self.given_back_at = time.monotonic()
                delivery.give_back(counts=True)
            else:
                delivery.reject()

    @contextmanager
    def _settling(self, tag: str) -> Iterator[Delivery | None]:
        """Yield a held message, which one thread alone settles; it counts as not settled until the block ends.

        Else the thread that settles the last one would close its receiver under those that are not through yet, and
        what they have acknowledged would be delivered again.
        """
        with self._lock:
            self._waiting.pop(tag, None)
            delivery = self._held.pop(tag, None)
            if delivery is not None:
                self._ending[tag] = delivery
        try:
            yield delivery
        finally:
            with self._lock:
                self._ending.pop(tag, None)

    def restore_unacked(self) -> list[Any]:
        """Give back all that is not settled."""
        self._return([*self._held])
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing: the end of a channel gives back what is not settled."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the broker does it."""
