"""A broker process and raw frames in all three header types: every command, and errors of peers."""

from __future__ import annotations

import struct
import time

import pytest

from reput_protocol.codes import AckLevel, PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.send import SendMessageHeader, SendMessageResult
from reput_protocol.commands.topic import TopicConfig, TopicList, TopicRoute, TopicStats
from reput_protocol.properties import decode_properties
from reput_protocol.record.message import Message, MessageQueue
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.put_block import BatchItem, encode_batch, encode_put_block
from reput_protocol.record.record import decode_record
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value
from support.broker_process import BrokerProcess
from support.raw_client import RawClient, in_letters

pytestmark = pytest.mark.process

TYPES = [HeaderType.JSON, HeaderType.BINARY, HeaderType.MSGPACK]
PUT = RequestCode.PUT_MESSAGE
PULL = RequestCode.PULL_MESSAGE
SUSPEND = PullSysFlag.SUSPEND
SUBSCRIPTION = PullSysFlag.SUBSCRIPTION
FIT_FOR_BINARY = pytest.mark.parametrize("kind", TYPES)


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[:100]
    with RawClient(broker.address) as client:
        create(client, name)
    return name


def create(client: RawClient, topic: str, queues: int = 2, perm: int = 6) -> None:
    ext: dict[str, Value] = {"topic": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
    ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
    text = {name: str(value) for name, value in ext.items()} | {"order": "false"}
    native = client.header_type == HeaderType.MSGPACK
    header, _ = client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext if native else text)
    assert header.code == 0, header.remark


def block_of(topic: str, *bodies: bytes, queue_id: int = 0, tag: str | None = None) -> bytes:
    messages = [Message(topic, body, tag=tag) for body in bodies]
    return bytes(encode_put_block(messages, topic, queue_id, 1_700_000_000_000))


def put_ext(topic: str, count: int = 1, ack: str = "page_cache", queue_id: int = 0) -> dict[str, Value]:
    return {"topic": topic, "queueId": queue_id, "count": count, "ack": ack}


def pull_ext(topic: str, offset: int = 0, **more: Value) -> dict[str, Value]:
    ext: dict[str, Value] = {"consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": offset}
    ext |= {"maxMsgNums": 32, "sysFlag": SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
    return ext | more


def as_text(ext: dict[str, Value]) -> dict[str, Value]:
    return {name: str(value) for name, value in ext.items()}


def wait_readable(client: RawClient, topic: str, end: int) -> None:
    """Wait until queue 0 ends at `end`: an acknowledged message is dispatched to its queue a moment later."""
    deadline = time.monotonic() + 5
    while True:
        header, _ = client.request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
        if int(str(header.ext["offset"])) == end:
            return
        assert time.monotonic() < deadline, header


def bodies(data: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        found.append(decode_record(data, position).body)
        position += size
    return found


@pytest.mark.parametrize("kind", [HeaderType.JSON, HeaderType.MSGPACK])
@pytest.mark.parametrize("ack", ["page_cache", "flushed"])
def test_a_block_put_natively_is_pulled_whole(broker: BrokerProcess, topic: str, kind: HeaderType, ack: str) -> None:
    with RawClient(broker.address, kind) as client:
        ext = put_ext(topic, 3, ack)
        ext = ext if kind == HeaderType.MSGPACK else as_text(ext)
        header, _ = client.request(PUT, ext, block_of(topic, b"a", b"b", b"c"))
        assert (header.code, header.ext["ack"], int(str(header.ext["queueOffset"]))) == (0, ack, 0)
        deadline = time.monotonic() + 5
        while True:
            header, data = client.request(
                PULL, as_text(pull_ext(topic)) if kind == HeaderType.JSON else pull_ext(topic)
            )
            if header.code == 0 and len(bodies(data)) == 3:
                break
            assert time.monotonic() < deadline
    assert bodies(data) == [b"a", b"b", b"c"]
    assert int(str(header.ext["nextBeginOffset"])) == 3


@pytest.mark.parametrize("kind", [HeaderType.JSON, HeaderType.BINARY])
def test_rocketmq_sends_are_stored_with_what_the_broker_adds(
    broker: BrokerProcess, topic: str, kind: HeaderType
) -> None:
    long_names: dict[str, Value] = {
        "producerGroup": "PG", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "7", "properties": "TAGS\x01TagA\x02KEYS\x01k1\x02",
    }  # fmt: skip
    letters = in_letters(topic)
    batch = encode_batch([BatchItem(1, b"one", b"KEYS\x01a\x02"), BatchItem(2, b"two", b"")])
    with RawClient(broker.address, kind) as client:
        first, _ = client.request(RequestCode.SEND_MESSAGE, long_names, b"ten")
        second, _ = client.request(RequestCode.SEND_MESSAGE_V2, letters, b"three-ten")
        third, _ = client.request(RequestCode.SEND_BATCH_MESSAGE, letters, batch)
        assert [h.code for h in (first, second, third)] == [0, 0, 0]
        assert [h.ext["queueOffset"] for h in (first, second, third)] == ["0", "1", "2"]
        assert len(str(third.ext["msgId"]).split(",")) == 2
        wait_readable(client, topic, 4)
        _, data = client.request(PULL, as_text(pull_ext(topic)))
        assert bodies(data) == [b"ten", b"three-ten", b"one", b"two"]
        record = decode_record(data)
        properties = decode_properties(record.properties)
        assert record.flag == 7
        assert record.born_host.ip == "127.0.0.1"
        assert properties["TAGS"] == "TagA"
        assert properties["MSG_REGION"] == "DefaultRegion"
        assert properties["CLUSTER"] == "DefaultCluster"
        assert properties["UNIQ_KEY"]
        offset = int(str(first.ext["msgId"])[16:], 16)
        viewed, one = client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        assert viewed.code == 0
        assert bodies(one) == [b"ten"]
        unknown, _ = client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset + 1)})
        assert unknown.code == 1


@pytest.mark.parametrize(("count", "size"), [(40_000, 0), (10, 1_000_000)])
def test_a_batch_that_is_too_large_is_refused_without_effect_on_others(
    broker: BrokerProcess, topic: str, count: int, size: int
) -> None:
    with RawClient(broker.address, HeaderType.JSON) as client:
        body = encode_batch([BatchItem(0, bytes(size), b"")] * count)
        header, _ = client.request(RequestCode.SEND_BATCH_MESSAGE, in_letters(topic, m="true"), body)
        assert header.code == ResponseCode.MESSAGE_ILLEGAL
        assert "send several smaller ones" in str(header.remark)
        header, _ = client.request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
        assert header.ext["offset"] == "0"


@pytest.mark.parametrize("what", ["DELAY\x013\x02", "TRAN_MSG\x01true\x02", "TIMER_DELAY_SEC\x015\x02"])
def test_delayed_and_half_messages_are_not_stored_as_ordinary_ones(
    broker: BrokerProcess, topic: str, what: str
) -> None:
    with RawClient(broker.address, HeaderType.JSON) as client:
        header, _ = client.request(RequestCode.SEND_MESSAGE_V2, in_letters(topic, i=what), b"x")
        assert header.code == ResponseCode.SUCCESS
        header, _ = client.request(PULL, as_text(pull_ext(topic)))
        assert header.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("ack", ["page_cache", "flushed"])
def test_a_message_that_comes_alone_natively_gets_a_whole_receipt(broker: BrokerProcess, ack: str) -> None:
    topic = f"alone_{ack}"
    header = SendMessageHeader("PG", topic, 1, born_timestamp=1, properties="TAGS\x01a\x02", ack=AckLevel(ack))
    with RawClient(broker.address) as client:
        answer, _ = client.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(HeaderType.MSGPACK), b"body")
        result = SendMessageResult.from_ext(answer.ext)
        assert (answer.code, result.queue_id, result.queue_offset, result.ack) == (0, 1, 0, ack)
        _, physical_offset = decode_offset_message_id(result.msg_id)
        deadline = time.monotonic() + 5
        while True:  # it is shown once it is on the disk
            viewed, data = client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
            if viewed.code == 0:
                break
            assert time.monotonic() < deadline
        record = decode_record(data)
        assert (record.body, record.store_timestamp_ms) == (b"body", result.store_timestamp)
        config, body = client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        assert config.code == 0
        assert TopicConfig.from_json(body).write_queue_nums == 4, "the broker's own default"
        header.ack = AckLevel.REPLICATED
        answer, _ = client.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(HeaderType.MSGPACK), b"x")
        assert str(answer.remark).startswith("NO_REPLICA: ")
        _, stats = client.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        assert TopicStats.from_json(stats).offset_table[MessageQueue(topic, "broker-a", 1)].max_offset <= 1


def test_a_pull_for_no_message_still_brings_one(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.address) as client:
        client.request(PUT, put_ext(topic, 2, "flushed"), block_of(topic, b"1", b"2"))
        wait_readable(client, topic, 2)
        header, data = client.request(PULL, pull_ext(topic, maxMsgNums=0))
        assert (header.code, bodies(data)) == (0, [b"1"])


def test_offsets_out_of_range_each_have_their_status(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.address) as client:
        empty, _ = client.request(PULL, pull_ext(topic))
        beyond_empty, _ = client.request(PULL, pull_ext(topic, 5))
        assert (empty.code, beyond_empty.code) == (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
        client.request(PUT, put_ext(topic, 2, "flushed"), block_of(topic, b"1", b"2"))
        wait_readable(client, topic, 2)
        at_end, _ = client.request(PULL, pull_ext(topic, 2))
        beyond, _ = client.request(PULL, pull_ext(topic, 3))
        assert (at_end.code, at_end.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, 2)
        assert (beyond.code, beyond.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, 2)
        assert beyond.remark == "OFFSET_OVERFLOW_BADLY"
        negative, _ = client.request(PULL, pull_ext(topic, -1))
        assert negative.code == ResponseCode.INVALID_PARAMETER


def test_a_held_pull_is_woken_by_a_message_and_delays_no_other_request(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.address) as waiting, RawClient(broker.address) as other:
        waiting.send(PULL, pull_ext(topic, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=20_000))
        behind = waiting.send(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": 0})
        assert waiting.receive()[0].opaque == behind, "a held pull holds up nothing behind it"
        started_at = time.monotonic()
        other.request(PUT, put_ext(topic), block_of(topic, b"woken"))
        header, data, _ = waiting.receive()
        assert (header.code, bodies(data)) == (0, [b"woken"])
        assert time.monotonic() - started_at < 2.0


def test_a_held_pull_ends_at_its_deadline_and_keeps_its_filter(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.address) as client, RawClient(broker.address) as other:
        filtered = pull_ext(topic, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=600, subscription="wanted")
        client.send(PULL, filtered)
        started_at = time.monotonic()
        other.request(PUT, put_ext(topic), block_of(topic, b"x", tag="unwanted"))
        header, data, _ = client.receive()
        assert 0.4 < time.monotonic() - started_at < 5.0
        assert (header.code, data) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
        assert header.ext["nextBeginOffset"] == 1


@FIT_FOR_BINARY
def test_consumer_offsets(broker: BrokerProcess, topic: str, kind: HeaderType) -> None:
    def ext(**more: Value) -> dict[str, Value]:
        fields: dict[str, Value] = {"consumerGroup": f"g{kind}", "topic": topic, "queueId": 0, **more}
        return fields if kind == HeaderType.MSGPACK else as_text(fields)

    query, update = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
    with RawClient(broker.address, kind) as client:
        if kind != HeaderType.MSGPACK:
            # RocketMQ's clients are members of a group before they commit; to ask for its settings creates it too.
            assert client.request(update, ext(commitOffset=5))[0].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": f"g{kind}"})
        header, _ = client.request(query, ext())
        assert (header.code, str(header.ext["offset"])) == (0, "0")
        header, _ = client.request(query, {**ext(), "setZeroIfNotFound": "false"})
        assert header.code == ResponseCode.QUERY_NOT_FOUND
        assert client.request(update, ext(commitOffset=-1))[0].code == 0
        assert client.request(query, {**ext(), "setZeroIfNotFound": "false"})[0].code == ResponseCode.QUERY_NOT_FOUND
        assert client.request(update, ext(commitOffset=5))[0].code == 0
        assert str(client.request(query, ext())[0].ext["offset"]) == "5"
        unknown = {**ext(commitOffset=1), "topic": "no_such_topic"}
        assert client.request(update, unknown)[0].code == ResponseCode.TOPIC_NOT_EXIST
        missing = ext(commitOffset=1)
        del missing["queueId"]
        header, _ = client.request(update, missing)
        assert header.code == ResponseCode.INVALID_PARAMETER
        assert "queueId" in str(header.remark)
        assert client.request(update, ext(commitOffset=3, increaseOnly=True))[0].code == 0
        assert str(client.request(query, ext())[0].ext["offset"]) == "5", "nothing is taken back"
        assert client.request(update, ext(commitOffset=3))[0].code == 0
        assert str(client.request(query, ext())[0].ext["offset"]) == "3", "a rewind that was asked for"
        with_pull = {**pull_ext(topic, sysFlag=5, commitOffset=2), "consumerGroup": f"g{kind}"}
        client.request(PULL, with_pull if kind == HeaderType.MSGPACK else as_text(with_pull))
        expected = "3" if kind == HeaderType.MSGPACK else "2"
        assert str(client.request(query, ext())[0].ext["offset"]) == expected


@FIT_FOR_BINARY
def test_queue_bounds_and_times(broker: BrokerProcess, topic: str, kind: HeaderType) -> None:
    with RawClient(broker.address) as native:
        native.request(PUT, put_ext(topic, 2, "flushed"), block_of(topic, b"1", b"2"))
    queue: dict[str, Value] = {"topic": topic, "queueId": "0"}
    with RawClient(broker.address, kind) as client:

        def ask(code: int, name: str = "offset", **more: Value) -> int:
            header, _ = client.request(code, {**queue, **more})
            assert header.code == 0, header.remark
            return int(str(header.ext[name]))

        assert ask(RequestCode.GET_MAX_OFFSET) == 2
        assert ask(RequestCode.GET_MIN_OFFSET) == 0
        stored = ask(RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp")
        assert abs(stored - time.time() * 1000) < 60_000
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert ask(search, timestamp=str(stored - 10)) == 0
        assert ask(search, timestamp=str(stored + 60_000)) == 2


@pytest.mark.parametrize("kind", [HeaderType.JSON, HeaderType.MSGPACK], ids=["json", "msgpack"])
def test_topics_of_kinds_that_are_not_kept_are_neither_made_nor_filled(broker: BrokerProcess, kind: HeaderType) -> None:
    def ext(topic: str, attributes: str) -> dict[str, Value]:
        fields: dict[str, Value] = {
            "topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0, "order": False,
            "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "attributes": attributes,
        }  # fmt: skip
        return fields if kind is HeaderType.MSGPACK else as_text(fields) | {"order": "false"}

    with RawClient(broker.address, kind) as client:
        for attributes, word in (("+queue.type=BatchCQ", "batch queues"), ("+cleanup.policy=COMPACTION", "compacts")):
            refused, _ = client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext(f"unkept_{int(kind)}", attributes))
            assert refused.code != 0
            assert word in str(refused.remark)
    with RawClient(broker.address, HeaderType.MSGPACK) as client:
        block = block_of("%LMQ%light", b"x")
        refused, _ = client.request(RequestCode.PUT_MESSAGE, put_ext("%LMQ%light"), block)
        assert refused.code != 0
        assert "light message queues" in str(refused.remark)


@FIT_FOR_BINARY
def test_messages_are_queried_by_key(broker: BrokerProcess, topic: str, kind: HeaderType) -> None:
    with RawClient(broker.address) as client:
        block = encode_put_block([Message(topic, b"b", keys=["k"], unique_id="U")], topic, 0, 1_700_000_000_000)
        put, _ = client.request(PUT, put_ext(topic, ack="flushed"), bytes(block))
        assert put.code == 0
    with RawClient(broker.address, kind) as client:
        ext: dict[str, Value] = {"topic": topic, "key": "k", "maxNum": 32, "beginTimestamp": 0}
        ext |= {"endTimestamp": 2**63 - 1, "_UNIQUE_KEY_QUERY": "false"}
        for key, count in (("k", 1), ("U", 1), ("K", 0)):
            header, body = client.request(
                RequestCode.QUERY_MESSAGE,
                ext | {"key": key} if kind == HeaderType.MSGPACK else as_text(ext | {"key": key}),
            )
            assert int(str(header.ext["indexLastUpdateTimestamp"])) > 1_700_000_000_000
            assert int(str(header.ext["indexLastUpdatePhyoffset"])) >= 0
            if count:
                assert header.code == 0
                assert decode_record(body).body == b"b"
            else:
                assert (header.code, body) == (ResponseCode.QUERY_NOT_FOUND, b"")


def test_the_node_client_ali_ons_hears_of_the_template(broker: BrokerProcess) -> None:
    """It takes TOPIC_NOT_EXIST for a failure, and asks for the template's route after success without one."""
    with RawClient(broker.address, HeaderType.JSON) as client:
        asked = Header(RequestCode.GET_ROUTEINFO_BY_TOPIC, 7, 0, ext={"topic": "nowhere"}, version=121)
        client.send_bytes(encode_frame(asked, HeaderType.JSON, b""))
        header, body, _ = client.receive()
        assert (header.opaque, header.code, body) == (7, 0, b"")


def test_many_small_properties_are_legal_and_large_ones_are_named(broker: BrokerProcess, topic: str) -> None:
    """JSON writes each separator in six bytes."""
    with RawClient(broker.address, HeaderType.JSON) as client:
        small = "".join(f"{number:x}\x01{number % 10}\x02" for number in range(3900))
        header, _ = client.request(RequestCode.SEND_MESSAGE_V2, in_letters(topic, i=small), b"x")
        assert header.code == 0, header.remark
        for size in (32_768, 500_000):
            large = in_letters(topic, i=f"k\x01{'v' * size}\x02")
            header, _ = client.request(RequestCode.SEND_MESSAGE_V2, large, b"x")
            assert header.code == ResponseCode.MESSAGE_ILLEGAL
            assert "properties" in (header.remark or "")


@FIT_FOR_BINARY
def test_topics_and_routes(broker: BrokerProcess, kind: HeaderType) -> None:
    topic = f"life_of_a_topic_{int(kind)}"
    with RawClient(broker.address, kind) as client:
        create(client, topic, queues=3)
        header, body = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        route = TopicRoute.from_json(body)
        assert header.code == 0
        assert route.broker_datas[0].broker_addrs == {0: broker.address}
        assert route.queue_datas[0].read_queue_nums == 3
        assert b" " not in body
        unknown, _ = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        if kind != HeaderType.MSGPACK:
            assert unknown.remark == "No topic route info in name server for the topic: nowhere"
        template, _ = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert template.code == 0
        _, body = client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        assert TopicConfig.from_json(body).write_queue_nums == 3
        _, body = client.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert topic in TopicList.from_json(body).topics
        _, body = client.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        assert MessageQueue(topic, "broker-a", 2) in TopicStats.from_json(body).offset_table
        retry = {"topic": f"%RETRY%asks_first_{int(kind)}"}
        header, body = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, retry)
        if kind == HeaderType.MSGPACK:  # the bundled client sends a heartbeat first
            assert header.code == ResponseCode.TOPIC_NOT_EXIST
        else:
            assert TopicRoute.from_json(body).queue_datas[0].read_queue_nums == 1
        assert client.request(RequestCode.GET_ALL_TOPIC_CONFIG)[0].code == 0
        assert client.request(RequestCode.GET_BROKER_CLUSTER_INFO)[0].code == 0
        assert client.request(RequestCode.GET_BROKER_RUNTIME_INFO)[0].code == 0
        assert client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})[0].code == 0
        assert client.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})[0].code == 0
        gone, _ = client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        assert gone.code == ResponseCode.TOPIC_NOT_EXIST


@FIT_FOR_BINARY
def test_an_unknown_request_is_refused_and_the_connection_lives(broker: BrokerProcess, kind: HeaderType) -> None:
    with RawClient(broker.address, kind) as client:
        header, _ = client.request(9_999)
        assert header.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "9999" in str(header.remark)
        assert client.request(RequestCode.GET_BROKER_CLUSTER_INFO)[0].code == 0


def test_a_oneway_request_is_never_answered(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.address) as client:
        client.send(PUT, put_ext(topic), block_of(topic, b"quiet"), flag=2)
        opaque = client.send(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert client.receive()[0].opaque == opaque
        _, data = client.request(PULL, pull_ext(topic, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=5_000))
        assert bodies(data) == [b"quiet"]


def spoiled(topic: str, at: int, value: bytes) -> bytes:
    block = bytearray(block_of(topic, b"good", b"bad body", b"good"))
    (first,) = struct.unpack_from(">i", block)
    block[first + at : first + at + len(value)] = value
    return bytes(block)


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, b"\x7f\xff\xff\xff", "TOTALSIZE"),
        (0, b"\xff\xff\xff\xff", "TOTALSIZE"),
        (4, b"\x00\x00\x00\x00", "MAGIC"),
        (8, b"\x00\x00\x00\x01", "CRC"),
        (12, b"\x00\x00\x00\x01", "QUEUEID"),
        (20, b"\x00\x00\x00\x00\x00\x00\x00\x01", "QUEUEOFFSET"),
        (36, b"\x00\x00\x00\x04", "SYSFLAG"),
        (88 + len(b"bad body") + 1, b"X", "topic"),
    ],
)
def test_a_bad_record_refuses_its_block_whole(
    broker: BrokerProcess, topic: str, at: int, value: bytes, says: str
) -> None:
    with RawClient(broker.address) as client:
        header, _ = client.request(PUT, put_ext(topic, 3, "flushed"), spoiled(topic, at, value))
        assert header.code == ResponseCode.MESSAGE_ILLEGAL
        assert says.lower() in str(header.remark).lower(), header.remark
        assert "1" in str(header.remark), "the index of the first bad record"
        assert client.request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": 0})[0].ext["offset"] == 0
        assert client.request(PUT, put_ext(topic, 1, "flushed"), block_of(topic, b"fine"))[0].code == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ({"count": 2}, ResponseCode.MESSAGE_ILLEGAL),
        ({"count": 0}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "bad name"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"ack": "replicated"}, ResponseCode.SERVICE_NOT_AVAILABLE),
        ({"ack": "sometimes"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "many"}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_bad_headers_of_a_put_are_refused(
    broker: BrokerProcess, topic: str, change: dict[str, Value], code: ResponseCode
) -> None:
    with RawClient(broker.address) as client:
        header, _ = client.request(PUT, {**put_ext(topic), **change}, block_of(topic, b"x"))
        assert header.code == code, header.remark
        assert ": " in str(header.remark)
        assert client.request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": 0})[0].ext["offset"] == 0


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iI", -5, 0x4D000010) + bytes(16),
        struct.pack(">iI", 0x7FFFFFFF, 0x4D000010) + bytes(16),
        struct.pack(">iI", 2, 0x4D000000) + bytes(16),
        struct.pack(">iI", 24, 0x4D000030) + bytes(20),
        struct.pack(">iI", 24, 0x4D000014) + b"\xc1" * 20,
        struct.pack(">iI", 24, 0x00000014) + b'{"code":'.ljust(20),
        struct.pack(">iI", 24, 0x01000014) + b"\xff" * 20,
        struct.pack(">iI", 24, 0x37000014) + bytes(20),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["negative", "oversized", "too short", "header beyond frame", "msgpack", "json", "binary", "type", "http"],
)
def test_broken_frames_end_their_own_connection_only(broker: BrokerProcess, data: bytes) -> None:
    with RawClient(broker.address) as other:
        assert other.request(RequestCode.GET_BROKER_CLUSTER_INFO)[0].code == 0
        with RawClient(broker.address) as client:
            client.send_bytes(data)
            header, _, _ = client.receive()
            assert header.code == ResponseCode.MESSAGE_ILLEGAL
            assert "connection is closed" in str(header.remark)
            assert client.is_closed_by_peer()
        assert other.request(RequestCode.GET_BROKER_CLUSTER_INFO)[0].code == 0
