"""Messages with so many properties that little or nothing fits next to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.remoting.request import ClientAnswer
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.kernel import put_blocks
from reput_protocol.properties import PROPERTIES_BYTES_MAX, SENT_PROPERTIES_BYTES_MAX, encode_properties
from reput_protocol.record.put_block import BatchItem, encode_batch, topic_of_records
from reput_protocol.record.record import Record
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.pops import popped_messages
from support.tasks import run_by_the_clock

TOPIC, GROUP = "o" * 127, "g" * 120
RETRY, POP_RETRY, DLQ = f"%RETRY%{GROUP}", f"%RETRY%{GROUP}_{TOPIC}", f"%DLQ%{GROUP}"
OLD_SIZES = [32_639, 32_640, 32_649, 32_650, 32_747, PROPERTIES_BYTES_MAX]
"""Properties in logs of earlier versions."""
LONG = pytest.mark.parametrize("size", OLD_SIZES)
CRC = pytest.mark.parametrize("record_crc", [False, True])

pytestmark = pytest.mark.trio(run=run_by_the_clock)


def properties_of(size: int, **more: str) -> dict[str, str]:
    """Properties whose text has this size."""
    found = {"UNIQ_KEY": "ID", **more, "own": "1", "long": ""}
    found["long"] = "x" * (size - len(encode_properties(found)))
    assert len(encode_properties(found)) == size
    return found


async def stored(bench: BrokerBench, size: int, topic: str = TOPIC) -> Record:
    """A message that an earlier version has stored, between two short ones."""
    if bench.tables.topics.get(topic) is None:
        await bench.create_topic(topic)
    if bench.broker.store.options.record_crc:
        size -= 20
    for number, text in enumerate((b"", encode_properties(properties_of(size)), b"")):
        bench.broker.store.put_record(Record(topic, b"%d" % number, properties=text))
    await bench.create_topic("others")
    await bench.client().send("others", b"")  # whose sync covers them
    return (await bench.read(topic))[1]


def set_group(bench: BrokerBench, retry_max_times: int) -> None:
    config = SubscriptionGroupConfig(GROUP, retry_max_times=retry_max_times)
    bench.tables.groups.put(config)


class Popping:
    """A consumer that pops."""

    def __init__(self, bench: BrokerBench) -> None:
        self._bench = bench
        self._client: BenchClient = bench.client()

    async def pop(self) -> list[Any]:
        await self._bench.settled()
        ext = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "10000",
            "pollTime": "0", "bornTime": str(self._bench.now_ms), "initMode": "0",
        }  # fmt: skip
        answer = await self._client.ask(RequestCode.POP_MESSAGE, ext)
        assert answer is not None
        assert answer.code in (0, ResponseCode.POLLING_TIMEOUT), answer.remark
        return popped_messages(answer.ext, answer.body)

    async def ack(self, one: Any) -> None:
        answer = await self._client.ask(RequestCode.ACK_MESSAGE, one.ack_fields(GROUP, TOPIC))
        assert answer is not None
        assert answer.code == 0, answer.remark


# -- what may be sent --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["alone", "delayed", "half", "batch", "block", "reply"])
@pytest.mark.parametrize("too_many", [0, 1])
async def test_room_for_the_broker_is_left_at_the_send(tmp_path: Path, form: str, too_many: int) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(TOPIC)
        client = bench.client(HeaderType.MSGPACK if form == "block" else HeaderType.JSON)
        size = SENT_PROPERTIES_BYTES_MAX + too_many - (600 if form == "half" and not too_many else 0)
        more: dict[str, str] = {}
        code, body = RequestCode.SEND_MESSAGE_V2, b"x"
        if form == "delayed":
            more = {"DELAY": "1"}
        elif form == "half":
            more = {"TRAN_MSG": "true", "PGROUP": "p"}
        elif form == "reply":
            requester = bench.client()
            await requester.heartbeat("requesters")
            requester.answers.append(ClientAnswer(0, None, {}, b""))
            more = {"REPLY_TO_CLIENT": requester.client_id}
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        properties = properties_of(size, **more)
        ext = client.send_header(TOPIC, properties).to_ext_v2(client.header_type)
        if form == "batch":
            code, body = (
                RequestCode.SEND_BATCH_MESSAGE,
                encode_batch([BatchItem(0, b"x", encode_properties(properties))]),
            )
            ext = client.send_header(TOPIC, {}).to_ext_v2(client.header_type)
        elif form == "block":
            magic, topic = topic_of_records(TOPIC)
            text = encode_properties(properties)
            zeros = (0, 0, 0, 1, bytes(8), 0, bytes(8), 0, 0)
            body = bytes(put_blocks.encode_record(b"x", text, magic, topic, 0, 0, *zeros))
            code = RequestCode.PUT_MESSAGE
            ext = PutMessageHeader(TOPIC, 0, 1).to_ext(client.header_type)
        answer = await client.ask(code, ext, body)
        assert answer is not None
        is_refused = "31743" in (answer.remark or "")
        assert is_refused is bool(too_many), answer.remark
        assert (answer.code == 0) is not bool(too_many)


@CRC
async def test_what_was_sent_with_the_longest_properties_loses_none(tmp_path: Path, record_crc: bool) -> None:
    """It is delayed, redelivered, popped and given up on, with names as long as they can be."""
    async with broker_bench(
        tmp_path / "s", store={"record_crc": record_crc}, cluster="c" * 100, broker_name="b" * 100
    ) as bench:
        await bench.create_topic(TOPIC)
        set_group(bench, 2)
        client = bench.client(HeaderType.MSGPACK)
        sent = properties_of(SENT_PROPERTIES_BYTES_MAX, DELAY="1")
        assert (await client.send(TOPIC, b"x", sent)).code == 0
        await bench.pass_time(2)
        (record,) = await bench.read(TOPIC)
        await client.send_back(record, GROUP, 1, reason="y" * 900, send_back_id="z" * 64)
        await bench.pass_time(2)
        (again,) = await bench.read(RETRY)
        await client.send_back(again, GROUP, -1, reason="y" * 900, send_back_id="z" * 64)
        consumer = Popping(bench)
        for _ in range(3):
            (popped,) = await consumer.pop()
            assert popped.record.property_map()["long"] == sent["long"]
            await bench.pass_time(15)
        letters = await bench.read(DLQ)
        assert len(letters) == 2
        for one in (again, *letters):
            assert one.property_map()["long"] == sent["long"]
            assert one.property_map()["RETRY_TOPIC"] == TOPIC


# -- what is in logs already -------------------------------------------------------------------------------------------


@LONG
@CRC
async def test_a_long_message_is_popped_again_and_its_neighbours_too(
    tmp_path: Path, size: int, record_crc: bool
) -> None:
    async with broker_bench(tmp_path / "s", store={"record_crc": record_crc}) as bench:
        set_group(bench, 2)
        await stored(bench, size)
        consumer = Popping(bench)
        assert [one.record.body for one in await consumer.pop()] == [b"0", b"1", b"2"]
        await bench.pass_time(15)
        again = await consumer.pop()
        assert [one.record.body for one in again] == [b"0", b"1", b"2"]
        assert again[1].record.property_map()["own"] == "1"
        await consumer.ack(again[0])
        await consumer.ack(again[1])
        await bench.pass_time(15)
        (last,) = await consumer.pop()
        assert last.record.body == b"2", "the others were acknowledged"


@LONG
@CRC
async def test_a_long_message_that_nobody_acknowledges_becomes_a_dead_letter(
    tmp_path: Path, size: int, record_crc: bool
) -> None:
    async with broker_bench(tmp_path / "s", store={"record_crc": record_crc}) as bench:
        set_group(bench, 1)
        await stored(bench, size)
        for _ in range(3):
            await Popping(bench).pop()
            await bench.pass_time(15)
        letters = await bench.read(DLQ)
        assert [letter.body for letter in letters] == [b"0", b"1", b"2"]
        assert letters[1].property_map()["own"] == "1"
        assert letters[1].property_map()["RETRY_TOPIC"] == TOPIC


@LONG
@CRC
async def test_a_long_message_in_a_retry_topic_is_popped(tmp_path: Path, size: int, record_crc: bool) -> None:
    """An earlier version has redelivered it before; its handle does not fit."""
    async with broker_bench(tmp_path / "s", store={"record_crc": record_crc}) as bench:
        await bench.create_topic(TOPIC)
        bench.tables.topics.create_internal(POP_RETRY)
        await stored(bench, size, POP_RETRY)
        popped = await Popping(bench).pop()
        assert [one.record.body for one in popped] == [b"0", b"1", b"2"]
        for one in popped:
            await Popping(bench).ack(one)
        await bench.pass_time(15)
        assert await Popping(bench).pop() == []


@LONG
@CRC
@pytest.mark.parametrize("level", [0, -1])
async def test_a_long_message_can_be_sent_back(tmp_path: Path, size: int, record_crc: bool, level: int) -> None:
    async with broker_bench(tmp_path / "s", store={"record_crc": record_crc}) as bench:
        record = await stored(bench, size)
        client = bench.client(HeaderType.MSGPACK)
        answer = await client.send_back(record, GROUP, level, reason="y" * 900)
        assert answer.code == 0, answer.remark
        await bench.pass_time(15)
        (again,) = await bench.read(DLQ if level else RETRY)
        found = again.property_map()
        assert (found["RETRY_TOPIC"], found["own"]) == (TOPIC, "1")
        assert "RETRY_REASON" not in found


@LONG
async def test_a_consumer_can_send_a_long_message_to_its_retry_topic(tmp_path: Path, size: int) -> None:
    """As RocketMQ's clients do if they cannot send it back."""
    async with broker_bench(tmp_path / "s") as bench:
        record = await stored(bench, size - 200)
        properties = {**record.property_map(), "RETRY_TOPIC": TOPIC, "DELAY": "1"}
        answer = await bench.client().send(RETRY, record.body, properties, reconsume_times=1)
        assert answer.code == 0, answer.remark
        await bench.pass_time(3)
        assert [one.body for one in await bench.read(RETRY)] == [b"1"]


async def test_what_is_left_out_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        record = await stored(bench, PROPERTIES_BYTES_MAX)
        assert (await bench.client().send_back(record, GROUP, -1)).code == 0
        await trio.sleep(0.1)
    assert '"event":"property_dropped"' in capsys.readouterr().err


async def test_a_producer_may_have_set_what_the_broker_sets(tmp_path: Path) -> None:
    """An earlier version kept it in a block, whatever its length."""
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(TOPIC)
        text = encode_properties({"UNIQ_KEY": "ID", "RETRY_TOPIC": "x" * 32_700})
        bench.broker.store.put_record(Record(TOPIC, b"x", properties=text))
        await bench.create_topic("others")
        await bench.client().send("others", b"")
        consumer = Popping(bench)
        assert len(await consumer.pop()) == 1
        await bench.pass_time(15)
        (again,) = await consumer.pop()
        assert again.record.body == b"x"
        assert "RETRY_TOPIC" not in again.record.property_map()
