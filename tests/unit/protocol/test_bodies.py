"""Bodies: RocketMQ's own bytes, and defensive reading."""

from __future__ import annotations

from typing import Any

import pytest

from reput_protocol.commands.group import HeartbeatData, LockBatchBody
from reput_protocol.commands.topic import (
    BrokerData,
    ClusterInfo,
    KVTable,
    QueueData,
    QueueStats,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRoute,
    TopicStats,
)
from reput_protocol.errors import BodyMalformed
from reput_protocol.record.message import MessageQueue

BROKER = BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:10911"})
VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 1700000000000}

GENUINE: list[tuple[Any, str]] = [
    (
        TopicRoute([QueueData("broker-a", 4, 4)], [BROKER]),
        '{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
        '"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        ClusterInfo({"broker-a": BROKER}, {"DefaultCluster": ["broker-a"]}),
        '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a",'
        '"cluster":"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}',
    ),
    (TopicList(["TopicTest"], "127.0.0.1:10911"), '{"brokerAddr":"127.0.0.1:10911","topicList":["TopicTest"]}'),
    (TopicList([]), '{"topicList":[]}'),
    (KVTable({"brokerVersionDesc": "V5_3_3"}), '{"table":{"brokerVersionDesc":"V5_3_3"}}'),
    (
        TopicConfigTable({"TopicTest": TopicConfig("TopicTest", 4, 4)}, VERSION),
        '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1700000000000},"mappingDataVersion":{"counter":0,'
        '"stateVersion":0,"timestamp":1700000000000},"topicConfigTable":{"TopicTest":{"attributes":{},"order":false,'
        '"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,'
        '"writeQueueNums":4}},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}',
    ),
    (
        TopicStats({MessageQueue("TopicTest", "broker-a", 1): QueueStats(0, 10, 1700000000000)}),
        '{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"TopicTest"}:{"lastUpdateTimestamp":'
        '1700000000000,"maxOffset":10,"minOffset":0}},"topicPutTps":0.0}',
    ),
    (TopicStats({}), '{"offsetTable":{},"topicPutTps":0.0}'),
]


@pytest.mark.parametrize(("body", "text"), GENUINE, ids=lambda value: type(value).__name__)
def test_bodies_equal_the_genuine_ones_both_ways(body: Any, text: str) -> None:
    assert body.to_json() == text.encode()
    assert type(body).from_json(text.encode()) == body


def test_a_route_of_an_old_broker_has_bare_keys() -> None:
    route = TopicRoute.from_json(b'{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b"}]}')
    assert route.broker_datas[0].broker_addrs == {0: "h:1", 1: "h:2"}


def test_order_conf_is_left_out_when_unused() -> None:
    assert b"orderTopicConf" not in TopicRoute([], []).to_json()
    assert TopicRoute.from_json(TopicRoute([], [], "broker-a:4").to_json()).order_topic_conf == "broker-a:4"


def test_a_topic_config_takes_rocketmqs_defaults() -> None:
    assert TopicConfig.from_json(b'{"topicName":"t","unknown":1}') == TopicConfig("t", 16, 16, 6)
    config = TopicConfig("t", 8, 4, 2, 1, True, {"message.type": "FIFO"}, "MULTI_TAG")
    assert TopicConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TopicRoute, '{"queueDatas":[1]}'),
        (TopicRoute, '{"queueDatas":{}}'),
        (TopicRoute, '{"brokerDatas":[{"brokerAddrs":{"x":"h:1"}}]}'),
        (TopicRoute, '{"brokerDatas":[{"brokerAddrs":{"0":1}}]}'),
        (TopicRoute, '{"queueDatas":[{"perm":"6"}]}'),
        (TopicRoute, '{"queueDatas":[{"perm":9223372036854775808}]}'),
        (ClusterInfo, '{"brokerAddrTable":{"a":1}}'),
        (ClusterInfo, '{"clusterAddrTable":{"a":[1]}}'),
        (TopicList, '{"topicList":"a"}'),
        (KVTable, '{"table":{"a":1}}'),
        (TopicConfig, '{"order":"true"}'),
        (TopicConfig, '{"topicName":7}'),
        (TopicStats, '{"offsetTable":{"a":{}}}'),
        (TopicStats, '{"offsetTable":{{"queueId":"1"}:{}}}'),
        (TopicStats, '{"offsetTable":{},"topicPutTps":"x"}'),
        (TopicStats, '{"offsetTable":{},"topicPutTps":"\\ud800"}'),
        (HeartbeatData, '{"clientID":"a","consumerDataSet":[{"groupName":"g","messageModel":"\\ud800"}]}'),
        (LockBatchBody, '{"mqSet":[{"topic":"t","brokerName":"b","queueId":18446744073709551616}]}'),
        (LockBatchBody, '{"clientId":"a\udc89"}'),
        (HeartbeatData, '{"clientID":"a","consumerDataSet":[{"groupName":"g\udced\udca0\udc80"}]}'),
    ],
)
def test_wrong_types_are_malformed(kind: Any, text: str) -> None:
    with pytest.raises(BodyMalformed):
        kind.from_json(text.encode("utf-8", "surrogateescape"))  # `\udc89` stands for the byte 0x89
