"""Follow the log by columns: many records at once.

Records of one topic and form are read as a table (`record_table`) or, of different sizes, as a run (`record_run`);
anything else is gathered field by field and judged (`columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import ne
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reput_protocol.columns import COLUMNS_THRESHOLD, all_equal, chain, gather
from reput_protocol.delay_levels import DELAY_LEVELS_MS
from reput_protocol.dispatch_rows import DispatchRows, DispatchRun
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.properties_table import PropertiesTexts, read_texts
from reput_protocol.record_columns import IntArray, RecordColumns
from reput_protocol.record_run import RecordRun, read_run
from reput_protocol.record_scan import RecordScan, ScanStatus, locate
from reput_protocol.record_table import RecordTable, read_table
from reput_protocol.tag_codes import parked_tags_code, tags_codes_in


def scan_columns(data: bytes, base_physical_offset: int | None, levels_ms: Sequence[int]) -> DispatchRows:
    """Return the rows of all whole records from the start of `data` on; the meaning of `scan_dispatch`."""
    alike = read_table(data, base_physical_offset, COLUMNS_THRESHOLD) or read_run(
        data, base_physical_offset, COLUMNS_THRESHOLD
    )
    if alike is not None and alike.topic != _PARKED:
        return _rows_of_alike(data, alike)
    end = len(data)
    positions, consumed = chain(data, 0, end)
    found, sound = gather(data, positions)
    stopped_by: RecordScan | None = None
    physical_offset = found.physical_offset
    if base_physical_offset is not None:
        sound &= physical_offset == found.position + base_physical_offset
    count = len(positions)
    if not sound.all():
        count = int(np.argmin(sound))
        consumed = positions[count]
    if consumed < end:
        stopped_by, extent = locate(data, consumed, end, check_crc=False)
        if extent is not None:
            assert base_physical_offset is not None, "columns refuse a record that structs accept"
            claimed = int(physical_offset[count])
            stopped_by = lies_elsewhere(stopped_by.size, claimed, base_physical_offset + consumed)

    return _rows_of(data, found, count, levels_ms, consumed, stopped_by)


def _rows_of_alike(data: bytes, records: RecordTable | RecordRun) -> DispatchRows:
    head = records.head
    properties, properties_size = records.properties_position, records.properties_size
    texts = records.texts(data)
    columns = (
        records.position,
        records.physical_offset,
        records.sizes,
        head["queue_offset"].astype(np.int64),
        _codes_of(data, properties, properties_size, texts),
        head["store_timestamp_ms"].astype(np.int64),
        records.sys_flag,
        properties,
        properties_size,
    )
    runs = _runs_of(topic_text(records.topic), head["queue_id"].astype(np.int64))
    return DispatchRows(columns, None, runs, records.end, records.stopped_by, texts)


def _runs_of(topic: str, queue_id: IntArray) -> list[DispatchRun]:
    starts = [0, *((queue_id[1:] != queue_id[:-1]).nonzero()[0] + 1).tolist()]
    ends = [*starts[1:], len(queue_id)]
    return [
        DispatchRun(topic, int(queue_id[start]), start, end) for start, end in zip(starts, ends, strict=True)
    ]


def rows_of_columns(
    data: bytes, columns: RecordColumns, levels_ms: Sequence[int] = DELAY_LEVELS_MS
) -> DispatchRows:
    """Return the rows of records whose columns have been read from the start of `data`, as `scan_dispatch` does."""
    count = len(columns)
    consumed = int(columns.position[-1]) + int(columns.size[-1]) if count else 0
    return _rows_of(data, columns, count, levels_ms, consumed, None)


def _rows_of(
    data: bytes,
    found: RecordColumns,
    count: int,
    levels_ms: Sequence[int],
    consumed: int,
    stopped_by: RecordScan | None,
) -> DispatchRows:
    head = found.head[:count]
    physical_offset = found.physical_offset
    properties = found.properties_position[:count]
    properties_size = found.properties_size[:count]
    texts = read_texts(data, properties, properties_size)
    codes = _codes_of(data, properties, properties_size, texts)
    stored_at = head["store_timestamp_ms"].astype(np.int64)
    runs = _runs(data, found.topic_position[:count], found.topic_size[:count], head["queue_id"])
    for topic, _, first, last in runs:
        if topic == SCHEDULE_TOPIC:
            for row in range(first, last):
                start = int(properties[row])
                stop = start + int(properties_size[row])
                codes[row] = parked_tags_code(data, start, stop, int(stored_at[row]), levels_ms)
    columns = (
        found.position[:count],
        physical_offset[:count],
        head["size"].astype(np.int64),
        head["queue_offset"].astype(np.int64),
        codes,
        stored_at,
        head["sys_flag"].astype(np.int64),
        properties,
        properties_size,
    )
    return DispatchRows(columns, None, runs, consumed, stopped_by, texts)


def _codes_of(data: bytes, starts: IntArray, sizes: IntArray, texts: PropertiesTexts) -> IntArray:
    codes = np.zeros(len(starts), dtype=np.int64)
    tags = texts.tags()
    if tags is not None:
        codes[tags.rows] = tags.signed()
    alone = texts.alone
    if len(alone):
        at = starts[alone]
        codes[alone] = tags_codes_in(data, at.tolist(), (at + sizes[alone]).tolist())
    return codes


def _runs(data: bytes, position: IntArray, size: IntArray, queue_id: NDArray[Any]) -> list[DispatchRun]:
    count = len(position)
    if not count:
        return []
    first = data[position[0] : position[0] + size[0]]
    names: list[bytes] | None = None
    changes = queue_id[1:] != queue_id[:-1]
    if not ((size == size[0]).all() and all_equal(data, position, first)):
        columns = zip(position.tolist(), (position + size).tolist(), strict=True)
        names = [data[start:stop] for start, stop in columns]
        changes |= np.fromiter(map(ne, names[1:], names), np.bool_, count - 1)
    elif not changes.any():
        return [DispatchRun(topic_text(first), int(queue_id[0]), 0, count)]
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    topics = repeat(topic_text(first)) if names is None else (topic_text(names[row]) for row in starts)
    return list(map(DispatchRun, topics, queue_id[starts].tolist(), starts, [*starts[1:], count]))


def lies_elsewhere(size: int, claimed: int, actual: int) -> RecordScan:
    """Return what is said of a record that claims to lie at another log offset."""
    return RecordScan(
        ScanStatus.INVALID, size, f"PHYSICALOFFSET is {claimed}, but the record lies at {actual}"
    )


def topic_text(topic: bytes) -> str:
    """Return a topic as text, whatever its bytes are."""
    return topic.decode("utf-8", "replace")


_PARKED: Final = SCHEDULE_TOPIC.encode()
