"""A client with several addresses finds its broker at each, and leaves those that do not answer."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from reput_client import Message
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.errors import BrokerNotFound, ConnectFailed, SendOutcomeUnknown
from reput_client.transport import new_socket
from reput_client.transport.address import parse_address
from reput_client.transport.backoff import Backoff
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.options import ClientOptions
from reput_client.transport.pump import Pump
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import BrokerData, QueueData, TopicRoute
from support.faces import Face, scenario
from support.fakes import SILENCE, Answer, FakeBroker

WHO = RequestCode.GET_BROKER_CLUSTER_INFO
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture(autouse=True)
def _short_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_socket, "_TRY_S", 0.1)
    monkeypatch.setattr("reput_client.transport.session.SILENCE_S", 0.1)
    monkeypatch.setattr("reput_client.consume.group.membership._SEVERAL_ADDRESSES_S", 0.1)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(queues=1) as broker:
        introduce(broker)
        yield broker


def introduce(broker: FakeBroker, name: str = "fake") -> None:
    """Give a fake an identity, as brokers have."""
    identity = {"brokerName": name, "startId": "1"}
    route = TopicRoute([QueueData(name, 1, 1, 6, 0)], [BrokerData("c", name, {0: broker.address})])
    broker.behave(WHO, Answer(ext=identity))
    broker.behave(ROUTE, Answer(ext=identity, body=route.to_json()))


class Silent:
    """Accepts connections and never answers."""

    def __enter__(self) -> str:
        self.listener = socket.create_server(("127.0.0.1", 0))
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self.listener.close()


class Unreachable:
    """Has a full backlog: further attempts hang in SYN."""

    def __enter__(self) -> str:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(0)
        self.fillers = [socket.socket() for _ in range(4)]
        for filler in self.fillers:
            filler.setblocking(False)
            assert filler.connect_ex(self.listener.getsockname()) == errno.EINPROGRESS
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        for sock in (*self.fillers, self.listener):
            sock.close()


@pytest.mark.parametrize("first", [Silent, Unreachable])
@scenario
async def test_a_first_address_that_does_not_answer_is_left(
    face: Face, broker: FakeBroker, first: type[Silent] | type[Unreachable]
) -> None:
    with first() as address:
        async with face.Producer(f"{address},{broker.address}") as producer:
            assert (await producer.send(Message("t", b"x"))).queue_offset == 0
        async with face.Consumer(f"{address},{broker.address}", group="g", topic="t") as consumer:
            assert (await consumer.receive(10.0)).body == b"x"


async def stored(face: Face, posted: Any) -> None:
    """Wait until a posted message is stored."""
    if face.is_blocking:
        posted.result()
    else:
        await posted


def moved(broker: FakeBroker, target: FakeBroker) -> None:
    """Move the broker, with its data, to another address."""
    target.log, target.committed = broker.log, broker.committed
    introduce(target)
    broker.stop()


@scenario
async def test_a_broker_that_comes_back_at_the_second_address_is_found_there(face: Face, broker: FakeBroker) -> None:
    with FakeBroker(queues=1) as second:
        second.stop()

        addresses = f"{broker.address},{second.address}"
        async with (
            face.Producer(addresses, retries=1) as producer,
            face.PullConsumer(addresses, group="p") as pull,
            face.Consumer(addresses, group="g", topic="t") as consumer,
        ):
            await producer.send(Message("t", b"before"))
            await stored(face, await producer.post(Message("t", b"posted before")))
            assert (await consumer.receive(10.0)).body == b"before"
            moved(broker, second)
            second.restart()
            assert (await producer.send(Message("t", b"after"))).queue_offset == 2
            await stored(face, await producer.post(Message("t", b"posted after")))
            assert len((await pull.pull("t", 0, 0, wait_s=0)).messages) == 4
            await pull.commit("t", 0, 4)
            rest = [(await consumer.receive(10.0)).body for _ in range(3)]
            assert rest == [b"posted before", b"after", b"posted after"]
        assert second.committed["g", "t", 0] == 4
        assert second.committed["p", "t", 0] == 4


@scenario
async def test_an_address_that_falls_silent_is_left(face: Face, broker: FakeBroker) -> None:
    """Its connection stays open, and no more data arrives."""
    with FakeBroker(queues=1) as second:
        introduce(second)

        addresses = f"{broker.address},{second.address}"
        async with (
            face.Producer(addresses, timeout_s=1.0) as producer,
            face.PullConsumer(addresses, group="g") as pull,
            face.Consumer(addresses, group="c", topic="t") as consumer,
        ):
            await producer.send(Message("t", b"x"))
            await pull.pull("t", 0, 0, wait_s=0)
            second.log = broker.log
            for code in RequestCode:
                broker.behave(code, SILENCE)
            # What may be stored is not sent again; later messages go elsewhere.
            with pytest.raises(SendOutcomeUnknown):
                await producer.send(Message("t", b"lost"))
            assert (await producer.send(Message("t", b"y"))).queue_offset == 1
            # Idempotent requests are repeated within their time; so is a waiting pull.
            await pull.commit("t", 0, 1)
            assert len((await pull.pull("t", 0, 1, wait_s=5.0)).messages) == 1
            assert [(await consumer.receive(10.0)).body for _ in range(2)] == [b"x", b"y"]
        assert second.committed["g", "t", 0] == 1


def test_an_address_that_falls_silent_is_left_without_a_pause(broker: FakeBroker) -> None:
    with FakeBroker(queues=1) as second:
        introduce(second)
        runtime = BlockingRuntime()
        connection = BrokerConnection(
            runtime,
            Pump(runtime),
            parse_address(broker.address)._replace(others=(parse_address(second.address),)),
            ClientOptions("unused", new_backoff=lambda: Backoff(60.0, 60.0)),
            lambda _request: None,
            lambda _connection: None,
        )

        async def leave_the_first() -> None:
            deadline = runtime.now() + 10.0
            await connection.open(deadline, patient=False)
            broker.behave(WHO, SILENCE)
            assert connection.doubt(runtime.now() + 1.0)
            await connection.check(deadline)
            assert not connection.is_open
            assert not connection.is_resting, "the second address was not tried"
            await connection.open(deadline, patient=True)
            assert runtime.now() < deadline
            assert connection.place == parse_address(second.address)

        runtime.run(leave_the_first())
        connection.close()
        runtime.close()


@scenario
async def test_a_slow_answer_is_waited_for(face: Face, broker: FakeBroker) -> None:
    """A client does not leave a broker that answers because one request takes long."""

    # The fake answers a pull while other requests continue, so that is what takes long here.
    def slow_pull(header: object, body: object) -> Answer:
        time.sleep(0.5)
        bounds = {"minOffset": 0, "maxOffset": 0, "nextBeginOffset": 0, "suggestWhichBrokerId": 0}
        return Answer(ResponseCode.PULL_NOT_FOUND, bounds)

    broker.behave(RequestCode.PULL_MESSAGE, slow_pull)

    async with face.PullConsumer(f"{broker.address},127.0.0.1:1", group="g") as pull:
        await pull.pull("t", 0, 0, wait_s=0)
    assert broker.count(RequestCode.PULL_MESSAGE) == 1
    assert broker.accepted == 1


@scenario
async def test_another_broker_at_the_second_address_gets_nothing_that_was_meant_for_the_first(
    face: Face, broker: FakeBroker
) -> None:
    with FakeBroker(queues=1) as other:
        introduce(other, "other")

        async with face.PullConsumer(f"{broker.address},{other.address}", group="g") as pull:
            await pull.commit("t", 0, 1, broker_name="fake")
            broker.stop()
            with pytest.raises(BrokerNotFound, match="'fake'"):
                await pull.commit("t", 0, 2, broker_name="fake")
            await pull.commit("t", 0, 5)
        assert other.commits == [("g", "t", 0, 5)]


@scenario
async def test_the_error_names_every_address(face: Face) -> None:
    with Silent() as silent:
        with pytest.raises(ConnectFailed) as caught:
            async with face.Producer(f"127.0.0.1:1,{silent}"):
                pass
        assert "127.0.0.1:1: Connection refused" in str(caught.value)
        assert f"{silent}: it accepts connections, but did not respond" in str(caught.value)
