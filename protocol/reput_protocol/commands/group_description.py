"""Descriptions of groups: summary, members, progress and lag, connections.

The lists of connections are RocketMQ's, those of groups Reput's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import field

from reput_protocol.codes import ConsumeFromWhere, ConsumeType, LanguageCode, MessageModel, RequestCode
from reput_protocol.commands.base import I64, CommandHeader, LargeBody, Members, RequestType
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.names import BrokerName, ClientId, GroupName, ProducerGroupName, TopicName
from reput_protocol.rights import Right

# -- groups ------------------------------------------------------------------------------------------------------------


class HealthState(StrEnum):
    """Whether a group consumes as it should. The broker decides it; the order is that of gravity."""

    OK = "ok"
    UNKNOWN = "unknown"
    """Not decided: the broker is a slave, or of a version that does not decide it."""
    BEHIND = "behind"
    """More messages of a topic wait than `groups.behind_messages`, or one for longer than `groups.behind_age`."""
    STUCK = "stuck"
    """Members are online, messages wait in a queue, and its offset has not moved for `groups.stuck_after`."""
    EMPTY = "empty"
    """Messages wait, the group has no member, and no other client consumes for it."""
    CONFLICTING = "conflicting"
    """Members subscribe to different topics or filters."""


_GRAVITY: Final = {state: rank for rank, state in enumerate(HealthState)}


class GroupHealth(Members):
    """A state of a group, why, and where.

    `since_millis` is when it began, in ms since 1970, -1 if that is unknown. `client_id` is the member that it
    concerns, `topic` and `queue_id` the queue; "" and -1 for none.
    """

    state: HealthState = HealthState.UNKNOWN
    reason: str = ""
    since_millis: I64 = -1
    client_id: ClientId = ""
    topic: TopicName = ""
    queue_id: I64 = -1
    broker_name: BrokerName = ""

    @property
    def gravity(self) -> int:
        """The rank of the state; the gravest has the highest."""
        return _GRAVITY[self.state]

    @property
    def is_fault(self) -> bool:
        """Whether the group needs attention."""
        return self.state not in (HealthState.OK, HealthState.UNKNOWN)


class GroupSummary(Members):
    """A summary of one group.

    `lag` counts the uncommitted messages of all queues in which the group has an offset or its members have pulled,
    `lag_age_millis` is the age of the oldest at the broker's last check. `exists` is False for a group with offsets or
    members but no settings. `health` is the gravest of the group's states.
    """

    group: GroupName = ""
    exists: bool = True
    consume_enable: bool = True
    members: I64 = 0
    topics: list[TopicName] = []
    lag: I64 = 0
    lag_age_millis: I64 = 0
    health: GroupHealth = field(default_factory=GroupHealth)


class GroupSummaries(LargeBody):
    """Answer body of LIST_GROUPS."""

    groups: list[GroupSummary] = []


class DescribeGroupHeader(CommandHeader):
    """Header of DESCRIBE_GROUP: a group's members, and its progress in all queues or those of one topic."""

    group: GroupName
    topic: TopicName | None = None


class GroupMember(Members):
    """One member. `silent_millis` is the time since its last heartbeat, `locks` the number of queues it has locked."""

    client_id: ClientId = ""
    client_addr: str = ""
    language: str = LanguageCode.OTHER.name
    version: I64 = 0
    silent_millis: I64 = 0
    queues: I64 = 0
    locks: I64 = 0


class GroupQueue(Members):
    """A group's progress in one queue; -1 means unknown.

    `committed_offset` is the next message to consume, `lag_age_millis` the age of the oldest uncommitted message.
    `client_id` is the member that has the queue's lock or pulled from it last, "" for none. `in_flight` and
    `last_commit_timestamp` (ms since 1970) count from the broker's start. `broker_name` is written by the client, which
    combines the answers of several brokers.
    """

    topic: TopicName = ""
    queue_id: I64 = 0
    start_offset: I64 = 0
    end_offset: I64 = 0
    committed_offset: I64 = -1
    lag_age_millis: I64 = 0
    in_flight: I64 = 0
    client_id: ClientId = ""
    last_commit_timestamp: I64 = -1
    broker_name: BrokerName = ""

    @property
    def lag(self) -> int:
        """Uncommitted messages; for a group without an offset, all messages of the queue."""
        return max(0, self.end_offset - max(self.committed_offset, self.start_offset))


class GroupDescription(LargeBody):
    """Answer body of DESCRIBE_GROUP. The consume settings are the members', or defaults without any.

    `retries` and `dead_letters` count messages that were sent back and given up since the broker's start. `problems`
    has all that is wrong with the group, the gravest first; it is empty if the group is well.
    """

    summary: GroupSummary
    members: list[GroupMember] = []
    queues: list[GroupQueue] = []
    subscriptions: list[SubscriptionData] = []
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    retries: I64 = 0
    dead_letters: I64 = 0
    problems: list[GroupHealth] = []


# -- connections -------------------------------------------------------------------------------------------------------


class ClientConnection(Members):
    """One client's connection: `language` is a `LanguageCode` name, `client_addr` is `ip:port`."""

    client_id: ClientId = ""
    client_addr: str = ""
    language: str = LanguageCode.OTHER.name
    version: I64 = 0


class ConsumerConnectionHeader(CommandHeader):
    """Header of 203: a group's members with their connections and subscriptions."""

    consumer_group: GroupName


class ConsumerConnection(LargeBody):
    """Answer body of 203: members, how they consume, and subscriptions by topic."""

    connections: list[ClientConnection] = field(default_factory=list, name="connectionSet")
    subscriptions: dict[TopicName, SubscriptionData] = field(default_factory=dict, name="subscriptionTable")
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


class ProducerConnectionHeader(CommandHeader):
    """Header of 204: the connections of a producer group."""

    producer_group: ProducerGroupName


class ProducerConnection(LargeBody):
    """Answer body of 204."""

    connections: list[ClientConnection] = field(default_factory=list, name="connectionSet")


class ProducerInfo(Members):
    """One producer in the answer to 328. `remote_ip` is `/ip:port`, Java's form."""

    client_id: ClientId = ""
    remote_ip: str = field(default="", name="remoteIP")
    language: str = LanguageCode.OTHER.name
    version: I64 = 0
    last_update_timestamp: I64 = 0


class ProducerTable(LargeBody):
    """Answer body of 328: all producers by group (RocketMQ: ProducerTableInfo)."""

    producers: dict[ProducerGroupName, list[ProducerInfo]] = field(default_factory=dict, name="data")


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(RequestCode.LIST_GROUPS, cluster=Right.DESCRIBE),
    RequestType(
        RequestCode.DESCRIBE_GROUP, DescribeGroupHeader, topics=Right.DESCRIBE, groups=Right.DESCRIBE
    ),
    RequestType(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnectionHeader, groups=Right.DESCRIBE),
    RequestType(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionHeader, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_ALL_PRODUCER_INFO, cluster=Right.DESCRIBE),
)  # fmt: skip
