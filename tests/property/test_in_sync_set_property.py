"""The in-sync set: whatever is reported, lost, late or refused, a recorded member has all that is confirmed."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reput_broker.ha.election.in_sync_set import InSyncSet

ME, OTHERS = 1, (2, 3, 4)
MEMBERS = st.sampled_from(OTHERS)
TIMEOUT_S = 10.0


class Group(RuleBasedStateMachine):
    """A master, three followers with logs of their own, and an engine whose answers may not arrive."""

    @initialize(
        start=st.integers(0, 50),
        members=st.sets(MEMBERS),
        more=st.tuples(*[st.integers(0, 20) for _ in OTHERS]),
        is_failover=st.booleans(),
        gone=st.none() | MEMBERS,
    )
    def begin(self, start: int, members: set[int], more: tuple[int, ...], is_failover: bool, gone: int | None) -> None:
        self.now = 0.0
        self.end = self.flushed = start
        self.engine = frozenset({ME, *members})
        self.logs = {
            m: start if m in members and not is_failover else max(0, start - n)
            for m, n in zip(OTHERS, more, strict=True)
        }
        self.set = InSyncSet(
            ME,
            self.engine,
            start=start,
            confirmed=min([start, *(self.logs[m] for m in members)]) if is_failover else None,
            gone=gone,
            timeout_s=TIMEOUT_S,
            gap_max=60,
            now=self.now,
        )
        self.confirmed = self.set.confirm

    @rule(size=st.integers(1, 40))
    def append(self, size: int) -> None:
        self.end += size
        self.set.own(self.end, self.flushed)

    @rule()
    def flush(self) -> None:
        self.flushed = self.end
        self.set.own(self.end, self.flushed)

    @rule(member=MEMBERS, size=st.integers(0, 60), is_reported=st.booleans())
    def copy(self, member: int, size: int, is_reported: bool) -> None:
        self.logs[member] = min(self.end, self.logs[member] + size)
        if is_reported:
            self.set.acknowledged(member, self.logs[member], self.now)

    @rule(member=MEMBERS)
    def hang_up(self, member: int) -> None:
        self.set.disconnected(member, self.now)

    @rule(seconds=st.floats(0.0, 2 * TIMEOUT_S))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(is_made=st.booleans(), is_answered=st.booleans())
    def change(self, is_made: bool, is_answered: bool) -> None:
        wanted = self.set.next_change(self.now)
        if wanted is None:
            return
        if is_made:
            self.engine = wanted
        if is_answered:
            self.set.settled(self.engine)

    @precondition(lambda self: self.set.proposed is None)
    @rule()
    def everything_arrives(self) -> None:
        """With all connected and nothing under way, everything is confirmed, and all are in the set."""
        self.flush()
        for _ in range(3):
            for member in OTHERS:
                self.copy(member, self.end, is_reported=True)
            self.change(is_made=True, is_answered=True)
        assert self.set.recorded == {ME, *OTHERS}
        assert self.set.confirm == self.end

    @invariant()
    def recorded_members_have_what_is_confirmed(self) -> None:
        assert self.set.confirm <= self.flushed
        assert self.confirmed <= self.set.confirm
        self.confirmed = self.set.confirm
        for member in self.engine - {ME}:
            assert self.logs[member] >= self.confirmed, member


Group.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestInSyncSet = Group.TestCase
