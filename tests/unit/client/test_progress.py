"""How far a queue is handled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reput_client.progress import QueueProgress


def test_the_position_waits_for_the_lowest_unhandled_message() -> None:
    progress = QueueProgress(5)
    assert progress.position == 5
    for offset in (5, 6, 9):
        progress.hand_out(offset)
    progress.advance(12)
    progress.handled(6)
    assert progress.position == 5
    progress.handled(5)
    assert progress.position == 9, "6 to 8 were handled or not for us"
    progress.handled(9)
    assert progress.position == 12
    assert progress.in_flight == 0


def test_a_restart_may_go_back() -> None:
    progress = QueueProgress(5)
    progress.hand_out(5)
    progress.restart(2)
    assert progress.position == 2


@given(st.permutations(range(12)))
def test_in_whatever_order_handlers_finish_nothing_unhandled_is_passed(order: list[int]) -> None:
    progress = QueueProgress(0)
    for offset in range(12):
        progress.hand_out(offset)
    unhandled = set(range(12))
    for offset in order:
        progress.handled(offset)
        unhandled.discard(offset)
        assert progress.position == min(unhandled, default=12)
