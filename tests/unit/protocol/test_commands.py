"""The typed headers: the names on the wire, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reput_protocol.codes import AckLevel, ConsumeFromWhere, ConsumeType, MessageModel, TransactionState
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.consumers import (
    ConsumeDirectlyHeader,
    ConsumerRunningInfoHeader,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    SendBackHeader,
)
from reput_protocol.commands.delay import CancelDelayedHeader, ListDelayedHeader
from reput_protocol.commands.group import (
    ConsumerIdsChangedHeader,
    ConsumerListHeader,
    ConsumerSubscriptionHeader,
    ConsumerTopicsHeader,
    DeleteSubscriptionGroupHeader,
    GroupForbiddenHeader,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupHeader,
    SubscriptionGroupTableHeader,
    SubscriptionGroupTableResult,
    TopicConsumersHeader,
    UnregisterClientHeader,
)
from reput_protocol.commands.group_description import ConsumerConnectionHeader, ProducerConnectionHeader
from reput_protocol.commands.offset import (
    CloneGroupOffsetHeader,
    ConsumerStatusHeader,
    EarliestTimeResult,
    OffsetResult,
    QueryConsumerOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput_protocol.commands.pull import PullMessageHeader, PullMessageResult
from reput_protocol.commands.query import ViewMessageHeader
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.commands.send import PutMessageHeader, PutMessageResult, SendMessageHeader, SendMessageResult
from reput_protocol.commands.topic import (
    CreateTopicHeader,
    DeleteTopicHeader,
    GetTopicConfigHeader,
    RouteHeader,
    TopicStatsHeader,
)
from reput_protocol.commands.transaction import CheckTransactionHeader, EndTransactionHeader
from reput_protocol.errors import BodyMalformed, HeaderFieldError
from reput_protocol.wire.frames import decode_header, encode_header
from reput_protocol.wire.header import Header, HeaderType

SAMPLES: list[CommandHeader] = [
    SendMessageHeader("PG", "t", 1, 0x301, 1700000000000, 7, "TAGS\x01a\x02", "TBW102", 8, 2, False, 16, True, "b"),
    SendMessageResult("7F000001", 1, 2**40, "AC11"),
    PutMessageHeader("t", 3, 64, AckLevel.PAGE_CACHE),
    PutMessageResult(3, 2**40, 2**41, 1700000000001, "127.0.0.1:10911", AckLevel.FLUSHED),
    PullMessageHeader("g", "t", 0, 9, 32, 7, -1, 15000, "TagA || TagB", 1700000000000, "TAG", 262144),
    PullMessageHeader("g", "t", 0, 9, 0),
    PullMessageResult(7, 0, 7, 1),
    ViewMessageHeader(1234, "t"),
    QueryConsumerOffsetHeader("g", "t", 1, False),
    UpdateConsumerOffsetHeader("g", "t", 1, -1),
    QueueHeader("t", 1),
    SearchOffsetHeader("t", 1, 1700000000000),
    OffsetResult(5),
    EarliestTimeResult(-1),
    RouteHeader("t", True),
    CreateTopicHeader("t", 4, 4, 6, attributes="+message.type=FIFO"),
    DeleteTopicHeader("t"),
    GetTopicConfigHeader("t"),
    TopicStatsHeader("t"),
    UnregisterClientHeader("c", "PG", "CG"),
    UnregisterClientHeader("c"),
    ConsumerListHeader("g"),
    ConsumerIdsChangedHeader("g"),
    SubscriptionGroupTableHeader(0, 100, "{}"),
    SubscriptionGroupTableResult(3),
    SubscriptionGroupHeader("g"),
    DeleteSubscriptionGroupHeader("g", True),
    GroupForbiddenHeader("g", "t", False),
    ConsumerConnectionHeader("g"),
    ProducerConnectionHeader("g"),
    TopicConsumersHeader("t"),
    ConsumerTopicsHeader("g"),
    ConsumerSubscriptionHeader("g", "t"),
    SendBackHeader(2**40, "g", -1, "AC11", "t", False, 16),
    SendBackHeader(0, "g", 0),
    ResetOffsetHeader("t", "g", -1, True, 3, 2**40),
    ResetOffsetHeader("t", "g", 1700000000000),
    ConsumerStatusHeader("t", "g", "c"),
    ConsumerRunningInfoHeader("g", "c", True),
    ConsumeDirectlyHeader("g", "c", "7F00", "broker-a", "t", 0, 1),
    ConsumeStatsHeader("g", "t", "t;u"),
    ConsumeTimeSpanHeader("t", "g"),
    CloneGroupOffsetHeader("a", "b", "t", True),
    EndTransactionHeader("PG", 5, 2**40, 8, True, "AC11", "AC11", "t", "broker-a"),
    CheckTransactionHeader(5, 2**40, "t", "AC11", "AC11", "7F00", "broker-a"),
    PushReplyHeader(
        "PG", "t", "TBW102", 4, 0, 1, 1700000000000, 7, "1.2.3.4:5", "127.0.0.1:10911", 1700000000001, "a\x01b\x02"
    ),
    ListDelayedHeader("t", "k", 32, "9"),
    CancelDelayedHeader("t", "k"),
]


@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_command_survives_every_header_type(sample: CommandHeader, header_type: HeaderType) -> None:
    header = Header(1, 1, ext=sample.to_ext(header_type))
    received = decode_header(header_type, encode_header(header, header_type))
    assert type(sample).from_ext(received.ext) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_value_that_cannot_be_is_refused_by_name(sample: CommandHeader) -> None:
    good = sample.to_ext(HeaderType.MSGPACK)
    for name, usual in good.items():
        hostile: list[Any] = [b"\xff"]
        if not isinstance(usual, str):
            hostile += ["x", 1.5, "1.0", 2**63, 2**64, -(2**63) - 1, b"t"]
            hostile += [0, 1, "2"] if isinstance(usual, bool) else [True, "true"]
        for value in hostile:
            with pytest.raises(HeaderFieldError, match=repr(name)):
                type(sample).from_ext({**good, name: value})


def test_put_message_defaults_to_flushed() -> None:
    assert PutMessageHeader.from_ext({"topic": "t", "queueId": 0, "count": 1}).ack is AckLevel.FLUSHED
    with pytest.raises(HeaderFieldError, match="page_cache, flushed, replicated"):
        PutMessageHeader.from_ext({"topic": "t", "queueId": 0, "count": 1, "ack": "none"})


def test_send_v2_uses_letters() -> None:
    sample = SAMPLES[0]
    assert isinstance(sample, SendMessageHeader)
    ext = sample.to_ext_v2(HeaderType.JSON)
    assert set(ext) == set("abcdefghijklmn")
    assert (ext["a"], ext["b"], ext["e"], ext["m"], ext["n"]) == ("PG", "t", "1", "true", "b")
    assert SendMessageHeader.from_ext_v2(ext) == sample
    with pytest.raises(HeaderFieldError, match="'e'"):
        SendMessageHeader.from_ext_v2({**ext, "e": "x"})


def test_ali_ons_pull_is_read() -> None:
    """Its numbers are unquoted, so JSON decoding makes them text; expressionType is absent."""
    header = decode_header(
        0,
        b'{"code":11,"language":"JAVA","opaque":6,"flag":0,"version":121,"extFields":{"consumerGroup":"NODE_CG",'
        b'"topic":"NodeTopic","queueId":0,"queueOffset":0,"maxMsgNums":32,"sysFlag":6,"commitOffset":-1,'
        b'"suspendTimeoutMillis":15000,"subscription":"TagA || TagB","subVersion":1795190824327}}',
    )
    assert PullMessageHeader.from_ext(header.ext) == PullMessageHeader(
        "NODE_CG", "NodeTopic", 0, 0, 32, 6, -1, 15000, "TagA || TagB", 1795190824327
    )


def test_names_on_the_wire_are_rocketmqs() -> None:
    json = HeaderType.JSON
    assert UnregisterClientHeader("c", "PG").to_ext(json) == {"clientID": "c", "producerGroup": "PG"}
    assert list(SendBackHeader(1, "g", 2, "m", "t", True, 3).to_ext(json)) == [
        "offset",
        "group",
        "delayLevel",
        "originMsgId",
        "originTopic",
        "unitMode",
        "maxReconsumeTimes",
    ]
    assert EndTransactionHeader("PG", 1, 2, 8, msg_id="m").to_ext(json) == {
        "producerGroup": "PG",
        "tranStateTableOffset": "1",
        "commitLogOffset": "2",
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": "m",
    }
    # Java's client has no default for isForce, and reads queueId as int.
    assert ResetOffsetHeader("t", "g", -1).to_ext(json) == {
        "topic": "t",
        "group": "g",
        "timestamp": "-1",
        "isForce": "false",
        "queueId": "-1",
    }
    assert list(ConsumeDirectlyHeader("g", "c", "m", "b", "t", 0, 0).to_ext(json)) == [
        "consumerGroup",
        "clientId",
        "msgId",
        "brokerName",
        "topic",
        "topicSysFlag",
        "groupSysFlag",
    ]
    assert set(CloneGroupOffsetHeader("a", "b").to_ext(json)) == {"srcGroup", "destGroup", "offline"}
    assert set(DeleteSubscriptionGroupHeader("g").to_ext(json)) == {"groupName", "cleanOffset"}


def test_go_answers_a_check_with_an_empty_broker_name() -> None:
    ext = EndTransactionHeader("PG", 1, 2, 8, True, "m", broker_name="").to_ext(HeaderType.JSON)
    assert ext["bname"] == ""
    assert EndTransactionHeader.from_ext(ext).commit_or_rollback == TransactionState.COMMIT


def test_the_topics_that_statistics_are_asked_for() -> None:
    assert ConsumeStatsHeader("g").topics() == []
    assert ConsumeStatsHeader("g", "t").topics() == ["t"]
    assert ConsumeStatsHeader("g", "t", "u;t;;v").topics() == ["t", "u", "v"]


def test_a_reply_is_pushed_with_the_header_it_came_with() -> None:
    reply = SendMessageHeader("PG", "C_REPLY_TOPIC", 0, 1, 5, 7, "TTL\x013\x02", reconsume_times=0)
    pushed = PushReplyHeader.of(
        reply, "TTL\x013\x02X\x01y\x02", born_host="a:1", store_host="b:2", store_timestamp_ms=9
    )
    ext = pushed.to_ext(HeaderType.JSON)
    long_names = reply.to_ext(HeaderType.JSON)
    changed = {"properties": "TTL\x013\x02X\x01y\x02", "bornHost": "a:1", "storeHost": "b:2", "storeTimestamp": "9"}
    assert ext == {**long_names, **changed}


def test_a_heartbeat_of_rocketmq_s_c_client() -> None:
    """Enumerations are ordinals, and `subVersion` is text."""
    subscription = {"subString": "*", "subVersion": "1795440910084", "topic": "orders"}
    consumer = {"consumeFromWhere": 4, "consumeType": 1, "groupName": "g", "messageModel": 0}
    body = {"clientID": "c", "consumerDataSet": [{**consumer, "subscriptionDataSet": [subscription]}]}
    (data,) = HeartbeatData.from_json(json.dumps(body).encode()).consumers
    assert data.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert data.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert data.message_model is MessageModel.BROADCASTING
    assert data.subscriptions == [SubscriptionData("orders", "*", 1795440910084)]
    for member, wrong in [("messageModel", 2), ("consumeType", -1), ("consumeType", True)]:
        with pytest.raises(BodyMalformed, match=member):
            HeartbeatData.from_json(json.dumps({"consumerDataSet": [{**consumer, member: wrong}]}).encode())
