"""Announced addresses do not lead a client to another broker than its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_broker import Broker, BrokerConfig
from reput_client import Admin, Consumer, Message, Producer, PullConsumer
from reput_client.errors import ConnectFailed
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import BrokerData, QueueData, TopicRoute
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker

WHO = RequestCode.GET_BROKER_CLUSTER_INFO
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
def names() -> Iterator[FakeBroker]:
    """A name service that is not a broker itself."""
    with FakeBroker(queues=1) as names:
        yield names


def announce(names: FakeBroker, addresses: dict[str, str], **identity: str) -> None:
    """Make a fake announce brokers at addresses, with an identity of its own."""
    route = TopicRoute(
        queue_datas=[QueueData(name, 1, 1, 6, 0) for name in addresses],
        broker_datas=[BrokerData("c", name, {0: address}) for name, address in addresses.items()],
    )
    names.behave(ROUTE, Answer(ext=identity, body=route.to_json()))


def small(data_dir: Path, **options: object) -> BrokerConfig:
    return BrokerConfig(data_dir=data_dir, port=0, store={"commit_log_file_size": "1 MiB"}, **options)


@pytest.mark.trio
async def test_a_broker_that_announces_another_ones_address_gets_its_messages(tmp_path: Path) -> None:
    """Not the other broker, which has the same name."""
    async with (
        Broker(small(tmp_path / "other")) as other,
        Broker(small(tmp_path / "mine", advertise=other.address)) as mine,
        Producer(mine.address) as producer,
        Consumer(mine.address, group="g", topic="t") as consumer,
        PullConsumer(mine.address, group="p") as pull,
    ):
        await producer.send(Message("t", b"x"))
        await (await producer.post(Message("t", b"y")))
        assert {(await consumer.receive(10.0)).body for _ in range(2)} == {b"x", b"y"}  # type: ignore[union-attr]
        await pull.commit("t", 0, 1)
        async with Admin(mine.address) as admin, Admin(other.address) as at_other:
            assert "t" in await admin.list_topics()
            assert "t" not in await at_other.list_topics()
            route = await admin.route("t")
        assert route.broker_datas[0].broker_addrs == {0: other.address}, "what RocketMQ's clients receive"


@pytest.mark.trio
async def test_an_unreachable_announcement_is_no_hindrance(tmp_path: Path) -> None:
    async with Broker(small(tmp_path, advertise="127.0.0.1:1")) as broker, Producer(broker.address) as producer:
        assert (await producer.send(Message("t", b"x"))).queue_offset == 0


@scenario
async def test_an_announced_address_that_cannot_be_reached_is_named(face: Face, names: FakeBroker) -> None:
    announce(names, {"away": "127.0.0.1:1"})

    async with face.Producer(names.address, timeout_s=0.5) as producer:
        with pytest.raises(ConnectFailed, match=r"names this address for broker 'away'.*advertise") as caught:
            await producer.send(Message("t", b"x"))
        assert caught.value.address == "127.0.0.1:1"


@scenario
async def test_an_announced_address_where_another_broker_answers_is_named(face: Face, names: FakeBroker) -> None:
    with FakeBroker() as wrong:
        wrong.behave(WHO, Answer(ext={"brokerName": "wrong", "startId": "9"}))
        announce(names, {"right": wrong.address})

        async with face.Producer(names.address, timeout_s=0.5) as producer:
            with pytest.raises(ConnectFailed, match="broker 'wrong' responds there, not 'right'"):
                await producer.send(Message("t", b"x"))
        assert not wrong.count(RequestCode.PUT_MESSAGE)


@scenario
async def test_another_broker_of_the_same_name_is_told_by_its_start_id(face: Face, names: FakeBroker) -> None:
    with FakeBroker() as twin, FakeBroker() as second:
        twin.behave(WHO, Answer(ext={"brokerName": "broker-a", "startId": "2"}))
        addresses = {"broker-a": twin.address, "broker-b": second.address}
        announce(names, addresses, brokerName="broker-a", startId="1")

        async with face.PullConsumer(names.address, group="g", timeout_s=0.5) as pull:
            with pytest.raises(ConnectFailed, match=r"another broker of the name 'broker-a'.*2, not 1"):
                await pull.commit("t", 0, 1, broker_name="broker-a")
            await pull.commit("t", 0, 1, broker_name="broker-b")
            assert not twin.commits
            # A restart changes its start id, and the next route has the new one.
            twin.behave(WHO, Answer(ext={"brokerName": "broker-a", "startId": "1"}))
            await pull.commit("t", 0, 1, broker_name="broker-a")
        assert twin.commits == [("g", "t", 0, 1)]
