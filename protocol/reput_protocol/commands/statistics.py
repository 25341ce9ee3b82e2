"""Rates of topics and groups, and the progress of all groups (RocketMQ: BrokerStatsData, ConsumeStatsList)."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import Body, LargeBody, Members, Number
from reput_protocol.commands.consumers import ConsumeStats
from reput_protocol.commands.header import I64, CommandHeader
from reput_protocol.commands.request import RequestType
from reput_protocol.names import GroupName
from reput_protocol.rights import Right


class ViewBrokerStatsHeader(CommandHeader):
    """Header of 315: a statistic, such as `TOPIC_PUT_NUMS`, of one topic, or of one group as `topic@group`."""

    stats_name: str
    stats_key: str


class BrokerStatsItem(Members):
    """What was counted in a time: the sum, the sum a second, and the sum a request."""

    sum: I64 = 0
    tps: Number = 0.0
    avgpt: Number = 0.0


class BrokerStats(Body):
    """Answer body of 315: the last minute, hour and day, as far as they are complete."""

    minute: BrokerStatsItem = field(default_factory=BrokerStatsItem, name="statsMinute")
    hour: BrokerStatsItem = field(default_factory=BrokerStatsItem, name="statsHour")
    day: BrokerStatsItem = field(default_factory=BrokerStatsItem, name="statsDay")


class BrokerConsumeStatsHeader(CommandHeader):
    """Header of 317: the progress of all groups of the broker; `is_order` leaves only ordered topics."""

    is_order: bool = False


class ConsumeStatsList(LargeBody):
    """Answer body of 317: for each group, its progress in each topic; the lag and the messages in flight of all."""

    IS_TRUSTED: ClassVar[bool] = True

    groups: list[dict[GroupName, list[ConsumeStats]]] = field(default_factory=list, name="consumeStatsList")
    broker_addr: str | None = None
    total_diff: I64 = 0
    total_inflight_diff: I64 = 0


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsHeader, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader, cluster=Right.DESCRIBE),
)  # fmt: skip
