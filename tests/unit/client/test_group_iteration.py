"""Turns: one message after the other, each handled when the next is requested, recorded only on demand."""

from __future__ import annotations

from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.serving import POLL_INTERVAL_S, FairServing, OrderedServing, Serving
from reput_client.received import ReceivedMessage
from support.pulls import add_pull, assigned

KINDS = pytest.mark.parametrize("kind", [FairServing, OrderedServing])


def clock() -> float:
    return 100.0


def take(serving: Serving) -> ReceivedMessage | None:
    """Ask for the next message like an iterating application."""
    iteration = serving.iteration
    message = next(iteration.messages, None)
    if message is not None:
        iteration.message = message
        return message
    finish(serving)
    taken = serving.take()
    if taken is None:
        return None
    serving.begin_iteration(taken)
    return taken[1]


def finish(serving: Serving) -> None:
    """The current message is handled."""
    before = serving.iteration.finish()
    if before is not None:
        before[0].handled(before[1])


@KINDS
def test_progress_is_right_whenever_it_is_looked_at(kind: type[Serving]) -> None:
    serving: Serving = kind(clock)  # type: ignore[call-arg]
    queue = assigned()
    add_pull(serving, queue, 0, 10)
    for offset in range(10):
        message = take(serving)
        assert message is not None
        assert message.queue_offset == offset
        if offset in (0, 1, 5, 9):
            assert (queue.progress.position, queue.progress.in_flight) == (offset, 1)
            assert queue.undelivered == 9 - offset
            assert queue.progress.delivered_to == offset + 1
            assert [*queue.progress.unhandled] == [message]
    assert take(serving) is None
    assert (queue.progress.position, queue.progress.in_flight, queue.undelivered_bytes) == (10, 0, 0)


@KINDS
def test_a_turn_lasts_a_moment_and_stays_in_one_queue(kind: type[Serving]) -> None:
    serving: Serving = kind(clock)  # type: ignore[call-arg]
    a, b = assigned(0), assigned(1)
    add_pull(serving, a, 0, 2)
    add_pull(serving, b, 7, 2)
    before = monotonic()
    got = [take(serving) for _ in range(4)]
    assert before < serving.iteration.until <= monotonic() + POLL_INTERVAL_S
    assert [(m.queue_id, m.queue_offset) for m in got if m] == [(0, 0), (0, 1), (1, 7), (1, 8)]
    assert (a.progress.position, b.progress.position) == (2, 8)


@KINDS
def test_dropped_messages_are_not_delivered_and_the_current_one_still_counts(kind: type[Serving]) -> None:
    serving: Serving = kind(clock)  # type: ignore[call-arg]
    a, b = assigned(0), assigned(1)
    add_pull(serving, a, 0, 5)
    take(serving)
    take(serving)
    add_pull(serving, b, 0, 1)
    serving.forget(a)
    assert (a.progress.position, a.progress.delivered_to, a.undelivered) == (1, 2, 0)
    message = take(serving)
    assert message is not None
    assert (message.queue_id, message.queue_offset) == (1, 0)
    assert a.progress.position == 2, "asking for the next said that it is handled"


def test_a_message_that_counts_no_more_is_not_handled_by_the_next_one() -> None:
    serving = FairServing(clock)
    queue = assigned()
    add_pull(serving, queue, 0, 5)
    for _ in range(3):
        take(serving)
    queue.progress.restart(queue.progress.position)  # redeliver from 2 on
    serving.forget(queue)
    queue.next_offset = 2
    add_pull(serving, queue, 2, 3)
    message = take(serving)
    assert message is not None
    assert (message.queue_offset, queue.progress.position) == (2, 2)


def test_a_message_may_be_repeated_outside_the_iteration() -> None:
    serving = FairServing(clock)
    queue = assigned()
    add_pull(serving, queue, 0, 4)
    take(serving)
    take(serving)
    taken = serving.iteration.finish()
    assert taken is not None
    serving.again(taken, 200.0)
    assert serving.will_come(taken[1])
    assert [m.queue_offset for m in (take(serving), take(serving)) if m] == [2, 3]
    assert take(serving) is None
    assert (queue.progress.position, queue.progress.in_flight) == (1, 1)


def test_other_ways_of_taking_end_a_turn() -> None:
    serving = FairServing(clock)
    queue = assigned()
    add_pull(serving, queue, 0, 5)
    take(serving)
    in_hand = take(serving)
    taken = serving.take()
    assert taken is not None
    assert taken[1].queue_offset == 2
    assert serving.iteration.message is in_hand
    assert (queue.progress.position, queue.progress.in_flight, queue.undelivered) == (1, 2, 2)
    queue.handled(taken[1])
    finish(serving)
    assert queue.progress.position == 3


def test_in_order_a_turn_ends_before_its_lock() -> None:
    serving = OrderedServing(clock)
    queue = assigned()
    queue.locked_until = 100.0 + POLL_INTERVAL_S / 2
    add_pull(serving, queue, 0, 2)
    take(serving)
    assert serving.iteration.until <= monotonic() + POLL_INTERVAL_S / 2


def test_where_failures_are_counted_there_is_no_turn() -> None:
    for serving in (FairServing(clock), OrderedServing(clock)):
        queue = assigned()
        add_pull(serving, queue, 0, 2)
        queue.failures[0] = 1
        take(serving)
        assert next(serving.iteration.messages, None) is None
        take(serving)
        assert queue.failures == {}


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 600), st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(st.sampled_from(["next", "next", "next", "look", "take", "finish"]), max_size=60),
    st.sampled_from([FairServing, OrderedServing]),
)
def test_turns_do_what_taking_does(pulls: list[tuple[int, int, int]], steps: list[str], kind: type[Serving]) -> None:
    """A message is current from its delivery until it is handled, and nothing is left out or repeated."""
    serving: Serving = kind(clock)  # type: ignore[call-arg]
    queues = [assigned(number) for number in range(3)]
    expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number, count, gap in pulls:
        queue = queues[number]
        start = queue.next_offset
        expected[number] += range(start, start + count)
        add_pull(serving, queue, start, count, gap=gap)
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}
    in_hand: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    current: ReceivedMessage | None = None

    def check(queue: AssignedQueue) -> None:
        number = queue.queue.queue_id
        assert {m.queue_offset for m in queue.progress.unhandled} == in_hand[number]
        assert queue.undelivered == len(expected[number]) - len(got[number])
        if in_hand[number]:
            assert queue.progress.position == min(in_hand[number])

    for step in [*steps, *["next"] * 5]:
        if step == "look":
            for queue in queues:
                check(queue)
            continue
        if step != "take" and current is not None:
            in_hand[current.queue_id].discard(current.queue_offset)
            current = None
        if step == "finish":
            finish(serving)
            continue
        if step == "next":
            message = current = take(serving)
        else:
            taken = serving.take()
            message = None if taken is None else taken[1]
        if message is not None:
            got[message.queue_id].append(message.queue_offset)
            in_hand[message.queue_id].add(message.queue_offset)
    for queue in queues:
        check(queue)
        assert got[queue.queue.queue_id] == expected[queue.queue.queue_id][: len(got[queue.queue.queue_id])]
