"""Dividing queues; tests/conformance/test_allocation.py compares the rules with RocketMQ's."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_client.consume.group.allocation import (
    AllocationStrategy,
    allocate,
    averagely,
    by_config,
    by_machine_room,
    circularly,
    consistent_hash,
)
from reput_protocol.record.message import MessageQueue

SHARING = {
    "averagely": averagely,
    "circularly": circularly,
    "consistent hash": consistent_hash(),
    "machine room": by_machine_room(["east"]),
}


def queues(count: int, broker: str = "east@a") -> list[MessageQueue]:
    return [MessageQueue("orders", broker, number) for number in range(count)]


def shares(strategy: AllocationStrategy, count: int, members: list[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in allocate(strategy, member, queues(count), members)] for member in members]


def test_averagely_gives_runs_and_the_first_ones_one_more() -> None:
    assert shares(averagely, 8, ["a", "b", "c"]) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares(averagely, 2, ["a", "b", "c"]) == [[0], [1], []]


def test_circularly_deals_out_in_turn() -> None:
    assert shares(circularly, 8, ["a", "b", "c"]) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_a_machine_room_has_only_its_brokers_queues() -> None:
    all_queues = queues(4) + queues(4, "west@b") + queues(4, "plain")
    rule = by_machine_room(["west"])
    assert allocate(rule, "a", all_queues, ["a"]) == queues(4, "west@b")
    rule = by_machine_room(["east", "west"])
    both = [[(q.broker_name, q.queue_id) for q in allocate(rule, m, all_queues, ["a", "b", "c"])] for m in "abc"]
    assert both == [
        [("east@a", 0), ("east@a", 1), ("west@b", 2)],
        [("east@a", 2), ("east@a", 3), ("west@b", 3)],
        [("west@b", 0), ("west@b", 1)],
    ]


def test_by_config_is_what_was_configured() -> None:
    rule = by_config([queues(4)[3], MessageQueue("other", "east@a", 0)])
    assert allocate(rule, "a", queues(4), ["a", "b"]) == [queues(4)[3]]


def test_consistent_hash_moves_only_what_it_must() -> None:
    members = [f"10.0.0.{n}@{n}#7" for n in range(4)]
    before = {q: m for m in members for q in allocate(SHARING["consistent hash"], m, queues(64), members)}
    left = members[:3]
    after = {q: m for m in left for q in allocate(SHARING["consistent hash"], m, queues(64), left)}
    assert all(after[q] == owner for q, owner in before.items() if owner in left)
    with pytest.raises(ValueError, match="virtual_nodes"):
        consistent_hash(0)


@pytest.mark.parametrize("name", SHARING)
@given(count=st.integers(0, 40), ids=st.sets(st.text("abc@#0", min_size=1, max_size=6), min_size=1, max_size=9))
def test_every_queue_has_exactly_one_member(name: str, count: int, ids: set[str]) -> None:
    owned = Counter(q for member in ids for q in allocate(SHARING[name], member, queues(count), sorted(ids)))
    assert owned == Counter(queues(count))


@pytest.mark.parametrize("name", SHARING)
def test_a_client_that_is_not_a_member_gets_nothing(name: str) -> None:
    assert allocate(SHARING[name], "stranger", queues(8), ["a", "b"]) == []
