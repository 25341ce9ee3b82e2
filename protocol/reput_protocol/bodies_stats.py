"""JSON bodies with figures about consuming: progress, rates, time spans (RocketMQ: ConsumeStats and its kin).

Maps keyed by message queue make some of them more than strict JSON; see `LargeBody`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from reput_protocol.body import I64, Body, LargeBody, Members, Number
from reput_protocol.message import MessageQueue


class OffsetWrapper(Members):
    """A group's progress in one queue.

    `broker_offset` is the queue's end, `consumer_offset` what is committed, `pull_offset` what has been pulled;
    `last_timestamp` is the store time in ms of the last message that is committed, 0 for none.
    """

    broker_offset: I64 = 0
    consumer_offset: I64 = 0
    pull_offset: I64 = 0
    last_timestamp: I64 = 0

    @property
    def lag(self) -> int:
        """How many messages are not committed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """How many messages are pulled and not committed."""
        return self.pull_offset - self.consumer_offset


class ConsumeStats(LargeBody):
    """Answer body of 208: a group's progress in each queue, and messages a second."""

    IS_TRUSTED: ClassVar[bool] = True

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: Number = 0.0

    @property
    def lag(self) -> int:
        """How many messages are not committed yet, over all queues."""
        return sum(wrapper.lag for wrapper in self.offset_table.values())

    @property
    def in_flight(self) -> int:
        """How many messages are pulled and not committed, over all queues."""
        return sum(wrapper.in_flight for wrapper in self.offset_table.values())


class ConsumeStatsList(LargeBody):
    """Answer body of 317: the progress of every group, each with one `ConsumeStats` for each of its topics."""

    IS_TRUSTED: ClassVar[bool] = True

    stats: list[dict[str, list[ConsumeStats]]] = field(default_factory=list, name="consumeStatsList")
    broker_addr: str = ""
    total_diff: I64 = 0
    total_inflight_diff: I64 = 0


class StatsItem(Members):
    """One figure over a time: its sum, its rate a second, its average for each time it was counted."""

    sum: I64 = 0
    tps: Number = 0.0
    avgpt: Number = 0.0


class BrokerStatsData(Body):
    """Answer body of 315: one of the broker's figures over the last minute, hour and day."""

    minute: StatsItem = field(default_factory=StatsItem, name="statsMinute")
    hour: StatsItem = field(default_factory=StatsItem, name="statsHour")
    day: StatsItem = field(default_factory=StatsItem, name="statsDay")


class QueueTimeSpan(Members):
    """Store times of one queue in ms: of its first and last message, and of the last one that a group committed.

    `delay_time` is for how long the first message that is not committed has been there.
    """

    queue: MessageQueue = field(name="messageQueue")
    min_timestamp: I64 = field(default=0, name="minTimeStamp")
    max_timestamp: I64 = field(default=0, name="maxTimeStamp")
    consume_timestamp: I64 = field(default=0, name="consumeTimeStamp")
    delay_time: I64 = 0


class ConsumeTimeSpan(LargeBody):
    """Answer body of 303 (RocketMQ: QueryConsumeTimeSpanBody)."""

    spans: list[QueueTimeSpan] = field(default_factory=list, name="consumeTimeSpanSet")


class CorrectionOffsets(LargeBody):
    """Answer body of 308: offsets by queue id, whose keys are bare integers (RocketMQ: QueryCorrectionOffsetBody)."""

    IS_TRUSTED: ClassVar[bool] = True

    offsets: dict[I64, I64] = field(default_factory=dict, name="correctionOffsets")
