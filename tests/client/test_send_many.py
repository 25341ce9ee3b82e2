"""`send_many` against a real broker: it stores what `send` stores for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Message, SendReceipt
from reput_client.errors import ClientClosed, PartlySent, SendOutcomeUnknown
from reput_protocol.errors import InvalidMessage, InvalidName
from reput_protocol.record.record import decode_record
from support.faces import Face, scenario
from support.stored_messages import sent_part, stored


@scenario
async def test_what_is_stored_is_what_send_stores_of_each(face: Face, reput_broker: BackgroundBroker) -> None:
    sizes = [100] * 40 + [0, 1, 5000] + list(range(30)) + [7] * 300
    bodies = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    tags = [None if n % 7 == 0 else f"tag{n % 3}" if n < 200 else "größe" for n in range(len(bodies))]
    keys = [[f"k-{n}", "all"][: n % 3] for n in range(len(bodies))]
    cases: dict[str, dict[str, Any]] = {
        "bare": {},
        "common": {"tag": "paid", "properties": {"k": "v", "é": "ü"}, "flag": -5},
        "tags": {"tags": tags},
        "keys": {"keys": keys, "tag": "t", "properties": {"k": "v"}},
        "same-size": {"keys": [[f"{n:05d}"] for n in range(len(bodies))], "tag": "t"},
    }

    address = reput_broker.address
    async with face.Admin(address) as admin:
        for topic in cases:
            await admin.create_topic(topic, queues=2)
    for unique_ids in (True, False):
        async with face.Producer(address, ack="page_cache", unique_ids=unique_ids) as producer:
            for topic, options in cases.items():
                receipts = await producer.send_many(
                    topic, bodies, queue_id=unique_ids, batch=64, in_flight=3, **options
                )
                assert len(receipts) == len(bodies)
                expected = [
                    Message(
                        topic,
                        body,
                        options["tags"][n] if "tags" in options else options.get("tag"),
                        options["keys"][n] if "keys" in options else (),
                        options.get("properties"),
                        options.get("flag", 0),
                    )
                    for n, body in enumerate(bodies)
                ]
                twins = await face.post_all(producer, expected, queue_id=int(unique_ids))
                both = await stored(face, address, topic, int(unique_ids))
                assert [m.offset_message_id for m in both] == [r.offset_message_id for r in [*receipts, *twins]]
                assert [m.message_id for m in both] == [r.message_id for r in [*receipts, *twins]]
                half = len(bodies)
                for many, one in zip(both[:half], both[half:], strict=True):
                    assert (decode_record(many.record).unique_key is not None) is unique_ids
                    assert sent_part(many.record) == sent_part(one.record)


@scenario
async def test_receipts_are_made_when_they_are_looked_at(face: Face, reput_broker: BackgroundBroker) -> None:

    async with face.Producer(reput_broker.address, ack="page_cache", batch_bytes=2000) as producer:
        bodies = (bytearray(b"x" * (n % 50)) for n in range(500))
        receipts: Sequence[SendReceipt] = await producer.send_many("t", bodies, queue_id=0)
        assert await producer.send_many("t", []) == []
        spread = await producer.send_many("t", [b"x"] * 8, batch=2)
    listed = list(receipts)
    assert [receipt.queue_offset for receipt in listed] == list(range(500))
    assert (receipts[0], receipts[-1], receipts[499]) == (listed[0], listed[-1], listed[-1])
    assert receipts[10:400:7] == listed[10:400:7]
    assert receipts == listed
    assert listed[3] in receipts
    for index in (500, -501):
        with pytest.raises(IndexError):
            receipts[index]
    assert {type(field) for receipt in listed for field in receipt[1:5]} == {int}
    assert {receipt.queue_id for receipt in spread} == {0, 1, 2, 3}


@scenario
async def test_what_cannot_be_sent_is_refused_before_anything_is(face: Face, reput_broker: BackgroundBroker) -> None:

    async with face.Producer(reput_broker.address) as producer:
        await producer.send(Message("t", b"first"), queue_id=0)
        cases: list[tuple[dict[str, Any], str]] = [
            ({"tag": ""}, "tag is empty"),
            ({"tag": "a\x01b"}, "0x01 or 0x02"),
            ({"tag": "\ud800"}, "half of a character"),
            ({"tag": "t", "tags": ["a", "b"]}, "both given"),
            ({"tags": ["a"]}, "tags has 1 entry for 2 bodies"),
            ({"keys": [["a"]] * 3}, "keys has 3 entries for 2 bodies"),
            ({"keys": ["a", "b"]}, "keys is one str"),
            ({"keys": [["a"], ["b c"]]}, "holds a space"),
            ({"keys": [["a"], ["b" * 32_760]]}, "at most 31743 fit"),
            ({"properties": {"DELAY": "3"}}, "delay_level="),
            ({"properties": {"k": "v" * 32_730}}, "at most 31743 fit"),
            ({"flag": 1 << 31}, "32 bits"),
        ]
        for options, reason in cases:
            with pytest.raises(InvalidMessage, match=reason):
                await producer.send_many("t", [b"x", b"y"], queue_id=0, **options)
        with pytest.raises(InvalidName):
            await producer.send_many("no good", [b"x"])
        with pytest.raises(InvalidMessage, match="body is a str"):
            await producer.send_many("t", ["text"], queue_id=0)
        with pytest.raises(InvalidMessage, match="make the body smaller"):
            await producer.send_many("t", [bytes(8 << 20)], queue_id=0)
        for options in ({"batch": 0}, {"in_flight": 0}):
            with pytest.raises(ValueError, match="at least 1"):
                await producer.send_many("t", [b"x"], **options)
        assert (await producer.send(Message("t", b"second"), queue_id=0)).queue_offset == 1


@scenario
async def test_a_body_in_the_middle_that_cannot_be_sent(face: Face, reput_broker: BackgroundBroker) -> None:

    async with face.Producer(reput_broker.address, ack="page_cache") as producer:
        for bad, reason in (("text", "body is a str"), (bytes(8 << 20), "make the body smaller")):
            bodies: list[Any] = [b"%d" % n for n in range(150)]
            bodies[70] = bad
            with pytest.raises(PartlySent) as caught:
                await producer.send_many("t", bodies, queue_id=0, batch=30)
            assert list(caught.value.errors) == [70]
            assert isinstance(caught.value.errors[70], InvalidMessage)
            assert reason in str(caught.value.errors[70])
            receipts = caught.value.receipts
            assert len(receipts) == 71
            assert all(receipts[:60])
            assert receipts[70] is None


@scenario
async def test_a_block_that_the_broker_refuses(face: Face, reput_broker: BackgroundBroker) -> None:
    """It is refused as a whole; the blocks that were in flight already are stored."""

    async with face.Producer(reput_broker.address, ack="page_cache", batch_bytes=8 << 20) as producer:
        bodies = [b"x"] * 40 + [bytes(5 << 20)] + [b"y"] * 500
        with pytest.raises(PartlySent) as caught:
            await producer.send_many("t", bodies, queue_id=0, batch=20, in_flight=2)
        errors = caught.value.errors
        assert list(errors) == list(range(40, 60))
        receipts = caught.value.receipts
        assert all(receipts[:40])
        assert not any(receipts[40:60])
        assert len(receipts) < len(bodies)


@scenario
async def test_a_single_message_that_the_broker_refuses(face: Face, reput_broker: BackgroundBroker) -> None:

    async with face.Producer(reput_broker.address, ack="page_cache", batch_bytes=8 << 20) as producer:
        large = bytes(5 << 20)
        with pytest.raises(PartlySent) as caught:
            await producer.send_many("t", [large])
        assert list(caught.value.errors) == [0]
        assert caught.value.receipts == [None]


@scenario
async def test_a_client_that_is_closed_by_an_interrupt_reports_what_waits(
    face: Face, reput_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(*_: object) -> None:
        raise ClientClosed("interrupted")

    async with face.Producer(reput_broker.address, ack="page_cache") as producer:
        await producer.send(Message("t", b"x"))
        with monkeypatch.context() as patched:
            patched.setattr("reput_client.produce.block_sender.BlockSender.until", wait)
            with pytest.raises(PartlySent) as caught:
                await producer.send_many("t", [b"a", b"b", b"c"], queue_id=0, batch=1, in_flight=1)
        assert list(caught.value.errors) == [0]
        assert isinstance(caught.value.errors[0], SendOutcomeUnknown)
        assert len(await producer.send_many("t", [b"d"], queue_id=0)) == 1


@scenario
async def test_a_broker_that_goes_away_leaves_the_outcome_open(face: Face, reput_broker: BackgroundBroker) -> None:

    async with face.Producer(reput_broker.address, ack="page_cache", timeout_s=0.5) as producer:
        await producer.send(Message("t", b"x"))

        def bodies() -> Any:
            for number in range(100):
                if number == 50:
                    reput_broker.stop()
                yield b"%d" % number

        with pytest.raises((PartlySent, SendOutcomeUnknown)) as caught:
            await producer.send_many("t", bodies(), queue_id=0, batch=10, in_flight=2)
        assert isinstance(caught.value, PartlySent)
        assert min(caught.value.errors) <= 50
        assert all(caught.value.receipts[: min(caught.value.errors)])
