"""Sending delayed messages: alone, in order, with a receipt; and a broker that refuses them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from reput_client import Message
from reput_client.errors import AckNotReached, PartlySent
from reput_client.produce.block import Terms
from reput_client.produce.contents import Limits, block_of, contents_of
from reput_protocol.codes import AckLevel, RequestCode, ResponseCode
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import HeaderFieldError, InvalidMessage, MessageRefused
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker

PUT = RequestCode.PUT_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2
WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def kinds(broker: FakeBroker) -> str:
    """What was sent, in order: b for a block, s for a single message."""
    letters = {int(PUT): "b", int(SEND): "s"}
    return "".join(letters[header.code] for header in broker.requests if header.code in letters)


@scenario
async def test_a_delayed_message_travels_alone_and_its_receipt_says_where_it_waits(
    face: Face, broker: FakeBroker
) -> None:

    async with face.Producer(broker.address, group="shop", linger_s=60.0) as producer:
        receipts = [
            await producer.send(message, queue_id=1, ack="page_cache")
            for message in (
                Message("t", b"level", tag="x", keys=["k"], flag=7, delay_level=3),
                Message("t", bytearray(b"seconds"), delay_s=1.5, unique_id="MINE"),
                Message("t", memoryview(b"moment"), deliver_at=WHEN),
            )
        ]
    assert kinds(broker) == "sss"
    headers = [SendMessageHeader.from_ext_v2(ext) for ext, _ in broker.parked]
    assert [body for _, body in broker.parked] == [b"level", b"seconds", b"moment"]
    first = headers[0]
    assert (first.producer_group, first.topic, first.queue_id, first.flag) == ("shop", "t", 1, 7)
    assert (first.ack, first.sys_flag) == (AckLevel.PAGE_CACHE, 0)
    assert first.properties == f"UNIQ_KEY\x01{receipts[0].unique_id}\x02TAGS\x01x\x02KEYS\x01k\x02DELAY\x013\x02"
    assert headers[1].properties == "UNIQ_KEY\x01MINE\x02TIMER_DELAY_MS\x011500\x02"
    assert headers[2].properties.endswith("\x02TIMER_DELIVER_MS\x011893456000000\x02")
    second = receipts[1]
    assert (second.topic, second.queue_id, second.queue_offset, second.physical_offset) == ("t", 1, 1, 1000)
    assert (second.store_timestamp_ms, second.store_host, second.ack) == (
        1_700_000_000_000,
        broker.address,
        "page_cache",
    )
    assert second.message_id == "MINE"


@scenario
async def test_a_batch_keeps_its_order_around_delayed_messages(face: Face, broker: FakeBroker) -> None:

    later = {2, 3, 6}
    messages = [Message("t", b"%d" % n, delay_level=1 if n in later else None) for n in range(7)]
    async with face.Producer(broker.address) as producer:
        receipts = await producer.send_batch(messages, queue_id=0)
        assert kinds(broker) == "bssbs"
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 0, 1, 2, 3, 2]
        assert len({receipt.message_id for receipt in receipts}) == 7
        broker.behave(SEND, Answer(ResponseCode.MESSAGE_ILLEGAL, remark="MALFORMED: no"))
        with pytest.raises(PartlySent) as caught:
            await producer.send_batch(messages, queue_id=0)
        assert [receipt is not None for receipt in caught.value.receipts] == [True] * 2 + [False] * 5
        assert list(caught.value.errors) == [2]
        with pytest.raises(MessageRefused):
            await producer.send_batch(messages[2:4], queue_id=0)


@scenario
async def test_posted_delayed_messages_are_in_flight_together(face: Face, broker: FakeBroker) -> None:

    messages = [Message("t", b"%d" % n, delay_s=60 if n % 3 else None) for n in range(60)]
    async with face.Producer(broker.address) as producer:
        receipts = await face.post_all(producer, messages, queue_id=0)
    assert [body for _, body in broker.parked] == [b"%d" % n for n in range(60) if n % 3]
    assert [receipt.queue_offset for receipt in receipts if receipt.physical_offset % 1000 == 0][-1] == 39
    assert len({receipt.message_id for receipt in receipts}) == 60


@pytest.mark.parametrize(("option", "is_serial"), [({}, True), ({"priority": 3}, True), ({"delay_s": 60}, False)])
def test_only_delayed_messages_may_overtake_others_of_their_queue(option: dict[str, Any], is_serial: bool) -> None:
    """A block that is sent again must not come after one that was sent later, unless its message has no order."""
    [contents] = contents_of([Message("t", b"x", **option)], Limits(100, 1 << 20, 0))
    terms = Terms(AckLevel.FLUSHED, timeout_s=3.0, retries=None)
    block = block_of(contents, MessageQueue("t", "broker-a", 0), terms, is_free=True)
    block.seal(0, None)
    assert block.is_serial is is_serial
    assert (block.single_text is not None) is bool(option), "it is sent alone"


@scenario
async def test_a_level_that_is_not_reached_carries_the_receipt(face: Face, broker: FakeBroker) -> None:
    def too_slow(header: Header, body: memoryview) -> Answer:
        ext: dict[str, Any] = {**broker.park(header, body).ext, "ack": "page_cache"}
        return Answer(ResponseCode.FLUSH_DISK_TIMEOUT, ext, remark="FLUSH_TIMEOUT: slow")

    broker.behave(SEND, too_slow)
    async with face.Producer(broker.address, timeout_s=0.5) as producer:
        with pytest.raises(AckNotReached) as caught:
            await producer.send(Message("t", b"x", delay_level=1))
        assert caught.value.receipt.ack == "page_cache"


@pytest.mark.parametrize("missing", ["ack", "storeTimestamp", "msgId"])
@pytest.mark.parametrize("face", ["trio"], indirect=True)
@scenario
async def test_an_answer_that_does_not_say_enough_is_not_taken_for_a_receipt(
    face: Face, broker: FakeBroker, missing: str
) -> None:

    def vague(header: Header, body: memoryview) -> Answer:
        ext = dict(broker.park(header, body).ext)
        ext[missing] = "none" if missing == "msgId" else None
        return Answer(ext=ext)

    broker.behave(SEND, vague)
    async with face.Producer(broker.address) as producer:
        with pytest.raises(HeaderFieldError, match=missing):
            await producer.send(Message("t", b"x", delay_level=1))


@pytest.mark.parametrize("face", ["trio"], indirect=True)
@scenario
async def test_what_is_too_large_is_not_sent(face: Face, broker: FakeBroker) -> None:
    async with face.Producer(broker.address) as producer:
        with pytest.raises(InvalidMessage, match="make the body smaller"):
            await producer.send(Message("t", bytes(8 << 20), delay_level=1))
    assert kinds(broker) == ""


@scenario
async def test_a_producer_that_deduplicates_says_whether_it_may_be_stored(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, group="shop", deduplicate=True) as producer:
        await producer.send(Message("t", b"fresh", delay_level=3))
        await producer.send(Message("t", b"own", delay_level=3, unique_id="MINE"))
        await producer.send_batch([Message("t", b"fresh", delay_level=3)])
        await producer.post(Message("t", b"own", delay_level=3, unique_id="MINE"))
        await producer.flush()
    async with face.Producer(broker.address, group="shop") as producer:
        await producer.send(Message("t", b"own", delay_level=3, unique_id="MINE"))
    headers = [SendMessageHeader.from_ext_v2(ext) for ext, _ in broker.parked]
    assert [header.dedup for header in headers] == ["mark", "check", "mark", "check", "mark"]
