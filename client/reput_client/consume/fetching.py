"""The request for records in bulk and its answer, shared by `BulkReader` and `PullConsumer.pull_columns`."""

from __future__ import annotations

from typing import Final, NamedTuple

from reput_client.transport.core import Call
from reput_protocol.codes import ResponseCode
from reput_protocol.commands_fetch import FetchRecordsHeader, FetchRecordsResult
from reput_protocol.errors import error_from_response
from reput_protocol.header import HeaderType, Value

_ANSWERS: Final = (
    ResponseCode.SUCCESS.value,
    ResponseCode.PULL_NOT_FOUND.value,
    ResponseCode.PULL_OFFSET_MOVED.value,
)


class FetchedBlock(NamedTuple):
    """What one fetch brought."""

    records: memoryview
    """Records back to back, unchecked; good for as long as it is kept."""
    next_offset: int
    """Everything wanted before it is in `records`."""
    min_offset: int
    max_offset: int
    """The bounds of the queue; only what is durable counts."""
    moved: bool
    """Whether the messages asked for are not in the queue."""


def fetch_ext(
    topic: str,
    queue_id: int,
    start: int,
    end: int,
    max_bytes: int,
    tags: str,
    generation: str | None = None,
) -> dict[str, Value]:
    """Return the header fields of a request for the records of `[start, end)`."""
    subscription = None if tags == "*" else tags
    header = FetchRecordsHeader(topic, queue_id, start, end, max_bytes, subscription, generation)
    return header.to_ext(HeaderType.MSGPACK)


def fetched_block(call: Call) -> FetchedBlock:
    """Return what an answered request brought.

    Raises:
        BrokerError: the broker refused it.
    """
    header = call.answer
    if header.code not in _ANSWERS:
        raise error_from_response(header.code, header.remark, header.ext)
    result = FetchRecordsResult.from_ext(header.ext)
    moved = header.code == ResponseCode.PULL_OFFSET_MOVED
    return FetchedBlock(call.body, result.next_offset, result.min_offset, result.max_offset, moved)
