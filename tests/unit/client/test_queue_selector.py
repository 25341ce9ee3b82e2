"""The queue of a message."""

from __future__ import annotations

from typing import Any

import pytest

from reput_client.errors import NoQueue
from reput_client.produce.queue_selector import AnyBroker, RoundRobin, choice_of, queue_by_id, queue_by_key
from reput_client.transport.routing import Route
from reput_protocol.errors import InvalidMessage
from reput_protocol.kernel.tables import java_hash
from reput_protocol.record.message import MessageQueue

QUEUES = tuple(MessageQueue("t", "b", number) for number in range(3))
ROUTE = Route("t", QUEUES, QUEUES, ("b",))
EMPTY = Route("t", (), (), ())


def test_round_robin_visits_every_queue_of_every_topic() -> None:
    selector = RoundRobin(first=lambda: 1)
    assert [selector.choose(ROUTE).queue_id for _ in range(4)] == [1, 2, 0, 1]
    other = Route("u", QUEUES[:2], (), ("b",))
    assert [selector.choose(other).queue_id for _ in range(2)] == [1, 0]
    assert selector.choose(ROUTE).queue_id == 2


def test_a_key_has_one_queue_and_it_is_rocketmqs_choice() -> None:
    assert queue_by_key(ROUTE, "order-1").queue_id == abs(java_hash("order-1")) % 3
    # Java's Math.abs leaves one value negative; it must still name a queue.
    assert java_hash("polygenelubricants") == -0x8000_0000
    assert queue_by_key(ROUTE, "polygenelubricants").queue_id == 0


def test_a_given_queue_must_exist() -> None:
    assert queue_by_id(ROUTE, 2).queue_id == 2
    with pytest.raises(InvalidMessage, match="it has 0 to 2"):
        queue_by_id(ROUTE, 3)


def test_a_number_of_any_broker_visits_the_brokers() -> None:
    queues = (*QUEUES, MessageQueue("t", "c", 0), MessageQueue("t", "c", 1))
    route = Route("t", queues, queues, ("b", "c"))
    selector = RoundRobin(first=lambda: 2)
    chosen = [selector.choose(route, AnyBroker(2)) for _ in range(3)]
    assert chosen == [QUEUES[2], queues[4], queues[4]]  # the second broker has no third queue
    assert selector.choose(route, AnyBroker(0), left_out={"c"}) == QUEUES[0]
    with pytest.raises(NoQueue):
        selector.choose(EMPTY, AnyBroker(0))


def test_a_topic_without_writable_queues_takes_nothing() -> None:
    for choose in (RoundRobin().choose, lambda route: queue_by_id(route, 0), lambda route: queue_by_key(route, "k")):
        with pytest.raises(NoQueue, match="no writable queue"):
            choose(EMPTY)


@pytest.mark.parametrize("queue_id", ["1", 1.0])
def test_a_queue_is_named_by_a_number(queue_id: Any) -> None:
    """As a text it would be an ordering key, which has another queue."""
    with pytest.raises(InvalidMessage, match="queue_id must be int"):
        choice_of(queue_id, None)
