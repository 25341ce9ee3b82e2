"""How much of a queue a member may hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reput_client.consume.group.options import FlowLimits, Room

KIB = 1024
LIMITS = FlowLimits(100, 1000 * KIB, 1000, 100_000 * KIB, 2000)


def room(limits: FlowLimits, *, queues: int = 1, messages: int = 0, size_b: int = 0, span: int = 0) -> Room | None:
    return limits.room(queues, messages, size_b, span)


def test_each_queue_pulls_its_share() -> None:
    assert room(LIMITS) == Room(100, 1000 * KIB)
    assert room(LIMITS, queues=4) == Room(25, 250 * KIB)
    assert room(LIMITS, queues=1000) == Room(1, 64 * KIB), "a queue is not starved by the number of others"


def test_no_pull_brings_more_than_a_pull_may() -> None:
    limits = FlowLimits(5000, 10_000 * KIB, 5000, 100_000 * KIB, 2000)
    assert room(limits) == Room(1024, 4096 * KIB)


def test_what_is_held_makes_room_scarce_and_then_ends_it() -> None:
    limits = FlowLimits(100, 1000 * KIB, queue_messages_max=50, queue_bytes_max=800 * KIB, queue_span_max=500)
    assert room(limits, messages=30, size_b=100 * KIB) == Room(20, 700 * KIB)
    assert room(limits, messages=38) == Room(12, 800 * KIB)
    assert room(limits, messages=39) is None, "for a few messages no pull is worth its while"
    assert room(limits, queues=20, messages=45) == Room(5, 64 * KIB), "it is all that the queue gets at a time"
    assert room(limits, messages=50) is None
    assert room(limits, size_b=800 * KIB) is None
    assert room(limits, span=499) == Room(50, 800 * KIB)
    assert room(limits, span=500) is None


@pytest.mark.parametrize("name", FlowLimits.__slots__)
def test_a_bound_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 1 or more"):
        replace(LIMITS, **{name: 0})
