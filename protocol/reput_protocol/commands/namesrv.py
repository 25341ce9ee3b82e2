"""Name service: registration of brokers, key-value settings, permissions, facts about brokers and topics.

(RocketMQ: package `protocol.header.namesrv`, RegisterBrokerBody, BrokerMemberGroup.)
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final, Self

from msgspec import field

from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import (
    I32,
    I64,
    Body,
    CommandHeader,
    Content,
    LargeBody,
    RequestType,
    Sender,
    read_json,
    read_members,
)
from reput_protocol.commands.topic import BrokerData, TopicConfig, TopicConfigTable, TopicRoute
from reput_protocol.errors import BodyMalformed
from reput_protocol.names import BrokerName, TopicName
from reput_protocol.rights import Right

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the fixed numbers of queues of ordered topics, by topic: `broker-a:4;broker-b:4`."""

# -- registration ------------------------------------------------------------------------------------------------------


class RegisterBrokerHeader(CommandHeader):
    """Header of 103: a broker announces itself and its topics.

    `body_crc32` is 0 or that of the body. `start_id` and `is_complete` are Reput's: which start of the broker this is,
    and whether topics that are not in the body do not exist.
    """

    broker_name: BrokerName
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0
    start_id: str | None = None
    is_complete: bool = False


class RegisterBrokerAnswer(CommandHeader):
    """Answer to 103 for a slave: where its master is. The body is the `KVTable` of ordered topics."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


_SIZE: Final = struct.Struct(">i")
_INFLATED_MAX: Final = 64 << 20


class RegisterBrokerBody(LargeBody):
    """Body of 103."""

    table: TopicConfigTable = field(default_factory=TopicConfigTable, name="topicConfigSerializeWrapper")
    filter_servers: list[str] = field(default_factory=list, name="filterServerList")

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Read the body; an empty one has no topics.

        The header's `compressed` does not tell which form it has: brokers of RocketMQ 5.3.3 compress and say false.

        Raises:
            BodyMalformed: it is not what RocketMQ writes, or more than 64 MiB when inflated.
        """
        if not data:
            return cls()
        return cls.from_json(data) if data[:1] == b"{" else cls._inflate(data)

    def deflated(self) -> bytes:
        """Return RocketMQ's compressed form, a tenth as long; it lacks system flags, and attributes are left out."""
        texts = [json.dumps(self.table.data_version).encode()]
        for config in self.table.topics.values():
            words = (config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_filter_type)
            texts.append(" ".join((config.topic_name, *map(str, words))).encode())
        parts = [_SIZE.pack(len(text)) + text for text in (*texts, b"[]")]
        parts.insert(1, _SIZE.pack(len(self.table.topics)))
        return zlib.compress(b"".join((*parts, _SIZE.pack(0))))  # the last one: no static topics

    @classmethod
    def _inflate(cls, data: Buffer) -> Self:
        """Read RocketMQ's compressed form: sizes and texts, each topic as words, deflated."""
        inflater = zlib.decompressobj()
        try:
            inflated = memoryview(inflater.decompress(data, _INFLATED_MAX))
        except zlib.error as error:
            raise BodyMalformed(f"the body is neither JSON nor compressed: {error}") from None
        if inflater.unconsumed_tail:
            raise BodyMalformed(f"the compressed body has more than {_INFLATED_MAX} bytes when inflated")
        texts = _Texts(inflated)
        version = read_json(texts.next())
        topics = {}
        for _ in range(texts.size()):
            config = _read_words(str(texts.next(), "utf-8", "replace"))
            topics[config.topic_name] = config
        versions = read_members(dict[str, I64], version)
        # The lists of filter servers and of static topics follow, which this project does not use.
        return cls(TopicConfigTable(topics, versions))


class _Texts:
    """The parts of RocketMQ's compressed form."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def size(self) -> int:
        if len(self._data) < self._at + _SIZE.size:
            raise BodyMalformed(f"the inflated body ends at byte {len(self._data)}, within a size")
        (size,) = _SIZE.unpack_from(self._data, self._at)
        if size < 0:
            raise BodyMalformed(f"the inflated body has a size of {size} at byte {self._at}")
        self._at += _SIZE.size
        return int(size)

    def next(self) -> memoryview:
        size = self.size()
        text = self._data[self._at : self._at + size]
        if len(text) < size:
            raise BodyMalformed(f"the inflated body ends at byte {len(self._data)}, within a text of {size}")
        self._at += size
        return text


_WORDS_MIN: Final = 5


def _read_words(text: str) -> TopicConfig:
    """Read a topic as name, read queues, write queues, permission, filter type and perhaps attributes."""
    words = text.split(" ", _WORDS_MIN)
    try:
        name, read, write, perm, kind = words[:_WORDS_MIN]
        attributes = json.loads(words[_WORDS_MIN]) if len(words) > _WORDS_MIN and words[_WORDS_MIN] else {}
        members: dict[str, Any] = {
            "topicName": name,
            "readQueueNums": int(read),
            "writeQueueNums": int(write),
            "perm": int(perm),
            "topicFilterType": kind,
            "attributes": attributes or {},
        }
    except (ValueError, RecursionError) as error:
        raise BodyMalformed(f"topic {text!r:.80} of the compressed body cannot be read: {error}") from None
    return read_members(TopicConfig, members)


def body_crc32(body: Buffer) -> int:
    """Return the checksum of 103's body (RocketMQ: UtilAll.crc32, whose sign bit is cleared)."""
    return zlib.crc32(body) & 0x7FFF_FFFF


class UnregisterBrokerHeader(CommandHeader):
    """Header of 104: a broker leaves."""

    broker_name: BrokerName
    broker_addr: str
    cluster_name: str
    broker_id: I64


class BrokerHeartbeatHeader(CommandHeader):
    """Header of 904: a registered broker is alive."""

    cluster_name: str
    broker_addr: str
    broker_name: BrokerName


class QueryDataVersionHeader(CommandHeader):
    """Header of 322: whether the topics of a registered broker are known in the version of the body."""

    broker_name: BrokerName
    broker_addr: str
    cluster_name: str
    broker_id: I64


class RegisterTopicHeader(CommandHeader):
    """Header of 217: the body is a `TopicRoute` with the queues of the topic on registered brokers."""

    topic: TopicName


class MemberGroupHeader(CommandHeader):
    """Header of 901: the members of one broker's group."""

    cluster_name: str
    broker_name: BrokerName


class MemberGroup(Body):
    """Answer body of 901."""

    group: BrokerData = field(default_factory=BrokerData, name="brokerMemberGroup")

    def to_members(self) -> dict[str, Any]:
        """Return the members, with the ids of the group as text."""
        group = self.group.to_members()
        del group["enableActingMaster"]
        return {"brokerMemberGroup": group}


class BrokerPermissionHeader(CommandHeader):
    """Header of 205 and 327: take write permission from every topic of a broker, or give it back."""

    broker_name: BrokerName


class TopicsByClusterHeader(CommandHeader):
    """Header of 224: the topics of a cluster."""

    cluster: str


# -- key-value settings ------------------------------------------------------------------------------------------------


class PutKVConfigHeader(CommandHeader):
    """Header of 100: set a value."""

    namespace: str
    key: str
    value: str


class KVConfigHeader(CommandHeader):
    """Header of 101 and 102: get or delete a value."""

    namespace: str
    key: str


class KVListHeader(CommandHeader):
    """Header of 219: all values of a namespace."""

    namespace: str


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.REGISTER_BROKER, RegisterBrokerHeader, RegisterBrokerBody, sender=Sender.BROKER,
        cluster=Right.REPLICATE, content=Content.TABLE,
    ),
    RequestType(
        RequestCode.UNREGISTER_BROKER, UnregisterBrokerHeader, sender=Sender.BROKER, cluster=Right.REPLICATE
    ),
    RequestType(
        RequestCode.BROKER_HEARTBEAT, BrokerHeartbeatHeader, sender=Sender.BROKER, cluster=Right.REPLICATE
    ),
    RequestType(
        RequestCode.QUERY_DATA_VERSION, QueryDataVersionHeader, sender=Sender.BROKER, cluster=Right.REPLICATE
    ),
    RequestType(
        RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopicHeader, TopicRoute, topics=Right.ADMIN
    ),
    RequestType(RequestCode.GET_BROKER_MEMBER_GROUP, MemberGroupHeader, cluster=Right.DESCRIBE),
    RequestType(RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerPermissionHeader, cluster=Right.ADMIN),
    RequestType(RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerPermissionHeader, cluster=Right.ADMIN),
    RequestType(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_TOPICS_BY_CLUSTER, TopicsByClusterHeader, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_UNIT_TOPIC_LIST, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, cluster=Right.DESCRIBE),
    RequestType(RequestCode.PUT_KV_CONFIG, PutKVConfigHeader, cluster=Right.ADMIN),
    RequestType(RequestCode.GET_KV_CONFIG, KVConfigHeader, cluster=Right.DESCRIBE),
    RequestType(RequestCode.DELETE_KV_CONFIG, KVConfigHeader, cluster=Right.ADMIN),
    RequestType(RequestCode.GET_KVLIST_BY_NAMESPACE, KVListHeader, cluster=Right.DESCRIBE),
)  # fmt: skip
