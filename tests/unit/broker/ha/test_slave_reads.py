"""Consumers that are far behind are sent to a slave, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.client import RemotingClient
from reput_client import Message, Producer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig

MESSAGES = 40
NOWHERE = {"subscription": "none", "sysFlag": 4}


def pull(offset: int, **more: Any) -> dict[str, Any]:
    return {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 8, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, **more,
    }  # fmt: skip


@pytest.mark.trio
async def test_a_master_sends_consumers_that_are_far_behind_to_a_slave(tmp_path: Path) -> None:
    store = {"commit_log_file_size": "1MiB", "index": False}
    config = BrokerConfig(data_dir=tmp_path, port=0, store=store, ha={"slave_read_enabled": True})
    async with Broker(config) as broker:
        async with Producer(broker.address, group="p") as producer:
            for _ in range(MESSAGES):
                await producer.send(Message("T", bytes(100)), queue_id=0)
        broker.store._offsets._memory_bytes = 2000
        client = RemotingClient(broker.address)

        async def suggested(offset: int, code: int, **more: Any) -> int:
            answer = await client.call(RequestCode.PULL_MESSAGE, pull(offset, **more), timeout_s=10.0)
            assert answer.code == code
            return int(str(answer.ext["suggestWhichBrokerId"]))

        assert await suggested(0, 0) == 1
        assert await suggested(0, 20, **NOWHERE, maxMsgNums=1) == 0, "the filter examined everything"
        assert await suggested(MESSAGES - 1, 0) == 0
        assert await suggested(MESSAGES, 19) == 0
        assert await suggested(MESSAGES + 1, 21) == 0
        group = SubscriptionGroupConfig("g", which_broker_when_consume_slowly=3, broker_id=2)
        await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group.to_json(), timeout_s=10.0)
        assert await suggested(0, 0) == 3
        assert await suggested(MESSAGES - 1, 0) == 2
        config.ha.__dict__["slave_read_enabled"] = False
        assert await suggested(0, 0) == 0
        client.close()
