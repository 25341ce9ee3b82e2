"""Pulls whose messages come as columns: blocks of the log as the broker has them, decoded by one stroke each."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from reput_client.core import Call
from reput_client.errors import DamagedMessage
from reput_client.fetching import fetched_block
from reput_client.message_columns import MessageColumns
from reput_client.pull_result import PullStatus
from reput_protocol.columns import chain, gather
from reput_protocol.filters import TagFilter
from reput_protocol.record_columns import RecordColumns
from reput_protocol.topic_match import has_topic

COLUMN_BYTES: Final = 1 << 20
"""How much one pull of columns asks for by default; larger answers no longer fit into a processor's caches."""
NO_END: Final = (1 << 62) - 1
"""As the end of a range: as far as there are messages."""


class ColumnsResult(NamedTuple):
    """What a pull of columns brought."""

    status: PullStatus
    columns: MessageColumns
    """Empty unless `status` is FOUND."""
    next_begin_offset: int
    """The queue offset of the next pull, also when nothing was found."""
    min_offset: int
    max_offset: int
    """The bounds of the queue. What is not durable yet may count or not."""


def fetched(topic: str, queue_id: int, offset: int, call: Call, tag_filter: TagFilter) -> ColumnsResult:
    """Return what an answered FETCH_RECORDS brought.

    Raises:
        BrokerError: the broker refused it.
        DamagedMessage: the first message cannot be read; it names its offset.
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
    """Return `empty`, or what it becomes with the records that came.

    Records are checked: their sizes, that they are the messages which were asked for, and their checksums. What lies
    before the first damaged one is handed out, and the next pull begins with that one.

    Raises:
        DamagedMessage: the first message is damaged; whoever goes on behind it passes its offset + 1.
    """
    next_offset = empty.next_begin_offset
    if not len(records):
        skipped = empty.status is PullStatus.NO_NEW_MESSAGE and next_offset > offset
        return empty._replace(status=PullStatus.NO_MATCHED_MESSAGE) if skipped else empty
    positions, end = chain(records, 0, len(records))
    columns, sound = gather(records, positions)
    good, reason, damaged_at = _good_rows(columns, sound, topic, queue_id, offset, tag_filter)
    if good == len(columns) and end < len(records):
        reason = "what follows is no record"
    if good < len(columns) or end < len(records):
        # Of what cannot be read at all the offset is known only by what stands before it.
        damaged = damaged_at
        if damaged is None:
            damaged = offset if not good else int(columns.head["queue_offset"][good - 1]) + 1
        if not good:
            raise DamagedMessage(topic, queue_id, damaged, reason)
        columns = columns.take(slice(0, good))
        next_offset = damaged
    messages = MessageColumns(topic, queue_id, columns)
    if not tag_filter.matches_all:
        wanted = tag_filter.tags
        messages = messages.take(np.array([tag in wanted for tag in messages.tags()], np.bool_))
    status = PullStatus.FOUND if len(messages) else PullStatus.NO_MATCHED_MESSAGE
    return ColumnsResult(status, messages, next_offset, empty.min_offset, empty.max_offset)


def _good_rows(
    columns: RecordColumns,
    sound: np.typing.NDArray[np.bool_],
    topic: str,
    queue_id: int,
    offset: int,
    tag_filter: TagFilter,
) -> tuple[int, str, int | None]:
    """Return how many rows from the first on are what was asked for, what is wrong with the next, and its offset."""
    is_message = sound & (columns.head["queue_id"] == queue_id)
    is_message &= has_topic(columns, is_message, topic)
    queue_offset = columns.queue_offset
    if tag_filter.matches_all:
        is_message &= queue_offset == np.arange(offset, offset + len(columns))
    else:
        is_message &= np.diff(queue_offset, prepend=offset - 1) > 0
    good = len(columns) if is_message.all() else int(np.argmin(is_message))
    reason = "its record is damaged, or is another message"
    faults = columns.take(slice(0, good)).crc_faults() if good else []
    if faults:
        row, reason = faults[0]
        return row, reason, int(queue_offset[row])
    return good, reason, None


def no_columns(topic: str, queue_id: int) -> MessageColumns:
    """Return columns without a message."""
    return MessageColumns(topic, queue_id, gather(b"", [])[0])
