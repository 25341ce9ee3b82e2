"""JSON bodies about topics and the broker's own figures (RocketMQ: TopicConfig, TopicStatsTable, KVTable)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from reput_protocol.body_members import (
    as_object,
    flag_member,
    integer_member,
    map_member,
    number_member,
    text_list_member,
    text_map_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.codes import Perm
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json, write_json
from reput_protocol.message import MessageQueue
from reput_protocol.queue_members import queue_map_member

_QUEUES_DEFAULT = 16
GENERATION_ATTRIBUTE: Final = "reput.generation"
"""Ours: tells a topic from another of the same name that was there before it was deleted and created again."""


@dataclass(slots=True)
class TopicConfig:
    """One topic's settings: answer body of 351, and an entry of the topic table. Defaults are RocketMQ's."""

    topic_name: str
    read_queue_nums: int = _QUEUES_DEFAULT
    write_queue_nums: int = _QUEUES_DEFAULT
    perm: int = Perm.READ_WRITE
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    topic_filter_type: str = "SINGLE_TAG"

    @property
    def generation(self) -> str:
        """Another one whenever a topic of the name is created; empty if this broker did not create the topic."""
        return self.attributes.get(GENERATION_ATTRIBUTE, "")

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object, in RocketMQ's (alphabetical) order."""
        return {
            "attributes": dict(sorted(self.attributes.items())),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; what is missing takes its default. Raises BodyMalformed."""
        return cls(
            text_member(members, "topicName"),
            integer_member(members, "readQueueNums", _QUEUES_DEFAULT),
            integer_member(members, "writeQueueNums", _QUEUES_DEFAULT),
            integer_member(members, "perm", Perm.READ_WRITE),
            integer_member(members, "topicSysFlag"),
            flag_member(members, "order"),
            text_map_member(members, "attributes"),
            text_member(members, "topicFilterType", "SINGLE_TAG"),
        )

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json(self.to_members())

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls.from_members(read_json(data))


@dataclass(slots=True)
class TopicConfigTable(LargeBody):
    """Answer body of 21: every topic's settings. `data_version` holds counter, stateVersion and timestamp."""

    topics: dict[str, TopicConfig]
    data_version: dict[str, int]

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object, with the empty tables that 5.x reads beside it."""
        return {
            "dataVersion": self.data_version,
            "mappingDataVersion": self.data_version,
            "topicConfigTable": self.topics,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        version = map_member(members, "dataVersion")
        return cls(
            {
                str(name): TopicConfig.from_members(as_object(item, "a value of 'topicConfigTable'"))
                for name, item in map_member(members, "topicConfigTable").items()
            },
            {name: integer_member(version, name) for name in ("counter", "stateVersion", "timestamp")},
        )


@dataclass(slots=True)
class TopicList:
    """Answer body of 206 and its kin: topic names."""

    topics: list[str]
    broker_addr: str | None = None

    def to_json(self) -> bytes:
        """Return the body."""
        members: dict[str, Any] = {"topicList": self.topics}
        if self.broker_addr is not None:
            members["brokerAddr"] = self.broker_addr
        return write_json(members)

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(text_list_member(members, "topicList"), text_member(members, "brokerAddr") or None)


@dataclass(slots=True)
class KVTable:
    """Answer body of 28: named figures, every value as text."""

    table: dict[str, str]

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json({"table": self.table})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(text_map_member(read_json(data), "table"))


@dataclass(slots=True)
class QueueStats:
    """Bounds of one queue; `last_update_timestamp` is the store time of its last message in ms, 0 for none."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "lastUpdateTimestamp": self.last_update_timestamp,
            "maxOffset": self.max_offset,
            "minOffset": self.min_offset,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            integer_member(members, "minOffset"),
            integer_member(members, "maxOffset"),
            integer_member(members, "lastUpdateTimestamp"),
        )


@dataclass(slots=True)
class TopicStats(LargeBody):
    """Answer body of 202: the bounds of each queue. On the wire the map's keys are objects."""

    offset_table: dict[MessageQueue, QueueStats]
    topic_put_tps: float = 0.0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"offsetTable": self.offset_table, "topicPutTps": round(float(self.topic_put_tps), 1)}

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data, loose_bytes_max=len(data))
        return cls(
            queue_map_member(members, "offsetTable", _queue_stats),
            number_member(members, "topicPutTps"),
        )


def _queue_stats(value: object) -> QueueStats:
    return QueueStats.from_members(as_object(value, "a value of 'offsetTable'"))
