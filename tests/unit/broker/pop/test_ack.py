"""Which messages in hand the broker remembers: those whose times were changed, and acknowledged ones."""

from __future__ import annotations

from reput_broker.pop.ack import Acknowledged, ChangedTimes, InHand
from reput_broker.pop.checkpoints import CheckPointKey

START_MS = 1_700_000_000_000


def popped(offset: int, *, pop_ms: int = START_MS, invisible_ms: int = 60_000) -> InHand:
    """Return one of the messages of the pop that began at offset 100."""
    key = CheckPointKey("orders", "billing", 0, 100, pop_ms, "broker-a")
    return InHand(key, offset, pop_ms + invisible_ms)


def test_messages_of_a_check_point_share_entries() -> None:
    acknowledged = Acknowledged(lambda: START_MS)
    for offset in (100, 101, 127, 128, 1 << 40):
        acknowledged.add(popped(offset))
        acknowledged.add(popped(offset))
    assert len(acknowledged) == 3
    assert [offset for offset in (100, 101, 102, 127, 128, 129, 1 << 40) if popped(offset) in acknowledged] == [
        100, 101, 127, 128, 1 << 40
    ]  # fmt: skip
    assert popped(100, pop_ms=START_MS + 1) not in acknowledged


def test_they_are_forgotten_half_a_minute_after_their_time() -> None:
    now_ms = START_MS
    acknowledged = Acknowledged(lambda: now_ms)
    acknowledged.add(popped(100))
    for passed_ms, is_known in ((89_000, True), (92_000, False)):
        now_ms = START_MS + passed_ms
        acknowledged.add(popped(100, pop_ms=now_ms))
        assert (popped(100) in acknowledged) == is_known


def test_beyond_the_limit_those_that_end_first_are_forgotten() -> None:
    acknowledged = Acknowledged(lambda: START_MS, entries_max=2)
    some = [popped(100, pop_ms=START_MS + ms, invisible_ms=60_000) for ms in (5_000, 0, 9_000)]
    for one in some:
        acknowledged.add(one)
    assert [one in acknowledged for one in some] == [True, False, True]
    assert len(acknowledged) == 2


def test_the_first_handle_of_a_message_is_known_for_as_long_as_its_time_is_changed() -> None:
    """A consumer that had it for 90 s acknowledged it through another proxy without effect, and got it again."""
    now_ms = START_MS
    changed = ChangedTimes(lambda: now_ms)
    latest = first = popped(100)
    for _ in range(20):
        now_ms += 40_000
        before, latest = latest, popped(100, pop_ms=now_ms)
        changed.replaced(before, latest)
        assert changed.latest(first) == changed.latest(before) == latest
    assert len(changed._later) <= 4, "a renewal in between is known half a minute longer than it counted"
    now_ms += 100_000
    changed.replaced(popped(200, pop_ms=now_ms), popped(200, pop_ms=now_ms + 1))
    assert changed.latest(first) == first
    assert len(changed._later) == len(changed._first) == 1


def test_of_two_changes_at_a_time_the_later_one_counts() -> None:
    now_ms = START_MS
    changed = ChangedTimes(lambda: now_ms)
    first, second, third, fourth = (popped(100, pop_ms=START_MS + n) for n in range(4))
    changed.replaced(first, second)
    changed.replaced(second, third)
    changed.replaced(second, fourth)
    assert changed.latest(first) == changed.latest(second) == fourth
    for _ in range(3):
        now_ms += 100_000
        changed.replaced(popped(200, pop_ms=now_ms), popped(200, pop_ms=now_ms + 1))
    assert changed.latest(first) == first
    assert len(changed._later) == len(changed._first) == 1


def test_a_change_that_is_repeated_with_the_first_handle_is_of_the_last_check_point() -> None:
    changed = ChangedTimes(lambda: START_MS)
    first, second, third = (popped(100, pop_ms=START_MS + n) for n in range(3))
    changed.replaced(first, second)
    changed.replaced(changed.latest(first), third)
    assert [changed.latest(each) for each in (first, second, third)] == [third, third, third]
    assert changed.latest(popped(101)) == popped(101)
