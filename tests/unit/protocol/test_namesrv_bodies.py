"""Bodies of the name service, as RocketMQ 5.3.3 encodes them."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest

from reput_protocol.commands.namesrv import MemberGroup, RegisterBrokerBody, body_crc32
from reput_protocol.commands.topic import BrokerData, TopicConfig, TopicConfigTable
from reput_protocol.errors import BodyMalformed

PLAIN = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":7,"stateVersion":3,"timestamp":'
    b'1700000000000},"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":1700000000000},"topicConfigTable":{'
    b'"TopicTest":{"attributes":{"message.type":"DELAY"},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":'
    b'"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":8},"%RETRY%g":{"attributes":{},"order":'
    b'false,"perm":6,"readQueueNums":1,"topicFilterType":"SINGLE_TAG","topicName":"%RETRY%g","topicSysFlag":0,'
    b'"writeQueueNums":1}},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)
PACKED = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d7512a2e492c490d4b2d2acecccf53b232d6512ac9cc4d050ae6162859199a1b20402d030303"
    "13101b87e41764268700d528982858289829047bfab9fbb8c68738ba2b542b01f51627a6a7ea955416a42a5929b9b8fa38462a81b4caa806"
    "b9860445aaa62b180221aa2eb0d1d1b1409201002fae2a1b"
)
VERSION = {"counter": 7, "stateVersion": 3, "timestamp": 1_700_000_000_000}
TOPICS = {
    "TopicTest": TopicConfig("TopicTest", 4, 8, attributes={"message.type": "DELAY"}),
    "%RETRY%g": TopicConfig("%RETRY%g", 1, 1),
}


@pytest.mark.parametrize("data", [PLAIN, PACKED], ids=["plain", "packed"])
def test_a_registration_of_rocketmq_is_read(data: bytes) -> None:
    body = RegisterBrokerBody.decode(memoryview(data))
    assert body.table.topics == TOPICS
    assert body.table.data_version == VERSION


def test_checksums_are_rocketmqs() -> None:
    assert body_crc32(PLAIN) == 1_705_070_592
    assert body_crc32(PACKED) == 1_401_685_908
    assert body_crc32(b"x") == 215_750_275, "without the sign bit"


def test_what_is_written_has_rocketmqs_members() -> None:
    written: dict[str, Any] = json.loads(RegisterBrokerBody(TopicConfigTable(TOPICS, VERSION)).to_json())
    expected = json.loads(PLAIN)
    expected["topicConfigSerializeWrapper"]["mappingDataVersion"] = VERSION
    assert written == expected


def test_an_empty_registration_has_no_topics() -> None:
    assert RegisterBrokerBody.decode(b"").table.topics == {}


def packed(*parts: int | bytes) -> bytes:
    texts = (
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part for part in parts
    )
    return zlib.compress(b"".join(texts))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"garbage", "neither JSON nor compressed"),
        (zlib.compress(b""), "ends at byte 0, within a size"),
        (packed(-1), "size of -1"),
        (packed(1 << 30), "within a text of 1073741824"),
        (packed(b"[]", 0), "not an object"),
        (packed(b"{}", 1 << 30), "within a size"),
        (packed(b"{}", 1, b"only two"), "'only two'"),
        (packed(b"{}", 1, b"t four 4 6 SINGLE_TAG"), "'t four 4 6 SINGLE_TAG'"),
        (packed(b"{}", 1, b"t 4 4 6 SINGLE_TAG {"), "cannot be read"),
        (packed(b"{}", 1, b"t 4 4 6 SINGLE_TAG [1]"), "cannot be read"),
        (packed(b'{"counter":"x"}', 0), "cannot be read"),
        (zlib.compress(bytes((64 << 20) + 1)), "more than 67108864 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_compressed_registration_is_refused(data: bytes, named: str) -> None:
    with pytest.raises(BodyMalformed, match=named):
        RegisterBrokerBody.decode(data)


def test_a_cut_compressed_registration_is_refused() -> None:
    for size in range(20, len(PACKED) - 24, 8):
        with pytest.raises(BodyMalformed):
            RegisterBrokerBody.decode(PACKED[:size])


def test_a_topic_without_attributes_is_read() -> None:
    data = packed(b"{}", 2, b"t 4 8 6 SINGLE_TAG", b"u 1 1 6 SINGLE_TAG ")
    body = RegisterBrokerBody.decode(data)
    assert body.table.topics == {"t": TopicConfig("t", 4, 8), "u": TopicConfig("u", 1, 1)}


def test_the_group_of_a_broker_name() -> None:
    group = MemberGroup(BrokerData("c", "broker-a", {0: "h:1", 1: "h:2"}))
    text = b'{"brokerMemberGroup":{"brokerAddrs":{"0":"h:1","1":"h:2"},"brokerName":"broker-a","cluster":"c"}}'
    assert group.to_json() == text
    assert MemberGroup.from_json(text.replace(b'"0"', b"0").replace(b'"1"', b"1")) == group, "as RocketMQ writes it"


def test_a_large_registration_is_written_in_the_compressed_form() -> None:
    topics = {f"T{number}": TopicConfig(f"T{number}", number, 4, 6) for number in range(1, 500)}
    version = {"counter": 3, "stateVersion": 2, "timestamp": 5}
    written = RegisterBrokerBody(TopicConfigTable(topics, version))
    data = written.deflated()
    assert 8 * len(data) < len(written.to_json())
    assert RegisterBrokerBody.decode(data) == written
