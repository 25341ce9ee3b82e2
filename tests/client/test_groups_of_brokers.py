"""Groups whose queues are on several brokers, with slaves: brokers that go, come, and change their roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reput_client import BrokerNotFound
from reput_client.consume.group import fetcher, membership, rebalance
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import TopicNotFound
from reput_protocol.record.message import MessageQueue
from support.faces import Face, scenario
from support.fake_cluster import FakeCluster
from support.fakes import Answer, FakeBroker

PULL = RequestCode.PULL_MESSAGE
A, B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_SEVERAL_ADDRESSES_S", 0.2)
    monkeypatch.setattr(membership, "_SLAVE_AFTER_S", 0.2)
    monkeypatch.setattr(rebalance, "INTERVAL_S", 0.3)
    monkeypatch.setattr(rebalance, "RETURN_S", 0.1)
    monkeypatch.setattr(rebalance, "_RETRY_S", 0.1)
    monkeypatch.setattr(fetcher, "_PAUSE_AFTER_REFUSAL_S", 0.1)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two brokers with a queue each, the first with a slave that serves reads."""
    with FakeCluster({"broker-a": 2, "broker-b": 1}) as cluster:
        cluster.members["broker-a"][1].serves_reads = True
        yield cluster


def put(cluster: FakeCluster, queue: MessageQueue, *bodies: bytes) -> None:
    """Store messages at the master of a broker."""
    cluster.master(queue.broker_name).store("t", *bodies)


async def receive(consumer: Any, count: int) -> list[bytes]:
    """Return the bodies of the next messages, sorted."""
    got: list[bytes] = []
    for _ in range(count):
        message = await consumer.receive(10.0)
        assert message is not None, got
        got.append(message.body)
    return sorted(got)


def is_member(broker: FakeBroker) -> bool:
    return bool(broker.groups.members("g"))


@scenario
async def test_a_member_joins_at_masters_and_slaves(face: Face, cluster: FakeCluster) -> None:

    async with face.Consumer(cluster.names.address, group="g", topic="t") as consumer:
        assert {queue for queue in consumer.assignment if queue.topic == "t"} == {A, B}
        for group in cluster.members.values():
            assert all(map(is_member, group))
    assert not any(is_member(each) for group in cluster.members.values() for each in group)


@scenario
async def test_a_broker_that_is_down_holds_up_no_other(face: Face, cluster: FakeCluster) -> None:
    """At the start, and later; it is consumed again when it is back, and no message twice."""
    first = cluster.master("broker-a")
    cluster.members["broker-a"][1].serves_reads = False

    first.stop()
    async with face.Consumer(cluster.names.address, group="g", topic="t") as consumer:
        put(cluster, B, b"b0")
        assert await receive(consumer, 1) == [b"b0"]
        first.restart()
        put(cluster, A, b"a0", b"a1")
        assert await receive(consumer, 2) == [b"a0", b"a1"]
        first.stop()
        put(cluster, B, b"b1")
        assert await receive(consumer, 1) == [b"b1"]
        first.restart()
        put(cluster, A, b"a2")
        assert await receive(consumer, 1) == [b"a2"]
    assert first.committed["g", "t", 0] == 3
    assert cluster.master("broker-b").committed["g", "t", 0] == 2


@scenario
async def test_a_broker_that_joins_and_leaves_is_a_rebalance(face: Face, cluster: FakeCluster) -> None:
    cluster.gone.add("broker-b")

    async with face.Consumer(cluster.names.address, group="g", topic="t") as consumer:

        def queues() -> set[MessageQueue]:
            return {queue for queue in consumer.assignment if queue.topic == "t"}

        assert queues() == {A}
        cluster.gone.clear()
        await face.until(lambda: queues() == {A, B})
        put(cluster, B, b"b")
        assert await receive(consumer, 1) == [b"b"]
        cluster.gone.add("broker-a")
        await face.until(lambda: queues() == {B})


@pytest.mark.parametrize("how", ["killed", "handed over"])
@pytest.mark.parametrize("orderly", [False, True])
@scenario
async def test_a_group_follows_a_failover(face: Face, cluster: FakeCluster, how: str, orderly: bool) -> None:
    """Nothing is consumed twice, although the new master does not have the last commits."""
    old, new = cluster.members["broker-a"]
    new.serves_reads = False

    async with face.Consumer(
        cluster.names.address, group="g", topic="t", orderly=orderly, commit_interval_s=0.1
    ) as consumer:
        put(cluster, A, b"a0", b"a1")
        assert await receive(consumer, 2) == [b"a0", b"a1"]
        assert await consumer.receive(0.3) is None
        await face.until(lambda: old.committed.get(("g", "t", 0)) == 2)
        new.committed = {("g", "t", 0): 1}
        if how == "killed":
            old.stop()
        cluster.promote(broker_a=1)
        if how == "handed over":
            old.drop_connections()
        put(cluster, A, b"a2")
        put(cluster, B, b"b0")
        assert await receive(consumer, 2) == [b"a2", b"b0"]
    assert new.committed["g", "t", 0] == 3


@scenario
async def test_a_former_master_that_refuses_pulls_is_left(
    face: Face, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The route is fetched again although the connection to the client's own address is closed."""
    monkeypatch.setattr(rebalance, "INTERVAL_S", 20.0)
    old, new = cluster.members["broker-a"]
    new.serves_reads = False

    async with face.Consumer(cluster.names.address, group="g", topic="t", commit_interval_s=0.1) as consumer:
        put(cluster, A, b"a0")
        assert await receive(consumer, 1) == [b"a0"]
        assert await consumer.receive(0.1) is None
        await face.until(lambda: old.committed.get(("g", "t", 0)) == 1)
        old.is_slave = True  # which the route does not say yet
        old.drop_connections()
        pulls = old.count(PULL)
        for _ in range(20):
            assert await consumer.receive(0.5) is None
            if old.count(PULL) > pulls + 2:
                break
        assert old.count(PULL) > pulls + 2
        refused = [text for text in caplog.messages if text.startswith("consumer of t/0: NOT_MASTER")]
        assert len(refused) == 1, "the same refusal is not logged again"
        cluster.names.drop_connections()
        cluster.promote(broker_a=1)
        put(cluster, A, b"a1")
        assert await receive(consumer, 1) == [b"a1"]


@scenario
async def test_a_topic_is_gone_only_if_a_master_says_so(face: Face, cluster: FakeCluster) -> None:
    """A name server that has started again knows no topics of a broker without a master."""
    cluster.gone.add("broker-b")
    absent = Answer(ResponseCode.TOPIC_NOT_EXIST, remark="no topic t")
    known = cluster.names._behaviours[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    async with face.Consumer(cluster.names.address, group="g", topic="t") as consumer:
        put(cluster, A, b"a0")
        assert (await consumer.take(10.0)).body == b"a0"
        cluster.names.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, absent)
        cluster.promote(broker_a=None)
        assert await consumer.take(0.7) is None
        cluster.names.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, known)
        cluster.promote(broker_a=0)
        put(cluster, A, b"a1")
        assert (await consumer.take(10.0)).body == b"a1", "and not the one in hand again"
        cluster.names.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, absent)
        cluster.master("broker-a").behave(PULL, absent)
        cluster.master("broker-a").drop_connections()
        with pytest.raises(TopicNotFound):
            await consumer.take(10.0)


@scenario
async def test_while_the_master_is_away_a_slave_is_read_and_commits_wait(face: Face, cluster: FakeCluster) -> None:
    master, slave = cluster.members["broker-a"]

    async with face.Consumer(cluster.names.address, group="g", topic="t", commit_interval_s=0.1) as consumer:
        put(cluster, A, b"a0", b"a1", b"a2")
        assert (await consumer.receive(10.0)).body == b"a0"
        assert (await consumer.receive(10.0)).body == b"a1"
        await face.until(lambda: master.committed.get(("g", "t", 0)) == 1)
        master.stop()
        assert (await consumer.receive(10.0)).body == b"a2"
        before = len(slave.commits)
        assert await consumer.receive(0.5) is None
        assert slave.count(PULL)
        assert (len(slave.commits), master.committed["g", "t", 0]) == (before, 1)
        master.restart()
        put(cluster, A, b"a3")
        assert (await consumer.receive(10.0)).body == b"a3"
        await face.until(lambda: master.committed["g", "t", 0] == 3)
    assert master.committed["g", "t", 0] == 4


@scenario
async def test_a_new_group_begins_at_a_slave_and_commits_once_there_is_a_master(
    face: Face, cluster: FakeCluster
) -> None:
    master, _ = cluster.members["broker-a"]
    cluster.gone.add("broker-b")
    put(cluster, A, b"a0", b"a1")
    master.stop()

    names = cluster.names.address
    async with face.Consumer(names, group="g", topic="t", start="earliest", timeout_s=0.5) as consumer:
        assert await receive(consumer, 2) == [b"a0", b"a1"]
        with pytest.raises(BrokerNotFound):
            await consumer.commit()
        assert not master.committed
        master.restart()
        await face.until(lambda: master.committed.get(("g", "t", 0)) == 2)


@scenario
async def test_a_group_whose_offset_only_the_master_knows_misses_nothing(face: Face, cluster: FakeCluster) -> None:
    """A slave lacks the last commits, here the first one, and a new member begins at its end."""
    master, slave = cluster.members["broker-a"]
    cluster.gone.add("broker-b")
    put(cluster, A, b"a0", b"a1", b"a2")
    master.committed["g", "t", 0] = 1
    slave.committed = {}
    master.stop()

    names = cluster.names.address
    async with face.Consumer(names, group="g", topic="t", start="latest", timeout_s=0.5) as consumer:
        await face.until(lambda: consumer.positions().get(A) == 3)
        with pytest.raises(BrokerNotFound):
            await consumer.commit()
        master.restart()
        assert await receive(consumer, 2) == [b"a1", b"a2"]
    commits = [offset for *at, offset in master.commits if at == ["g", "t", 0]]
    assert min(commits) > 1, "what the master knew is never taken back"
    assert commits[-1] == 3


@scenario
async def test_a_slave_that_leads_is_read_once_the_route_says_so(face: Face, cluster: FakeCluster) -> None:
    """A new member has started from the offset of another slave, which lacks the last commits."""
    old, new = cluster.members["broker-a"]
    cluster.gone.add("broker-b")

    cluster.promote(broker_a=None)
    new.serves_reads = False
    old.store("t", b"a0", b"a1")
    old.committed["g", "t", 0] = 0
    new.committed = {("g", "t", 0): 1}
    async with face.Consumer(cluster.names.address, group="g", topic="t") as consumer:
        assert await consumer.receive(0.5) is None
        new.is_slave = False
        cluster.leading.add(new)
        new.drop_connections()
        old.stop()
        assert await consumer.receive(0.8) is None
        assert not new.count(PULL)
        cluster.promote(broker_a=1)
        assert (await consumer.receive(10.0)).body == b"a1"


@scenario
async def test_pulls_follow_the_masters_suggestion_and_come_back(face: Face, cluster: FakeCluster) -> None:
    master, slave = cluster.members["broker-a"]
    cluster.gone.add("broker-b")

    put(cluster, A, *[b"%d" % number for number in range(8)])
    master.suggests = slave.suggests = 2
    async with face.Consumer(
        cluster.names.address, group="g", topic="t", prefetch_messages=2, commit_interval_s=0.1
    ) as consumer:
        assert await receive(consumer, 6) == [b"%d" % number for number in range(6)]
        assert slave.count(PULL) >= 1
        slave.suggests = master.suggests = 0
        assert await receive(consumer, 2) == [b"6", b"7"]
        assert await consumer.receive(0.2) is None
        # A slave that stops, or does not have what comes next, is left as well.
        for trouble in ("stopped", "behind"):
            master.suggests = 2
            put(cluster, A, b"x")
            assert await receive(consumer, 1) == [b"x"]
            if trouble == "stopped":
                slave.stop()
            else:
                slave.restart()
                slave.log = {("t", 0): master.log["t", 0][:3]}
            put(cluster, A, b"y")
            assert await receive(consumer, 1) == [b"y"]
        assert await consumer.receive(0.3) is None
    assert master.committed["g", "t", 0] == 12


@scenario
async def test_messages_go_back_to_the_broker_that_they_came_from(face: Face, cluster: FakeCluster) -> None:
    """Also after a failover."""
    for group in cluster.members.values():
        for member in group:
            member.behave(RequestCode.CONSUMER_SEND_MSG_BACK, Answer())
    old, new = cluster.members["broker-a"]

    async with face.Consumer(cluster.names.address, group="g", topic="t", commit_interval_s=0.1) as consumer:
        put(cluster, A, b"a0")
        message = await consumer.take(10.0)
        assert message.body == b"a0"
        old.stop()
        cluster.promote(broker_a=1)
        await message.nack()
        assert new.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 1
        assert not cluster.master("broker-b").count(RequestCode.CONSUMER_SEND_MSG_BACK)
