"""Headers about topics: routes, creation, deletion, settings, statistics."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import Perm, RequestCode
from reput_protocol.command_header import I32, CommandHeader
from reput_protocol.names import DEFAULT_TOPIC


class RouteHeader(CommandHeader):
    """Header of 105: which broker holds a topic, with how many queues."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


class CreateTopicHeader(CommandHeader):
    """Header of 17: create a topic or change its settings.

    `attributes` is RocketMQ's list of changes, `+name=value` and `-name` joined by commas.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32 = Perm.READ_WRITE
    default_topic: str = DEFAULT_TOPIC
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: str | None = None


class DeleteTopicHeader(CommandHeader):
    """Header of 215: delete a topic with its offsets. 216 takes the same and has nothing left to do."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class GetTopicConfigHeader(CommandHeader):
    """Header of 351: one topic's settings."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_TOPIC_CONFIG

    topic: str


class TopicStatsHeader(CommandHeader):
    """Header of 202: the bounds of every queue of a topic."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_TOPIC_STATS_INFO

    topic: str
