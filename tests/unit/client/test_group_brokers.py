"""A group whose queues are at two brokers, one of which does not respond: the other's queues continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.handover import RENEW_INTERVAL_S, TRUSTED_S
from reput_client.consume.group.member import MemberParts
from reput_client.consume.pull import MessageSelector
from reput_client.errors import BrokerNotFound, RequestTimeout
from reput_protocol.codes import RequestCode
from reput_protocol.errors import BrokerError, ErrorCode
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value
from support.group_parts import LockTable, ScriptedSession, SharedOffsets, done, member_of
from support.waiting import FakeSeconds

FIRST, LAST = MessageQueue("t", "a", 0), MessageQueue("t", "b", 1)


class TwoBrokers(ScriptedSession):
    """`a` does not answer while it is silent; with `a_is_unknown` no route has its address."""

    is_silent = True
    a_is_unknown = False

    async def ask_ok(self, code: RequestCode, ext: Mapping[str, Value], **options: Any) -> Call:
        """See `Session`."""
        if options["queue"].broker_name == "a":
            if self.a_is_unknown:
                raise BrokerNotFound("a", "t")
            if self.is_silent:
                raise RequestTimeout("asking a", 3.0)
        return await super().ask_ok(code, ext, **options)


@pytest.fixture
def clock() -> FakeSeconds:
    return FakeSeconds()


@pytest.fixture
def session(clock: FakeSeconds) -> TwoBrokers:
    session = TwoBrokers(clock)
    LockTable(clock).answer(session)
    return session


def _member(session: TwoBrokers) -> MemberParts:
    member = member_of(session, "c", SharedOffsets(), orderly=True)
    for queue in (FIRST, LAST):
        member.fetcher.queues[queue] = AssignedQueue(
            queue, MessageSelector.of("*", None), 0, 0, locked_until=session.runtime.now() + TRUSTED_S
        )
    return member


@pytest.mark.parametrize("unknown", [False, True])
def test_locks_are_given_by_the_broker_that_answers(session: TwoBrokers, clock: FakeSeconds, unknown: bool) -> None:
    session.a_is_unknown = unknown
    locks = _member(session)._handover.locks
    assert locks is not None
    answers = done(locks.lock([FIRST, LAST]))
    assert (answers.until, answers.unanswered) == ({LAST: clock.now + TRUSTED_S}, {FIRST})


def test_a_lock_whose_broker_does_not_answer_is_requested_again(session: TwoBrokers, clock: FakeSeconds) -> None:
    member = _member(session)
    locks, before = member._handover.locks, clock.now
    assert locks is not None
    clock.now += RENEW_INTERVAL_S
    done(locks.do())
    first, last = member.fetcher.queues[FIRST], member.fetcher.queues[LAST]
    assert (first.locked_until, last.locked_until) == (before + TRUSTED_S, clock.now + TRUSTED_S)
    assert first.confirmed
    assert locks.next_due() == clock.now + 1.0
    session.is_silent = False
    clock.now += 1.0
    done(locks.do())
    assert first.locked_until == clock.now + TRUSTED_S


def test_locks_are_freed_at_the_broker_that_answers(session: TwoBrokers) -> None:
    locks = _member(session)._handover.locks
    assert locks is not None
    done(locks.unlock([FIRST, LAST]))
    assert session.asked == [RequestCode.UNLOCK_BATCH_MQ]


class _HalfAStore(SharedOffsets):
    """Stores no offsets of queues at `a`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.tried: list[MessageQueue] = []

    async def persist(self, queue: MessageQueue) -> None:
        """See `OffsetStore`."""
        self.tried.append(queue)
        if queue.broker_name == "a":
            raise self.error


@pytest.mark.parametrize(
    ("error", "tried"),
    [(RequestTimeout("asking a", 3.0), ["a", "b"]), (BrokerError(ErrorCode.NO_PERMISSION), ["a", "a", "b"])],
)
def test_a_failed_commit_delays_no_queue_of_another_broker(
    session: TwoBrokers, error: Exception, tried: list[str]
) -> None:
    store = _HalfAStore(error)
    member = member_of(session, "c", store)
    second = MessageQueue("t", "a", 1)
    for queue in (FIRST, second, LAST):
        assigned = member.fetcher.queues[queue] = AssignedQueue(queue, MessageSelector.of("*", None), 0, 0)
        assigned.progress.advance(5)
    with pytest.raises(type(error)):
        done(member.commits.commit(member.fetcher.queues.values()))
    assert [queue.broker_name for queue in store.tried] == tried
    committed = [assigned.committed for assigned in member.fetcher.queues.values()]
    assert committed == [0, 0, 5]
