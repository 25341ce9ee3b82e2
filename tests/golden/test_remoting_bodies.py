"""Bodies as RocketMQ's own classes write them (remoting: heartbeat, groups, locks, offsets, statistics), both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reput_protocol.codes import ConsumeResult
from reput_protocol.commands.consumers import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatus,
    ConsumeTimeSpan,
    OffsetWrapper,
    ProcessQueueInfo,
    QueueTimeSpan,
)
from reput_protocol.commands.group import (
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    GroupList,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    ProducerData,
    QuerySubscriptionBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from reput_protocol.commands.group_description import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from reput_protocol.commands.offset import ConsumerStatusBody, ResetOffsetBody, ResetOffsetList
from reput_protocol.record.message import MessageQueue

QUEUE = MessageQueue("TopicTest", "broker-a", 1)
QUEUE_TEXT = '{"brokerName":"broker-a","queueId":1,"topic":"TopicTest"}'
SUBSCRIPTION = SubscriptionData.of("TopicTest", "TagA || TagB", 1700000000000)
SUBSCRIPTION_TEXT = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    '"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}'
)
CONNECTION = ClientConnection("cid", "127.0.0.1:5000", "JAVA", 479)
CONNECTION_TEXT = '{"clientAddr":"127.0.0.1:5000","clientId":"cid","language":"JAVA","version":479}'
GROUP_TEXT = (
    '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    '"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"CG","groupRetryPolicy":{"type":"CUSTOMIZED"},'
    '"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    '"whichBrokerWhenConsumeSlowly":1}'
)

GENUINE: list[tuple[Any, str]] = [
    (
        HeartbeatData("127.0.0.1@1234#5678", [ConsumerData("CG", subscriptions=[SUBSCRIPTION])], [ProducerData("PG")]),
        '{"clientID":"127.0.0.1@1234#5678","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":['
        + SUBSCRIPTION_TEXT
        + '],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}',
    ),
    (
        CheckClientBody("cid", "CG", SUBSCRIPTION),
        f'{{"clientId":"cid","group":"CG","subscriptionData":{SUBSCRIPTION_TEXT}}}',
    ),
    (ConsumerList(["127.0.0.1@1#2", "127.0.0.1@3#4"]), '{"consumerIdList":["127.0.0.1@1#2","127.0.0.1@3#4"]}'),
    (
        LockBatchBody("cid", "CG", [QUEUE]),
        f'{{"clientId":"cid","consumerGroup":"CG","mqSet":[{QUEUE_TEXT}],"onlyThisBroker":false}}',
    ),
    (LockBatchResult([QUEUE]), f'{{"lockOKMQSet":[{QUEUE_TEXT}]}}'),
    (GroupList(["CG"]), '{"groupList":["CG"]}'),
    (ProducerConnection([CONNECTION]), f'{{"connectionSet":[{CONNECTION_TEXT}]}}'),
    (
        ConsumerConnection([CONNECTION], {"TopicTest": SUBSCRIPTION}),
        f'{{"connectionSet":[{CONNECTION_TEXT}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        f'"subscriptionTable":{{"TopicTest":{SUBSCRIPTION_TEXT}}}}}',
    ),
    (
        ProducerTable({"PG": [ProducerInfo("cid", "/127.0.0.1:5000", "JAVA", 479, 1700000000000)]}),
        '{"data":{"PG":[{"clientId":"cid","language":"JAVA","lastUpdateTimestamp":1700000000000,'
        '"remoteIP":"/127.0.0.1:5000","version":479}]}}',
    ),
    (SubscriptionGroupConfig("CG"), GROUP_TEXT),
    (
        SubscriptionGroupTable(
            {"CG": SubscriptionGroupConfig("CG")}, {"counter": 0, "stateVersion": 0, "timestamp": 1700000000000}
        ),
        '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1700000000000},"forbiddenTable":{},'
        f'"subscriptionGroupTable":{{"CG":{GROUP_TEXT}}}}}',
    ),
    (
        ConsumeStats({QUEUE: OffsetWrapper(10, 7, 9, 1700000000000)}),
        f'{{"consumeTps":0.0,"offsetTable":{{{QUEUE_TEXT}:{{"brokerOffset":10,"consumerOffset":7,'
        '"lastTimestamp":1700000000000,"pullOffset":9}}}',
    ),
    (ResetOffsetBody({QUEUE: 42}), f'{{"offsetTable":{{{QUEUE_TEXT}:42}}}}'),
    (
        ConsumeTimeSpan([QueueTimeSpan(QUEUE, 1, 2, 2)]),
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":2,"delayTime":0,"maxTimeStamp":2,"messageQueue":'
        f'{QUEUE_TEXT},"minTimeStamp":1}}]}}',
    ),
    (ConsumerStatusBody({QUEUE: 5}), f'{{"consumerTable":{{}},"messageQueueTable":{{{QUEUE_TEXT}:5}}}}'),
    (
        QuerySubscriptionBody("CG", "TopicTest", SUBSCRIPTION),
        f'{{"group":"CG","subscriptionData":{SUBSCRIPTION_TEXT},"topic":"TopicTest"}}',
    ),
    (
        ConsumeDirectlyResult(ConsumeResult.CR_SUCCESS, 3),
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}',
    ),
]


@pytest.mark.parametrize(("body", "text"), GENUINE, ids=lambda value: type(value).__name__)
def test_bodies_equal_the_genuine_ones_both_ways(body: Any, text: str) -> None:
    assert body.to_json().decode() == text
    assert type(body).from_json(text.encode()) == body


def test_the_state_of_a_java_member_is_read() -> None:
    info = ConsumerRunningInfo.from_json(
        (
            '{"mqPopTable":{},"mqTable":{' + QUEUE_TEXT + ':{"cachedMsgCount":2,"cachedMsgMaxOffset":9,'
            '"cachedMsgMinOffset":8,"cachedMsgSizeInMiB":0,"commitOffset":8,"droped":false,"lastConsumeTimestamp":5,'
            '"lastLockTimestamp":4,"lastPullTimestamp":3,"locked":true,"transactionMsgCount":0,'
            '"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,"tryUnlockTimes":0}},'
            '"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},"statusTable":{"TopicTest":{"consumeFailedMsgs":1,'
            '"consumeFailedTPS":0.0,"consumeOKTPS":2.5,"consumeRT":0.0,"pullRT":0.0,"pullTPS":1.0}},'
            f'"subscriptionSet":[{SUBSCRIPTION_TEXT}],"userConsumerInfo":{{}}}}'
        ).encode()
    )
    assert info == ConsumerRunningInfo(
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        [SUBSCRIPTION],
        {
            QUEUE: ProcessQueueInfo(
                8, 8, 9, 2, 0, True, last_lock_timestamp=4, last_pull_timestamp=3, last_consume_timestamp=5
            )
        },
        {"TopicTest": ConsumeStatus(0.0, 1.0, 0.0, 2.5, 0.0, 1)},
    )
    assert ConsumerRunningInfo.from_json(info.to_json()) == info


def test_a_reset_has_a_form_for_cpp_clients() -> None:
    body = ResetOffsetBody({QUEUE: 42})
    assert json.loads(ResetOffsetList(body.offset_table).to_json()) == {
        "offsetTable": [{"brokerName": "broker-a", "offset": 42, "queueId": 1, "topic": "TopicTest"}]
    }
    assert ResetOffsetBody.from_json(ResetOffsetList(body.offset_table).to_json()) == body


def test_a_map_by_queue_is_read_as_pairs_too() -> None:
    text = f'{{"offsetTable":[[{QUEUE_TEXT},42]]}}'
    assert ResetOffsetBody.from_json(text.encode()) == ResetOffsetBody({QUEUE: 42})


def test_heartbeats_of_other_clients() -> None:
    ali_ons = HeartbeatData.from_json(
        b'{"clientID":"10.0.0.1@77","producerDataSet":[],"consumerDataSet":[{"groupName":"CG","consumeType":'
        b'"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"*","tagsSet":[],"codeSet":[],'
        b'"subVersion":1795190824327}],"unitMode":false}]}'
    )
    assert ali_ons == HeartbeatData(
        "10.0.0.1@77", [ConsumerData("CG", subscriptions=[SubscriptionData("T", "*", 1795190824327)])]
    )
    go = HeartbeatData.from_json(
        b'{"clientID":"10.0.0.1@77","consumerDataSet":[{"groupName":"CG","subscriptionDataSet":[{"topic":"T",'
        b'"subVersion":1795190824327123456}]}]}'
    )
    assert go.consumers[0].subscriptions == [SubscriptionData("T", "*", 1795190824327123456)]
    assert go.producer_groups == []
    go_with_tags = HeartbeatData.from_json(
        b'{"clientID":"10.0.0.1@77","consumerDataSet":[{"groupName":"CG","subscriptionDataSet":[{"topic":"TopicTest",'
        b'"subString":"TagA || TagB","tagsSet":["TagA","TagB"],"codeSet":["2598919","2598920"],'
        b'"subVersion":1700000000000,"expressionType":"TAG"}]}]}'
    )
    assert go_with_tags.consumers[0].subscriptions == [SUBSCRIPTION]
    null_namespace = CheckClientBody.from_json(
        f'{{"clientId":"cid","group":"CG","namespace":null,"subscriptionData":{SUBSCRIPTION_TEXT}}}'.encode()
    )
    assert null_namespace == CheckClientBody("cid", "CG", SUBSCRIPTION)


def test_gos_lock_request_has_no_word_of_other_brokers() -> None:
    text = f'{{"clientId":"cid","consumerGroup":"CG","mqSet":[{QUEUE_TEXT}]}}'
    assert LockBatchBody.from_json(text.encode()) == LockBatchBody("cid", "CG", [QUEUE])
