"""Queues for members that leave their allocation to the broker, and how groups consume topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reput_broker.pop.feature import allocate_for_pop, averagely, by_circle
from reput_broker.remoting.request import Refusal
from reput_broker.tables.tables import MessageRequestModes
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import ConsumerData, HeartbeatData, SubscriptionData
from reput_protocol.commands.pop import MessageRequestMode
from reput_protocol.record.message import MessageQueue
from support.broker_bench import BenchClient, broker_bench
from support.tasks import run_by_the_clock

by_the_clock = pytest.mark.trio(run=run_by_the_clock)
QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(5)]
MEMBERS = ["a", "b", "c"]


def ids(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


def test_queues_are_shared_out_as_by_rocketmqs_strategies() -> None:
    assert [ids(averagely(QUEUES, MEMBERS, member)) for member in MEMBERS] == [[0, 1], [2, 3], [4]]
    assert [ids(by_circle(QUEUES, MEMBERS, member)) for member in MEMBERS] == [[0, 3], [1, 4], [2]]
    assert averagely(QUEUES[:1], MEMBERS, "c") == []


def test_members_that_pop_share_their_queues() -> None:
    def shares(share_with: int) -> list[list[int]]:
        return [ids(allocate_for_pop(QUEUES, MEMBERS, member, averagely, share_with)) for member in MEMBERS]

    assert shares(0) == [[-1], [-1], [-1]]
    assert shares(2) == [[-1], [-1], [-1]], "with all others"
    assert shares(1) == [[0, 1, 2, 3], [2, 3, 4], [4, 0, 1]]
    assert ids(allocate_for_pop(QUEUES[:2], ["a", "b", "c", "d"], "d", averagely, 1)) == [1], "each gets one"


async def assignment(client: BenchClient, client_id: str, strategy: str = "AVG") -> Any:
    body = {
        "clientId": client_id,
        "consumerGroup": "billing",
        "messageModel": "CLUSTERING",
        "strategyName": strategy,
        "topic": "orders",
    }
    answer = await client.ask(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(body).encode())
    assert answer is not None
    assert answer.code == 0, answer.remark
    return json.loads(answer.body).get("messageQueueAssignments")


async def set_mode(client: BenchClient, topic: str = "orders", group: str = "billing", mode: str = "POP") -> int:
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
    answer = await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode())
    assert answer is not None
    return answer.code


@by_the_clock
async def test_a_group_pulls_until_its_mode_is_pop_which_survives_a_restart(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders", 2)
        client = bench.client()
        data = ConsumerData("billing", subscriptions=[SubscriptionData.of("orders", "*", 1)])
        await client.ask(RequestCode.HEART_BEAT, {}, HeartbeatData("member", [data], []).to_json())
        assert await assignment(client, "stranger") is None, "its heartbeat has not come yet"
        assert await assignment(client, "member", "MY_OWN") is None
        found = await assignment(client, "member")
        assert [(one["messageQueue"]["queueId"], one["mode"]) for one in found] == [(0, "PULL"), (1, "PULL")]
        assert await set_mode(client) == 0
        assert await assignment(client, "member") == [
            {"messageQueue": {"brokerName": "broker-a", "queueId": -1, "topic": "orders"}, "mode": "POP"}
        ]
        assert await set_mode(client, topic="to come", group="to come") == ResponseCode.INVALID_PARAMETER
        assert await set_mode(client, topic="to_come", group="to_come") == 0
        assert await set_mode(client, topic="%RETRY%billing") == ResponseCode.NO_PERMISSION
        assert await set_mode(client, mode="PUSH") == ResponseCode.INVALID_PARAMETER
        image = bench.killed(tmp_path / "image")
    async with broker_bench(image) as bench:
        answer = await bench.client().ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {})
        assert answer is not None
        modes = json.loads(answer.body)["messageRequestModeMap"]
        assert modes["orders"]["billing"]["mode"] == "POP"
        assert modes["to_come"]["to_come"]["mode"] == "POP"


def test_modes_of_groups_and_topics_that_may_never_exist_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput_broker.tables.tables._MODES_MAX", 2)
    modes = MessageRequestModes(tmp_path / "messageRequestMode.json")
    for group in ("a", "b", "a"):
        modes.put(MessageRequestMode("t", group))
    with pytest.raises(Refusal, match="2 modes are set"):
        modes.put(MessageRequestMode("t", "c"))
    modes.forget(group="a")
    modes.put(MessageRequestMode("t", "c"))
