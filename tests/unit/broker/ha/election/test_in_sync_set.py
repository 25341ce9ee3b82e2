"""When members join and leave the in-sync set."""

from __future__ import annotations

from reput_broker.ha.election.in_sync_set import InSyncSet


def make(*others: int, start: int = 100, gap_max: int = 1000) -> InSyncSet:
    return InSyncSet(1, {1, *others}, start=start, timeout_s=10.0, gap_max=gap_max, now=0.0)


def settle(group: InSyncSet, now: float) -> frozenset[int] | None:
    change = group.next_change(now)
    if change is not None:
        group.settled(change)
    return change


def test_alone_everything_flushed_is_confirmed() -> None:
    group = make()
    group.own(150, 120)
    assert group.confirm == 120
    assert group.next_change(100.0) is None


def test_a_silent_member_is_waited_for_until_the_engine_has_removed_it() -> None:
    group = make(2)
    group.acknowledged(2, 100, 5.0)
    group.own(130, 130)
    assert group.next_change(15.0) is None
    assert group.next_change(15.1) == frozenset({1})
    assert group.confirm == 100, "the engine may still have the member in the set"
    group.settled(frozenset({1}))
    assert group.confirm == 130


def test_a_refused_change_keeps_the_set() -> None:
    group = make(2)
    group.next_change(11.0)
    group.settled(frozenset({1, 2}))
    assert group.recorded == {1, 2}
    assert group.proposed is None


def test_a_disconnected_member_leaves_after_a_tenth_of_the_timeout_unless_it_returns() -> None:
    group = make(2)
    group.disconnected(2, 3.0)
    assert group.next_change(4.0) is None
    group.acknowledged(2, 100, 4.0)
    assert group.next_change(6.0) is None
    group.disconnected(2, 6.0)
    assert group.next_change(7.1) == frozenset({1})


def test_a_member_that_reports_but_does_not_advance_leaves() -> None:
    group = make(2)
    group.own(200, 200)
    for second in range(11):
        group.acknowledged(2, 150, float(second))
        assert group.next_change(float(second)) is None
    group.acknowledged(2, 150, 11.0)
    assert group.next_change(11.0) == frozenset({1})


def test_a_member_that_is_always_a_little_behind_stays() -> None:
    group = make(2)
    for second in range(100):
        group.own(100 + 50 * (second + 1), 100 + 50 * (second + 1))
        group.acknowledged(2, 100 + 50 * second, float(second))
        assert settle(group, float(second)) is None
    assert group.confirm == 100 + 50 * 99


def test_a_member_behind_the_gap_leaves_at_once() -> None:
    group = make(2, gap_max=50)
    group.own(151, 151)
    assert group.next_change(0.1) == frozenset({1})


def test_a_member_that_lost_confirmed_bytes_leaves_at_once() -> None:
    group = make(2)
    group.own(200, 200)
    group.acknowledged(2, 200, 1.0)
    assert group.confirm == 200
    group.acknowledged(2, 180, 2.0)
    assert settle(group, 2.0) == frozenset({1})
    assert group.confirm == 200


def test_a_member_joins_under_constant_load() -> None:
    """It never has the end, so the confirm offset waits for it, once it is close."""
    group = make()
    end, has = 1000, 100
    changes = []
    for step in range(200):
        now = step * 0.05
        end += 10
        group.own(end, end)
        has = min(end - 10, has + 40)
        group.acknowledged(2, has, now)
        change = group.next_change(now)
        if change is not None:
            assert has >= group.confirm
            group.settled(change)
            changes.append(change)
    assert changes == [{1, 2}]
    assert group.confirm == end - 10


def test_a_member_far_behind_does_not_hold_up_the_confirm_offset() -> None:
    group = make(gap_max=1 << 30)
    for step in range(100):
        group.own(1000 * step + 1100, 1000 * step + 1100)
        group.acknowledged(2, 100 + step, float(step))
        assert group.next_change(float(step)) is None
        assert group.confirm == 1000 * step + 1100


def test_a_member_whose_log_is_shorter_than_the_start_does_not_join() -> None:
    group = make(start=100)
    group.acknowledged(2, 99, 0.0)
    assert group.next_change(0.0) is None


def test_members_that_have_everything() -> None:
    group = make(2, 3)
    group.own(200, 200)
    group.acknowledged(2, 200, 1.0)
    group.acknowledged(3, 199, 1.0)
    assert group.caught_up(200) == {1, 2}
    assert group.offset_of(3) == 199
    assert group.offset_of(4) is None
