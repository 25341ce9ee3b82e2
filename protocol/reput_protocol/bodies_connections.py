"""JSON bodies that list who is connected: of a consumer group, of a producer group, of all producers.

(RocketMQ: ConsumerConnection, ProducerConnection, ProducerTableInfo.)
"""

from __future__ import annotations

from msgspec import field

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body import I64, LargeBody, Members
from reput_protocol.codes import LanguageCode
from reput_protocol.group_terms import ConsumeFromWhere, ConsumeType, MessageModel


class ClientConnection(Members):
    """One client's connection: `language` is a name of `LanguageCode`, `client_addr` is `ip:port`."""

    client_id: str = ""
    client_addr: str = ""
    language: str = LanguageCode.OTHER.name
    version: I64 = 0


class ProducerConnection(LargeBody):
    """Answer body of 204."""

    connections: list[ClientConnection] = field(default_factory=list, name="connectionSet")


class ConsumerConnection(LargeBody):
    """Answer body of 203: a group's members, how they consume, and what they want by topic."""

    connections: list[ClientConnection] = field(default_factory=list, name="connectionSet")
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict, name="subscriptionTable")
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


class ProducerInfo(Members):
    """One producer in the answer to 328. `remote_ip` is `/ip:port`, as Java shows an address."""

    client_id: str = ""
    remote_ip: str = field(default="", name="remoteIP")
    language: str = LanguageCode.OTHER.name
    version: I64 = 0
    last_update_timestamp: I64 = 0


class ProducerTable(LargeBody):
    """Answer body of 328: every producer by group (RocketMQ: ProducerTableInfo)."""

    producers: dict[str, list[ProducerInfo]] = field(default_factory=dict, name="data")
