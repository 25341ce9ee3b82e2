"""Locks on queues: owned, renewed, expired, given back; and against a model of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.queue_locks import QueueLock, QueueLocks
from reput_broker.remoting.request import Refusal
from reput_protocol.errors import ErrorCode
from support.waiting import FakeSeconds

Q0, Q1, Q2 = ("T", 0), ("T", 1), ("U", 0)


@pytest.fixture
def clock() -> FakeSeconds:
    return FakeSeconds()


@pytest.fixture
def locks(clock: FakeSeconds) -> QueueLocks:
    return QueueLocks(GroupsConfig(), clock)


def test_a_queue_has_one_owner_in_a_group(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0, Q1, Q2]) == [Q2]
    assert locks.lock("g", "a", [Q0]) == [Q0], "to its owner it is given again"
    assert locks.lock("h", "b", [Q0]) == [Q0], "groups do not know each other"
    assert (locks.owner("g", Q0), locks.owner("g", Q2), locks.owner("h", Q1)) == ("a", "b", None)


def test_a_lock_that_is_not_renewed_expires(locks: QueueLocks, clock: FakeSeconds) -> None:
    locks.lock("g", "a", [Q0, Q1])
    clock.now += 59.9
    assert locks.lock("g", "a", [Q1]) == [Q1]
    assert locks.lock("g", "b", [Q0]) == []
    clock.now += 0.1
    assert locks.owner("g", Q0) is None
    assert locks.has_locks("g")
    assert locks.lock("g", "b", [Q0, Q1]) == [Q0]
    clock.now += 60.0
    assert not locks.has_locks("g")
    assert len(locks) == 2
    locks.expire()
    assert len(locks) == 0


def test_only_the_owner_gives_a_lock_back(locks: QueueLocks) -> None:
    locks.lock("g", "a", [Q0, Q1, Q2])
    locks.unlock("g", "b", [Q0])
    assert locks.owner("g", Q0) == "a"
    locks.unlock("g", "a", [Q0, ("no", 7)])
    assert locks.lock("g", "b", [Q0, Q1]) == [Q0]
    assert locks.unlock_all("g", "a") == 2
    assert locks.unlock_all("g", "a") == 0
    assert locks.lock("g", "b", [Q1, Q2]) == [Q1, Q2]
    locks.unlock("h", "a", [Q0])


def test_deleting_a_topic_or_group_removes_its_locks(locks: QueueLocks) -> None:
    locks.lock("g", "a", [Q0, Q2])
    locks.lock("h", "a", [Q0])
    locks.forget_topic("T")
    assert len(locks) == 1
    locks.forget_group("g")
    locks.forget_group("g")
    assert len(locks) == 0


class Model(RuleBasedStateMachine):
    """At any time a queue has at most one owner, which keeps the lock until it expires."""

    members = st.sampled_from(["a", "b", "c"])
    queues = st.lists(st.sampled_from([Q0, Q1, Q2]), unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeSeconds()
        self.locks = QueueLocks(GroupsConfig(), self.clock)
        self.model: dict[tuple[str, int], tuple[str, float]] = {}

    def owner(self, queue: tuple[str, int]) -> str | None:
        member, until = self.model.get(queue, ("", 0.0))
        return member if until > self.clock.now else None

    @rule(member=members, queues=queues)
    def lock(self, member: str, queues: list[tuple[str, int]]) -> None:
        expected = [queue for queue in queues if self.owner(queue) in (None, member)]
        assert self.locks.lock("g", member, queues) == expected
        self.model |= dict.fromkeys(expected, (member, self.clock.now + 60.0))

    @rule(member=members, queues=queues)
    def unlock(self, member: str, queues: list[tuple[str, int]]) -> None:
        self.locks.unlock("g", member, queues)
        for queue in queues:
            if self.model.get(queue, ("", 0.0))[0] == member:
                del self.model[queue]

    @rule(seconds=st.sampled_from([1.0, 30.0, 59.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def housekeeping(self) -> None:
        self.locks.expire()

    @invariant()
    def agree(self) -> None:
        for queue in (Q0, Q1, Q2):
            assert self.locks.owner("g", queue) == self.owner(queue)
        assert len(self.locks) == sum(len(locks) for locks in self.locks._locks.values())
        assert self.locks.has_locks("g") == any(self.owner(queue) for queue in (Q0, Q1, Q2))


TestModel = Model.TestCase


def test_locks_are_bounded_and_those_that_are_held_can_be_renewed(clock: FakeSeconds) -> None:
    locks = QueueLocks(GroupsConfig(locks_max=2), clock)
    assert locks.lock("g", "a", [Q0, Q1, Q2]) == [Q0, Q1]
    with pytest.raises(Refusal, match=r"groups\.locks_max") as refused:
        locks.lock("h", "b", [Q2])
    assert refused.value.error is ErrorCode.BUSY
    assert locks.lock("g", "a", [Q0, Q1, Q2]) == [Q0, Q1]
    locks.unlock("g", "a", [Q0])
    assert locks.lock("h", "b", [Q2]) == [Q2]


def test_a_lock_is_given_without_counting_those_of_all_groups(clock: FakeSeconds) -> None:
    walks: list[str] = []

    class Watched(dict[str, dict[tuple[str, int], QueueLock]]):
        def values(self) -> Any:
            walks.append("all groups")
            return super().values()

    locks = QueueLocks(GroupsConfig(), clock)
    locks._locks = Watched()
    for number in range(10):
        locks.lock(f"g{number}", "a", [Q0, Q1, Q0])
    assert walks == []
    assert len(locks) == 20
    locks.unlock("g0", "a", [Q0, Q0, Q2])
    locks.forget_group("g1")
    locks.forget_topic("U")
    assert len(locks) == 17
    clock.now += 1000
    locks.expire()
    assert len(locks) == 0
