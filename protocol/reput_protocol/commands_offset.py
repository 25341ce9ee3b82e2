"""Headers about offsets: a group's progress, and a queue's bounds by number and by time."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import BoundaryType, RequestCode
from reput_protocol.command_header import I32, I64, CommandHeader


class QueryConsumerOffsetHeader(CommandHeader):
    """Header of 14: a group's committed offset. `set_zero_if_not_found` false asks for an error instead of a 0."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(CommandHeader):
    """Header of 15: commit a group's offset. Negative offsets come from clients that have nothing to commit.

    `increase_only` is ours: a lower offset than the committed one is then answered with success and changes nothing.
    Members of a group write it, so that one that was asleep while its queue moved on cannot take progress back.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64
    increase_only: bool | None = None


class QueueHeader(CommandHeader):
    """Header of 30 (next offset to be written), 31 (first offset) and 32 (store time of the first message)."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_MAX_OFFSET

    topic: str
    queue_id: I32


class SearchOffsetHeader(CommandHeader):
    """Header of 29: the first message stored at or after `timestamp` (milliseconds), or the last up to it."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: BoundaryType = BoundaryType.LOWER


class OffsetResult(CommandHeader):
    """Answer to 14, 29, 30 and 31: a queue offset."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_CONSUMER_OFFSET

    offset: I64


class EarliestTimeResult(CommandHeader):
    """Answer to 32: milliseconds, -1 for an empty queue."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_EARLIEST_MSG_STORETIME

    timestamp: I64
