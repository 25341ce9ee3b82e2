"""What a slave answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.client import RemotingClient
from reput_broker.remoting.request import ClientAnswer
from reput_broker.tenure.core import Master, Role, Tenure
from reput_client import Message, Producer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import ConsumerData, HeartbeatData
from reput_protocol.wire.channel import Peer
from support.inside import slave_parts_of, storage_of
from support.tenures import SetTenures

PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
}  # fmt: skip
REFUSED = {
    RequestCode.SEND_MESSAGE_V2: 2,
    RequestCode.SEND_BATCH_MESSAGE: 2,
    RequestCode.CONSUMER_SEND_MSG_BACK: 2,
    RequestCode.UPDATE_CONSUMER_OFFSET: 2,
    RequestCode.PUT_MESSAGE: 2,
    RequestCode.STAGE_RECORDS: 2,
    RequestCode.PULL_MESSAGE: 2,
    RequestCode.FETCH_RECORDS: 2,
    RequestCode.END_TRANSACTION: 11,
    RequestCode.RECALL_MESSAGE: 11,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: 1,
    RequestCode.UPDATE_AND_CREATE_TOPIC: 1,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: 1,
}
SERVED = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.LIST_GROUPS,
)


@asynccontextmanager
async def slave(data_dir: Path, tenure: Tenure, *, reads: bool = False) -> AsyncIterator[Broker]:
    store = {"commit_log_file_size": "1MiB", "index": False}
    config = BrokerConfig(data_dir=data_dir, port=0, store=store, ha={"slave_read_enabled": reads})
    async with Broker(config, tenures=SetTenures(tenure)) as broker:
        yield broker


async def ask(client: RemotingClient, code: int, ext: dict[str, object] | None = None) -> ClientAnswer:
    return await client.call(code, ext or {}, timeout_s=10.0)  # type: ignore[arg-type]


@pytest.mark.trio
@pytest.mark.parametrize("peer", [Peer.ROCKETMQ, Peer.REPUT])
async def test_it_refuses_what_only_a_master_does_and_names_the_master(tmp_path: Path, peer: Peer) -> None:
    tenure = Tenure(Role.SLAVE, 1, master=Master("10.0.0.9:10911", "10.0.0.9:10912"))
    async with slave(tmp_path, tenure) as broker:
        client = RemotingClient(broker.address, peer=peer)
        for code, answer_code in REFUSED.items():
            answer = await ask(client, code)
            assert answer.code == answer_code, code.name
            assert (answer.remark or "").startswith("NOT_MASTER: this broker is a slave"), code.name
            assert "10.0.0.9:10911" in (answer.remark or "")
            assert answer.ext["master"] == "10.0.0.9:10911"
        for code in SERVED:
            assert (await ask(client, code)).code == 0, code.name
        client.close()
        assert broker.store.max_physical_offset == 0


@pytest.mark.trio
async def test_pulls_of_a_slave_are_an_option(tmp_path: Path) -> None:
    async with slave(tmp_path, Tenure(Role.SLAVE, 1), reads=True) as broker:
        client = RemotingClient(broker.address)
        assert (await ask(client, RequestCode.PULL_MESSAGE, PULL)).code == 17, "no such topic yet"
        answer = await ask(client, RequestCode.SEND_MESSAGE_V2)
        assert "does not know its master" in (answer.remark or "")
        assert not answer.ext
        client.close()


@pytest.mark.trio
async def test_a_member_that_joins_does_not_change_a_slaves_topics(tmp_path: Path) -> None:
    """Its table would look newer than messages of topics that it has not heard of yet."""
    async with slave(tmp_path, Tenure(Role.SLAVE, 1)) as broker:
        topics = storage_of(broker).tables.topics
        before = topics.version
        client = RemotingClient(broker.address)
        member = ConsumerData("g")
        body = HeartbeatData("m", [member]).to_json()
        assert (await client.call(RequestCode.HEART_BEAT, {}, body, timeout_s=10.0)).code == 0
        assert topics.version == before
        client.close()


@pytest.mark.trio
async def test_a_pull_ahead_of_a_slave_leaves_the_progress_of_its_group(tmp_path: Path) -> None:
    """Its master has the messages that this slave has not yet; the member pulls again at the same offset."""
    master = Tenure(Role.ASYNC_MASTER, 0)
    async with slave(tmp_path, master) as broker, Producer(broker.address, group="p") as producer:
        await producer.send(Message("T", b"x"), queue_id=0)
        client = RemotingClient(broker.address)
        assert (await ask(client, RequestCode.PULL_MESSAGE, PULL)).code == 0
        client.close()
    async with slave(tmp_path, Tenure(Role.SLAVE, 1), reads=True) as broker:
        client = RemotingClient(broker.address)
        answer = await ask(client, RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": 5})
        assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "5")
        progress = slave_parts_of(broker).core.groups.progress.get("g", "T", 0)
        assert progress is not None
        assert progress.pull_offset == 5
        client.close()
