"""A topic whose queues are on two brokers: requests about a queue go to its broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from reput_broker import Broker, BrokerConfig
from reput_client import Consumer, Message, Producer, PullConsumer, ReadOffsetType, RemoteOffsetStore
from reput_client.errors import AmbiguousQueue
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import BrokerData, QueueData, TopicRoute
from reput_protocol.record.message import MessageQueue
from support.faces import Face, scenario
from support.fakes import HANG_UP, Answer, FakeBroker

pytestmark = pytest.mark.usefixtures("slow_is_not_faulty")

A, B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)


def name_service(fake: FakeBroker, addresses: dict[str, str], *, queues: int = 1) -> None:
    """Make a fake answer routes as a name service of several brokers does."""
    route = TopicRoute(
        queue_datas=[QueueData(name, queues, queues, 6, 0) for name in addresses],
        broker_datas=[BrokerData("c", name, {0: address}) for name, address in addresses.items()],
    )
    fake.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(body=route.to_json()))


@pytest.fixture
def brokers() -> Iterator[dict[str, FakeBroker]]:
    """Two brokers, each announcing both."""
    with FakeBroker(queues=1) as first, FakeBroker(queues=1) as second:
        found = {"broker-a": first, "broker-b": second}
        for name, broker in found.items():
            broker.broker_name = name
            name_service(broker, {name: broker.address for name, broker in found.items()})
        yield found


@scenario
async def test_offsets_of_two_brokers_do_not_mix(face: Face, brokers: dict[str, FakeBroker]) -> None:

    async with face.PullConsumer(brokers["broker-a"].address, group="g") as consumer:
        for queue, offset in ((A, 5), (B, 7)):
            await consumer.commit("t", 0, offset, broker_name=queue.broker_name)
        assert [await consumer.committed("t", 0, broker_name=name) for name in brokers] == [5, 7]
        assert [broker.committed for broker in brokers.values()] == [{("g", "t", 0): 5}, {("g", "t", 0): 7}]


@scenario
async def test_a_refresh_of_a_route_whose_connection_ends_is_repeated_soon(
    face: Face, brokers: dict[str, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("routing", "session"):
        monkeypatch.setattr(f"reput_client.transport.{module}.RETRY_S", 0.02)
    first, second = brokers.values()
    first_alone = TopicRoute(
        queue_datas=[QueueData(name, 1, 1, 6, 0) for name in brokers],
        broker_datas=[
            BrokerData("c", "broker-a", {0: first.address}),
            BrokerData("c", "broker-b", {1: second.address}),
        ],
    )

    with FakeBroker() as names:
        async with face.Producer(names.address, ack="page_cache") as producer:

            async def send_until_asked(times: int) -> None:
                while names.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) < times:
                    await producer.send(Message("t", b"x"))
                    await face.sleep(0.01)

            names.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(body=first_alone.to_json()))
            await producer.send(Message("t", b"x"))
            names.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, HANG_UP)
            await send_until_asked(3)
            name_service(names, {name: broker.address for name, broker in brokers.items()})
            while not second.log["t", 0]:
                await producer.send(Message("t", b"x"))
                await face.sleep(0.01)


@scenario
async def test_a_queue_that_two_brokers_have_is_not_guessed(face: Face, brokers: dict[str, FakeBroker]) -> None:

    async with face.PullConsumer(brokers["broker-a"].address, group="g") as consumer:
        works: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: consumer.commit("t", 0, 1),
            lambda: consumer.committed("t", 0),
            lambda: consumer.max_offset("t", 0),
            lambda: consumer.pull("t", 0, 0, wait_s=0),
        )
        for work in works:
            with pytest.raises(AmbiguousQueue, match="'broker-a', 'broker-b' each have a queue 0"):
                await work()
        assert not any(broker.commits for broker in brokers.values())


@scenario
async def test_what_is_read_ahead_is_of_the_broker_that_was_asked(face: Face, brokers: dict[str, FakeBroker]) -> None:

    async with face.Producer(brokers["broker-a"].address) as producer:
        for number in range(8):
            await producer.send(Message("t", b"%d" % number))
    bodies: dict[str, list[bytes]] = {name: [] for name in brokers}
    async with face.PullConsumer(brokers["broker-a"].address, group="g") as consumer:
        for offset in range(4):
            for name in brokers:
                pulled = await consumer.pull(
                    "t", 0, offset, max_messages=1, wait_s=0, read_ahead=True, broker_name=name
                )
                bodies[name] += [message.body for message in pulled.messages]
    assert sorted(bodies["broker-a"] + bodies["broker-b"]) == [b"%d" % number for number in range(8)]
    assert len(bodies["broker-a"]) == len(bodies["broker-b"]) == 4


@scenario
async def test_a_members_progress_is_kept_by_each_queues_broker(face: Face, brokers: dict[str, FakeBroker]) -> None:

    async with face.Producer(brokers["broker-a"].address) as producer:
        for number in range(6):
            await producer.send(Message("t", b"%d" % number))
    async with face.Consumer(brokers["broker-a"].address, group="g", topic="t") as consumer:
        assert {queue for queue in consumer.assignment if queue.topic == "t"} == {A, B}
        for _ in range(6):
            assert await consumer.receive(10.0) is not None
        await consumer.commit()
    for broker in brokers.values():
        assert broker.committed["g", "t", 0] == 3


@pytest.mark.trio
async def test_two_embedded_brokers_in_one_route(tmp_path: Path) -> None:
    """One member takes the queues of both, each with its own progress; resets go to the queue's broker."""
    async with AsyncExitStack() as stack:
        found: dict[str, Broker] = {}
        for name, count in (("broker-a", 2), ("broker-b", 3)):
            config = BrokerConfig(
                data_dir=tmp_path / name,
                port=0,
                broker_name=name,
                store={"commit_log_file_size": "1 MiB"},
                topics={"default_queues": 1},
            )
            found[name] = await stack.enter_async_context(Broker(config))
            await _send(found[name].address, name, count)
        names = stack.enter_context(FakeBroker())
        name_service(names, {name: broker.address for name, broker in found.items()})
        async with Consumer(names.address, group="g", topic="t", commit_interval_s=0) as consumer:
            got = []
            for _ in range(5):
                message = await consumer.receive(10.0)
                assert message is not None
                got.append((message.queue.broker_name, message.body))
            await consumer.commit()
        assert sorted(got) == [("broker-a", b"broker-a")] * 2 + [("broker-b", b"broker-b")] * 3
        async with PullConsumer(names.address, group="g") as pull:
            store = RemoteOffsetStore(pull)
            assert [await store.read(queue, ReadOffsetType.READ_FROM_STORE) for queue in (A, B)] == [2, 3]
            assert [await pull.committed("t", 0, broker_name=name) for name in found] == [2, 3]


async def _send(address: str, body: str, count: int) -> None:
    async with Producer(address) as producer:
        for _ in range(count):
            await producer.send(Message("t", body.encode()))


@pytest.mark.trio
async def test_a_new_group_reads_what_rocketmqs_clients_read(tmp_path: Path) -> None:
    """0 in a young queue; `committed` distinguishes a group without progress."""
    async with Broker(BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "1 MiB"})) as broker:
        await _send(broker.address, "x", 4)
        queue = MessageQueue("t", "broker-a", 0)
        async with PullConsumer(broker.address, group="new") as consumer:
            store = RemoteOffsetStore(consumer)
            assert await store.read(queue, ReadOffsetType.READ_FROM_STORE) == 0
            assert store.failure is None
            assert await consumer.committed("t", 0) is None
            assert await consumer.committed("t", 0, set_zero_if_not_found=True) == 0
