"""A client with the addresses of several brokers, of which some do not know the master: it asks the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from reput_client import Message
from reput_client.consume.group import membership, rebalance
from reput_client.transport import routing
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import TopicNotFound
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fake_cluster import FakeCluster
from support.fakes import Answer, FakeBroker

FailOver = Callable[[FakeCluster], FakeBroker]


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_SEVERAL_ADDRESSES_S", 0.2)
    monkeypatch.setattr(rebalance, "INTERVAL_S", 0.3)
    monkeypatch.setattr(rebalance, "_RETRY_S", 0.1)
    monkeypatch.setattr("reput_client.transport.session.RETRY_S", 0.1)
    monkeypatch.setattr(routing, "RETRY_S", 0.1)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"broker-a": 3}) as cluster:
        yield cluster


def addresses(cluster: FakeCluster) -> str:
    return ",".join(member.address for member in cluster.members["broker-a"])


def fail_over(cluster: FakeCluster, cut_off: dict[FakeBroker, FakeBroker | None]) -> FakeBroker:
    """Make the last member the master; the others know only what `cut_off` says. Return the new master."""
    cluster.promote(broker_a=2)
    cluster.cut_off = cut_off
    for member in cluster.members["broker-a"]:
        member.drop_connections()
    return cluster.master("broker-a")


def old_master_alone(cluster: FakeCluster) -> FakeBroker:
    """The old master is cut off from the others, and not from clients."""
    first, *_ = cluster.members["broker-a"]
    return fail_over(cluster, {first: None})


def dead_master_named(cluster: FakeCluster) -> FakeBroker:
    """The old master has died; a slave that is cut off still names it."""
    first, second, _ = cluster.members["broker-a"]
    first.stop()
    return fail_over(cluster, {second: first})


def two_alone(cluster: FakeCluster) -> FakeBroker:
    """Only the new master knows that there is one."""
    first, second, _ = cluster.members["broker-a"]
    return fail_over(cluster, {first: None, second: first})


@pytest.mark.parametrize("how", [old_master_alone, dead_master_named, two_alone])
@scenario
async def test_clients_find_the_master_that_another_address_knows(
    face: Face, cluster: FakeCluster, how: FailOver
) -> None:

    async with (
        face.Producer(addresses(cluster), retries=1) as producer,
        face.PullConsumer(addresses(cluster), group="p") as pull,
        face.Consumer(addresses(cluster), group="g", topic="t") as consumer,
    ):
        await producer.send(Message("t", b"before"))
        assert (await consumer.receive(10.0)).body == b"before"
        new = how(cluster)
        assert (await producer.send(Message("t", b"after"))).queue_offset == 1
        await producer.post(Message("t", b"posted"))
        await producer.flush()
        await pull.commit("t", 0, 1)
        assert [(await consumer.receive(10.0)).body for _ in range(2)] == [b"after", b"posted"]
        assert len(new.log["t", 0]) == 3


@pytest.mark.parametrize("how", [old_master_alone, dead_master_named, two_alone])
@scenario
async def test_so_does_a_client_that_starts_then(face: Face, cluster: FakeCluster, how: FailOver) -> None:
    new = how(cluster)
    new.store("t", b"0")
    new.behave(RequestCode.UPDATE_AND_CREATE_TOPIC, Answer())

    async with face.Producer(addresses(cluster), retries=1) as producer:
        assert (await producer.send(Message("t", b"1"))).queue_offset == 1
    async with face.Consumer(addresses(cluster), group="g", topic="t") as consumer:
        assert [(await consumer.receive(10.0)).body for _ in range(2)] == [b"0", b"1"]
    async with face.Admin(addresses(cluster)) as admin:
        await admin.create_topic("new", queues=1)
    assert new.count(RequestCode.UPDATE_AND_CREATE_TOPIC) == 1


@scenario
async def test_a_topic_that_a_slave_does_not_have_yet_is_asked_of_the_others(face: Face, cluster: FakeCluster) -> None:
    """The client's first address is a slave; its copy of the topics is a moment old."""
    cluster.promote(broker_a=2)
    first = cluster.members["broker-a"][0]
    known = first._behaviours[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    def route(header: Header, body: memoryview) -> Answer:
        return replace(known(header, body), code=ResponseCode.TOPIC_NOT_EXIST, body=b"")

    first.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)

    async with face.PullConsumer(addresses(cluster), group="g") as pull:
        assert len(await pull.queues("new")) == 1
    async with face.PullConsumer(first.address, group="g") as pull:
        with pytest.raises(TopicNotFound):
            await pull.queues("new")
