"""One typed header for each request and answer, whatever header type brings it; see the files named below."""

from __future__ import annotations

from reput_protocol.command_header import CommandHeader
from reput_protocol.commands_offset import (
    EarliestTimeResult,
    OffsetResult,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput_protocol.commands_pull import PullMessageHeader, PullMessageResult, ViewMessageHeader
from reput_protocol.commands_query import QueryMessageHeader, QueryMessageResult
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

__all__ = [
    "CommandHeader",
    "CreateTopicHeader",
    "DeleteTopicHeader",
    "EarliestTimeResult",
    "GetTopicConfigHeader",
    "OffsetResult",
    "PullMessageHeader",
    "PullMessageResult",
    "PutMessageHeader",
    "PutMessageResult",
    "QueryConsumerOffsetHeader",
    "QueryMessageHeader",
    "QueryMessageResult",
    "QueueHeader",
    "RouteHeader",
    "SearchOffsetHeader",
    "SendMessageHeader",
    "SendMessageResult",
    "TopicStatsHeader",
    "UpdateConsumerOffsetHeader",
    "ViewMessageHeader",
]
