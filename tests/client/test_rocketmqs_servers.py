"""A cluster with RocketMQ's name server and a broker of each kind: one client uses all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from reput_client import Message, SendReceipt
from reput_client.errors import RequestNotSupported
from reput_protocol.codes import RequestCode
from reput_protocol.commands.replica import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
from reput_protocol.commands.topic import BrokerData, ClusterInfo, QueueData, TopicRoute
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker

REPUT, ROCKETMQ = "broker-reput", "broker-rocketmq"


class Cluster(NamedTuple):
    names: FakeBroker
    reput: FakeBroker
    rocketmq: FakeBroker


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with FakeBroker() as names, FakeBroker() as reput, FakeBroker() as rocketmq:
        names.is_rocketmq = rocketmq.is_rocketmq = True
        reput.broker_name, rocketmq.broker_name = REPUT, ROCKETMQ
        addresses = {REPUT: reput.address, ROCKETMQ: rocketmq.address}
        route = TopicRoute(
            queue_datas=[QueueData(name, 1, 1, 6, 0) for name in addresses],
            broker_datas=[BrokerData("c", name, {0: address}) for name, address in addresses.items()],
        )
        names.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(body=route.to_json()))
        yield Cluster(names, reput, rocketmq)


async def send_to_both(producer: Any) -> list[SendReceipt]:
    """Send a message to a queue of each broker, in rotation."""
    return [await producer.send(Message("t", b"x")) for _ in range(2)]


@scenario
async def test_messages_are_sent_to_and_received_from_brokers_of_both_kinds(face: Face, cluster: Cluster) -> None:

    bodies = [b"%d" % number for number in range(40)]
    async with face.Producer(cluster.names.address, ack="page_cache") as producer:
        receipts = [await producer.send(Message("t", body)) for body in bodies[:10]]
        for start in (10, 20, 30):
            receipts += await producer.send_many("t", bodies[start : start + 10])
    assert {receipt.store_host for receipt in receipts} == {cluster.reput.address, cluster.rocketmq.address}
    assert cluster.rocketmq.count(RequestCode.SEND_BATCH_MESSAGE)
    assert not cluster.rocketmq.count(RequestCode.PUT_MESSAGE)
    async with face.PullConsumer(cluster.names.address, group="g") as consumer:
        found: dict[str, bytes] = {}
        for name in (REPUT, ROCKETMQ):
            pulled = await consumer.pull("t", 0, 0, max_messages=64, broker_name=name)
            found |= {message.offset_message_id: message.body for message in pulled.messages}
    assert found == {receipt.offset_message_id: body for receipt, body in zip(receipts, bodies, strict=True)}


@scenario
async def test_one_of_rocketmqs_brokers_is_not_a_name_server(face: Face, cluster: Cluster) -> None:

    async with face.Producer(cluster.rocketmq.address, ack="page_cache") as producer:
        with pytest.raises(RequestNotSupported, match="give the client the address of a name server"):
            await producer.send(Message("t", b"x"))
    async with face.Admin(cluster.rocketmq.address) as admin:
        with pytest.raises(RequestNotSupported, match="give the client the address of a name server"):
            await admin.list_topics()


@scenario
async def test_columns_of_one_of_rocketmqs_brokers_are_pulled(face: Face, cluster: Cluster) -> None:

    cluster.rocketmq.store("t", b"a", b"b")
    async with face.PullConsumer(cluster.names.address, group="g") as consumer:
        result = await consumer.pull_columns("t", 0, 0, wait_s=0, broker_name=ROCKETMQ)
    assert result.columns.queue_offset.tolist() == [0, 1]
    assert not cluster.rocketmq.count(RequestCode.FETCH_RECORDS)


@pytest.mark.parametrize(("ack", "flush"), [("flushed", "ASYNC_FLUSH"), ("replicated", "SYNC_FLUSH")])
@scenario
async def test_ack_levels_that_the_broker_cannot_report_are_refused_by_name(
    face: Face, cluster: Cluster, ack: str, flush: str
) -> None:
    cluster.rocketmq.flush_disk_type = flush

    async with face.Producer(cluster.names.address, ack=ack) as producer:
        with pytest.raises(RequestNotSupported, match=f"{ROCKETMQ} .*nothing was sent"):
            await send_to_both(producer)
    assert not cluster.rocketmq.log["t", 0]


@scenario
async def test_a_broker_that_syncs_acknowledges_as_flushed(face: Face, cluster: Cluster) -> None:
    cluster.rocketmq.flush_disk_type = "SYNC_FLUSH"

    async with face.Producer(cluster.names.address, ack="flushed") as producer:
        receipts = await send_to_both(producer)
    assert {receipt.store_host for receipt in receipts} == {cluster.reput.address, cluster.rocketmq.address}
    assert {receipt.ack for receipt in receipts} == {"flushed"}


@scenario
async def test_members_of_rocketmqs_kind_report_what_they_know(face: Face, cluster: Cluster) -> None:
    copied = HARuntimeInfo(
        master=True, master_commit_log_max_offset=500, in_sync_slave_nums=1, connections=[HAConnectionRuntimeInfo()]
    )
    copying = HARuntimeInfo(client=HAClientRuntimeInfo(max_offset=400, activated=True))

    with FakeBroker() as slave:
        slave.is_rocketmq = slave.is_slave = True
        addresses = {0: cluster.rocketmq.address, 1: slave.address}
        info = ClusterInfo({ROCKETMQ: BrokerData("c", ROCKETMQ, addresses)}, {"c": [ROCKETMQ]})
        cluster.names.behave(RequestCode.GET_BROKER_CLUSTER_INFO, Answer(body=info.to_json()))
        cluster.rocketmq.behave(RequestCode.GET_BROKER_HA_STATUS, Answer(body=copied.to_json()))
        slave.behave(RequestCode.GET_BROKER_HA_STATUS, Answer(body=copying.to_json()))
        async with face.Admin(cluster.names.address) as admin:
            first, second = await admin.cluster_members()
        assert (first.error, first.takes_messages, first.end_offset) == (None, True, 500)
        assert (first.slaves, first.in_sync) == (1, 2)
        assert (second.error, second.takes_messages, second.end_offset) == (None, False, 400)
        assert (second.is_copying, second.lag_bytes) == (True, 100)
        assert {first.number, first.epoch, second.number, second.epoch} == {None}
