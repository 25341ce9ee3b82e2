"""Giving messages back: the request to the broker, and what is sent if it refuses, with every API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from reput_client import ReceivedMessage
from reput_client.consume.send_back import DEAD_LETTER, reason_of, send_back
from reput_client.errors import ClientClosed, RequestTimeout
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import BrokerError
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.record import Record, encode_record
from support.faces import DrivenSession, Face, scenario
from support.fakes import HANG_UP, SILENCE, Answer, FakeBroker

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue("orders", "fake", 0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.behave(BACK, Answer())
        yield broker


def message(reconsume_times: int = 0, sys_flag: int = 0, **properties: str) -> ReceivedMessage:
    record = encode_record(
        Record(
            "orders",
            b"o-1",
            flag=9,
            sys_flag=sys_flag,
            queue_offset=3,
            physical_offset=4711,
            born_timestamp_ms=1_700_000_000_000,
            reconsume_times=reconsume_times,
            properties=encode_properties({"UNIQ_KEY": "id-1", "TAGS": "paid", **properties}),
        )
    )
    return ReceivedMessage.of_record(bytes(record), "fake")


class Member(DrivenSession):
    """Gives messages back."""

    async def give_back(self, message: ReceivedMessage, **options: Any) -> None:
        await self.drive(send_back(self.session, message, group="billing", queue=QUEUE, **options))


def until_asked(broker: FakeBroker, times: int) -> None:
    while broker.count(BACK) < times:
        time.sleep(0.01)


def resent(broker: FakeBroker) -> tuple[dict[str, Any], dict[str, str], bytes]:
    ((ext, body),) = broker.parked
    return ext, decode_properties(str(ext["i"]).encode()), body


@scenario
async def test_the_broker_is_asked_with_the_place_in_its_log(face: Face, broker: FakeBroker) -> None:

    async with Member(face, broker.address) as member:
        await member.give_back(message(2), delay_level=5, max_reconsume_times=7, reason="ValueError: " + "x" * 999)
        await member.give_back(message())
    full, plain = [header.ext for header in broker.requests if header.code == BACK]
    assert (full["offset"], full["group"], full["delayLevel"]) == (4711, "billing", 5)
    assert (full["originMsgId"], full["originTopic"], full["maxReconsumeTimes"]) == ("id-1", "orders", 7)
    assert full["reason"] == "ValueError: " + "x" * 488
    assert plain["delayLevel"] == 0
    assert plain.get("maxReconsumeTimes") is None
    assert broker.parked == []


@scenario
async def test_where_that_fails_it_is_sent_to_the_retry_topic(face: Face, broker: FakeBroker) -> None:

    broker.behave(BACK, Answer(ResponseCode.SYSTEM_ERROR, remark="NOT_FOUND: expired"))
    given = message(
        2, 8, RETRY_TOPIC="first", TRAN_MSG="true", REAL_TOPIC="x", DELAY="4", MIN_OFFSET="1",
        EXPIRES_AFTER_MS="9000",
    )  # fmt: skip
    async with Member(face, broker.address) as member:
        await member.give_back(given, max_reconsume_times=7, reason="no\nsuch bill")
    ext, properties, body = resent(broker)
    assert (ext["b"], ext["a"], ext["e"]) == ("%RETRY%billing", "CLIENT_INNER_PRODUCER", -1)
    assert (ext["j"], ext["l"], ext["h"], ext["g"]) == (3, 7, 9, 1_700_000_000_000)
    assert ext["f"] == 0, "whether it was part of a transaction is the broker's to say"
    assert body == b"o-1"
    asked = next(header.ext for header in broker.requests if header.code == BACK)
    assert properties.pop("SEND_BACK_ID") == "4711-" + str(asked["sendBackId"])
    assert properties == {
        "UNIQ_KEY": "id-1",
        "TAGS": "paid",
        "RETRY_TOPIC": "first",
        "ORIGIN_MESSAGE_ID": given.offset_message_id,
        "DELAY": "5",
        "EXPIRES_AT_MS": str(given.store_timestamp_ms + 9000),
        "RETRY_REASON": "no such bill",
    }


@pytest.mark.parametrize(("asked", "level"), [(0, "3"), (7, "7")])
@scenario
async def test_what_is_resent_waits_as_long_as_the_other_would(
    face: Face, broker: FakeBroker, asked: int, level: str
) -> None:

    broker.behave(BACK, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later"))
    async with Member(face, broker.address) as member:
        await member.give_back(message(), delay_level=asked)
    _, properties, _ = resent(broker)
    assert (properties["DELAY"], properties["RETRY_TOPIC"]) == (level, "orders")


@scenario
async def test_a_dead_letter_is_resent_once_too_often(face: Face, broker: FakeBroker) -> None:

    broker.behave(BACK, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later"))
    async with Member(face, broker.address) as member:
        await member.give_back(message(2), delay_level=DEAD_LETTER, max_reconsume_times=16)
    ext, properties, _ = resent(broker)
    assert ext["j"] > ext["l"], "so that the broker makes it one"
    assert "DELAY" not in properties


@scenario
async def test_a_message_that_nobody_takes_stays_the_callers(face: Face, broker: FakeBroker) -> None:

    for code in (BACK, SEND):
        broker.behave(code, Answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark="DISK_FULL: no room"))
    async with Member(face, broker.address) as member:
        with pytest.raises(BrokerError, match="no room"):
            await member.give_back(message())
    with pytest.raises(ClientClosed):
        await member.give_back(message())


@scenario
async def test_a_request_whose_answer_is_lost_is_repeated(face: Face, broker: FakeBroker) -> None:

    answers = iter([HANG_UP, Answer()])
    broker.behave(BACK, lambda _header, _body: next(answers))
    async with Member(face, broker.address) as member:
        await member.give_back(message())
    first, second = [header.ext for header in broker.requests if header.code == BACK]
    assert broker.parked == []
    assert (first.get("isRepeated"), second["isRepeated"]) == (None, True)
    assert first["sendBackId"] == second["sendBackId"]


@scenario
async def test_a_request_that_gets_no_answer_is_never_replaced_by_another(face: Face, broker: FakeBroker) -> None:
    """The broker may have executed it: a message for the retry topic could be a second one."""

    broker.behave(BACK, SILENCE)
    given, other = message(), message()
    async with Member(face, broker.address, timeout_s=0.2) as member:
        with pytest.raises(RequestTimeout):
            await member.give_back(given)
    until_asked(broker, 2)
    answers = iter([HANG_UP, Answer()])
    broker.behave(BACK, lambda _header, _body: next(answers))
    async with Member(face, broker.address) as member:
        await member.give_back(given)
        broker.behave(BACK, Answer())
        await member.give_back(other)
    asked = [header.ext for header in broker.requests if header.code == BACK]
    assert broker.parked == []
    assert [ext.get("isRepeated") for ext in asked] == [None, True, True, True, None]
    assert len({ext["sendBackId"] for ext in asked[:4]}) == 1
    assert asked[4]["sendBackId"] != asked[0]["sendBackId"], "it was handed out anew"


def test_the_reason_says_what_was_raised() -> None:
    assert reason_of(ValueError("no such bill")) == "ValueError: no such bill"
    assert reason_of(KeyError()) == "KeyError"
