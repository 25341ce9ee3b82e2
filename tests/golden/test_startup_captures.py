"""Recorded requests of unmodified clients at start, work and stop, about groups and transactions.

Header fields are those of the captures: every value is text in a JSON header of any sender.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from reput_protocol.codes import ConsumeFromWhere, ConsumeType, MessageModel, PullSysFlag, RequestCode, TransactionState
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.group import (
    CheckClientBody,
    ConsumerIdsChangedHeader,
    ConsumerListHeader,
    HeartbeatData,
    LockBatchBody,
    ProducerData,
    UnregisterClientHeader,
)
from reput_protocol.commands.offset import UpdateConsumerOffsetHeader
from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.commands.transaction import EndTransactionHeader
from reput_protocol.names import CLIENT_INNER_PRODUCER_GROUP, group_of_retry_topic, reply_topic, retry_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.frames import decode_header, encode_header
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType

JAVA_ID = "192.168.1.7@4242#1234567890123"


def captured(code: int, ext: dict[str, Any], *, flag: int = 0, version: int = 479) -> Header:
    """The header of a request as a client writes it, decoded."""
    text = {"code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": 4, "version": version}
    return decode_header(HeaderType.JSON, json.dumps(text).encode())


def heartbeat(**members: Any) -> HeartbeatData:
    return HeartbeatData.from_json(json.dumps(members).encode())


def consumer(**members: Any) -> dict[str, Any]:
    return {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": "G",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {"subString": "*", "subVersion": 1700000000000, "tagsSet": [], "codeSet": [], "topic": topic}
            for topic in ("T", "%RETRY%G")
        ],
        "unitMode": False,
    } | members


def test_a_java_producer() -> None:
    groups = [{"groupName": "PG"}, {"groupName": CLIENT_INNER_PRODUCER_GROUP}]
    beat = heartbeat(
        clientID=JAVA_ID, consumerDataSet=[], heartbeatFingerprint=0, producerDataSet=groups, withoutSub=False
    )
    assert beat == HeartbeatData(JAVA_ID, producers=[ProducerData("PG"), ProducerData("CLIENT_INNER_PRODUCER")])
    leaving = captured(35, {"clientID": JAVA_ID, "producerGroup": "PG"})
    assert UnregisterClientHeader.from_ext(leaving.ext) == UnregisterClientHeader(JAVA_ID, "PG")


@pytest.mark.parametrize("newer", [{}, {"heartbeatFingerprint": 0, "withoutSub": False}], ids=["4.9.8", "5.x"])
def test_a_java_push_consumer(newer: dict[str, Any]) -> None:
    beat = heartbeat(clientID=JAVA_ID, consumerDataSet=[consumer()], producerDataSet=[], **newer)
    (group,) = beat.consumers
    assert [subscription.topic for subscription in group.subscriptions] == ["T", retry_topic("G")]
    assert (group.consume_type, group.message_model, group.consume_from_where) == (
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    )
    assert ConsumerListHeader.from_ext(captured(38, {"consumerGroup": "G"}).ext) == ConsumerListHeader("G")
    back = captured(
        36,
        {
            "offset": "4711", "group": "G", "delayLevel": "0", "originMsgId": "7F00000100002A9F0000000000001267",
            "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": "16", "bname": "broker-a",
        },
    )  # fmt: skip
    assert SendBackHeader.from_ext(back.ext) == SendBackHeader(
        4711, "G", 0, "7F00000100002A9F0000000000001267", "T", False, 16
    )
    # At its end it leaves the group, and only then sends its offsets, unanswered.
    leaving = captured(35, {"clientID": JAVA_ID, "consumerGroup": "G"})
    assert UnregisterClientHeader.from_ext(leaving.ext).consumer_group == "G"
    commit = captured(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "12"}, flag=ONEWAY_FLAG)
    assert commit.is_oneway
    assert UpdateConsumerOffsetHeader.from_ext(commit.ext) == UpdateConsumerOffsetHeader("G", "T", 0, 12)


def test_a_failed_send_back_becomes_a_send_to_the_retry_topic() -> None:
    ext = {
        "a": CLIENT_INNER_PRODUCER_GROUP, "b": "%RETRY%G", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1700000000000", "h": "0", "i": "DELAY\x014\x02RETRY_TOPIC\x01T\x02", "j": "1", "k": "false", "l": "16",
        "m": "false",
    }  # fmt: skip
    header = SendMessageHeader.from_ext_v2(captured(310, ext).ext)
    assert group_of_retry_topic(header.topic) == "G"
    assert (header.reconsume_times, header.max_reconsume_times, header.ack) == (1, 16, None)


def test_a_java_orderly_consumer() -> None:
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    text = {"clientId": JAVA_ID, "consumerGroup": "G", "mqSet": [queue], "onlyThisBroker": False}
    body = LockBatchBody.from_json(json.dumps(text).encode())
    assert body == LockBatchBody(JAVA_ID, "G", [MessageQueue("T", "broker-a", 0)])


def test_a_java_broadcasting_consumer_has_an_id_that_others_on_its_host_share() -> None:
    beat = heartbeat(
        clientID="192.168.1.7@DEFAULT",
        consumerDataSet=[consumer(messageModel="BROADCASTING", subscriptionDataSet=[{"topic": "T"}])],
        producerDataSet=[],
    )
    assert beat.consumers[0].message_model is MessageModel.BROADCASTING
    assert [subscription.sub_string for subscription in beat.consumers[0].subscriptions] == ["*"]


def test_a_java_lite_pull_consumer() -> None:
    beat = heartbeat(
        clientID=JAVA_ID + "@STREAM", consumerDataSet=[consumer(consumeType="CONSUME_ACTIVELY")], producerDataSet=[]
    )
    assert beat.consumers[0].consume_type is ConsumeType.CONSUME_ACTIVELY
    pull = captured(
        361,
        {
            "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "10", "sysFlag": "22",
            "commitOffset": "0", "suspendTimeoutMillis": "20000", "subscription": "*", "subVersion": "0",
            "expressionType": "TAG", "maxMsgBytes": "2147483647", "ReqT": "0",
        },
    )  # fmt: skip
    header = PullMessageHeader.from_ext(pull.ext)
    assert header.sys_flag == PullSysFlag.LITE_PULL_MESSAGE | PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
    listed = captured(38, {"consumerGroup": "G", "ReqT": "0"})
    assert ConsumerListHeader.from_ext(listed.ext) == ConsumerListHeader("G")


def test_an_sql_subscription_is_judged_before_the_first_heartbeat() -> None:
    subscription = {"topic": "T", "subString": "a > 5", "expressionType": "SQL92", "subVersion": 1700000000000}
    text = {"clientId": JAVA_ID, "group": "G", "namespace": None, "subscriptionData": subscription}
    body = CheckClientBody.from_json(json.dumps(text).encode())
    assert (body.group, body.subscription.expression_type, body.subscription.sub_string) == ("G", "SQL92", "a > 5")


@pytest.mark.parametrize("flag", [ONEWAY_FLAG, 0], ids=["java", "go"])
@pytest.mark.parametrize("checked", ["false", "true"])
def test_a_transaction_ends(flag: int, checked: str) -> None:
    end = captured(
        37,
        {
            "topic": "T", "producerGroup": "PG", "tranStateTableOffset": "3", "commitLogOffset": "4711",
            "commitOrRollback": "8", "fromTransactionCheck": checked, "msgId": "AC110001000018B4AAC200000000",
            "transactionId": "AC110001000018B4AAC200000000", "bname": "",
        },
        flag=flag,
    )  # fmt: skip
    assert end.is_oneway == bool(flag), "Go's has no oneway flag, though Go waits for nothing"
    header = EndTransactionHeader.from_ext(end.ext)
    assert TransactionState(header.commit_or_rollback) is TransactionState.COMMIT
    assert (header.tran_state_table_offset, header.commit_log_offset) == (3, 4711)
    assert header.from_transaction_check == (checked == "true")


def test_a_replier_sends_long_names_from_go_and_letters_from_java() -> None:
    go = captured(
        324,
        {
            "producerGroup": "PG", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
            "properties": "CORRELATION_ID\x01c\x02MSG_TYPE\x01reply\x02", "reconsumeTimes": "0", "unitMode": "false",
            "maxReconsumeTimes": "0", "batch": "false",
        },
        version=317,
    )  # fmt: skip
    header = SendMessageHeader.from_ext(go.ext)
    assert header.topic == reply_topic("DefaultCluster")
    java = captured(325, dict(header.to_ext_v2(HeaderType.JSON)))
    assert SendMessageHeader.from_ext_v2(java.ext) == header


def test_an_ali_ons_consumer_leaves_out_what_it_can_and_quotes_no_number() -> None:
    bare = {"topic": "T", "subString": "TagA", "subVersion": 1795190824327, "classFilterMode": False}
    beat = heartbeat(clientID="10.0.0.1@77", consumerDataSet=[consumer(subscriptionDataSet=[bare])])
    assert beat.producer_groups == []
    assert beat.consumers[0].subscriptions[0].expression_type == "TAG"
    back = captured(
        36,
        {
            "offset": 4711, "group": "G", "delayLevel": 3, "originMsgId": "7F", "originTopic": "T", "unitMode": False,
            "maxReconsumeTimes": 15,
        },
        version=121,
    )  # fmt: skip
    assert SendBackHeader.from_ext(back.ext) == SendBackHeader(4711, "G", 3, "7F", "T", False, 15)
    commit = captured(15, {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": -1}, version=121)
    assert UpdateConsumerOffsetHeader.from_ext(commit.ext).commit_offset == -1


@pytest.mark.parametrize("header_type", list(HeaderType))
def test_the_notice_that_members_changed_has_no_body_and_wants_no_answer(header_type: HeaderType) -> None:
    header: CommandHeader = ConsumerIdsChangedHeader("G")
    sent = Header(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 9, ONEWAY_FLAG, ext=header.to_ext(header_type))
    received = decode_header(header_type, encode_header(sent, header_type))
    assert received.is_oneway
    assert not received.is_response
    assert ConsumerIdsChangedHeader.from_ext(received.ext) == header
