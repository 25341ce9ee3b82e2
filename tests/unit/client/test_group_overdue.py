"""Messages that were delivered and never handled, and handlers that hang, under a clock that tests set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest

from reput_client.consume.group.assigned_queue import Taken
from reput_client.consume.group.failures import Overdue
from reput_client.consume.group.rebalance import Assignment
from reput_protocol.codes import RequestCode
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import Value
from support.group_parts import ScriptedSession, SharedOffsets, done, member_of
from support.pulls import add_pull
from support.waiting import FakeSeconds

QUEUE = MessageQueue("t", "b", 0)
TIMEOUT_S = 100.0


class Bench:
    """A member with one queue, whose broker takes messages back."""

    def __init__(self, messages: int) -> None:
        self.clock = FakeSeconds()
        session = ScriptedSession(self.clock)
        session.replies[RequestCode.CONSUMER_SEND_MSG_BACK] = self._take_back
        self.member = member_of(session, "c", SharedOffsets(), handler_timeout_s=TIMEOUT_S)
        self.member._handover.follow(Assignment({QUEUE}))
        done(self.member._handover.do())
        self.queue = self.member.fetcher.queues[QUEUE]
        add_pull(self.member.serving, self.queue, 0, messages)
        self.given_back = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def _take_back(self, ext: Mapping[str, Value], body: bytes) -> bytes:
        del ext, body
        self.given_back += 1
        self.meanwhile()
        return b""

    @property
    def overdue(self) -> Overdue:
        assert self.member._overdue is not None
        return self.member._overdue

    def take(self, count: int) -> list[Taken]:
        """Deliver messages as to `count` handlers at a time."""
        taken = [self.member.serving.take() for _ in range(count)]
        return [one for one in taken if one is not None]

    def hold(self, *taken: Taken) -> None:
        """Handlers hold these."""
        self.member.handlers.begin(len(taken))
        self.member.handlers.slots[:] = [message for _, message in taken]

    def time_out(self) -> None:
        """Check the held messages, and once more when they are overdue."""
        done(self.overdue.do())
        self.clock.now += TIMEOUT_S
        done(self.overdue.do())

    def finish(self) -> None:
        """Continue until no message is to be given back."""
        while self.overdue.next_due() <= self.clock.now:
            done(self.overdue.do())


def test_the_message_of_a_turn_is_overdue_where_it_is_a_handlers() -> None:
    for is_handlers in (False, True):
        bench = Bench(3)
        if is_handlers:
            bench.member.handlers.begin(1)
        (taken,) = bench.take(1)
        bench.member.serving.begin_iteration(taken)
        bench.time_out()
        assert bench.given_back == is_handlers
        assert bench.queue.progress.position == int(is_handlers)
        following = next(bench.member.serving.iteration.messages)
        bench.member.serving.iteration.message = following  # the handler has returned
        assert bench.queue.progress.position == 1


def test_what_was_handled_while_others_were_given_back_is_not_given_back() -> None:
    bench = Bench(3)
    taken = bench.take(3)
    bench.meanwhile = lambda: bench.member.handled(taken[1])
    bench.time_out()
    bench.finish()
    assert bench.given_back == 2
    assert bench.queue.progress.position == 3


def test_other_chores_come_between_two_that_are_given_back() -> None:
    bench = Bench(5)
    bench.take(5)
    bench.time_out()
    assert bench.given_back == 1
    assert bench.overdue.next_due() <= bench.clock.now, "the rest follows as soon as the others had their turn"
    bench.finish()
    assert bench.given_back == 5
    assert bench.overdue.next_due() > bench.clock.now


def test_what_waits_to_be_given_back_stays_where_its_queue_goes() -> None:
    bench = Bench(3)
    bench.take(3)
    bench.time_out()
    bench.member._handover.follow(Assignment())
    bench.finish()
    assert bench.given_back == 1


def test_it_is_logged_when_every_handler_hangs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "reput_client")
    bench = Bench(5)
    taken = bench.take(3)
    bench.hold(*taken)
    bench.member.handled(taken[2])  # one of three continues
    bench.member.handlers.slots[2] = None
    bench.time_out()
    bench.finish()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    (third,) = bench.take(1)
    bench.member.handlers.slots[2] = third[1]
    bench.time_out()
    bench.finish()
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "group g: all 3 handlers of run hang, each for more than 100 s" in error.message
    bench.time_out()
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1, "it is said once"
    bench.member.handlers.slots[1] = None
    bench.time_out()
    assert "a handler of run has returned" in caplog.records[-1].message
