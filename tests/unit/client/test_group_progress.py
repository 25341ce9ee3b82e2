"""How far a queue is handled."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from reput_client.consume.group.assigned_queue import QueueProgress


@cache
def message(offset: int) -> str:
    """Return the one message of an offset, compared by identity."""
    return f"m{offset}"


def handed_out(*offsets: int, start: int = 0) -> QueueProgress[str]:
    progress: QueueProgress[str] = QueueProgress(start)
    for offset in offsets:
        progress.delivered(offset, message(offset))
    return progress


def test_the_position_waits_for_the_lowest_unhandled_message() -> None:
    progress = handed_out(5, 6, 9, start=5)
    progress.advance(12)
    assert progress.handled(6, message(6))
    assert progress.position == 5
    assert progress.handled(5, message(5))
    assert progress.position == 9, "6 to 8 were handled or not for us"
    assert progress.handled(9, message(9))
    assert progress.position == 12
    assert progress.in_flight == 0


def test_a_restart_may_go_back() -> None:
    progress = handed_out(5, start=5)
    progress.restart(2)
    assert progress.position == 2


def test_messages_delivered_before_a_restart_no_longer_count() -> None:
    first, second = "first", "".join(("fir", "st"))
    assert first is not second
    progress: QueueProgress[str] = QueueProgress(5)
    progress.delivered(5, first)
    progress.restart(5)
    progress.delivered(5, second)
    assert not progress.handled(5, first), "a handler of the time before the restart"
    assert progress.position == 5
    assert progress.handled(5, second)


def test_a_message_that_is_put_back_was_not_delivered() -> None:
    progress = handed_out(5, start=5)
    progress.put_back(5)
    assert (progress.position, progress.in_flight, progress.delivered_to) == (5, 0, 5)


def test_a_truncation_keeps_what_is_before_it() -> None:
    progress = handed_out(5, 6, 7, start=5)
    progress.truncate(6)
    assert (progress.position, progress.in_flight, progress.delivered_to) == (5, 1, 6)
    progress.handled(5, message(5))
    assert progress.position == 6
    progress = handed_out(5, 6, start=5)
    progress.truncate(3)
    assert (progress.position, progress.in_flight) == (3, 0)


@given(st.permutations(range(12)))
def test_handlers_finishing_in_any_order_pass_nothing_unhandled(order: list[int]) -> None:
    progress = handed_out(*range(12))
    unhandled = set(range(12))
    for offset in order:
        assert progress.handled(offset, message(offset))
        unhandled.discard(offset)
        assert progress.position == min(unhandled, default=12)
