"""The queue of a message: given, by ordering key, by priority, or round robin past brokers that are left out."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Container
from copy import copy
from typing import Final, TypeAlias

from reput_client.errors import NoQueue
from reput_client.transport.routing import Route
from reput_protocol.errors import InvalidMessage
from reput_protocol.kernel.tables import java_hash
from reput_protocol.properties import SHARDING_KEY, check_text
from reput_protocol.record.delays import Delay
from reput_protocol.record.message import Message, MessageQueue

_I32_MIN = -0x8000_0000
_LATENCIES_S: Final = (0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0)
_LEFT_OUT_S: Final = (0.0, 0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0)
"""How long a broker is left out by the latency of an answer: RocketMQ's table."""
_AWAY_FIRST_S: Final = 0.5
_AWAY_MAX_S: Final = 10.0
_PROBE_S: Final = 1.0


class AnyBroker(int):
    """The number of a queue, of any broker that has the topic; the broker's last queue if it has fewer.

    It is accepted as the argument `queue_id` of sends.
    """


FreeChoice: TypeAlias = AnyBroker | None
"""A queue of any broker will do; None: the next one, or another if that is refused."""
QueueChoice: TypeAlias = int | str | MessageQueue | FreeChoice
"""The number of a queue, an ordering key, or the queue itself; or a free choice."""


def choice_of(queue_id: int | None, ordering_key: str | None, delay: Delay | None = None) -> QueueChoice:
    """Return what the arguments of a send choose: the number comes before the key.

    `delay`: of the message. A priority comes before the number, as in the broker, and a key before the priority.

    Raises `InvalidMessage`: the number is none; as a text it would be taken for a key.
    """
    if delay is not None and delay.is_priority and ordering_key is None:
        return AnyBroker(delay.value)
    if queue_id is None:
        return ordering_key
    if not isinstance(queue_id, int):
        raise InvalidMessage(f"queue_id must be int, not {type(queue_id).__name__}")
    return queue_id


def queue_by_key(route: Route, ordering_key: str) -> MessageQueue:
    """Return the queue of `ordering_key`, by RocketMQ's rule (SelectMessageQueueByHash).

    It is always the same while the number of queues does not change.
    """
    queues = route.writable
    if not queues:
        raise NoQueue(route.topic, "writable queue")
    value = java_hash(ordering_key)
    return queues[0 if value == _I32_MIN else abs(value) % len(queues)]


def queue_by_id(route: Route, queue_id: int) -> MessageQueue:
    """Return queue `queue_id`, of the first broker if several have one, or raise `InvalidMessage`."""
    for queue in route.writable:
        if queue.queue_id == queue_id:
            return queue
    if not route.writable:
        raise NoQueue(route.topic, "writable queue")
    last = max(queue.queue_id for queue in route.writable)
    raise InvalidMessage(f"topic {route.topic!r} has no writable queue {queue_id}; it has 0 to {last}")


def ordered(message: Message, ordering_key: str | None) -> Message:
    """Return the message with its ordering key as a property (RocketMQ: __SHARDINGKEY), for consumers and replays.

    Raises `InvalidMessage`: the key cannot be sent.
    """
    if ordering_key is None:
        return message
    check_text("ordering_key", ordering_key)
    message = copy(message)
    message.properties = {**message.properties, SHARDING_KEY: ordering_key}
    return message


def named_queue(route: Route, choice: int | str | MessageQueue) -> MessageQueue:
    """Return the chosen queue; raises `InvalidMessage` or `NoQueue`."""
    if isinstance(choice, int):
        return queue_by_id(route, choice)
    return queue_by_key(route, choice) if isinstance(choice, str) else choice


class RoundRobin:
    """Round robin over each topic's queues, from a random first one, so that producers spread."""

    def __init__(self, first: Callable[[], int] = lambda: random.randrange(1 << 16)) -> None:
        self._first = first
        self._next: dict[str, int] = {}

    def choose(self, route: Route, choice: QueueChoice = None, left_out: Container[str] = ()) -> MessageQueue:
        """Return the chosen queue; if any broker will do, the next writable one, past the brokers in `left_out`.

        Raises `InvalidMessage` or `NoQueue`.
        """
        if not isinstance(choice, FreeChoice):
            return named_queue(route, choice)
        queues = route.writable
        if not queues:
            raise NoQueue(route.topic, "writable queue")
        number = self._next.get(route.topic)
        if number is None:
            number = self._first()
        for skipped in range(len(queues)) if left_out else ():
            if queues[(number + skipped) % len(queues)].broker_name not in left_out:
                number += skipped
                break
        self._next[route.topic] = number + 1
        queue = queues[number % len(queues)]
        return queue if choice is None else _numbered(route, choice, queue.broker_name)


def _numbered(route: Route, number: int, broker_name: str) -> MessageQueue:
    """Return a broker's writable queue of this number, or the last one before it, or its first one."""
    queues = [queue for queue in route.writable if queue.broker_name == broker_name]
    before = [queue for queue in queues if queue.queue_id <= number]
    return max(before or queues[:1], key=lambda queue: queue.queue_id)


class FaultIsolation:
    """The brokers that do not answer, or answer slowly, by name (RocketMQ: MQFaultStrategy, LatencyFaultToleranceImpl).

    Only sends whose queue the producer chooses leave brokers out, and only while another broker is left. A broker that
    did not take a message is left out for half a second, each time in a row for twice as long, up to 10 s. After that
    one send tries it, and the others leave it out for another second.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._tried: set[str] = set()
        """Brokers that one send tries at the moment."""

    def failed(self, broker_name: str) -> None:
        """Note that a broker could not be reached, or does not take messages now."""
        now = self._now()
        if broker_name not in self._tried and now < self._until.get(broker_name, now):
            return  # this message was sent before an earlier one failed
        self._tried.discard(broker_name)
        failures = self._failures.get(broker_name, 0)
        self._failures[broker_name] = failures + 1
        self._until[broker_name] = now + min(_AWAY_MAX_S, _AWAY_FIRST_S * 2.0 ** min(failures, 10))

    def answered(self, broker_name: str, latency_s: float = 0.0) -> None:
        """Note that a broker has stored a message, `latency_s` after it was sent."""
        left_out_s = _LEFT_OUT_S[bisect_right(_LATENCIES_S, latency_s)]
        if left_out_s:
            self._until[broker_name] = self._now() + left_out_s
        elif self._until:
            self._until.pop(broker_name, None)
            self._failures.pop(broker_name, None)
            self._tried.discard(broker_name)

    def is_left_out(self, broker_name: str) -> bool:
        """Whether to send elsewhere."""
        return bool(self._until) and self._now() < self._until.get(broker_name, 0.0)

    def chosen(self, broker_name: str) -> None:
        """Note that a message goes to a broker. If it was left out, that tries it, and others wait for the outcome."""
        if broker_name in self._until:
            self._until[broker_name] = self._now() + _PROBE_S
            self._tried.add(broker_name)
