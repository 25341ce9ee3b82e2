"""Whole brokers that register with each other: the name service of each shows all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.client import RemotingClient
from reput_broker.tenure.core import Master, Role, Tenure
from reput_client import Admin, ClusterMember, Message, Producer
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import Value
from support.tenures import SetTenures
from support.waiting import until

pytestmark = pytest.mark.trio


def config(path: Path, name: str, **options: Any) -> BrokerConfig:
    return BrokerConfig(
        data_dir=path / name,
        port=0,
        broker_name=name,
        store={"flush": "async", "commit_log_file_size": "1MiB", "consume_queue_entries": 1000, "index_slots": 1000},
        **options,
    )


async def ask(broker: Broker, code: int, **ext: str) -> Any:
    client = RemotingClient(broker.address)
    answer = await client.call(code, ext, timeout_s=10)
    client.close()
    return json.loads(answer.body) if answer.code == 0 and answer.body else answer.remark


async def test_two_brokers_share_a_topic_through_the_name_service_of_one(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, "one")) as one:
        async with Broker(config(tmp_path, "two", name_servers=[one.address, "127.0.0.1:1"])) as two:
            for broker in (one, two):
                await ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums="2", writeQueueNums="2")

            async def addresses() -> dict[str, dict[str, str]]:
                route = await ask(one, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
                return {data["brokerName"]: data["brokerAddrs"] for data in route["brokerDatas"]}

            async def has_both() -> bool:
                return await addresses() == {"one": {"0": one.address}, "two": {"0": two.address}}

            await until(has_both)
            await ask(two, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")

            async def has_one() -> bool:
                return await addresses() == {"one": {"0": one.address}}

            await until(has_one)
        clusters = await ask(one, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert clusters["clusterAddrTable"] == {"DefaultCluster": ["one"]}, "the other one has left"


async def test_a_change_of_role_is_announced(tmp_path: Path) -> None:
    master = Master("127.0.0.1:9", "127.0.0.1:9")
    tenures = SetTenures(Tenure(Role.SLAVE, 3, epoch=1, master=master))
    async with (
        Broker(config(tmp_path, "names")) as names,
        Broker(config(tmp_path, "group", name_servers=[names.address], ha_port=0), tenures=tenures) as member,
    ):

        async def announced() -> dict[str, str]:
            clusters = await ask(names, RequestCode.GET_BROKER_CLUSTER_INFO)
            found = clusters["brokerAddrTable"].get("group", {"brokerAddrs": {}})
            return dict(found["brokerAddrs"])

        async def is_slave() -> bool:
            return await announced() == {"3": member.address}

        async def is_master() -> bool:
            return await announced() == {"0": member.address}

        await until(is_slave)
        tenures.set(Tenure(Role.ASYNC_MASTER, 0, epoch=2))
        await until(is_master)


async def test_the_members_of_a_cluster_report_themselves(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, "group", ha_port=0)) as master:
        await ask(master, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums="1", writeQueueNums="1")
        slave_config = config(
            tmp_path / "slave", "group", name_servers=[master.address], broker_id=1, ha={"role": "SLAVE"}
        )
        async with Broker(slave_config) as slave, Admin(master.address, timeout_s=1) as admin:
            gone = RemotingClient(master.address)
            dead: dict[str, Value] = {
                "brokerName": "dead",
                "brokerAddr": "127.0.0.1:1",
                "clusterName": "Other",
                "brokerId": 0,
            }
            await gone.call(RequestCode.REGISTER_BROKER, {**dead, "haServerAddr": ""}, timeout_s=10)
            async with Producer(master.address) as producer:
                await producer.send(Message("T", b"x" * 1000))
            members: list[ClusterMember] = []

            async def is_copied() -> bool:
                members[:] = await admin.cluster_members()
                return len(members) == 3 and members[1].lag_bytes == 0 and members[0].in_sync == 2

            await until(is_copied)
            first, second, third = members
            end = master.store.max_physical_offset
            assert (first.broker_name, first.broker_id, first.address) == ("group", 0, master.address)
            assert (first.end_offset, first.slaves, first.error) == (end, 1, None)
            assert (first.takes_messages, second.takes_messages) == (True, False)
            assert first.epoch is not None
            assert first.epoch >= 1
            assert (second.broker_id, second.address, second.end_offset) == (1, slave.address, end)
            assert second.is_copying
            assert (third.cluster, third.broker_name, third.end_offset) == ("Other", "dead", None)
            assert "127.0.0.1:1" in str(third.error)
            gone.close()
