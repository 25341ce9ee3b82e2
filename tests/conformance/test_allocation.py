"""Sharing queues out: this client's rules against RocketMQ's classes, over random groups and topics.

Members of both kinds in one group must agree on who has which queue, or a queue has two readers or none.
"""

from __future__ import annotations

import json
import random
import subprocess
from typing import Any

import pytest

from conformance import apache
from conformance.counts import COUNTS
from reput_client.consume.group import allocation
from reput_client.consume.group.allocation import AllocationStrategy
from reput_protocol.record.message import MessageQueue

pytestmark = pytest.mark.process

CASES = 2_000
BROKERS = ("broker-a", "broker-b", "east@one", "east@two", "west@one", "west@a@b", "@none", "east@", "east@x@")
Case = dict[str, Any]


def random_case(rng: random.Random) -> Case:
    members = [
        f"10.0.{rng.randrange(4)}.{rng.randrange(20)}@{rng.randrange(9)}#{rng.randrange(1000)}" for _ in range(9)
    ]
    members = sorted({*members[: rng.randint(1, 9)]}, key=lambda _: rng.random())
    queues = [
        ["orders", broker, number]
        for broker in rng.sample(BROKERS, rng.randint(1, 4))
        for number in range(rng.choice((1, 2, 3, 4, 8, 11, 16)))
    ]
    rng.shuffle(queues)
    strategy = rng.choice(("averagely", "circularly", "by_machine_room", "by_config", "consistent_hash"))
    return {
        "strategy": strategy,
        "client": rng.choice([*members, "not-a-member"]) if strategy != "by_config" else members[0],
        "members": members,
        "queues": queues,
        "rooms": rng.sample(("east", "west", "north"), rng.randint(0, 2)),
        "mine": rng.sample(queues, rng.randint(0, len(queues))),
        "nodes": rng.choice((1, 3, 10)),
    }


def strategy_of(case: Case) -> AllocationStrategy:
    match case["strategy"]:
        case "by_machine_room":
            return allocation.by_machine_room(case["rooms"])
        case "by_config":
            return allocation.by_config(MessageQueue(*row) for row in case["mine"])
        case "consistent_hash":
            return allocation.consistent_hash(case["nodes"])
        case name:
            strategy: AllocationStrategy = getattr(allocation, name)
            return strategy


def test_members_of_both_kinds_share_queues_out_alike() -> None:
    rng = random.Random(20)
    cases = [random_case(rng) for _ in range(CASES)]
    answer = subprocess.run(
        ["java", *apache.JVM_OPTIONS, "-cp", apache.classpath(), "reput.conformance.Allocation"],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = answer.stdout.splitlines()
    assert len(lines) == CASES
    for case, line in zip(cases, lines, strict=True):
        theirs = [MessageQueue(*row) for row in json.loads(line)["queues"]]
        queues = [MessageQueue(*row) for row in case["queues"]]
        ours = allocation.allocate(strategy_of(case), case["client"], queues, case["members"])
        assert ours == theirs, case
        COUNTS[f"allocations, {case['strategy']}"] += 1
