"""JSON bodies that list who is connected: of a consumer group, of a producer group, of all producers.

(RocketMQ: ConsumerConnection, ProducerConnection, ProducerTableInfo.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body_members import (
    as_object,
    choice_member,
    integer_member,
    list_member,
    map_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.codes import LanguageCode
from reput_protocol.errors import BodyMalformed
from reput_protocol.group_terms import ConsumeFromWhere, ConsumeType, MessageModel
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json


@dataclass(slots=True)
class ClientConnection:
    """One client's connection: `language` is a name of `LanguageCode`, `client_addr` is `ip:port`."""

    client_id: str
    client_addr: str
    language: str = LanguageCode.OTHER.name
    version: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            text_member(members, "clientId"),
            text_member(members, "clientAddr"),
            text_member(members, "language", LanguageCode.OTHER.name),
            integer_member(members, "version"),
        )


@dataclass(slots=True)
class ProducerConnection(LargeBody):
    """Answer body of 204."""

    connections: list[ClientConnection]

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"connectionSet": self.connections}

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(_connections(read_json(data)))


@dataclass(slots=True)
class ConsumerConnection(LargeBody):
    """Answer body of 203: a group's members, how they consume, and what they want by topic."""

    connections: list[ClientConnection]
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "connectionSet": self.connections,
            "consumeFromWhere": self.consume_from_where.value,
            "consumeType": self.consume_type.value,
            "messageModel": self.message_model.value,
            "subscriptionTable": self.subscriptions,
        }

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(
            _connections(members),
            {
                str(topic): SubscriptionData.from_members(as_object(item, "a value of 'subscriptionTable'"))
                for topic, item in map_member(members, "subscriptionTable").items()
            },
            choice_member(members, "consumeType", ConsumeType.CONSUME_PASSIVELY),
            choice_member(members, "messageModel", MessageModel.CLUSTERING),
            choice_member(members, "consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        )


@dataclass(slots=True)
class ProducerInfo:
    """One producer in the answer to 328. `remote_ip` is `/ip:port`, as Java shows an address."""

    client_id: str
    remote_ip: str
    language: str = LanguageCode.OTHER.name
    version: int = 0
    last_update_timestamp: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_timestamp,
            "remoteIP": self.remote_ip,
            "version": self.version,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            text_member(members, "clientId"),
            text_member(members, "remoteIP"),
            text_member(members, "language", LanguageCode.OTHER.name),
            integer_member(members, "version"),
            integer_member(members, "lastUpdateTimestamp"),
        )


@dataclass(slots=True)
class ProducerTable(LargeBody):
    """Answer body of 328: every producer by group (RocketMQ: ProducerTableInfo)."""

    producers: dict[str, list[ProducerInfo]]

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"data": self.producers}

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        producers: dict[str, list[ProducerInfo]] = {}
        for group, items in map_member(read_json(data), "data").items():
            if type(items) is not list:
                raise BodyMalformed("a value of 'data' is not an array")
            producers[str(group)] = [
                ProducerInfo.from_members(as_object(item, "an item of 'data'")) for item in items
            ]
        return cls(producers)


def _connections(members: dict[Any, Any]) -> list[ClientConnection]:
    return [
        ClientConnection.from_members(as_object(item, "an item of 'connectionSet'"))
        for item in list_member(members, "connectionSet")
    ]
