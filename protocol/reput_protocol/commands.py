"""One typed header for each request and answer, whatever header type brings it; see the files named below."""

from __future__ import annotations

from reput_protocol.command_header import CommandHeader
from reput_protocol.commands_consume import (
    BrokerConsumeStatsHeader,
    BrokerStatsHeader,
    CloneGroupOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    CorrectionOffsetHeader,
    ResetOffsetHeader,
    SendBackHeader,
)
from reput_protocol.commands_delay import CancelDelayedHeader, ListDelayedHeader
from reput_protocol.commands_group import (
    ConsumerConnectionHeader,
    ConsumerIdsChangedHeader,
    ConsumerListHeader,
    ConsumerSubscriptionHeader,
    ConsumerTopicsHeader,
    DeleteSubscriptionGroupHeader,
    GroupForbiddenHeader,
    HeartbeatResult,
    ProducerConnectionHeader,
    SubscriptionGroupHeader,
    SubscriptionGroupTableHeader,
    SubscriptionGroupTableResult,
    TopicConsumersHeader,
    UnregisterClientHeader,
)
from reput_protocol.commands_offset import (
    EarliestTimeResult,
    OffsetResult,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput_protocol.commands_progress import DescribeGroupHeader, ListGroupsHeader
from reput_protocol.commands_pull import PullMessageHeader, PullMessageResult, ViewMessageHeader
from reput_protocol.commands_query import QueryMessageHeader, QueryMessageResult
from reput_protocol.commands_reply import PushReplyHeader
from reput_protocol.commands_send import (
    PutMessageHeader,
    PutMessageResult,
    SendMessageHeader,
    SendMessageResult,
)
from reput_protocol.commands_topic import (
    CreateTopicHeader,
    DeleteTopicHeader,
    GetTopicConfigHeader,
    RouteHeader,
    TopicStatsHeader,
)
from reput_protocol.commands_transaction import CheckTransactionHeader, EndTransactionHeader

__all__ = [
    "BrokerConsumeStatsHeader",
    "BrokerStatsHeader",
    "CancelDelayedHeader",
    "CheckTransactionHeader",
    "CloneGroupOffsetHeader",
    "CommandHeader",
    "ConsumeDirectlyHeader",
    "ConsumeStatsHeader",
    "ConsumeTimeSpanHeader",
    "ConsumerConnectionHeader",
    "ConsumerIdsChangedHeader",
    "ConsumerListHeader",
    "ConsumerRunningInfoHeader",
    "ConsumerStatusHeader",
    "ConsumerSubscriptionHeader",
    "ConsumerTopicsHeader",
    "CorrectionOffsetHeader",
    "CreateTopicHeader",
    "DeleteSubscriptionGroupHeader",
    "DeleteTopicHeader",
    "DescribeGroupHeader",
    "EarliestTimeResult",
    "EndTransactionHeader",
    "GetTopicConfigHeader",
    "GroupForbiddenHeader",
    "HeartbeatResult",
    "ListDelayedHeader",
    "ListGroupsHeader",
    "OffsetResult",
    "ProducerConnectionHeader",
    "PullMessageHeader",
    "PullMessageResult",
    "PushReplyHeader",
    "PutMessageHeader",
    "PutMessageResult",
    "QueryConsumerOffsetHeader",
    "QueryMessageHeader",
    "QueryMessageResult",
    "QueueHeader",
    "ResetOffsetHeader",
    "RouteHeader",
    "SearchOffsetHeader",
    "SendBackHeader",
    "SendMessageHeader",
    "SendMessageResult",
    "SubscriptionGroupHeader",
    "SubscriptionGroupTableHeader",
    "SubscriptionGroupTableResult",
    "TopicConsumersHeader",
    "TopicStatsHeader",
    "UnregisterClientHeader",
    "UpdateConsumerOffsetHeader",
    "ViewMessageHeader",
]
