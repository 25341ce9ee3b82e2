"""The source over several brokers, one of which fails over in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from reput_client.arrow.queues import Bounds, QueueKey, QueueRange
from reput_client.blocking.bulk import BulkReader, StagingProducer
from reput_client.errors import BrokerNotFound
from reput_pipeline.archives.layout import read_schema
from reput_pipeline.sink.options import parse_sink_options
from reput_pipeline.sink.task import brokers_of
from reput_pipeline.source.live import LiveCluster, LivePartition
from reput_pipeline.source.options import SourceOptions, parse_source_options
from reput_pipeline.source.ranges import NOTHING_NARROWED
from reput_pipeline.source.tasks import read_task
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pull import QueueBoundsTable
from reput_protocol.commands.topic import ClusterInfo, TopicList
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.header import Header
from support.fake_cluster import FakeCluster
from support.fakes import Answer, FakeBroker

A, B = QueueKey("t", "broker-a", 0), QueueKey("t", "broker-b", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"broker-a": 2, "broker-b": 1}) as cluster:
        for name in cluster.members:
            cluster.master(name).store("t", *[b"%s-%d" % (name.encode(), number) for number in range(6)])
        yield cluster


def options_of(cluster: FakeCluster, **more: str) -> SourceOptions:
    options = {"nameServer": cluster.names.address, "subscribe": "t", "groupId": "g", **more}
    return parse_source_options({"pullTimeoutMs": "5000", **options}, streaming=False)


def fail_over(cluster: FakeCluster, how: str) -> None:
    if how == "killed":
        cluster.members["broker-a"][0].stop()
    cluster.promote(broker_a=1)


def test_addresses_are_those_of_the_members_and_the_given_ones(cluster: FakeCluster) -> None:
    """So one of them stays, whether another broker registers or another address is given."""
    given = f"{cluster.names.address};names.example"
    members = {name: {each.address for each in group} for name, group in cluster.members.items()}
    for _ in range(2):
        with LiveCluster(options_of(cluster, nameServer=given)) as live:
            assert {name: {*text.split()} for name, text in live.addresses.items()} == {
                name: {*members[name], cluster.names.address, "names.example:10911"}
                for name in members.keys() - cluster.gone
            }
        cluster.gone.add("broker-b")


@pytest.mark.parametrize("how", ["killed", "handed over"])
def test_a_query_follows_a_failover(cluster: FakeCluster, how: str) -> None:
    """Bounds and offsets are those of each broker, before and after; a task that reads continues."""
    options = options_of(cluster)
    with LiveCluster(options) as live:
        assert live.topic_queues(options) == {"t": [A, B]}
        assert live.bounds([A, B]) == {A: Bounds(0, 6), B: Bounds(0, 6)}
        live.commit(A, 2)
        live.commit(B, 3)
        part = LivePartition([QueueRange(A, 0, 6), QueueRange(B, 2, 6)], {})
        read = read_task(part, options, read_schema(), NOTHING_NARROWED)
        fail_over(cluster, how)
        rows = [row for batch in read for row in batch.to_pylist()]
        assert [row["body"] for row in rows] == [
            *[b"broker-a-%d" % number for number in range(6)],
            *[b"broker-b-%d" % number for number in range(2, 6)],
        ]
        assert {row["brokerName"] for row in rows} == {"broker-a", "broker-b"}
        cluster.master("broker-a").store("t", b"later")
        live.topic_queues(options)
        assert live.bounds([A, B]) == {A: Bounds(0, 7), B: Bounds(0, 6)}
        assert (live.committed(A), live.committed(B)) == (2, 3)
        live.commit(A, 7)
        assert (live.committed(A), live.committed(B)) == (7, 3)


def test_a_broker_without_a_master_is_waited_for_and_not_forgotten(cluster: FakeCluster) -> None:
    """Otherwise its messages would count as lost."""
    options = options_of(
        cluster, pullTimeoutMs="200", **{"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "10"}
    )
    with LiveCluster(options) as live:
        cluster.members["broker-a"][0].stop()
        cluster.gone.add("broker-a")
        with pytest.raises(Exception, match="refused"):
            live.topic_queues(options)
        cluster.gone.clear()
        cluster.promote(broker_a=1)
        assert live.topic_queues(options) == {"t": [A, B]}


def test_a_group_without_a_master_is_waited_for_at_a_name_service(cluster: FakeCluster) -> None:
    """The name service has noticed that the master is dead, and lists only slaves until one of them is elected."""
    asked = count(1)

    def elected_later(*_: object) -> Answer:
        if next(asked) == 4:
            cluster.promote(broker_a=1, broker_b=0)
        return cluster._info(cluster.names)

    options = options_of(cluster, **{"fetchOffset.numRetries": "0"})
    with LiveCluster(options) as live:
        assert live.topic_queues(options) == {"t": [A, B]}
        cluster.members["broker-a"][0].stop()
        cluster.promote(broker_a=None, broker_b=None)
        cluster.names.behave(RequestCode.GET_BROKER_CLUSTER_INFO, elected_later)
        assert live.topic_queues(options) == {"t": [A, B]}
        assert live.bounds([A, B]) == {A: Bounds(0, 6), B: Bounds(0, 6)}


@pytest.mark.parametrize("brokers", [["broker-a", "broker-b"], []])
def test_a_broker_that_refuses_for_a_while_is_waited_for(cluster: FakeCluster, brokers: list[str]) -> None:
    """One that is starting answers at once that it is not ready; a name service that is starting knows no broker."""
    asked = count(1)

    def starting(fake: FakeBroker, header: Header, body: memoryview) -> Answer:
        if next(asked) < 6:
            return Answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark="NOT_READY: the broker is starting")
        return fake._ordinary(header, body)

    def forgetful(*_: object) -> Answer:
        if next(asked) < 6:
            return Answer(body=ClusterInfo({}, {"c": []}).to_json())
        return cluster._info(cluster.names)

    options = options_of(cluster, **{"fetchOffset.numRetries": "0"})
    with LiveCluster(options) as live:
        if not brokers:
            cluster.names.behave(RequestCode.GET_BROKER_CLUSTER_INFO, forgetful)
        for name in brokers:
            fake = cluster.master(name)
            fake.behave(RequestCode.QUERY_QUEUE_BOUNDS, partial(starting, fake))
        assert live.topic_queues(options) == {"t": [A, B]}


def test_a_sink_waits_while_a_name_service_knows_no_broker(cluster: FakeCluster) -> None:
    """It took the brokers of the topic for none, which "has no queue that takes messages"."""
    asked = count(1)

    def forgetful(*_: object) -> Answer:
        if next(asked) < 4:
            return Answer(body=ClusterInfo({}, {"c": []}).to_json())
        return cluster._info(cluster.names)

    cluster.names.behave(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        Answer(ResponseCode.TOPIC_NOT_EXIST, remark="NO_TOPIC: the name service has started again"),
    )
    cluster.names.behave(RequestCode.GET_BROKER_CLUSTER_INFO, forgetful)
    given = {"nameServer": cluster.names.address, "topic": "t"}
    options = parse_sink_options(given, streaming=True)
    assert brokers_of(options) == ["broker-a", "broker-b"]
    cluster.gone |= {"broker-a", "broker-b"}
    with pytest.raises(BrokerNotFound):
        brokers_of(replace(options, send_timeout_s=0.05))


def test_topics_of_a_pattern_are_kept_while_a_name_service_has_forgotten_them(cluster: FakeCluster) -> None:
    """They would count as deleted, and their messages as lost."""
    topics: list[str] = ["other", "t"]
    cluster.names.behave(
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lambda *_: Answer(body=TopicList(topics).to_json())
    )
    options = replace(options_of(cluster), topics=(), pattern="t.*")
    with LiveCluster(options) as live:
        assert live.topic_queues(options) == {"t": [A, B]}
        topics.clear()
        assert live.topic_queues(options) == {"t": [A, B]}
        for name in cluster.members:
            cluster.master(name).behave(
                RequestCode.QUERY_QUEUE_BOUNDS, lambda *_, name=name: Answer(body=QueueBoundsTable(name, {}).to_json())
            )
        assert live.topic_queues(options) == {}


def test_a_name_service_without_brokers_is_not_waited_for_at_first(cluster: FakeCluster) -> None:
    cluster.gone |= {"broker-a", "broker-b"}
    with pytest.raises(BrokerNotFound), LiveCluster(options_of(cluster, pullTimeoutMs="600000")):
        pass


@pytest.mark.parametrize("how", ["killed", "handed over"])
def test_a_writer_follows_a_failover(cluster: FakeCluster, how: str) -> None:
    """What is in its window is sent again: at least once."""
    block = encode_put_block([Message("t", b"new")], "t", 0, 0)
    with StagingProducer(cluster.names.address, "broker-a", timeout_s=10) as writer:
        assert writer.write_queues("t") == [0]
        writer.post_block("t", 0, 1, block)
        fail_over(cluster, how)
        for _ in range(3):
            writer.post_block("t", 0, 1, block)
        writer.flush()
    assert len(cluster.master("broker-a").log["t", 0]) >= 6 + 4
    assert len(cluster.master("broker-b").log["t", 0]) == 6


def test_a_writer_has_one_broker(cluster: FakeCluster) -> None:
    with pytest.raises(ValueError, match="several brokers, broker-a, broker-b"), StagingProducer(cluster.names.address):
        pass
    reader = BulkReader(cluster.names.address)
    assert reader.brokers() == reader.brokers("t") == ["broker-a", "broker-b"]
    reader.close()
