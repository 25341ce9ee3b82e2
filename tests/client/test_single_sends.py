"""`forward` and `send_oneway`: blocks with one message, which are repeated and moved like any other."""

from __future__ import annotations

import pytest

from reput_client import Message, ReceivedMessage
from reput_client.errors import SendOutcomeUnknown
from reput_protocol.codes import Dedup, MessageSysFlag, RequestCode
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import SENT_PROPERTIES_BYTES_MAX, UNIQ_KEY, decode_properties, encode_properties
from reput_protocol.record.record import Record, encode_record
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fake_cluster import FakeCluster
from support.fakes import HANG_UP, Answer, FakeBroker

PUT = RequestCode.PUT_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2


def received(**properties: str) -> ReceivedMessage:
    """A message of some topic, with a body that its producer has compressed."""
    compressed = MessageSysFlag.COMPRESSED
    text = encode_properties({UNIQ_KEY: "ORIGINAL", "TAGS": "x", **properties})
    record = Record("orders", b"zipped", queue_id=0, flag=7, sys_flag=compressed, properties=text)
    return ReceivedMessage.of_record(bytes(encode_record(record)))


@scenario
async def test_a_forward_without_an_answer_is_repeated_as_the_same_message(face: Face, broker: FakeBroker) -> None:
    sent: list[SendMessageHeader] = []

    def lose_the_first(header: Header, body: memoryview) -> Answer:
        sent.append(SendMessageHeader.from_ext_v2(header.ext))
        return HANG_UP if len(sent) == 1 else broker.park(header, body)

    broker.behave(SEND, lose_the_first)
    async with face.Producer(broker.address) as producer:
        receipt = await producer.forward(received(), "archive", queue_id=1, properties={"from": "orders"})
    assert [header.dedup for header in sent] == [Dedup.MARK, Dedup.CHECK]
    assert sent[0].properties == sent[1].properties
    assert decode_properties(sent[0].properties.encode()) == {
        UNIQ_KEY: receipt.unique_id,
        "TAGS": "x",
        "from": "orders",
    }
    assert receipt.unique_id not in (None, "ORIGINAL")
    assert (sent[1].sys_flag, sent[1].flag) == (MessageSysFlag.COMPRESSED, 7)
    assert [bytes(body) for _, body in broker.parked] == [b"zipped"]


@scenario
async def test_a_forward_that_must_not_be_repeated_has_an_unknown_outcome(face: Face, broker: FakeBroker) -> None:
    broker.behave(SEND, HANG_UP)
    async with face.Producer(broker.address, retries=0) as producer:
        with pytest.raises(SendOutcomeUnknown) as error:
            await producer.forward(received(), "archive", unique_id="COPY")
        assert error.value.message_ids == ["COPY"]
    assert broker.count(SEND) == 1


@scenario
async def test_a_forward_that_is_too_large_is_refused_before_it_leaves(face: Face, broker: FakeBroker) -> None:
    async with face.Producer(broker.address) as producer:
        with pytest.raises(InvalidMessage):
            await producer.forward(received(), "archive", properties={"p": "x" * SENT_PROPERTIES_BYTES_MAX})
        await producer.forward(received(), "archive")
    assert broker.count(SEND) == 1


@scenario
async def test_forwards_and_oneway_sends_go_to_a_broker_that_takes_them(face: Face) -> None:
    with FakeCluster({"broker-a": 1, "broker-b": 1}, queues=1) as cluster:
        async with face.Producer(cluster.names.address, timeout_s=10.0) as producer:
            await producer.send(Message("t", b"x"))
            cluster.master("broker-a").stop()
            for _ in range(4):
                await producer.forward(received(), "t")
                await producer.send_oneway(Message("t", b"oneway"))
            await producer.send(Message("t", b"last"))
        other = cluster.master("broker-b")
        assert len(other.parked) == 4
        assert other.count(PUT) >= 5


@scenario
async def test_a_oneway_send_goes_out_on_the_next_connection(face: Face, broker: FakeBroker) -> None:
    async with face.Producer(broker.address) as producer:
        await producer.send_oneway(Message("t", b"1", tag="x"), queue_id=0)
        await producer.send(Message("t", b"2"), queue_id=0)
        broker.stop()
        broker.restart()
        await face.sleep(0.1)  # what leaves for the connection that has just ended is lost
        await producer.send_oneway(Message("t", b"3", unique_id="MINE"), queue_id=0)
        await producer.send(Message("t", b"4"), queue_id=0)
    oneway = [header.is_oneway for header in broker.requests if header.code == PUT]
    assert oneway == [True, False, True, False]
