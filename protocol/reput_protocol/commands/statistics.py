"""Rates of topics and groups, the progress of all groups (RocketMQ: BrokerStatsData, ConsumeStatsList), and the figures
of a broker in the past days, which it keeps for consoles.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I64, Body, CommandHeader, LargeBody, Members, Number, RequestType
from reput_protocol.commands.consumers import ConsumeStats
from reput_protocol.names import GroupName, TopicName
from reput_protocol.rights import Right

ROWS_MAX: Final = 2016
"""Rows of one answer: the longest step of two weeks."""


class ReadHistoryHeader(CommandHeader):
    """Header of READ_HISTORY.

    Times are seconds since 1970, or, up to 0, seconds before now. The rows are those from `begin_seconds` until before
    `end_seconds`, of the shortest step that is kept for so long, in at most `rows_max` of equal length.
    """

    begin_seconds: I64
    end_seconds: I64 = 0
    rows_max: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 720
    has_names: bool = True
    """Whether groups and topics are wanted; the step is then at least 10 s."""


class GroupHistory(Members):
    """Messages that a group has not committed, and the age of the oldest, in seconds, row by row; None: not known."""

    group: GroupName
    lag: list[Number | None]
    lag_age_s: list[Number | None]


class TopicHistory(Members):
    """Messages per second into and out of a topic."""

    topic: TopicName
    in_per_s: list[Number | None]
    out_per_s: list[Number | None]


class BrokerEvent(Members):
    """Something that happened to a broker: `started`, `stopped`, `became_master`, `became_slave`."""

    at_ms: I64
    what: str
    epoch: I64 = 0


class BrokerHistory(Body):
    """Answer body of READ_HISTORY.

    Row k is of the `step_seconds` from `begin_seconds + k * step_seconds` on. A value None: nothing was measured; a
    column without any value is left out.

    Attributes:
        begin_seconds: when the first row begins, which may be earlier than asked, or later if nothing is kept.
        columns: figures of the broker by name. Those named `puts_le_...` count puts by how long they took.
        groups, topics: those whose figures are kept.
        events: those in the range.
        now_ms: the broker's clock.
        facts: the broker's state now.
        is_kept: whether the broker keeps a history; without a console it does not.
    """

    begin_seconds: I64 = 0
    step_seconds: I64 = 1
    rows: I64 = 0
    columns: dict[str, list[Number | None]] = field(default_factory=dict)
    groups: list[GroupHistory] = field(default_factory=list)
    topics: list[TopicHistory] = field(default_factory=list)
    events: list[BrokerEvent] = field(default_factory=list)
    now_ms: I64 = 0
    facts: dict[str, Any] = field(default_factory=dict)
    is_kept: bool = True


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
    RequestType(RequestCode.READ_HISTORY, ReadHistoryHeader, cluster=Right.DESCRIBE),
)  # fmt: skip
