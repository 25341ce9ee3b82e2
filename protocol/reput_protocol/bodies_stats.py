"""JSON bodies with figures about consuming: progress, rates, time spans (RocketMQ: ConsumeStats and its kin).

Maps keyed by message queue make some of them more than strict JSON; see `queue_members.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from reput_protocol.body_members import (
    as_object,
    integer_member,
    list_member,
    map_member,
    number_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json, write_json
from reput_protocol.message import MessageQueue
from reput_protocol.queue_members import queue_map_member, queue_members, queue_of


@dataclass(slots=True)
class OffsetWrapper:
    """A group's progress in one queue.

    `broker_offset` is the queue's end, `consumer_offset` what is committed, `pull_offset` what has been pulled;
    `last_timestamp` is the store time in ms of the last message that is committed, 0 for none.
    """

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def lag(self) -> int:
        """How many messages are not committed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """How many messages are pulled and not committed."""
        return self.pull_offset - self.consumer_offset

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_timestamp,
            "pullOffset": self.pull_offset,
        }

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Read a value of the offset table; raises BodyMalformed."""
        members = as_object(value, "a value of 'offsetTable'")
        return cls(
            integer_member(members, "brokerOffset"),
            integer_member(members, "consumerOffset"),
            integer_member(members, "pullOffset"),
            integer_member(members, "lastTimestamp"),
        )


@dataclass(slots=True)
class ConsumeStats(LargeBody):
    """Answer body of 208: a group's progress in each queue, and messages a second."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def lag(self) -> int:
        """How many messages are not committed yet, over all queues."""
        return sum(wrapper.lag for wrapper in self.offset_table.values())

    @property
    def in_flight(self) -> int:
        """How many messages are pulled and not committed, over all queues."""
        return sum(wrapper.in_flight for wrapper in self.offset_table.values())

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"consumeTps": float(self.consume_tps), "offsetTable": self.offset_table}

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            queue_map_member(members, "offsetTable", OffsetWrapper.from_value),
            number_member(members, "consumeTps"),
        )

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls.from_members(read_json(data, loose_bytes_max=len(data)))


@dataclass(slots=True)
class ConsumeStatsList(LargeBody):
    """Answer body of 317: the progress of every group, each with one `ConsumeStats` for each of its topics."""

    stats: list[dict[str, list[ConsumeStats]]]
    broker_addr: str = ""
    total_diff: int = 0
    total_inflight_diff: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "brokerAddr": self.broker_addr,
            "consumeStatsList": self.stats,
            "totalDiff": self.total_diff,
            "totalInflightDiff": self.total_inflight_diff,
        }

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data, loose_bytes_max=len(data))
        stats = []
        for entry in list_member(members, "consumeStatsList"):
            groups = as_object(entry, "an item of 'consumeStatsList'")
            stats.append(
                {
                    str(group): [
                        ConsumeStats.from_members(as_object(item, "a group's statistics"))
                        for item in list_member(groups, group)
                    ]
                    for group in groups
                }
            )
        return cls(
            stats,
            text_member(members, "brokerAddr"),
            integer_member(members, "totalDiff"),
            integer_member(members, "totalInflightDiff"),
        )


@dataclass(slots=True)
class StatsItem:
    """One figure over a time: its sum, its rate a second, its average for each time it was counted."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"avgpt": float(self.avgpt), "sum": self.sum, "tps": float(self.tps)}

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            integer_member(members, "sum"), number_member(members, "tps"), number_member(members, "avgpt")
        )


@dataclass(slots=True)
class BrokerStatsData:
    """Answer body of 315: one of the broker's figures over the last minute, hour and day."""

    minute: StatsItem
    hour: StatsItem
    day: StatsItem

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json(
            {
                "statsDay": self.day.to_members(),
                "statsHour": self.hour.to_members(),
                "statsMinute": self.minute.to_members(),
            }
        )

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        minute, hour, day = (
            StatsItem.from_members(map_member(members, name))
            for name in ("statsMinute", "statsHour", "statsDay")
        )
        return cls(minute, hour, day)


@dataclass(slots=True)
class QueueTimeSpan:
    """Store times of one queue in ms: of its first and last message, and of the last one that a group committed.

    `delay_time` is for how long the first message that is not committed has been there.
    """

    queue: MessageQueue
    min_timestamp: int
    max_timestamp: int
    consume_timestamp: int
    delay_time: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "consumeTimeStamp": self.consume_timestamp,
            "delayTime": self.delay_time,
            "maxTimeStamp": self.max_timestamp,
            "messageQueue": queue_members(self.queue),
            "minTimeStamp": self.min_timestamp,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            queue_of(map_member(members, "messageQueue")),
            integer_member(members, "minTimeStamp"),
            integer_member(members, "maxTimeStamp"),
            integer_member(members, "consumeTimeStamp"),
            integer_member(members, "delayTime"),
        )


@dataclass(slots=True)
class ConsumeTimeSpan(LargeBody):
    """Answer body of 303 (RocketMQ: QueryConsumeTimeSpanBody)."""

    spans: list[QueueTimeSpan]

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"consumeTimeSpanSet": self.spans}

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(
            [
                QueueTimeSpan.from_members(as_object(item, "an item of 'consumeTimeSpanSet'"))
                for item in list_member(read_json(data), "consumeTimeSpanSet")
            ]
        )


@dataclass(slots=True)
class CorrectionOffsets:
    """Answer body of 308: offsets by queue id, whose keys are bare integers (RocketMQ: QueryCorrectionOffsetBody)."""

    offsets: dict[int, int]

    def to_json(self) -> bytes:
        """Return the body. It is not strict JSON, as RocketMQ's is not; `from_json` reads it."""
        entries = ",".join(f"{queue_id}:{offset}" for queue_id, offset in self.offsets.items())
        return f'{{"correctionOffsets":{{{entries}}}}}'.encode()

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        content = map_member(read_json(data, loose_bytes_max=len(data)), "correctionOffsets")
        try:
            return cls({int(queue_id): integer_member(content, queue_id) for queue_id in content})
        except (TypeError, ValueError):
            raise BodyMalformed("a key of 'correctionOffsets' is not a queue id") from None
