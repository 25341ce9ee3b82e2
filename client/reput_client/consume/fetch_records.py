"""FETCH_RECORDS: blocks of the log, raw for bulk readers or as columns."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from reput_client.consume.pull import PullStatus
from reput_client.errors import DamagedMessage
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.pull import FetchRecordsHeader, FetchRecordsResult
from reput_protocol.errors import error_from_response
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.records import checksum_faults, queue_records, record_starts
from reput_protocol.record.scan import QUEUE_OFFSET, WIDTH
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import HeaderType, Value

if TYPE_CHECKING:
    from reput_client.consume.columns import MessageColumns

_ANSWERS: Final = (
    ResponseCode.SUCCESS.value,
    ResponseCode.PULL_NOT_FOUND.value,
    ResponseCode.PULL_OFFSET_MOVED.value,
)
COLUMN_BYTES: Final = 1 << 20
"""Default size of a pull of columns; larger answers exceed the processor's caches."""
NO_END: Final = (1 << 62) - 1
"""End of an unbounded range."""


class FetchedBlock(NamedTuple):
    """The result of one fetch."""

    records: memoryview
    """Records back to back, not verified."""
    next_offset: int
    """All wanted records before it are in `records`."""
    min_offset: int
    max_offset: int
    """Bounds of the queue's durable part."""
    moved: bool
    """Whether the requested messages are not in the queue."""


def fetch_ext(
    topic: str,
    queue_id: int,
    start: int,
    end: int,
    max_bytes: int,
    tags: str,
    generation: str | None = None,
) -> dict[str, Value]:
    """Return the header fields of a fetch of `[start, end)`."""
    subscription = None if tags == "*" else tags
    header = FetchRecordsHeader(topic, queue_id, start, end, max_bytes, subscription, generation)
    return header.to_ext(HeaderType.MSGPACK)


def fetched_block(call: Call) -> FetchedBlock:
    """Return the result of an answered fetch; raises `BrokerError` if refused."""
    header = call.answer
    if header.code not in _ANSWERS:
        raise error_from_response(header.code, header.remark, header.ext)
    result = FetchRecordsResult.from_ext(header.ext)
    moved = header.code == ResponseCode.PULL_OFFSET_MOVED
    return FetchedBlock(call.body, result.next_offset, result.min_offset, result.max_offset, moved)


class ColumnsResult(NamedTuple):
    """The result of a pull of columns."""

    status: PullStatus
    columns: MessageColumns
    """Empty unless `status` is FOUND."""
    next_begin_offset: int
    """The queue offset of the next pull, also if nothing was found."""
    min_offset: int
    max_offset: int
    """Bounds of the queue; may or may not include messages that are not durable."""


def fetched(topic: str, queue_id: int, offset: int, call: Call, tag_filter: TagFilter) -> ColumnsResult:
    """Return the columns of an answered FETCH_RECORDS.

    Raises:
        BrokerError: the broker refused.
        DamagedMessage: the first message, at its offset, cannot be read.
    """
    found = fetched_block(call)
    return columns_result(
        topic,
        queue_id,
        offset,
        b"" if found.moved else found.records,
        ColumnsResult(
            PullStatus.OFFSET_ILLEGAL if found.moved else PullStatus.NO_NEW_MESSAGE,
            no_columns(topic, queue_id),
            found.next_offset,
            found.min_offset,
            found.max_offset,
        ),
        tag_filter,
    )


def columns_result(
    topic: str,
    queue_id: int,
    offset: int,
    records: bytes | memoryview,
    empty: ColumnsResult,
    tag_filter: TagFilter,
) -> ColumnsResult:
    """Return `empty`, completed with the received records.

    Their sizes and checksums are verified, and that they are the requested messages. Those before the first damaged one
    are returned, and the next pull begins with the damaged one.

    Raises:
        DamagedMessage: the first message is damaged; to continue after it, pull from its offset + 1.
    """
    next_offset = empty.next_begin_offset
    if not len(records):
        skipped = empty.status is PullStatus.NO_NEW_MESSAGE and next_offset > offset
        return empty._replace(status=PullStatus.NO_MATCHED_MESSAGE) if skipped else empty
    every = tag_filter.matches_all
    table, end = queue_records(records, 0, len(records), topic.encode(), queue_id, offset, every)
    faults = checksum_faults(records, table)
    if faults or end < len(records):
        good, reason = faults[0] if faults else (len(table) // WIDTH, _what_follows(records, end))
        if faults:
            next_offset = table[WIDTH * good + QUEUE_OFFSET]
        else:  # the offset of an unreadable record is known only from the record before it
            next_offset = table[QUEUE_OFFSET - WIDTH] + 1 if good else offset
        if not good:
            raise DamagedMessage(topic, queue_id, next_offset, reason)
        del table[WIDTH * good :]
    messages = _columns(topic, queue_id, records, table)
    if not every:
        messages.records = messages.records.with_tag(tag_filter.tags)
    status = PullStatus.FOUND if len(messages) else PullStatus.NO_MATCHED_MESSAGE
    return ColumnsResult(status, messages, next_offset, empty.min_offset, empty.max_offset)


def require_columns() -> None:
    """Import NumPy, which only programs that pull columns need.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import reput_client.consume.columns  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "numpy":
            raise
        raise ModuleNotFoundError(
            "columns are NumPy arrays, and NumPy is not installed: pip install numpy",
            name="numpy",
        ) from missing


def _what_follows(records: bytes | memoryview, end: int) -> str:
    if record_starts(records, end, len(records)):
        return "its record is damaged, or is another message"
    return "what follows is not a record"


def no_columns(topic: str, queue_id: int) -> MessageColumns:
    """Return columns without messages."""
    return _columns(topic, queue_id, b"", array("q"))


def _columns(topic: str, queue_id: int, records: bytes | memoryview, table: array[int]) -> MessageColumns:
    from reput_client.consume.columns import MessageColumns
    from reput_protocol.record.columns import RecordColumns

    return MessageColumns(topic, queue_id, RecordColumns(records, table))
