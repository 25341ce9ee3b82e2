"""Delivering pulled messages: fairly, or in order. Pulls are made of records, without a broker."""

from __future__ import annotations

import pytest

from reput_client.consume.group.assigned_queue import Taken
from reput_client.consume.group.serving import FairServing, OrderedServing, RetriedMessage
from reput_protocol.record.message import MessageQueue
from support.pulls import add_pull, assigned
from support.waiting import FakeSeconds


@pytest.fixture
def clock() -> FakeSeconds:
    return FakeSeconds(100.0)


def place(taken: Taken | None) -> tuple[int, int] | None:
    return None if taken is None else (taken[1].queue_id, taken[1].queue_offset)


def handled(taken: Taken | None) -> None:
    assert taken is not None
    taken[0].handled(taken[1])


def test_fairly_pulls_are_served_whole_in_the_order_of_their_arrival(clock: FakeSeconds) -> None:
    serving = FairServing(clock)
    a, b = assigned(0), assigned(1)
    add_pull(serving, a, 0, 2)
    add_pull(serving, b, 5, 1)
    add_pull(serving, a, 2, 1)
    assert [place(serving.take()) for _ in range(5)] == [(0, 0), (0, 1), (1, 5), (0, 2), None]
    assert (a.undelivered, a.undelivered_bytes, a.waiting_results, a.progress.position) == (0, 0, 0, 0)


def test_fairly_a_message_to_repeat_keeps_its_place_in_the_progress(clock: FakeSeconds) -> None:
    serving = FairServing(clock)
    a = assigned()
    add_pull(serving, a, 0, 3)
    first = serving.take()
    assert first is not None
    serving.again(first, 105.0)
    handled(serving.take())
    handled(serving.take())
    assert serving.take() is None
    assert (serving.next_wake(), a.progress.position) == (105.0, 0)
    clock.now = 105.0
    again = serving.take()
    assert again == first
    handled(again)
    assert a.progress.position == 3


def test_dropped_messages_of_a_queue_are_not_delivered(clock: FakeSeconds) -> None:
    for serving in (FairServing(clock), OrderedServing(clock)):
        a, b = assigned(0), assigned(1)
        add_pull(serving, a, 0, 2)
        add_pull(serving, b, 0, 1)
        add_pull(serving, a, 2, 2)
        assert place(serving.take()) == (0, 0)
        serving.forget(a)
        assert place(serving.take()) == (1, 0)
        assert serving.take() is None
        assert (a.undelivered, a.undelivered_bytes, a.waiting_results) == (0, 0, 0)
        assert a.progress.position == 0, "what is in flight is still in flight"


def test_in_order_queues_take_turns_and_wait_for_what_is_in_flight(clock: FakeSeconds) -> None:
    serving = OrderedServing(clock)
    a, b = assigned(0), assigned(1)
    add_pull(serving, a, 0, 2)
    add_pull(serving, b, 0, 2)
    first, second = serving.take(), serving.take()
    assert [place(first), place(second), serving.take()] == [(0, 0), (1, 0), None]
    handled(second)
    assert place(serving.take()) == (1, 1)
    assert serving.take() is None
    handled(first)
    assert place(serving.take()) == (0, 1)


def test_in_order_a_message_to_repeat_suspends_its_queue(clock: FakeSeconds) -> None:
    serving = OrderedServing(clock)
    a, b = assigned(0), assigned(1)
    add_pull(serving, a, 0, 2)
    add_pull(serving, b, 0, 1)
    failed = serving.take()
    assert failed is not None
    serving.again(failed, 101.0)
    assert (a.progress.position, a.progress.in_flight) == (0, 0)
    assert a.undelivered == 2, "an answer without messages must not take progress past it"
    assert place(serving.take()) == (1, 0)
    assert serving.take() is None
    assert serving.next_wake() == 101.0
    clock.now = 101.0
    assert serving.take() == failed
    handled(failed)
    assert place(serving.take()) == (0, 1)
    assert a.undelivered == 0


def test_in_order_nothing_is_served_without_a_lock(clock: FakeSeconds) -> None:
    serving = OrderedServing(clock)
    a = assigned()
    a.locked_until = 102.0
    add_pull(serving, a, 0, 2)
    handled(serving.take())
    clock.now = 102.0
    assert serving.take() is None
    a.locked_until = 130.0
    assert place(serving.take()) == (0, 1)


def test_a_redelivered_message_shows_its_original_topic(clock: FakeSeconds) -> None:
    for serving in (FairServing(clock), OrderedServing(clock)):
        retries = assigned(3, "%RETRY%g", retry=True)
        add_pull(serving, retries, 0, 1, RETRY_TOPIC="orders")
        taken = serving.take()
        assert taken is not None
        message = taken[1]
        assert isinstance(message, RetriedMessage)
        assert (message.topic, message.queue) == ("orders", MessageQueue("%RETRY%g", "b", 3))
        assert message.body == b"0"
        handled(taken)
        assert retries.progress.position == 1
