"""Which sends share a block, decided without a clock."""

from __future__ import annotations

import math

from reput_client.batching import Batcher, Entry, FanOut
from reput_client.core import Waiter
from reput_protocol.codes import AckLevel
from reput_protocol.message import Message, MessageQueue

QUEUE = MessageQueue("t", "b", 0)
FLUSHED, CACHE = AckLevel.FLUSHED, AckLevel.PAGE_CACHE


def entry(size: int = 10) -> Entry:
    return Entry(Message("t", b"x"), None, size)


def test_sends_to_one_queue_at_one_level_share_a_group() -> None:
    batcher = Batcher(0.5, 1000, 100)
    first = batcher.add(QUEUE, FLUSHED, entry(), 10.0)
    assert batcher.add(QUEUE, FLUSHED, entry(), 10.4) is first
    assert batcher.add(QUEUE, CACHE, entry(), 10.4) is not first
    assert batcher.add(QUEUE._replace(queue_id=1), FLUSHED, entry(), 10.4) is not first
    assert first.due_at == 10.5
    assert first.size == 20


def test_a_full_group_is_due_at_once_and_takes_no_more() -> None:
    batcher = Batcher(0.5, 1000, 2)
    waiting = entry()
    woken = []
    group = batcher.add(QUEUE, FLUSHED, waiting, 0.0)
    waiting.waiter.wake = lambda: woken.append(1)
    batcher.add(QUEUE, FLUSHED, entry(), 0.0)
    assert group.due_at == -math.inf
    assert woken == [1]
    assert batcher.add(QUEUE, FLUSHED, entry(), 0.0) is not group


def test_an_entry_that_does_not_fit_makes_the_group_due_and_opens_another() -> None:
    batcher = Batcher(0.5, 100, 100)
    group = batcher.add(QUEUE, FLUSHED, entry(60), 0.0)
    other = batcher.add(QUEUE, FLUSHED, entry(60), 0.0)
    assert group.due_at == -math.inf
    assert other is not group
    assert other.due_at == 0.5
    huge = batcher.add(QUEUE, FLUSHED, entry(500), 0.0)
    assert huge.due_at == -math.inf


def test_an_entry_can_be_taken_back_until_the_group_leaves() -> None:
    batcher = Batcher(0.5, 100, 100)
    first, second = entry(), entry()
    group = batcher.add(QUEUE, FLUSHED, first, 0.0)
    batcher.add(QUEUE, FLUSHED, second, 0.0)
    assert batcher.withdraw(group, first)
    assert not batcher.withdraw(group, first)
    assert group.entries == [second]
    assert group.size == 10
    batcher.close(group)
    assert not batcher.withdraw(group, second)


def test_an_empty_group_is_closed() -> None:
    batcher = Batcher(0.5, 100, 100)
    only = entry()
    group = batcher.add(QUEUE, FLUSHED, only, 0.0)
    batcher.withdraw(group, only)
    assert not group.open
    assert batcher.add(QUEUE, FLUSHED, entry(), 0.0) is not group


def test_a_fan_out_notifies_every_member() -> None:
    fan_out = FanOut()
    fan_out.members += [Waiter(), Waiter()]
    fan_out.notify()
    assert all(member.ready for member in fan_out.members)
