"""Properties that a producer sets have no effect beyond its own message and topic (`reput_protocol.property_rules`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput_broker.remoting.request import ClientAnswer, Response
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.names import revive_topic
from reput_protocol.properties import encode_properties
from reput_protocol.property_rules import RULES, PropertyRule, Treatment
from reput_protocol.record.dead_letter import dead_letter_origin
from reput_protocol.record.put_block import BatchItem, encode_batch, encode_block
from reput_protocol.record.record import Record, encode_record
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.pops import popped_messages
from support.tasks import run_by_the_clock

OWN, PAYMENTS = "eves", "payments"
RETRY, DLQ = "%RETRY%eveg", "%DLQ%eveg"
DROPPED = [rule for rule in RULES if rule.batch is Treatment.DROPPED]
DROPPED_IN_REPLIES = [rule for rule in RULES if rule.reply is Treatment.DROPPED]

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def batch(client: BenchClient, topic: str, *properties: dict[str, str]) -> Response:
    body = encode_batch([BatchItem(0, b"b", encode_properties(found)) for found in properties])
    ext = client.send_header(topic, {}).to_ext_v2(client.header_type)
    response = await client.ask(RequestCode.SEND_BATCH_MESSAGE, ext, body)
    assert response is not None
    return response


async def block(client: BenchClient, topic: str, properties: dict[str, str]) -> Response:
    data, _ = encode_block([b"x"], [encode_properties(properties)], topic, 0, 1)
    header = PutMessageHeader(topic, 0, 1).to_ext(client.header_type)
    response = await client.ask(RequestCode.PUT_MESSAGE, header, bytes(data))
    assert response is not None
    return response


async def sent(bench: BrokerBench, topic: str, body: bytes = b"pay", **properties: str) -> Record:
    await bench.create_topic(topic)
    answer = await bench.client().send(topic, body, properties)
    assert answer.code == 0, answer.remark
    return (await bench.read(topic))[-1]


def set_group(bench: BrokerBench, group: str, retry_max_times: int) -> None:
    config = SubscriptionGroupConfig(group, retry_max_times=retry_max_times)
    bench.tables.groups.put(config)


def origin(letter: Record) -> str | None:
    return dead_letter_origin(letter.property_map(), letter.offset_message_id).topic


# -- one list for all forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", DROPPED, ids=lambda rule: rule.name)
async def test_what_only_the_broker_sets_is_not_taken_from_a_client(tmp_path: Path, rule: PropertyRule) -> None:
    name = f"{rule.name}X" if rule.is_prefix else rule.name
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        await bench.create_topic(OWN)
        assert (await client.send(OWN, b"x", {name: "eve", "own": "1"})).code == 0
        assert (await batch(client, OWN, {"own": "1"}, {name: "eve", "own": "2"})).code == 0
        alone, *units = [record.property_map() for record in await bench.read(OWN)]
        assert [found["own"] for found in (alone, *units)] == ["1", "1", "2"]
        assert [found.get(name) for found in (alone, *units)] == [None] * 3


@pytest.mark.parametrize("rule", DROPPED_IN_REPLIES, ids=lambda rule: rule.name)
async def test_nor_from_a_reply(tmp_path: Path, rule: PropertyRule) -> None:
    """A wrong checksum of the record would be damage to whoever reads the log."""
    async with broker_bench(tmp_path / "s") as bench:
        client, requester = bench.client(), bench.client()
        await bench.create_topic(OWN)
        await requester.heartbeat("requesters")
        requester.answers.append(ClientAnswer(0, None, {}, b""))
        reply = {"REPLY_TO_CLIENT": requester.client_id, "MSG_TYPE": "reply", rule.name: "0123456789"}
        header = client.send_header(OWN, reply).to_ext_v2(client.header_type)
        answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"r")
        assert answer is not None
        assert answer.code == 0, answer.remark
        (record,) = await bench.read(OWN)
        assert record.body == b"r"
        assert rule.name not in record.property_map()


# -- cancellations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["alone", "half"])
async def test_a_cancellation_has_no_effect_on_another_topic(tmp_path: Path, form: str) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(PAYMENTS)
        await bench.create_topic(OWN)
        producer, eve = bench.client(), bench.client()
        due = str(bench.now_ms + 20_000)
        receipt = await producer.send(PAYMENTS, b"salary", {"TIMER_DELIVER_MS": due, "UNIQ_KEY": "ID1"})
        assert receipt.code == 0
        born = (await bench.read("rmq_sys_wheel_timer"))[0].born_timestamp_ms
        for key in (f"{PAYMENTS}+ID1", "ID1"):
            for more in ({}, {"REPUT_CANCELLED_BORN": str(born)}):
                properties = {"TIMER_DELIVER_MS": due, "TIMER_DEL_UNIQKEY": key, **more}
                if form == "alone":
                    assert (await eve.send(OWN, b"0", properties)).code == 0
                else:
                    half = await eve.send_half(OWN, b"0", properties=properties)
                    await eve.end(half, 8)  # type: ignore[arg-type]
        await bench.pass_time(25)
        assert await bench.bodies(PAYMENTS) == [b"salary"]


async def test_a_cancellation_still_counts_in_its_own_topic(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(PAYMENTS)
        producer = bench.client()
        due = str(bench.now_ms + 20_000)
        for key in ("ID1", "ID2", "ID3"):
            await producer.send(PAYMENTS, key.encode(), {"TIMER_DELIVER_MS": due, "UNIQ_KEY": key})
        for key in (f"{PAYMENTS}+ID1", "ID2"):  # RocketMQ 5.3, and earlier versions
            await producer.send(PAYMENTS, b"0", {"TIMER_DELIVER_MS": due, "TIMER_DEL_UNIQKEY": key})
        await bench.pass_time(25)
        assert await bench.bodies(PAYMENTS) == [b"ID3"]


async def test_a_check_point_cannot_be_cancelled(tmp_path: Path) -> None:
    """Its key can be guessed; without it the popped message would not be redelivered."""
    async with broker_bench(tmp_path / "s") as bench:
        await sent(bench, PAYMENTS, b"salary")
        await bench.create_topic(OWN)
        popped = await pop(bench, PAYMENTS, "billing")
        assert [one.body for one in popped] == [b"salary"]
        revive = revive_topic("DefaultCluster")
        (point,) = await bench.read("rmq_sys_wheel_timer")
        properties = {
            "TIMER_DELIVER_MS": point.property_map()["TIMER_DELIVER_MS"],
            "TIMER_DEL_UNIQKEY": f"{revive}+None",
            "REPUT_CANCELLED_BORN": str(point.born_timestamp_ms),
        }
        assert (await bench.client().send(OWN, b"0", properties)).code == 0
        for code, ext in (
            (RequestCode.CANCEL_DELAYED_MESSAGE, {"topic": revive, "key": "None"}),
            (RequestCode.RECALL_MESSAGE, {"topic": revive, "recallHandle": "x", "producerGroup": "g"}),
        ):
            answer = await bench.client(HeaderType.MSGPACK).ask(code, ext)
            assert answer is not None
            assert "belongs to the broker" in (answer.remark or "")
        await bench.pass_time(15)
        assert [one.body for one in await pop(bench, PAYMENTS, "billing")] == [b"salary"]


# -- popped messages ---------------------------------------------------------------------------------------------------


async def pop(bench: BrokerBench, topic: str, group: str) -> list[Record]:
    await bench.settled()
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "10000",
        "pollTime": "0", "bornTime": str(bench.now_ms), "initMode": "0",
    }  # fmt: skip
    answer = await bench.client().ask(RequestCode.POP_MESSAGE, ext)
    assert answer is not None
    assert answer.code in (0, ResponseCode.POLLING_TIMEOUT), answer.remark
    return [one.record for one in popped_messages(answer.ext, answer.body)]


@pytest.mark.parametrize("topic", [OWN, "%RETRY%billing_eves"])
async def test_a_pop_answers_no_handle_that_a_producer_has_set(tmp_path: Path, topic: str) -> None:
    """Its consumer would acknowledge another message. Logs of earlier versions have such handles from batches."""
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(OWN)
        bench.tables.topics.create_internal("%RETRY%billing_eves")
        forged = encode_properties({"POP_CK": "0 1 2 3 0 broker-a 0 0", "own": "1"})
        bench.broker.store.put_record(Record(topic, b"old", properties=forged))
        await sent(bench, "others")
        (popped,) = await pop(bench, OWN, "billing")
        found = popped.property_map()
        assert found["own"] == "1"
        if topic == OWN:
            assert "POP_CK" not in found, "its client makes the handle"
        else:
            assert "1 2 3 0" not in found["POP_CK"]


# -- origins of dead letters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"])
async def test_a_dead_letter_that_a_client_sends_has_no_origin(tmp_path: Path, name: str) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await sent(bench, PAYMENTS)
        await bench.create_topic(DLQ)
        client = bench.client()
        claim = {name: PAYMENTS, "own": "1"}
        assert (await client.send(DLQ, b"1", claim)).code == 0
        assert (await client.send(DLQ, b"2", {"DELAY": "1", **claim})).code == 0
        half = await client.send_half(DLQ, b"3", properties=claim)
        await client.end(half, 8)  # type: ignore[arg-type]
        assert (await batch(client, DLQ, claim)).code == 0
        refused = await block(bench.client(HeaderType.MSGPACK), DLQ, claim)
        assert f"'{name}' is reserved" in (refused.remark or "")
        await bench.pass_time(2)
        letters = await bench.read(DLQ)
        assert sorted(letter.body for letter in letters) == [b"1", b"2", b"3", b"b"]
        assert [origin(letter) for letter in letters] == [None] * 4


@pytest.mark.parametrize("form", ["alone", "half", "delayed"])
async def test_an_origin_that_a_client_claims_is_no_target_of_replays(tmp_path: Path, form: str) -> None:
    """Sent to the retry topic of its own group with a foreign topic, then given up on."""
    async with broker_bench(tmp_path / "s") as bench:
        original = await sent(bench, PAYMENTS, b"pay bob", KEYS="k")
        set_group(bench, "eveg", 0)
        client = bench.client()
        claim = {
            "RETRY_TOPIC": PAYMENTS,
            "DLQ_ORIGIN_TOPIC": PAYMENTS,
            "ORIGIN_MESSAGE_ID": original.offset_message_id,
            "UNIQ_KEY": original.unique_key or "",
            "KEYS": "k",
        }
        if form == "half":
            half = await client.send_half(RETRY, b"pay eve", properties=claim)
            await client.end(half, 8)  # type: ignore[arg-type]
        elif form == "delayed":
            assert (await client.send(RETRY, b"pay eve", {**claim, "DELAY": "1"})).code == 0
            await bench.pass_time(2)
        else:
            assert (await client.send(RETRY, b"pay eve", claim)).code == 0
        (record,) = await bench.read(RETRY)
        assert record.property_map()["RETRY_TOPIC"] == PAYMENTS, "which its consumers see"
        assert (await client.send_back(record, "eveg", -1)).code == 0
        assert (await client.send(RETRY, b"pay eve", claim, reconsume_times=9, max_reconsume_times=1)).code == 0
        letters = await bench.read(DLQ)
        assert [letter.body for letter in letters] == [b"pay eve"] * 2
        assert [origin(letter) for letter in letters] == [None, None]


@pytest.mark.parametrize("first_copy", ["offset id", "unique id"])
async def test_a_consumer_that_sends_to_its_retry_topic_itself_can_prove_the_origin(
    tmp_path: Path, first_copy: str
) -> None:
    """RocketMQ's clients name the first copy by its unique id, and after a redelivery by its offset id."""
    async with broker_bench(tmp_path / "s") as bench:
        original = await sent(bench, PAYMENTS, b"pay bob", KEYS="k", own="1")
        properties = original.property_map()
        named = original.offset_message_id if first_copy == "offset id" else properties["UNIQ_KEY"]
        properties |= {"RETRY_TOPIC": PAYMENTS, "ORIGIN_MESSAGE_ID": named, "MIN_OFFSET": "0", "DELAY": "0"}
        client = bench.client()
        for changes, body, expected in (
            ({}, b"pay bob", PAYMENTS),
            ({}, b"pay eve", None),
            ({"own": "2"}, b"pay bob", None),
            ({"KEYS": "other"}, b"pay bob", None),
        ):
            answer = await client.send(RETRY, body, {**properties, **changes}, reconsume_times=9, max_reconsume_times=1)
            assert answer.code == 0, answer.remark
            assert origin((await bench.read(DLQ))[-1]) == expected


async def test_a_message_that_was_redelivered_keeps_its_origin(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        record = await sent(bench, PAYMENTS, ORIGIN_MESSAGE_ID="F00D", RETRY_TOPIC="forged")
        client = bench.client()
        assert (await client.send_back(record, "eveg", 1)).code == 0
        await bench.pass_time(2)
        (again,) = await bench.read(RETRY)
        assert again.property_map()["ORIGIN_MESSAGE_ID"] == record.offset_message_id
        properties = {**again.property_map(), "DELAY": "0"}
        answer = await client.send(RETRY, again.body, properties, reconsume_times=9, max_reconsume_times=1)
        assert answer.code == 0
        assert origin((await bench.read(DLQ))[-1]) == PAYMENTS
        assert (await client.send_back(again, "eveg", -1)).code == 0
        assert origin((await bench.read(DLQ))[-1]) == PAYMENTS


async def test_a_popped_message_has_the_origin_that_the_broker_knows(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(OWN)
        set_group(bench, "eveg", 0)
        assert (await batch(bench.client(), OWN, {"TAGS": "t"})).code == 0
        old = {"RETRY_TOPIC": PAYMENTS, "DLQ_ORIGIN_TOPIC": PAYMENTS}  # by a batch to an earlier version
        bench.broker.store.put_record(Record(OWN, b"old", properties=encode_properties(old)))
        await sent(bench, "others")
        assert len(await pop(bench, OWN, "eveg")) == 2
        await bench.pass_time(15)
        letters = await bench.read(DLQ)
        assert [origin(letter) for letter in letters] == [OWN, OWN]
        assert not any("DLQ_ORIGIN_TOPIC" in letter.property_map() for letter in letters)


async def test_a_block_that_names_an_origin_is_given_up_on_without_it(tmp_path: Path) -> None:
    """Replayed messages have such properties, so a block for an ordinary topic may have them."""
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(OWN)
        client = bench.client(HeaderType.MSGPACK)
        claims = {"DLQ_ORIGIN_TOPIC": PAYMENTS, "RETRY_TOPIC": PAYMENTS, "ORIGIN_MESSAGE_ID": "F00D"}
        assert (await block(client, OWN, claims)).code == 0
        (record,) = await bench.read(OWN)
        assert (await client.send_back(record, "eveg", -1)).code == 0
        (letter,) = await bench.read(DLQ)
        found = letter.property_map()
        assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == (OWN, record.offset_message_id)
        assert "DLQ_ORIGIN_TOPIC" not in found


async def test_what_a_client_puts_among_redelivered_messages_has_no_origin(tmp_path: Path) -> None:
    """`%RETRY%eveg_payments` is the topic of what `eveg` popped from `payments`, and the retry topic of a group."""
    async with broker_bench(tmp_path / "s") as bench:
        await sent(bench, PAYMENTS, b"pay bob")
        set_group(bench, "eveg", 2)
        client = bench.client()
        forged = {"1ST_POP_TIME": "1", "POP_ORIGIN": "0 1"}
        assert (await client.send("%RETRY%eveg_payments", b"pay eve", forged)).code == 0
        for _ in range(4):
            await pop(bench, PAYMENTS, "eveg")
            await bench.pass_time(15)
        letters = {letter.body: origin(letter) for letter in await bench.read(DLQ)}
        assert letters == {b"pay bob": PAYMENTS, b"pay eve": None}


async def test_bytes_of_a_body_cannot_be_sent_back_as_a_record(tmp_path: Path) -> None:
    """A client that knows where its body will be can put a record there that names any topic."""
    async with broker_bench(tmp_path / "s") as bench:
        original = await sent(bench, PAYMENTS, b"pay bob")
        await bench.create_topic(OWN)
        inner = Record(PAYMENTS, b"pay eve", queue_id=0, queue_offset=original.queue_offset, properties=b"a\x01b\x02")
        at = bench.broker.store.max_physical_offset + 88
        inner.physical_offset = at
        client = bench.client()
        assert (await client.send(OWN, bytes(encode_record(inner)))).code == 0
        await bench.settled()
        inner_record = bench.broker.store.record_at(at)
        assert inner_record is not None, "it looks like one"
        answer = await client.send_back(inner, "eveg", -1)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert await bench.read(DLQ) == []


# -- requests that are recognised --------------------------------------------------------------------------------------


async def test_a_forged_id_does_not_swallow_what_a_group_sends_back(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        record = await sent(bench, PAYMENTS, b"pay bob")
        eve, consumer = bench.client(), bench.client()
        forged = {"SEND_BACK_ID": str(record.physical_offset), "UNIQ_KEY": record.unique_key or "", "DELAY": "3"}
        answer = await eve.send("%RETRY%billing", b"x", forged, reconsume_times=1)
        assert answer.code == 0
        assert (await consumer.send_back(record, "billing", 3)).code == 0
        await bench.pass_time(15)
        assert sorted(await bench.bodies("%RETRY%billing")) == [b"pay bob", b"x"]
