"""Topics: routes, creation, deletion, settings, statistics; and the cluster.

(RocketMQ: TopicRouteData, TopicConfig, TopicStatsTable, KVTable.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from msgspec import field

from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.base import (
    I32,
    I64,
    Body,
    CommandHeader,
    Kind,
    LargeBody,
    Members,
    Number,
    RequestType,
    Sender,
)
from reput_protocol.names import DEFAULT_TOPIC, BrokerName, TopicName
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import Right

# -- routes and the cluster --------------------------------------------------------------------------------------------


class RouteHeader(CommandHeader):
    """Header of 105: the brokers that hold a topic, and their numbers of queues."""

    topic: TopicName
    accept_standard_json_only: bool | None = None


class QueueData(Members):
    """A topic's numbers of queues on one broker, and its permission (`Perm`)."""

    broker_name: BrokerName = ""
    read_queue_nums: I64 = 0
    write_queue_nums: I64 = 0
    perm: I64 = Perm.READ_WRITE
    topic_sys_flag: I64 = 0


class BrokerData(LargeBody):
    """One broker's addresses ("host:port") by id; id 0 is the master."""

    cluster: str = ""
    broker_name: BrokerName = ""
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False

    def to_members(self) -> dict[str, Any]:
        """Return the members; ids are quoted, which every client accepts."""
        addresses = {str(broker_id): address for broker_id, address in self.broker_addrs.items()}
        return {**super().to_members(), "brokerAddrs": addresses}


class TopicRoute(LargeBody):
    """Answer body of 105. Addresses are those that the asking client can reach."""

    IS_TRUSTED: ClassVar[bool] = True

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    order_topic_conf: str | None = None
    filter_server_table: dict[str, Any] = {}


MASTER_ID: Final = 0
"""The id under which a master is announced (RocketMQ: MixAll.MASTER_ID)."""


QUEUES_MAX: Final = 65_535
"""Queues of a topic for reading, or for writing."""


class ClusterInfo(LargeBody):
    """Answer body of 106: all brokers by name, and each cluster's brokers."""

    IS_TRUSTED: ClassVar[bool] = True

    broker_addr_table: dict[BrokerName, BrokerData] = {}
    cluster_addr_table: dict[str, list[BrokerName]] = {}

    @property
    def masters(self) -> dict[str, str]:
        """Every master's `host:port` by the name of its broker."""
        return {
            name: data.broker_addrs[MASTER_ID]
            for name, data in self.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }

    @property
    def own_names(self) -> set[str]:
        """The names of brokers and clusters, which have topics of the same names."""
        return {*self.broker_addr_table, *self.cluster_addr_table}


# -- settings ----------------------------------------------------------------------------------------------------------

_QUEUES_DEFAULT = 16
PERMISSIONS: Final[Mapping[str, int]] = {"rw": 6, "r": 4, "w": 2, "none": 0}
"""A topic's permissions as commands have them, with their bits of `Perm`."""
PERMISSION_NAMES: Final[Mapping[int, str]] = {bits: name for name, bits in PERMISSIONS.items()}
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")
"""What the messages of a topic may be for."""
GENERATION_ATTRIBUTE: Final = "reput.generation"
"""Reput's: distinguishes a topic from a deleted one of the same name."""


EXPIRING_ATTRIBUTE: Final = "reput.expiring"
"""Reput's: the topic has had messages that expire; without it, messages are not looked at."""
MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"


class TopicConfig(Body):
    """A topic's settings: answer body of 351, entry of the topic table. Defaults are RocketMQ's."""

    topic_name: TopicName = ""
    read_queue_nums: I64 = _QUEUES_DEFAULT
    write_queue_nums: I64 = _QUEUES_DEFAULT
    perm: I64 = Perm.READ_WRITE
    topic_sys_flag: I64 = 0
    order: bool = False
    attributes: dict[str, str] = {}
    topic_filter_type: str = "SINGLE_TAG"

    @property
    def message_type(self) -> str:
        """What messages the topic is for (RocketMQ: TopicMessageType), such as `FIFO`; empty if it does not say."""
        return self.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "").upper()

    @property
    def generation(self) -> str:
        """Changes whenever the topic is created; empty if this broker did not create it."""
        return self.attributes.get(GENERATION_ATTRIBUTE, "")


class TopicConfigTable(LargeBody):
    """Answer body of 21: all topics' settings. `data_version` has counter, stateVersion and timestamp."""

    topics: dict[TopicName, TopicConfig] = field(default_factory=dict, name="topicConfigTable")
    data_version: dict[str, I64] = {}

    def to_members(self) -> dict[str, Any]:
        """Return the members, with the tables that RocketMQ 5 reads, empty here."""
        return {
            **super().to_members(),
            "mappingDataVersion": self.data_version,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }


class GetTopicConfigHeader(CommandHeader):
    """Header of 351: one topic's settings."""

    topic: TopicName


class CreateTopicHeader(CommandHeader):
    """Header of 17: create a topic or change its settings.

    `attributes` is RocketMQ's list of changes, `+name=value` and `-name` joined by commas.
    """

    topic: TopicName
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32 = Perm.READ_WRITE
    default_topic: TopicName = DEFAULT_TOPIC
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: str | None = None


class TopicConfigList(Body):
    """Body of 18: several topics to create or change."""

    topics: list[TopicConfig] = field(default_factory=list, name="topicConfigList")


class DeleteTopicHeader(CommandHeader):
    """Header of 215: delete a topic and its offsets at a broker. Of 216: forget it in a name server, of one cluster or
    of all.
    """

    topic: TopicName
    cluster_name: str | None = None


# -- lists and statistics ----------------------------------------------------------------------------------------------


class TopicList(Body):
    """Answer body of 206 and other lists of topics."""

    topics: list[TopicName] = field(default_factory=list, name="topicList")
    broker_addr: str | None = None


class KVTable(Body):
    """Answer body of 28: named statistics, every value as text."""

    table: dict[str, str] = {}


class TopicStatsHeader(CommandHeader):
    """Header of 202: the bounds of every queue of a topic."""

    topic: TopicName


class QueueStats(Members):
    """A queue's bounds; `last_update_timestamp` is its last store time in ms, 0 for none."""

    min_offset: I64 = 0
    max_offset: I64 = 0
    last_update_timestamp: I64 = 0


class TopicStats(LargeBody):
    """Answer body of 202: each queue's bounds."""

    IS_TRUSTED: ClassVar[bool] = True

    offset_table: dict[MessageQueue, QueueStats] = {}
    topic_put_tps: Number = 0.0


class ListTopicsHeader(CommandHeader):
    """Header of LIST_TOPICS, which is Reput's: every topic in short, or only one.

    With `permitted`, only topics on which the user has the right 'describe': without it, that on the cluster is enough.
    """

    topic: TopicName | None = None
    permitted: bool | None = None


class TopicSummary(Members):
    """One topic in short.

    `kind` is `normal`, `retry`, `dlq` or `system`; `messages` counts those that its queues still have, `end_offsets` is
    the sum of the ends of its queues, `delayed` counts those that wait for their time. `messages_in`, by kind, and
    `bytes_in` count from the broker's start. `size_bytes` is what the messages take in the log, estimated from the last
    ones of each queue; `put_tps` and `get_tps` are messages per second of the last minute, the latter of all groups.
    """

    topic: TopicName = ""
    kind: str = ""
    read_queue_nums: I64 = 0
    write_queue_nums: I64 = 0
    perm: I64 = Perm.READ_WRITE
    order: bool = False
    messages: I64 = 0
    end_offsets: I64 = 0
    messages_in: dict[str, I64] = {}
    bytes_in: I64 = 0
    delayed: I64 = 0
    size_bytes: I64 = 0
    put_tps: Number = 0.0
    get_tps: Number = 0.0


class TopicSummaries(LargeBody):
    """Answer body of LIST_TOPICS."""

    topics: list[TopicSummary] = []


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader, sender=Sender.CLIENT, topics=Right.DESCRIBE
    ),
    RequestType(RequestCode.GET_BROKER_CLUSTER_INFO, sender=Sender.CLIENT),
    RequestType(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigHeader, topics=Right.DESCRIBE),
    RequestType(RequestCode.GET_TOPIC_STATS_INFO, TopicStatsHeader, topics=Right.DESCRIBE),
    RequestType(RequestCode.LIST_TOPICS, ListTopicsHeader, topics=Right.DESCRIBE, unnamed=Right.DESCRIBE),
    RequestType(
        RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader, topics=Right.ADMIN,
        fields={"defaultTopic": "the broker's settings of new topics count"}, kind=Kind.CHANGES, changes_tables=True,
        refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=TopicConfigList, cluster=Right.ADMIN, kind=Kind.CHANGES,
        changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(
        RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader, topics=Right.ADMIN, kind=Kind.CHANGES,
        changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader, topics=Right.ADMIN),
    RequestType(
        RequestCode.CLEAN_UNUSED_TOPIC, cluster=Right.ADMIN, kind=Kind.CHANGES, changes_tables=True,
        refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, cluster=Right.DESCRIBE),
)  # fmt: skip
