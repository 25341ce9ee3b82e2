"""Headers of our own requests of readers in bulk: ranges of queues as they lie in the log."""

from __future__ import annotations

from typing import ClassVar, Final

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import I32, I64, CommandHeader

FETCH_BYTES: Final = 1 << 20
"""What one answer to FETCH_RECORDS holds unless it is asked for less or more."""
FETCH_BYTES_MAX: Final = 4 << 20
"""What it holds at most; the first record comes whatever its size."""


class FetchRecordsHeader(CommandHeader):
    """Header of FETCH_RECORDS: the messages `[start_offset, end_offset)` of a queue, as far as one answer holds them.

    `subscription` is a tag expression; the broker compares the hashes of tags only. With `generation`, a topic of
    another generation is refused as one that does not exist.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.FETCH_RECORDS

    topic: str
    queue_id: I32
    start_offset: I64
    end_offset: I64
    max_bytes: I32 = FETCH_BYTES
    subscription: str | None = None
    generation: str | None = None


class FetchRecordsResult(CommandHeader):
    """Answer to FETCH_RECORDS, under the codes 0, 19 and 21 alike; the body of a 0 is records back to back.

    All messages before `next_offset` that are wanted are in the body. `max_offset` ends what is durable.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.FETCH_RECORDS

    next_offset: I64
    min_offset: I64
    max_offset: I64


class QueryQueueBoundsHeader(CommandHeader):
    """Header of QUERY_QUEUE_BOUNDS; the topics are in its body."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_QUEUE_BOUNDS
