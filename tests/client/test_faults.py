"""The client against a broker that is slow, silent, misbehaving or gone, with every API."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import reput_client.blocking
from reput_client import Message, PostsFailed
from reput_client.errors import (
    AckNotReached,
    BrokerNotFound,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    NotABroker,
    PartlySent,
    RequestTimeout,
    SendOutcomeUnknown,
)
from reput_client.transport import connection
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import BrokerData, QueueData, TopicRoute
from reput_protocol.errors import BrokerBusy, MessageRefused, TopicNotFound
from reput_protocol.wire.header import Header
from support.faces import Face, open_sockets, scenario
from support.fakes import HANG_UP, SILENCE, Answer, FakeBroker

PUT = RequestCode.PUT_MESSAGE
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def once(broker: FakeBroker, answer: Answer, then: Answer | None = None) -> Callable[[Header, memoryview], Answer]:
    """Answer the first put with `answer`; store the others, or answer with `then`."""
    given: list[Header] = []

    def behave(header: Header, body: memoryview) -> Answer:
        if not given:
            given.append(header)
            return answer
        return then or broker.put(header, body)

    return behave


@scenario
async def test_a_send_without_an_answer_has_an_unknown_outcome_and_is_not_repeated(
    face: Face, broker: FakeBroker
) -> None:

    async with face.Producer(broker.address, retries=0) as producer:
        for misbehaviour, reason in ((SILENCE, r"no response within 0\.\d+ s"), (HANG_UP, "connection")):
            broker.behave(PUT, misbehaviour)
            before = broker.count(PUT)
            with pytest.raises(SendOutcomeUnknown, match=reason) as caught:
                await producer.send(Message("t", b"x"), timeout_s=0.1, queue_id=1)
            assert broker.count(PUT) == before + 1
            assert caught.value.topic == "t"
            assert caught.value.queue_id == 1
            assert len(caught.value.message_ids) == 1
        broker.behave(PUT, None)
        assert (await producer.send(Message("t", b"y"), queue_id=1)).queue_offset == 0


@scenario
async def test_retries_repeat_a_send_with_the_same_unique_id(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, retries=2) as producer:
        broker.behave(PUT, once(broker, HANG_UP))
        receipt = await producer.send(Message("t", b"x", unique_id="mine"))
        assert receipt.message_id == "mine"
        assert broker.count(PUT) == 2
        busy = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: too much; come back")
        broker.behave(PUT, once(broker, busy))
        await producer.send_batch([Message("t", b"x")])
        broker.behave(PUT, Answer(ResponseCode.MESSAGE_ILLEGAL, remark="MALFORMED: record 0 is bad"))
        before = broker.count(PUT)
        with pytest.raises(MessageRefused):
            await producer.send(Message("t", b"x"))
        assert broker.count(PUT) == before + 1, "a refusal that waiting does not cure is not repeated"


@pytest.mark.parametrize("many", [False, True], ids=["one", "batch"])
@scenario
async def test_a_send_that_may_be_stored_is_not_said_to_be_refused(face: Face, broker: FakeBroker, many: bool) -> None:
    """The first attempt got no answer and may be stored, whatever the repeated one raises.

    Its outcome stays unknown, with the later error as the cause.
    """

    async with face.Producer(broker.address, retries=2) as producer:

        async def send() -> None:
            message = Message("t", b"x")
            await (producer.send_batch([message]) if many else producer.send(message))

        refusal = Answer(ResponseCode.MESSAGE_ILLEGAL, remark="MALFORMED: record 0 is bad")
        broker.behave(PUT, once(broker, HANG_UP, then=refusal))
        with pytest.raises(SendOutcomeUnknown, match="connection") as caught:
            await send()
        assert isinstance(caught.value.__cause__, MessageRefused)
        assert broker.count(PUT) == 2


@scenario
async def test_refusals_are_told_apart(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, timeout_s=0.3) as producer:
        broker.behave(PUT, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: too much; come back"))
        with pytest.raises(BrokerBusy) as caught:
            await producer.send(Message("t", b"x"))
        assert caught.value.retryable
        with pytest.raises(BrokerBusy):
            await producer.send_batch([Message("t", b"x")])


@scenario
async def test_a_level_that_is_not_reached_carries_the_receipt(face: Face, broker: FakeBroker) -> None:

    def late(header: Header, body: memoryview) -> Answer:
        stored = broker.put(header, body)
        return Answer(ResponseCode.FLUSH_DISK_TIMEOUT, {**stored.ext, "ack": "page_cache"}, remark="slow")

    broker.behave(PUT, late)
    async with face.Producer(broker.address, retries=0) as producer:
        with pytest.raises(AckNotReached) as caught:
            await producer.send(Message("t", b"x"), queue_id=0)
        assert caught.value.receipt.queue_offset == 0
        assert caught.value.receipt.ack == "page_cache"
        with pytest.raises(AckNotReached) as caught:
            await producer.send_batch([Message("t", b"x")] * 3, queue_id=0)
        assert [receipt.queue_offset for receipt in caught.value.receipts] == [1, 2, 3]


@pytest.mark.parametrize("code", [ROUTE, PUT])
@scenario
async def test_a_connection_that_ends_at_the_deadline_leaves_no_send_of_its_own_kind(
    face: Face, broker: FakeBroker, code: RequestCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What did not leave is a timeout, and what did is unknown."""
    late = [0.0]

    def hang_up(*_: object) -> Answer:
        late[0] = 100.0
        return HANG_UP

    broker.behave(code, hang_up)

    async with face.Producer(broker.address) as producer:
        session = producer._client._client._session if face.is_blocking else producer._session
        now = session.runtime.now
        monkeypatch.setattr(session.runtime, "now", lambda: now() + late[0], raising=False)
        expected = RequestTimeout if code is ROUTE else SendOutcomeUnknown
        with pytest.raises(expected, match=r"the broker closed it|closes them without a response") as caught:
            await producer.send(Message("t", b"x"))
        assert isinstance(caught.value.__cause__, ConnectionLost)


@pytest.mark.parametrize("how", ["send", "send_batch", "post"])
@scenario
async def test_a_deduplicating_producer_repeats_until_the_level_is_reached(
    face: Face, broker: FakeBroker, how: str
) -> None:
    """The message may be gone after a failover. The broker checks each repetition, and stores none twice."""
    marks: list[object] = []
    levels = [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 2 + [ResponseCode.SUCCESS]

    def late(header: Header, body: memoryview) -> Answer:
        marks.append(header.ext["dedup"])
        if len(marks) == 2:
            return Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: try again")
        code = levels.pop(0) if levels else ResponseCode.FLUSH_SLAVE_TIMEOUT
        return replace(broker.put(header, body), code=code, remark="slow")

    async with face.Producer(broker.address, ack="replicated", retries=3, deduplicate=True) as producer:

        async def send() -> None:
            message = Message("t", b"x")
            if how == "post":
                await producer.post(message)
                await producer.flush()
            else:
                await (producer.send_batch([message]) if how == "send_batch" else producer.send(message))

        broker.behave(PUT, late)
        await send()
        assert marks == ["mark", "check", "check", "check"]
        with pytest.raises((AckNotReached, PostsFailed), match="a failover may still lose it"):
            await send()
        assert marks[4:] == ["mark", "check", "check", "check"]


@scenario
async def test_a_connection_that_ended_while_idle_is_noticed_before_a_frame_is_risked(
    face: Face, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_IDLE_S", 0.0)  # any silence counts

    async with face.Producer(broker.address) as producer:
        await producer.send(Message("t", b"x"))
        broker.drop_connections()
        await face.until(lambda: not broker._connections)
        await producer.send(Message("t", b"y"))
        assert broker.accepted == 2


@scenario
async def test_a_loop_of_pulls_reads_ahead_by_itself(face: Face, broker: FakeBroker) -> None:
    pulls = partial(broker.count, RequestCode.PULL_MESSAGE)
    async with face.Producer(broker.address) as producer, face.PullConsumer(broker.address, group="g") as consumer:
        await producer.send_batch([Message("t", b"x")] * 10, queue_id=0)

        async def pull(offset: int, **options: Any) -> list[int]:
            result = await consumer.pull("t", 0, offset, max_messages=1, wait_s=0.0, **options)
            return [message.queue_offset for message in result.messages]

        assert await pull(0) == [0]
        assert await pull(2) == [2]
        assert pulls() == 2, "nothing follows on the one before"
        assert await pull(3) == [3]
        await face.until(lambda: pulls() == 4)
        assert await pull(4) == [4]
        await face.until(lambda: pulls() == 5)
        assert await pull(5, read_ahead=False) == [5]
        await face.sleep(0.05)
        assert pulls() == 5


@pytest.mark.parametrize("fault", ["lost", "refused", "silent"])
@scenario
async def test_a_read_ahead_that_fails_costs_nothing_but_time(face: Face, broker: FakeBroker, fault: str) -> None:

    async with (
        face.Producer(broker.address) as producer,
        face.PullConsumer(broker.address, group="g", timeout_s=0.5) as consumer,
    ):
        await producer.send_batch([Message("t", b"%d" % number) for number in range(20)], queue_id=0)
        if fault != "lost":
            broker.behave(RequestCode.PULL_MESSAGE, second_fails(broker, fault))
        first = await consumer.pull("t", 0, 0, max_messages=10, wait_s=0.0, read_ahead=True)
        if fault == "lost":
            broker.drop_connections()
        if fault == "refused":
            with pytest.raises(BrokerBusy):
                await consumer.pull("t", 0, 10, max_messages=10, wait_s=0.0)
        if fault == "silent":
            with pytest.raises(RequestTimeout):
                await consumer.pull("t", 0, 10, max_messages=10, wait_s=0.0)
        second = await consumer.pull("t", 0, 10, max_messages=10, wait_s=0.0)
        bodies = [message.body for message in (*first.messages, *second.messages)]
        assert bodies == [b"%d" % number for number in range(20)]


def second_fails(broker: FakeBroker, fault: str):  # type: ignore[no-untyped-def]
    pulls = []

    def behave(header: Header, body: memoryview) -> Answer:
        pulls.append(header)
        if len(pulls) != 2:
            return broker.pull(header, body)
        return SILENCE if fault == "silent" else Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later")

    return behave


@scenario
async def test_requests_that_may_be_repeated_survive_a_restart(face: Face, broker: FakeBroker) -> None:

    async with face.PullConsumer(broker.address, group="g", timeout_s=5.0) as consumer:
        assert await consumer.committed("t", 0) is None
        broker.stop()

        async def ask() -> None:
            assert await consumer.committed("t", 0) is None

        async def restart() -> None:
            broker.restart()

        await face.together(ask, restart)


@scenario
async def test_a_broker_that_stays_away_is_given_up_at_the_deadline(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address) as producer:
        broker.stop()
        with pytest.raises((ConnectFailed, SendOutcomeUnknown)):
            await producer.send(Message("t", b"x"), timeout_s=0.3)
        with pytest.raises(ConnectFailed):
            await producer.send(Message("t", b"x"), timeout_s=0.2)


@scenario
async def test_several_addresses_are_tried_in_turn(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(f"127.0.0.1:1,{broker.address}") as producer:
        await producer.send(Message("t", b"x"))
    async with face.Producer(["127.0.0.1:1", broker.address]) as producer:
        await producer.send(Message("t", b"x"))


@scenario
async def test_a_new_topic_is_sent_to_by_the_template(face: Face) -> None:
    with FakeBroker(unknown_topics=frozenset({"new"})) as broker:
        async with face.Producer(broker.address) as producer:
            await producer.send(Message("new", b"x"))
            await producer.send(Message("new", b"y"))
            assert "new" not in broker.unknown_topics
        broker.unknown_topics |= {"none", "TBW102"}
        async with face.Producer(broker.address) as producer:
            with pytest.raises(TopicNotFound):
                await producer.send(Message("none", b"x"))


@scenario
async def test_an_unknown_broker_is_asked_for_again_and_then_named(face: Face, broker: FakeBroker) -> None:

    data = [BrokerData("c", "fake", {0: broker.address})]
    broker.behave(ROUTE, Answer(body=TopicRoute([QueueData("broker-x", 1, 1, 6, 0)], data).to_json()))
    async with face.Producer(broker.address) as producer:
        with pytest.raises(BrokerNotFound, match="broker-x") as caught:
            await producer.send(Message("t", b"x"))
        assert caught.value.name == "broker-x"
        assert broker.count(ROUTE) == 2
        broker.behave(ROUTE, None)
        await producer.send(Message("other", b"x"))


@scenario
async def test_a_later_block_that_fails_tells_what_is_stored(face: Face, broker: FakeBroker) -> None:

    def second_fails(header: Header, body: memoryview) -> Answer:
        return broker.put(header, body) if broker.count(PUT) == 1 else HANG_UP

    broker.behave(PUT, second_fails)
    async with face.Producer(broker.address, batch_bytes=400, timeout_s=0.5) as producer:
        with pytest.raises(PartlySent) as caught:
            await producer.send_batch([Message("t", b"x")] * 6, queue_id=0)
    stored = [receipt for receipt in caught.value.receipts if receipt is not None]
    assert len(caught.value.receipts) == 6
    assert [receipt.queue_offset for receipt in stored] == list(range(len(broker.log["t", 0])))
    assert isinstance(caught.value.errors[len(stored)], SendOutcomeUnknown)


@scenario
async def test_a_later_block_needs_no_route(face: Face) -> None:
    """The first one to a new topic goes by the template's route, which is not kept."""
    with FakeBroker(unknown_topics=frozenset({"new"})) as broker:

        def then_no_routes(header: Header, body: memoryview) -> Answer:
            broker.behave(ROUTE, Answer(ResponseCode.SYSTEM_ERROR, remark="the name service is away"))
            return broker.put(header, body)

        broker.behave(PUT, then_no_routes)
        async with face.Producer(broker.address, batch_bytes=400) as producer:
            receipts = await producer.send_batch([Message("new", b"x")] * 6)
        assert len({receipt.queue_id for receipt in receipts}) == 1
        assert [receipt.queue_offset for receipt in receipts] == list(range(6))
        assert broker.count(PUT) > 1


@scenario
async def test_many_messages_without_an_answer_are_of_unknown_outcome(face: Face, broker: FakeBroker) -> None:

    broker.behave(PUT, SILENCE)
    async with face.Producer(broker.address) as producer:
        with pytest.raises(PartlySent) as caught:
            await producer.send_many("t", [b"x"] * 3, timeout_s=0.1)
        assert {type(error) for error in caught.value.errors.values()} == {SendOutcomeUnknown}
        assert caught.value.receipts == [None, None, None]
        broker.behave(PUT, None)
        await producer.send(Message("t", b"x"))


@scenario
async def test_members_of_a_lingering_group_get_errors_of_their_own(face: Face, broker: FakeBroker) -> None:

    broker.behave(PUT, HANG_UP)
    errors = []
    async with face.Producer(broker.address, linger_s=0.05, timeout_s=0.5) as producer:

        async def send() -> None:
            try:
                await producer.send(Message("t", b"x"), queue_id=0)
            except SendOutcomeUnknown as error:
                errors.append(error)

        await face.together(send, send, send)
    assert len(errors) == 3
    assert len({id(error) for error in errors}) == 3
    assert len({error.message_ids[0] for error in errors}) == 3


@scenario
async def test_a_producer_closes_while_a_refused_block_is_sent_again(face: Face, broker: FakeBroker) -> None:
    """One by one, so that only the faulty one fails; here none is answered."""
    refused = Answer(ResponseCode.MESSAGE_ILLEGAL, remark="MALFORMED: record 1 is bad")

    def put(header: Header, _body: memoryview) -> Answer:
        return refused if header.ext["count"] == 3 else SILENCE

    broker.behave(PUT, put)
    errors = []
    async with face.Producer(broker.address, linger_s=0.05) as producer:

        async def send() -> None:
            with pytest.raises((ClientClosed, SendOutcomeUnknown)) as caught:
                await producer.send(Message("t", b"x"), queue_id=0)
            errors.append(caught.value)

        async def close() -> None:
            while broker.count(PUT) < 2:
                await face.sleep(0.01)
            await producer.aclose()

        await face.together(send, send, send, close)
    assert len(errors) == 3


@scenario
async def test_a_consumer_survives_restarts_and_hang_ups(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address) as producer:
        await producer.send_batch([Message("t", b"%d" % number) for number in range(6)], queue_id=0)
    async with face.Consumer(broker.address, group="g", topic="t", commit_interval_s=0.0) as consumer:
        assert (await consumer.receive(5.0)).body == b"0"
        broker.drop_connections()
        assert [(await consumer.receive(5.0)).body for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
        assert broker.committed["g", "t", 0] == 5
        broker.stop()
        assert await consumer.receive(0.3) is None
        broker.restart()
        async with face.Producer(broker.address) as producer:
            await producer.send(Message("t", b"after"), queue_id=1)
        assert (await consumer.receive(10.0)).body == b"after"
    assert broker.committed["g", "t", 1] == 1


@scenario
async def test_closing_ends_the_waits_of_others(face: Face, broker: FakeBroker) -> None:

    broker.behave(PUT, SILENCE)
    producer = face.Producer(broker.address)
    consumer = face.PullConsumer(broker.address, group="g")
    await producer.__aenter__()
    await consumer.__aenter__()
    ended = []

    async def send() -> None:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"x"))
        ended.append("send")

    async def pull() -> None:
        with pytest.raises(ClientClosed):
            await consumer.pull("t", 0, 0, wait_s=20.0)
        ended.append("pull")

    async def close() -> None:
        await face.until(lambda: broker.count(PUT) == 1 and broker.count(RequestCode.PULL_MESSAGE) == 1)
        await producer.aclose()
        await consumer.aclose()

    await face.together(send, pull, close)
    assert sorted(ended) == ["pull", "send"]


@scenario
async def test_nonsense_from_the_broker_costs_the_connection_and_nothing_more(face: Face, broker: FakeBroker) -> None:

    async with face.PullConsumer(broker.address, group="g", timeout_s=0.3) as consumer:
        assert await consumer.committed("t", 0) is None
        with broker._lock:
            broker._connections[0].sendall(b"\xff" * 64)
        await face.until(lambda: True)
        assert await consumer.committed("t", 0) is None


class OtherServer:
    """A server of another protocol: it sends `answer` to the first bytes of each connection, and closes it."""

    def __init__(self, answer: bytes) -> None:
        self.connections = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> OtherServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection:
                    connection.recv(65_536)
                    connection.sendall(self._answer)


@pytest.mark.parametrize(
    ("answer", "server"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n", "an HTTP server"),
        (b"-ERR unknown command\r\n", "a Redis server"),
        (b'INFO {"server_id":"NA"}\r\n', "a NATS server"),
        (b"AMQP\x00\x00\x09\x01", "an AMQP server"),
    ],
    ids=["http", "redis", "nats", "amqp"],
)
@scenario
async def test_another_server_is_told_from_a_broker_at_once(face: Face, answer: bytes, server: str) -> None:
    with OtherServer(answer) as other:
        async with face.PullConsumer(other.address, group="g", timeout_s=60.0) as consumer:
            with pytest.raises(NotABroker, match=f"{server}.* responds there"):
                await consumer.committed("t", 0)
    assert other.connections == 1, "it is not asked again"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"", "closes them without a response"), (b"\xff" * 64, "violated the protocol")],
    ids=["closes", "garbage"],
)
@scenario
async def test_a_server_that_does_not_answer_is_asked_with_back_off(face: Face, answer: bytes, reason: str) -> None:
    with OtherServer(answer) as other:
        async with face.PullConsumer(other.address, group="g", timeout_s=0.5) as consumer:
            with pytest.raises((ConnectFailed, RequestTimeout), match=reason):
                await consumer.committed("t", 0)
    assert 1 < other.connections < 10


@scenario
async def test_a_timeout_says_that_the_address_has_never_answered(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with face.PullConsumer(address, group="g", timeout_s=0.1) as consumer:
            with pytest.raises(RequestTimeout, match=f"{address} has not responded at all"):
                await consumer.committed("t", 0)


def test_a_forked_child_uses_a_connection_of_its_own(broker: FakeBroker) -> None:
    with reput_client.blocking.Producer(broker.address) as producer:
        mine = producer.send(Message("t", b"parent"), queue_id=0)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                receipt = producer.send(Message("t", b"child"), queue_id=0)
                os.write(writing, receipt.message_id.encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            theirs = pipe.read().decode()
        assert os.waitpid(child, 0)[1] == 0
        after = producer.send(Message("t", b"parent again"), queue_id=0)
        assert after.queue_offset == 2
        assert broker.accepted == 2, "the child connected anew, the parent did not have to"
        assert theirs[:24] != mine.message_id[:24], "ids come from a generator of the child's own"


def test_threads_share_a_blocking_client_while_one_waits(broker: FakeBroker) -> None:
    before = open_sockets()
    with reput_client.blocking.PullConsumer(broker.address, group="g") as consumer:
        consumer.committed("t", 0)
        waiting = threading.Thread(target=lambda: consumer.pull("t", 0, 0, wait_s=0.5))
        waiting.start()
        for _ in range(50):
            consumer.commit("t", 1, 5)
        waiting.join()
    assert open_sockets() <= before + 1
    with pytest.raises(ClientClosed):
        consumer.committed("t", 0)


@scenario
async def test_a_timeout_leaves_the_connection_usable(face: Face, broker: FakeBroker) -> None:

    async with face.PullConsumer(broker.address, group="g", timeout_s=0.1) as consumer:
        await consumer.committed("t", 0)
        broker.behave(RequestCode.QUERY_CONSUMER_OFFSET, SILENCE)
        with pytest.raises(RequestTimeout, match=r"committed offset of g in t/0: no response within 0\.1 s"):
            await consumer.committed("t", 0)
        broker.behave(RequestCode.QUERY_CONSUMER_OFFSET, None)
        assert await consumer.committed("t", 0) is None
        assert broker.accepted == 1
