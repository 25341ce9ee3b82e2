"""Requests of the broker to a client, and unanswered requests, with every API."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Self

import pytest

from reput_client.errors import RequestTimeout
from reput_client.transport.broker_requests import BrokerRequest
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.wire.header import ONEWAY_FLAG, HeaderType, Value
from support.faces import DrivenSession, Face, scenario
from support.fakes import SILENCE, FakeBroker

CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
LOCK = RequestCode.LOCK_BATCH_MQ
MAX_OFFSET = RequestCode.GET_MAX_OFFSET


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.behave(LOCK, SILENCE)
        yield broker


class Client(DrivenSession):
    """Waits for what the broker sends."""

    async def ask(self) -> None:
        """Send a request that is answered at once."""
        queue: dict[str, Value] = {"topic": "t", "queueId": 0}
        await self.drive(self.session.ask(MAX_OFFSET, queue, what="ask"))

    async def wait(self, timeout_s: float) -> None:
        """Wait for an answer that never comes, and read what else arrives."""
        with pytest.raises(RequestTimeout):
            await self.drive(self.session.ask(LOCK, {}, what="wait", deadline=self.session.deadline(timeout_s)))

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.ask()
        return self


@scenario
async def test_a_waiting_client_takes_and_answers_what_the_broker_asks(face: Face, broker: FakeBroker) -> None:

    async with Client(face, broker.address) as client:
        groups: list[object] = []
        client.session.requests.register(CHANGED, lambda request: groups.append(request.ext["consumerGroup"]))
        client.session.requests.register(INFO, lambda request: request.answer({"n": 1}, b"%b!" % bytes(request.body)))
        broker.ask(CHANGED, {"consumerGroup": "g"}, flag=ONEWAY_FLAG)
        broker.ask(INFO, {"consumerGroup": "g", "clientId": "c"}, b"well", opaque=9)
        broker.ask(INFO, {"clientId": "c"}, opaque=10, header_type=HeaderType.JSON)
        broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, opaque=11)
        await client.wait(0.2)
        assert groups == ["g"]
        header, body = broker.response()
        assert (header.opaque, header.code, header.ext, body) == (9, 0, {"n": 1}, b"well!")
        header, body = broker.response()
        assert (header.opaque, header.ext, header.version, body) == (10, {"n": "1"}, 479, b"!")
        header, _ = broker.response()
        assert (header.opaque, header.code) == (11, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        await client.ask()


@scenario
async def test_an_idle_client_takes_what_has_come_when_it_is_polled(face: Face, broker: FakeBroker) -> None:

    async with Client(face, broker.address) as client:
        taken: list[BrokerRequest] = []
        client.session.requests.register(CHANGED, taken.append)
        broker.ask(CHANGED, {"consumerGroup": "g"}, flag=ONEWAY_FLAG)

        def polled() -> bool:
            client.session.poll()
            return bool(taken)

        await face.until(polled)


@scenario
async def test_an_answer_may_come_later_and_is_dropped_if_its_connection_has_gone(
    face: Face, broker: FakeBroker
) -> None:

    async with Client(face, broker.address) as client:
        taken: list[BrokerRequest] = []
        client.session.requests.register(INFO, taken.append)
        for opaque in (1, 2):
            broker.ask(INFO, opaque=opaque)
        await client.wait(0.1)
        first, second = taken
        second.answer()
        assert broker.response()[0].opaque == 2
        broker.drop_connections()
        await face.until(lambda: not broker._connections)
        await client.ask()
        first.answer()
        broker.ask(INFO, opaque=3)
        await client.wait(0.1)
        taken[2].answer()
        assert broker.response()[0].opaque == 3
        assert broker.responses == []


@scenario
async def test_an_answer_that_does_not_leave_at_once_is_written_by_whoever_reads(
    face: Face, broker: FakeBroker
) -> None:

    large = bytes(12 << 20)
    async with Client(face, broker.address) as client:
        client.session.requests.register(INFO, lambda request: request.answer({}, large))
        broker.ask(INFO)
        await client.wait(0.5)
        assert broker.response()[1] == large


@scenario
async def test_a_write_that_fails_ends_the_wait_at_once(face: Face, broker: FakeBroker) -> None:
    """Otherwise the loss would be noticed at the request's deadline, too late to repeat it."""

    async with Client(face, broker.address) as client:
        connection = client.session.connection_to(client.session.home)
        connection.sock.shutdown(socket.SHUT_WR)
        await client.ask()
        assert broker.accepted == 2


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
@scenario
async def test_a_thread_that_waits_reads_for_the_others(face: Face, broker: FakeBroker) -> None:
    """The blocking API has no background reader; any waiting thread is one."""
    async with Client(face, broker.address) as client:
        came = threading.Event()
        client.session.requests.register(CHANGED, lambda _: came.set())

        async def wait() -> None:
            await client.wait(0.5)

        async def look() -> None:
            broker.ask(CHANGED, {"consumerGroup": "g"}, flag=ONEWAY_FLAG)
            assert came.wait(5)

        await face.together(wait, look)
