"""Quotas of groups for reading old messages from the disk: requests 2001 to 2003, and the pulls that wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.remoting.request import Response
from reput_broker.store.message_reader import MessageReader
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from support.broker_bench import BenchClient, broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)
BODY = bytes(1000)


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is in memory."""
    monkeypatch.setattr(MessageReader, "_is_cold", lambda *_: True)


async def pull(client: BenchClient, group: str, offset: int) -> float:
    """Pull one message; return how long that took."""
    began = trio.current_time()
    ext = {
        "consumerGroup": group, "topic": "t", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    answer = await client.ask(RequestCode.PULL_MESSAGE, ext)
    assert answer is not None
    assert (answer.code, BODY in answer.body) == (0, True), answer.remark
    return round(trio.current_time() - began, 1)


async def shown(client: BenchClient) -> Any:
    answer = await client.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, {})
    assert answer is not None
    return json.loads(answer.body)


async def put(client: BenchClient, text: str) -> Response:
    answer = await client.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, text.encode())
    assert answer is not None
    return answer


async def test_pulls_beyond_the_quota_wait_for_the_next_window(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        await bench.create_topic("t", 1)
        for _ in range(6):
            assert (await client.send("t", BODY)).code == 0
        await bench.settled()
        bench.tables.groups.put(SubscriptionGroupConfig("g"))
        assert (await put(client, "g=1500\n")).code == 0
        await trio.sleep(5 - trio.current_time() % 5)  # a window begins
        assert [await pull(client, "g", offset) for offset in (0, 1)] == [0, 0], "the second one exceeds it"
        assert await pull(client, "other", 2) == 0
        read = (await shown(client))["runtimeTable"]["g"]["coldAcc"]
        assert read > 2 * len(BODY)
        assert await pull(client, "g", 2) == 3.0, "it is held for three seconds at most"
        assert await pull(client, "g", 3) == 2.0, "the window ends"
        assert (await shown(client))["runtimeTable"]["g"]["coldAcc"] < 1500
        assert (await client.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"g")) is not None
        assert [await pull(client, "g", offset) for offset in (4, 5)] == [0, 0]
        await trio.sleep(61)
        assert await shown(client) == {"configTable": {}, "globalAcc": 0, "runtimeTable": {}}


@pytest.mark.parametrize("text", ["absent=1000", "g=0", "g=-1", "g=many", "g=1\nabsent=1", "g", f"g={'9' * 30}"])
async def test_a_quota_that_means_nothing_is_refused(tmp_path: Path, text: str) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        bench.tables.groups.put(SubscriptionGroupConfig("g"))
        answer = await put(client, text)
        assert answer.code != 0
        assert (await shown(client))["configTable"] == {}
