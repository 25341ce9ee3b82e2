"""An administrator of two brokers: changes at both, results of both, and which of them has failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from reput_broker import Broker, BrokerConfig
from reput_client import Admin, Consumer, Message, Producer, PullConsumer
from reput_client.errors import BrokerNotFound, BrokersFailed, NotFound, TopicNotFound
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.topic import BrokerData, ClusterInfo, QueueData, TopicRoute
from reput_protocol.errors import GroupNotFound
from reput_protocol.record.message import MessageQueue
from support.fakes import Answer, FakeBroker

pytestmark = pytest.mark.usefixtures("slow_is_not_faulty")

A, B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)


@asynccontextmanager
async def two_brokers(tmp_path: Path) -> AsyncIterator[tuple[str, dict[str, Broker]]]:
    """Return the address of a name service, and the two brokers that it knows; topic `t` has a queue on each."""
    async with AsyncExitStack() as stack:
        found: dict[str, Broker] = {}
        for name in ("broker-a", "broker-b"):
            config = BrokerConfig(
                data_dir=tmp_path / name,
                port=0,
                broker_name=name,
                store={"commit_log_file_size": "1 MiB"},
                topics={"default_queues": 1},
            )
            found[name] = await stack.enter_async_context(Broker(config))
        names = stack.enter_context(FakeBroker())
        data = {name: BrokerData("c", name, {0: broker.address}) for name, broker in found.items()}
        route = TopicRoute([QueueData(name, 1, 1, 6, 0) for name in found], [*data.values()])
        names.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(body=route.to_json()))
        names.behave(RequestCode.GET_BROKER_CLUSTER_INFO, Answer(body=ClusterInfo(data, {"c": [*data]}).to_json()))
        yield names.address, found


@pytest.mark.trio
async def test_topics_are_created_changed_and_deleted_at_each_broker(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (names, found), Admin(names) as admin:
        await admin.create_topic("t", queues=2)
        assert {name: config.read_queue_nums for name, config in (await admin.topic_configs("t")).items()} == {
            "broker-a": 2,
            "broker-b": 2,
        }
        await admin.create_topic("one", queues=1, brokers=["broker-b"])
        assert set(await admin.topic_configs("one")) == {"broker-b"}
        assert set((await admin.topic_stats("t")).offset_table) == {
            MessageQueue("t", name, number) for name in found for number in range(2)
        }
        with pytest.raises(BrokerNotFound, match="broker-x"):
            await admin.create_topic("t", brokers=["broker-x"])
        await admin.delete_topic("one")
        await admin.delete_topic("t")
        for method in (admin.topic_config, admin.topic_stats):
            with pytest.raises(TopicNotFound):
                await method("t")


@pytest.mark.trio
async def test_groups_are_described_reset_cloned_and_deleted_over_both_brokers(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (names, found), Admin(names) as admin:
        await admin.create_topic("t", queues=1)
        async with Producer(names) as producer:
            for _ in range(6):
                await producer.send(Message("t", b"x", keys=["k"]))
        async with Consumer(names, group="g", topic="t", commit_interval_s=0) as consumer:
            for _ in range(6):
                assert await consumer.receive(10.0)
            await consumer.commit()
            described = await admin.describe_group("g", "t")
            assert [(queue.broker_name, queue.committed_offset) for queue in described.queues] == [
                ("broker-a", 3),
                ("broker-b", 3),
            ]
            (member,) = described.members
            assert (described.summary.members, member.client_id) == (1, consumer.client_id)
            running = await admin.running_info("g", consumer.client_id)
            assert {queue for queue in running.queues if queue.topic == "t"} == {A, B}
            with pytest.raises(NotFound):
                await admin.running_info("g", "nobody")
        (summary,) = [one for one in await admin.list_groups() if one.group == "g"]
        assert (summary.lag, summary.topics) == (0, ["%RETRY%g", "t"])
        assert await admin.reset_offsets("g", "t", when=0) == {A: 0, B: 0}
        assert (await admin.consume_stats("g", "t")).lag == 6
        assert len((await admin.consume_time_span("g", "t")).spans) == 2
        assert await admin.topic_groups("t") == ["g"]
        copied = await admin.clone_offsets("g", "copy", "t")
        assert copied == {A: 0, B: 0}
        async with PullConsumer(names, group="copy") as pull:
            assert [await pull.committed("t", 0, broker_name=name) for name in found] == [0, 0]
        with pytest.raises(NotFound):
            await admin.clone_offsets("nothing", "copy")
        await admin.put_group(SubscriptionGroupConfig("g", retry_max_times=3))
        for broker in found.values():
            async with Admin(broker.address) as alone:
                assert (await alone.group_config("g")).retry_max_times == 3
        await admin.delete_group("g")
        with pytest.raises(GroupNotFound):
            await admin.describe_group("g")


@pytest.mark.trio
async def test_messages_are_found_at_the_broker_that_has_them(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (names, found), Admin(names) as admin:
        await admin.create_topic("t", queues=1)
        async with Producer(names) as producer:
            receipts = [await producer.send(Message("t", b"%d" % number, keys=["k"])) for number in range(6)]
            for _ in range(2):
                await producer.send(Message("t", b"later", delay_s=3600.0, keys=["d"]))
        for number, receipt in enumerate(receipts):
            viewed = await admin.view_message(receipt.offset_message_id)
            assert (viewed.body, viewed.offset_message_id) == (b"%d" % number, receipt.offset_message_id)
        with pytest.raises(NotFound):
            await admin.view_message("7F00000100002A9F" + receipts[0].offset_message_id[16:])
        everything = (await admin.find_messages("t", "k")).messages
        assert {message.body for message in everything} == {b"%d" % number for number in range(6)}
        assert {message.queue.broker_name for message in everything} == set(found)
        times = [message.store_timestamp_ms for message in everything]
        assert times == sorted(times, reverse=True)
        assert len((await admin.find_messages("t", "k", max_messages=4)).messages) == 4
        assert len(await admin.list_delayed(topic="t")) == 2
        assert len(await admin.list_delayed(topic="t", max_messages=1)) == 1
        assert len(await admin.cancel_delayed("t", "d")) == 2
        with pytest.raises(NotFound):
            await admin.cancel_delayed("t", "unknown")


@pytest.mark.trio
async def test_a_broker_that_fails_is_named(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (names, found):
        with FakeBroker() as down:
            pass
        with FakeBroker() as service:
            data = {
                "broker-a": BrokerData("c", "broker-a", {0: found["broker-a"].address}),
                "broker-b": BrokerData("c", "broker-b", {0: down.address}),
            }
            service.behave(RequestCode.GET_BROKER_CLUSTER_INFO, Answer(body=ClusterInfo(data).to_json()))
            async with Admin(service.address, timeout_s=0.5) as admin:
                with pytest.raises(BrokersFailed, match=r"broker 'broker-b': cannot connect") as caught:
                    await admin.create_topic("t")
                assert (list(caught.value.failures), caught.value.done) == (["broker-b"], ["broker-a"])
        async with Admin(names) as admin:
            assert set(await admin.topic_configs("t")) == {"broker-a"}
