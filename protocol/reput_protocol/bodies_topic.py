"""JSON bodies about topics and the broker's own figures (RocketMQ: TopicConfig, TopicStatsTable, KVTable)."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from msgspec import field

from reput_protocol.body import I64, Body, LargeBody, Members, Number
from reput_protocol.codes import Perm
from reput_protocol.message import MessageQueue

_QUEUES_DEFAULT = 16
GENERATION_ATTRIBUTE: Final = "reput.generation"
"""Ours: tells a topic from another of the same name that was there before it was deleted and created again."""


class TopicConfig(Body):
    """One topic's settings: answer body of 351, and an entry of the topic table. Defaults are RocketMQ's."""

    topic_name: str = ""
    read_queue_nums: I64 = _QUEUES_DEFAULT
    write_queue_nums: I64 = _QUEUES_DEFAULT
    perm: I64 = Perm.READ_WRITE
    topic_sys_flag: I64 = 0
    order: bool = False
    attributes: dict[str, str] = {}
    topic_filter_type: str = "SINGLE_TAG"

    @property
    def generation(self) -> str:
        """Another one whenever a topic of the name is created; empty if this broker did not create the topic."""
        return self.attributes.get(GENERATION_ATTRIBUTE, "")


class TopicConfigTable(LargeBody):
    """Answer body of 21: every topic's settings. `data_version` holds counter, stateVersion and timestamp."""

    topics: dict[str, TopicConfig] = field(default_factory=dict, name="topicConfigTable")
    data_version: dict[str, I64] = {}

    def to_members(self) -> dict[str, Any]:
        """Return the members, with the tables that 5.x reads, which are empty here."""
        return {
            **super().to_members(),
            "mappingDataVersion": self.data_version,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }


class TopicList(Body):
    """Answer body of 206 and its kin: topic names."""

    topics: list[str] = field(default_factory=list, name="topicList")
    broker_addr: str | None = None


class KVTable(Body):
    """Answer body of 28: named figures, every value as text."""

    table: dict[str, str] = {}


class QueueStats(Members):
    """Bounds of one queue; `last_update_timestamp` is the store time of its last message in ms, 0 for none."""

    min_offset: I64 = 0
    max_offset: I64 = 0
    last_update_timestamp: I64 = 0


class TopicStats(LargeBody):
    """Answer body of 202: the bounds of each queue. On the wire the map's keys are objects."""

    IS_TRUSTED: ClassVar[bool] = True

    offset_table: dict[MessageQueue, QueueStats] = {}
    topic_put_tps: Number = 0.0
