"""Queues of an ordered group move between members: never while one of their messages is being handled."""

from __future__ import annotations

import pytest

from reput_client.consume.group.assigned_queue import Taken
from reput_client.consume.group.member import MemberParts
from reput_client.consume.group.rebalance import Assignment
from reput_protocol.record.message import MessageQueue
from support.group_parts import LockTable, ScriptedSession, SharedOffsets, done, member_of
from support.pulls import add_pull
from support.waiting import FakeSeconds

QUEUE = MessageQueue("t", "b", 0)


class Pair:
    """Two orderly members of one group; `turn` runs their chores."""

    def __init__(self) -> None:
        self.clock = FakeSeconds()
        self.locks = LockTable(self.clock)
        self.offsets = SharedOffsets()
        self.old, self.new = self._member("old"), self._member("new")

    def _member(self, client_id: str) -> MemberParts:
        session = ScriptedSession(self.clock)
        self.locks.answer(session)
        member = member_of(session, client_id, self.offsets, orderly=True)
        assert member._handover.locks is not None
        member._handover.locks.begin()
        return member

    def turn(self, *members: MemberParts) -> None:
        """Run the due work of these members, or of both."""
        for member in members or (self.old, self.new):
            assert member._handover.locks is not None
            for chore in (member._handover, member._handover.locks):
                if chore.next_due() <= self.clock.now:
                    done(chore.do())

    def pass_s(self, seconds: float, *members: MemberParts) -> None:
        """Advance the clock in small steps."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 0.5
            self.turn(*members)

    @property
    def owner(self) -> str | None:
        return self.locks.owner("g", QUEUE)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def in_hand(pair: Pair) -> Taken:
    """The old member handles the queue's first message when the new one is assigned the queue."""
    pair.old._handover.follow(Assignment({QUEUE}))
    pair.turn()
    add_pull(pair.old.serving, pair.old.fetcher.queues[QUEUE], 0, 3)
    taken = pair.old.serving.take()
    assert taken is not None
    pair.old._handover.follow(Assignment())
    pair.new._handover.follow(Assignment({QUEUE}, {QUEUE}))
    return taken


def test_a_queue_stays_while_a_message_of_it_is_handled_however_long_that_takes(pair: Pair) -> None:
    taken = in_hand(pair)
    pair.pass_s(300.0)
    assert (pair.owner, QUEUE in pair.new.fetcher.queues) == ("old", False)
    pair.old.handled(taken)
    pair.pass_s(1.0)
    assert (pair.owner, QUEUE in pair.old._handover.leaving) == ("new", False)
    assert pair.new.fetcher.queues[QUEUE].progress.position == 1, "it goes on behind that message"


def test_a_queue_goes_when_its_message_will_not_be_finished(pair: Pair) -> None:
    in_hand(pair)
    pair.pass_s(1.0)
    pair.old.rewind()  # as at the end of `run`
    pair.pass_s(1.0)
    assert pair.owner == "new"
    assert pair.new.fetcher.queues[QUEUE].progress.position == 0, "the message comes again there"


def test_a_queue_that_returns_before_it_has_left_continues_after_the_message_in_work(pair: Pair) -> None:
    taken = in_hand(pair)
    pair.pass_s(90.0)
    pair.new._handover.follow(Assignment())
    pair.old._handover.follow(Assignment({QUEUE}))
    pair.pass_s(1.0)
    back = pair.old.fetcher.queues[QUEUE]
    assert (back is taken[0], back.is_active, pair.owner) == (True, True, "old")
    pair.old.handled(taken)
    assert (back.progress.position, back.next_offset) == (1, 1)


def test_a_queue_whose_lock_the_broker_gave_away_is_waited_for_no_more(pair: Pair) -> None:
    in_hand(pair)
    pair.pass_s(61.0, pair.new)  # the old member stands still until its lock expires
    assert pair.owner == "new"
    pair.turn(pair.old)
    pair.turn(pair.old)
    assert not pair.old._handover.leaving
    assert pair.owner == "new"


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_attempts_are_counted_again_after_the_queue_was_reset(offset: int) -> None:
    member = member_of(ScriptedSession(FakeSeconds()), "c", SharedOffsets())
    member._handover.follow(Assignment({QUEUE}))
    done(member._handover.do())
    queue = member.fetcher.queues[QUEUE]
    add_pull(member.serving, queue, 0, 3)
    for _ in range(3):
        assert member.serving.take() is not None
    queue.failures.update({0: 5, 1: 6, 2: 7})
    member.fetcher.reset_to(queue, offset)
    assert queue.failures == {at: 5 + at for at in range(offset)}
