"""Requests, their replies, and replying, with every API, against a scripted broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import anyio
import pytest

from reput_client import Message, ReceivedMessage
from reput_client.errors import ClientClosed, ReplyTimeout, RequestTimeout
from reput_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.group import HeartbeatData
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import BrokerBusy, InvalidMessage, InvalidName, RequesterGone, TopicNotFound
from reput_protocol.names import reply_topic
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record.record import Record, encode_record
from reput_protocol.wire.header import Header, HeaderType
from support.faces import Face, scenario
from support.fakes import SILENCE, Answer, FakeBroker

SEND, BEAT, LEAVE = RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT
PUSH, REPLY = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, RequestCode.SEND_REPLY_MESSAGE_V2


class Broker(FakeBroker):
    """Replies to requests by itself, a given number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[HeartbeatData] = []
        self.replies: list[tuple[dict[str, Any], bytes]] = []
        self.times = 1
        self.reply_fields: dict[str, Any] = {}
        self.reply_body: bytes | None = None
        self.behave(BEAT, self._beat)
        self.behave(LEAVE, Answer())
        self.behave(SEND, self._send)
        self.behave(REPLY, self._reply)

    def _beat(self, header: Header, body: memoryview) -> Answer:
        del header
        self.beats.append(HeartbeatData.from_json(body))
        return Answer()

    def _send(self, header: Header, body: memoryview) -> Answer:
        answer = self.park(header, body)
        for _ in range(self.times):
            threading.Thread(target=self.push, args=(header.ext, bytes(body)), daemon=True).start()
        return answer

    def _reply(self, header: Header, body: memoryview) -> Answer:
        self.replies.append((dict(header.ext), bytes(body)))
        return Answer(ext={"msgId": "0", "queueId": 0, "queueOffset": 0})

    def push(self, request: Any, body: bytes, *, header_type: int = HeaderType.MSGPACK) -> None:
        """Push the reply to a request with these header fields."""
        asked = decode_properties(str(request["i"]).encode())
        properties = {"CORRELATION_ID": asked["CORRELATION_ID"], "MSG_TYPE": "reply", "TAGS": "t", "KEYS": "k"}
        fields = {"sys_flag": 0, "flag": 3, **self.reply_fields}
        header = SendMessageHeader(
            "PG", "c_REPLY_TOPIC", 0, born_timestamp=7, properties=encode_properties(properties).decode(), **fields
        )
        pushed = PushReplyHeader.of(
            header, header.properties, born_host="/10.0.0.7:4711", store_host="10.0.0.8:10911", store_timestamp_ms=8
        )
        answer = b"re: " + body if self.reply_body is None else self.reply_body
        self.ask(PUSH, pushed.to_ext(header_type), answer, header_type=header_type)

    @property
    def request(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Header fields and properties of the last request."""
        ext, _ = self.parked[-1]
        return ext, decode_properties(str(ext["i"]).encode())


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def received(properties: dict[str, str], broker_name: str = "fake") -> ReceivedMessage:
    """A message as a consumer gets it."""
    record = encode_record(Record("work", b"ping", properties=encode_properties(properties)))
    return ReceivedMessage.of_record(bytes(record), broker_name)


REQUEST = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.9@1", "TTL": "3000", "CLUSTER": "c"}


@scenario
async def test_a_request_says_what_rocketmqs_do_and_gets_its_reply(face: Face, broker: Broker) -> None:

    async with face.Producer(broker.address, group="shop") as producer:
        assert (producer.client_id, broker.count(BEAT)) == ("", 0), "who only sends is no member"
        sent = Message("work", b"ping", tag="a", properties={"p": "q"})
        reply = await producer.request(sent, timeout_s=30.0, queue_id=1)
        assert producer.client_id == broker.beats[0].client_id != ""
        assert broker.beats[0].producer_groups == ["shop"]
        ext, properties = broker.request
        assert (ext["a"], ext["b"], ext["e"]) == ("shop", "work", 1)
        UUID(properties.pop("CORRELATION_ID"))
        properties.pop("UNIQ_KEY")
        assert properties == {"TAGS": "a", "p": "q", "REPLY_TO_CLIENT": producer.client_id, "TTL": "30000"}
        assert (reply.body, reply.tag, reply.keys, reply.flag) == (b"re: ping", "t", ("k",), 3)
        assert (reply.born_timestamp_ms, reply.store_timestamp_ms) == (7, 8)
        assert (reply.born_host, reply.store_host) == ("10.0.0.7:4711", "10.0.0.8:10911")
        assert not reply.wants_reply
        assert abs(int(reply.properties["ARRIVE_TIME"]) - time.time() * 1000) < 60_000
        answer, _ = broker.response()
        assert answer.code == ResponseCode.SUCCESS
        await producer.request(sent)
        assert broker.count(BEAT) == 1
    codes = [header.code for header in broker.requests]
    assert codes.index(BEAT) < codes.index(SEND)
    assert codes[-1] == LEAVE


@scenario
async def test_replies_of_other_header_types_and_compressed_ones(face: Face, broker: Broker) -> None:
    import zlib

    broker.times = 0
    broker.reply_fields = {"sys_flag": MessageSysFlag.COMPRESSED}
    broker.reply_body = zlib.compress(b"large")

    def answer() -> None:
        while not broker.parked:
            time.sleep(0.001)
        broker.push(broker.parked[-1][0], b"", header_type=HeaderType.JSON)

    threading.Thread(target=answer, daemon=True).start()
    async with face.Producer(broker.address) as producer:
        reply = await producer.request(Message("work", b"ping"), timeout_s=30.0)
        assert reply.body == b"large"


@scenario
async def test_many_requests_at_once_share_one_heartbeat_and_get_their_own_replies(face: Face, broker: Broker) -> None:
    count = 20 if face.is_blocking else 200

    got: dict[int, bytes] = {}
    async with face.Producer(broker.address) as producer:

        def work(number: int) -> Any:
            async def ask() -> None:
                message = Message("work", b"%d" % number)
                got[number] = (await producer.request(message, timeout_s=60.0)).body

            return ask

        await face.together(*(work(number) for number in range(count)))
        assert producer.late_replies == 0
    assert got == {number: b"re: %d" % number for number in range(count)}
    assert broker.count(BEAT) == 1


@scenario
async def test_no_reply_names_topic_and_correlation_id_and_a_late_one_is_dropped(
    face: Face, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:

    broker.times = 0
    async with face.Producer(broker.address) as producer:
        with pytest.raises(ReplyTimeout, match=r"is stored, but no reply has come within 0\.2 s") as failure:
            await producer.request(Message("work", b"ping"), timeout_s=0.2)
        ext, properties = broker.request
        error = failure.value
        assert (error.topic, error.correlation_id) == ("work", properties["CORRELATION_ID"])
        assert (error.timeout_s, error.is_stored) == (0.2, True)
        assert error.correlation_id in str(error)
        broker.push(ext, b"ping")
        broker.times = 2
        assert (await producer.request(Message("work", b"2"), timeout_s=30.0)).body == b"re: 2"
        await face.until(lambda: producer.late_replies == 2)
        assert f"too late, dropped: {error.correlation_id}" in caplog.text
        assert [broker.response()[0].code for _ in range(3)] == [0, 0, 0], "the broker is not bothered with it"


@scenario
async def test_a_lost_answer_of_the_broker_does_not_end_a_request(face: Face, broker: Broker) -> None:

    def silent(header: Header, body: memoryview) -> Answer:
        broker._send(header, body)
        return SILENCE

    broker.behave(SEND, silent)
    async with face.Producer(broker.address) as producer:
        broker.times = 0
        with pytest.raises(ReplyTimeout, match="may be stored, but no reply") as failure:
            await producer.request(Message("work", b"1"), timeout_s=0.2)
        assert not failure.value.is_stored

        def drop(header: Header, body: memoryview) -> Answer:
            broker.park(header, body)
            broker.drop_connections()
            return SILENCE

        broker.behave(SEND, drop)

        def reply() -> None:
            beats = len(broker.beats)
            while len(broker.parked) < 2 or len(broker.beats) == beats:
                time.sleep(0.001)
            time.sleep(0.05)  # its heartbeat is answered
            broker.push(broker.parked[-1][0], b"2")

        threading.Thread(target=reply, daemon=True).start()
        assert (await producer.request(Message("work", b"2"), timeout_s=30.0)).body == b"re: 2"
        assert broker.count(SEND) == 2, "a request is never sent twice"


@scenario
async def test_after_a_restart_of_the_broker_the_requester_is_known_again_while_it_waits(
    face: Face, broker: Broker
) -> None:

    broker.times = 0
    async with face.Producer(broker.address) as producer:

        def restart() -> None:
            while not broker.parked:
                time.sleep(0.001)
            time.sleep(0.05)
            broker.stop()
            beats = len(broker.beats)
            broker.restart()
            while len(broker.beats) == beats:
                time.sleep(0.001)
            time.sleep(0.05)
            broker.push(broker.parked[-1][0], b"ping")

        thread = threading.Thread(target=restart, daemon=True)
        thread.start()
        reply = await producer.request(Message("work", b"ping"), timeout_s=60.0)
        assert reply.body == b"re: ping"
        assert {beat.client_id for beat in broker.beats} == {producer.client_id}
        thread.join()


@scenario
async def test_what_the_broker_refuses_is_no_timeout(face: Face, broker: Broker) -> None:

    async with face.Producer(broker.address) as producer:
        broker.behave(SEND, Answer(ResponseCode.TOPIC_NOT_EXIST, remark="NO_TOPIC: no such topic"))
        with pytest.raises(TopicNotFound):
            await producer.request(Message("work", b"ping"), timeout_s=30.0)
        broker.behave(BEAT, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later"))
        broker.drop_connections()
        await face.until(lambda: broker.count(BEAT) > 1)
        with pytest.raises(BrokerBusy):
            await producer.request(Message("work", b"ping"), timeout_s=30.0)
        broker.behave(BEAT, Answer())
    async with face.Producer(broker.address, group="DEFAULT_PRODUCER") as producer:
        await producer.send(Message("work", b"ping"))
        with pytest.raises(InvalidName, match="choose another name"):
            await producer.request(Message("work", b"ping"), timeout_s=30.0)
    broker.behave(SEND, broker._send)
    async with face.Producer(broker.address, deduplicate=True) as producer:
        for unique_id in ("u", "u", None):  # a request is never taken for one that is stored
            request = Message("work", b"1", unique_id=unique_id)
            assert (await producer.request(request, timeout_s=30.0)).body == b"re: 1"


@scenario
async def test_sends_do_not_wait_for_the_heartbeat_of_a_request(face: Face, broker: Broker) -> None:
    broker.behave(BEAT, SILENCE)
    order: list[str] = []

    async with face.Producer(broker.address) as producer:
        queues = {(await producer.send(Message("work", b"before"))).queue_id for _ in range(8)}

        async def ask() -> None:
            with pytest.raises(RequestTimeout):
                await producer.request(Message("work", b"ping"), timeout_s=1.0)
            order.append("asked")

        async def send() -> None:
            await face.until(lambda: broker.count(BEAT) > 0)
            for queue_id in queues:
                await producer.send(Message("work", b"meanwhile"), queue_id=queue_id)
            order.append("sent")

        await face.together(ask, send)
        assert order == ["sent", "asked"]
        assert broker.count(SEND) == 0


@pytest.mark.parametrize("face", ["asyncio", "trio"], indirect=True)
@scenario
async def test_sends_do_not_wait_for_many_requests_that_wait_for_a_heartbeat(face: Face, broker: Broker) -> None:
    started = 0
    broker.behave(BEAT, SILENCE)
    async with face.Producer(broker.address, timeout_s=60.0) as producer:
        await producer.send(Message("work", b"before"))

        async def ask() -> None:
            nonlocal started
            started += 1
            await producer.request(Message("work", b"ping"), timeout_s=60.0)

        with anyio.fail_after(10.0):
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(ask)
                await face.until(lambda: started == 100 and broker.count(BEAT) > 0)
                await producer.send(Message("work", b"behind"))
                tasks.cancel_scope.cancel()
    assert broker.count(SEND) == 0


@scenario
async def test_closing_ends_requests_that_wait(face: Face, broker: Broker) -> None:

    broker.times = 0
    producer = face.Producer(broker.address)
    await producer.__aenter__()
    failures: list[Exception] = []

    async def ask() -> None:
        try:
            await producer.request(Message("work", b"ping"), timeout_s=60.0)
        except ClientClosed as error:
            failures.append(error)

    async def close() -> None:
        await face.until(lambda: len(broker.parked) == 2)
        await producer.aclose()

    await face.together(ask, ask, close)
    assert len(failures) == 2
    with pytest.raises(ClientClosed):
        await producer.request(Message("work", b"ping"))


@scenario
async def test_a_transaction_producer_requests_under_its_own_membership(face: Face, broker: Broker) -> None:
    async def never(message: ReceivedMessage) -> Any:
        raise AssertionError(message)

    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        assert (await producer.request(Message("work", b"ping"), timeout_s=30.0)).body == b"re: ping"
        assert broker.request[1]["REPLY_TO_CLIENT"] == producer.client_id
    assert broker.count(BEAT) == 1


@scenario
async def test_a_reply_is_what_rocketmqs_clients_send(face: Face, broker: Broker) -> None:

    async with face.Producer(broker.address, group="workers") as producer:
        request = received(REQUEST)
        assert request.wants_reply
        await producer.reply(request, b"pong", tag="t", keys=["k"], properties={"p": "q"}, flag=9)
        assert producer.client_id == "", "who replies need not be known"
    ((ext, body),) = broker.replies
    assert (ext["a"], ext["b"], ext["h"], body) == ("workers", reply_topic("c"), 9, b"pong")
    properties = decode_properties(str(ext["i"]).encode())
    assert len(properties.pop("UNIQ_KEY")) == 32
    assert properties == {
        "TAGS": "t", "KEYS": "k", "p": "q", "MSG_TYPE": "reply",
        "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.9@1", "TTL": "3000",
    }  # fmt: skip


@scenario
async def test_a_reply_may_have_a_value(face: Face, broker: Broker) -> None:
    async with face.Producer(broker.address, serializer=str.encode) as producer:
        await producer.reply(received(REQUEST), value="pong")
        for neither in ({}, {"body": b"pong", "value": "pong"}):
            with pytest.raises(InvalidMessage):
                await producer.reply(received(REQUEST), **neither)
    assert [body for _, body in broker.replies] == [b"pong"]


@scenario
async def test_a_reply_that_cannot_be_handed_over_says_why(face: Face, broker: Broker) -> None:

    async with face.Producer(broker.address) as producer:
        for missing in ("CLUSTER", "REPLY_TO_CLIENT"):
            other = received({name: value for name, value in REQUEST.items() if name != missing})
            with pytest.raises(InvalidMessage, match=f"has no property {missing}"):
                await producer.reply(other, b"pong")
        assert not received({}).wants_reply
        assert not received({**REQUEST, "MSG_TYPE": "reply"}).wants_reply
        broker.behave(REPLY, Answer(ResponseCode.SYSTEM_ERROR, remark="REQUESTER_GONE: not found"))
        with pytest.raises(RequesterGone):
            await producer.reply(received(REQUEST), b"pong")
        broker.behave(REPLY, Answer(ResponseCode.SYSTEM_ERROR, remark="TIMEOUT: silent"))
        with pytest.raises(BrokerBusy):
            await producer.reply(received(REQUEST), b"pong")


@pytest.mark.anyio
async def test_a_cancelled_request_leaves_the_producer_usable(broker: Broker) -> None:
    import anyio

    import reput_client

    async with reput_client.Producer(broker.address) as producer:
        broker.times = 0
        with anyio.move_on_after(0.2) as scope:
            await producer.request(Message("work", b"1"), timeout_s=60.0)
        assert scope.cancelled_caught
        broker.push(broker.parked[-1][0], b"1")
        broker.times = 1
        assert (await producer.request(Message("work", b"2"), timeout_s=30.0)).body == b"re: 2"
        assert producer.late_replies == 1
