"""No request changes the offsets of a group of the broker: they are its own progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reput_protocol.codes import RequestCode
from reput_protocol.names import BROKERS_GROUPS, TRANS_HALF_TOPIC, TRANSACTION_CHECK_GROUP
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BrokerBench, broker_bench
from support.tasks import run_by_the_clock

HALF = TRANS_HALF_TOPIC
HANDLE = "0 1 10000 {revive} 0 broker-a 0 5"

pytestmark = pytest.mark.trio(run=run_by_the_clock)


def requests_of(group: str, topic: str) -> list[tuple[RequestCode, dict[str, Any], dict[str, Any]]]:
    """Every request that pops, commits, resets or locks: code, header, body."""
    names = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    pop = {"maxMsgNums": "32", "invisibleTime": "1", "pollTime": "0", "bornTime": "1", "initMode": "0"}
    ack = {"c": group, "t": topic, "q": 0, "so": 0, "rq": 0, "pt": 1, "it": 10000, "r": "0", "bitSet": [1]}
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
    lock = {"consumerGroup": group, "clientId": "eve", "mqSet": [queue]}
    pull = {
        **names, "queueOffset": "0", "maxMsgNums": "1", "commitOffset": "7", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    member = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [], "unitMode": False,
    }  # fmt: skip
    reset = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true"}
    clone = {"srcGroup": "other", "destGroup": group, "topic": topic, "offline": "true"}
    mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    return [
        (RequestCode.POP_MESSAGE, {**names, **pop}, {}),
        (RequestCode.POP_MESSAGE, {**names, **pop, "order": "true"}, {}),
        (RequestCode.ACK_MESSAGE, {**names, "extraInfo": HANDLE.format(revive=0), "offset": "5"}, {}),
        (RequestCode.ACK_MESSAGE, {**names, "extraInfo": HANDLE.format(revive=999), "offset": "5"}, {}),
        (RequestCode.BATCH_ACK_MESSAGE, {}, {"brokerName": "broker-a", "acks": [ack]}),
        (RequestCode.BATCH_ACK_MESSAGE, {}, {"brokerName": "broker-a", "acks": [{**ack, "rq": 999}]}),
        (
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            {**names, "extraInfo": HANDLE.format(revive=0), "offset": "5", "invisibleTime": "1"},
            {},
        ),
        (RequestCode.PULL_MESSAGE, {**pull, "sysFlag": "5"}, {}),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {**names, "commitOffset": "7"}, {}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, {}),
        (RequestCode.CLONE_GROUP_OFFSET, clone, {}),
        (RequestCode.LOCK_BATCH_MQ, {}, lock),
        (RequestCode.UNLOCK_BATCH_MQ, {}, lock),
        (RequestCode.HEART_BEAT, {}, {"clientID": "eve", "producerDataSet": [], "consumerDataSet": [member]}),
        (RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": group, "delayLevel": "0"}, {}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"}, {}),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", HeaderType)
@pytest.mark.parametrize("group", sorted(BROKERS_GROUPS))
async def test_each_request_is_refused(tmp_path: Path, kind: HeaderType, group: str) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        topic = await half_message(bench)
        client = bench.client(kind)
        offsets = bench.tables.offsets
        offsets.commit("other", topic, 0, 7)
        before = offsets.for_group(group)
        for code, ext, body in requests_of(group, topic):
            answer = await client.ask(code, ext, json.dumps(body).encode() if body else b"")
            assert answer is not None, code
            assert answer.code != 0, code
            assert "belongs to the system" in (answer.remark or "") or "own progress" in (answer.remark or "")
        assert offsets.for_group(group) == before


async def half_message(bench: BrokerBench) -> str:
    await bench.create_topic("orders")
    await bench.client().send_half("orders", b"o-42")
    await bench.settled()
    return HALF


async def test_a_pop_as_the_brokers_group_does_not_move_its_progress(tmp_path: Path) -> None:
    """It would pass over half messages that a start then never checks."""
    async with broker_bench(tmp_path / "s") as bench:
        await half_message(bench)
        code, ext, _ = requests_of(TRANSACTION_CHECK_GROUP, HALF)[0]
        await bench.client().ask(code, {**ext, "invisibleTime": "100000"})
        await bench.pass_time(5)
        assert bench.tables.offsets.query(TRANSACTION_CHECK_GROUP, HALF, 0) in (None, 0)
