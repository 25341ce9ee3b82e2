"""Sort the records of a batch by queue, as arrays.

What `dispatch.rows_by_queue` does for reput, on columns that exist already: reading them twice would cost as much as
all other checks together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from reput_broker.store_tools.log_reader import LogBatch
from reput_protocol.columns import IntArray, all_equal
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_COMMIT


class QueueRun(NamedTuple):
    """Records of one queue with consecutive queue offsets, in log order."""

    topic: bytes
    queue_id: int
    first_queue_offset: int
    offsets: IntArray
    """Log offsets."""
    sizes: IntArray
    tags_codes: IntArray


def queue_runs(batch: LogBatch, topics: list[bytes], tags_codes: IntArray) -> Iterator[QueueRun]:
    """Yield the records that have a place in a queue; prepared and rolled back ones have none."""
    columns = batch.columns
    head = columns.head
    transaction = head["sys_flag"] & TRANSACTION_BITS
    visible: IntArray | None = None
    if transaction.any():
        visible = np.flatnonzero((transaction == 0) | (transaction == TRANSACTION_COMMIT))
    queue_offset = columns.queue_offset
    offset = columns.position + batch.offset
    size = head["size"].astype(np.int64)
    for topic, queue_id, rows in _groups(batch, topics, visible):
        numbers = queue_offset[rows]
        if not len(numbers):
            continue
        offsets, sizes, codes = offset[rows], size[rows], tags_codes[rows]
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for start, stop in pairwise([0, *breaks.tolist(), len(numbers)]):
            yield QueueRun(
                topic,
                queue_id,
                int(numbers[start]),
                offsets[start:stop],
                sizes[start:stop],
                codes[start:stop],
            )


def topics_of(batch: LogBatch) -> list[bytes]:
    """Return the topic of every record; one list entry stands for all if they are the same."""
    columns = batch.columns
    data = batch.data
    start, size = int(columns.topic_position[0]), int(columns.topic_size[0])
    first = data[start : start + size]
    if (columns.topic_size == size).all() and all_equal(data, columns.topic_position, first):
        return [first]
    starts = columns.topic_position.tolist()
    ends = (columns.topic_position + columns.topic_size).tolist()
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def _groups(
    batch: LogBatch, topics: list[bytes], visible: IntArray | None
) -> Iterator[tuple[bytes, int, IntArray | slice]]:
    queue_id = batch.columns.head["queue_id"].astype(np.int64)
    if len(topics) == 1:
        if (queue_id == queue_id[0]).all():
            yield topics[0], int(queue_id[0]), slice(None) if visible is None else visible
            return
        numbers = queue_id
        names = topics
    else:
        ids: dict[bytes, int] = {}
        numbers = np.array([ids.setdefault(topic, len(ids)) for topic in topics], np.int64) << 32 | queue_id
        names = list(ids)
    order = np.argsort(numbers, kind="stable")
    if visible is not None:
        keep = np.zeros(len(order), np.bool_)
        keep[visible] = True
        order = order[keep[order]]
    ordered = numbers[order]
    breaks = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, breaks):
        if len(rows):
            number = int(numbers[rows[0]])
            yield names[number >> 32], number & 0xFFFF_FFFF, rows
