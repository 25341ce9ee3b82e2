"""What follows the log: the rows that ConsumeQueue and index are built from.

The bytes come from the broker's own log and are already trusted, so no checksums are verified; but lengths are, so that
nothing is read outside the buffer and damage stops the scan instead of misleading it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from operator import ne
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.columns import (
    COLUMNS_THRESHOLD,
    BoolArray,
    IntArray,
    RecordColumns,
    all_equal,
    chain,
    gather,
)
from reput_protocol.delay_levels import DELAY_LEVELS_MS
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.properties_table import PropertiesTexts, read_texts
from reput_protocol.record_layout import (
    HEAD_BYTES,
    HOST_BITS,
    I16,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    TRANSACTION_BITS,
    TRANSACTION_COMMIT,
)
from reput_protocol.record_run import RecordRun, read_run
from reput_protocol.record_scan import Extent, RecordScan, ScanStatus, locate
from reput_protocol.record_table import RecordTable, read_table
from reput_protocol.tag_codes import parked_tags_code, tags_code_in, tags_codes_in


class DispatchRun(NamedTuple):
    """Rows `[start, stop)` follow each other in one queue of one topic."""

    topic: str
    queue_id: int
    start: int
    stop: int


class DispatchGroup(NamedTuple):
    """All rows of one queue, in their order: a slice where they follow each other, else their numbers."""

    topic: str
    queue_id: int
    rows: slice | IntArray


Row = tuple[int, int, int, int, int, int, int, int, int]
"""The fields of one record in the order of `COLUMNS`."""

COLUMNS: Final = (
    "position", "physical_offset", "size", "queue_offset", "tags_code", "store_timestamp_ms", "sys_flag",
    "properties_position", "properties_size",
)  # fmt: skip


class DispatchRows:
    """One row per whole record at the beginning of the scanned bytes, as columns of 64-bit integers.

    `position`, `properties_position` and `properties_size` are bytes from the start of the scanned buffer. `indexed`
    is False for prepared and rolled-back transaction records, which get no ConsumeQueue unit. `consumed` is where the
    rows end; `stopped_by` says what lies there: None is the end of the buffer, otherwise a blank record, the beginning
    of a record whose rest is missing, or something that is no record, with the reason.

    Where there are only a few rows, they were found one by one: `few` holds them, and columns are made when asked for.
    Otherwise `texts` holds the properties of all rows.
    """

    __slots__ = ("_columns", "consumed", "count", "few", "runs", "stopped_by", "texts")

    def __init__(
        self,
        columns: Sequence[IntArray] | None,
        few: list[Row] | None,
        runs: list[DispatchRun],
        consumed: int,
        stopped_by: RecordScan | None,
        texts: PropertiesTexts | None = None,
    ) -> None:
        assert (columns is None) == (texts is None) != (few is None)
        self._columns = columns
        self.count = len(columns[0]) if columns is not None else len(few or ())
        """How many rows there are."""
        self.few = few
        self.runs = runs
        self.consumed = consumed
        self.stopped_by = stopped_by
        self.texts = texts

    def _column(self, number: int) -> IntArray:
        if self._columns is None:
            few = self.few
            table = (
                np.array(few, dtype=np.int64).T.copy() if few else np.empty((len(COLUMNS), 0), dtype=np.int64)
            )
            self._columns = list(table)
        return self._columns[number]

    @property
    def position(self) -> IntArray:
        """Where each record starts."""
        return self._column(0)

    @property
    def physical_offset(self) -> IntArray:
        """Where each record says that it lies in the log."""
        return self._column(1)

    @property
    def size(self) -> IntArray:
        """Bytes of each whole record."""
        return self._column(2)

    @property
    def queue_offset(self) -> IntArray:
        """The number of each message in its queue."""
        return self._column(3)

    @property
    def tags_code(self) -> IntArray:
        """What a ConsumeQueue unit says of each tag."""
        return self._column(4)

    @property
    def store_timestamp_ms(self) -> IntArray:
        """The broker's clock when each record was put."""
        return self._column(5)

    @property
    def sys_flag(self) -> IntArray:
        """The system flag of each record."""
        return self._column(6)

    @property
    def properties_position(self) -> IntArray:
        """Where each properties text starts."""
        return self._column(7)

    @property
    def properties_size(self) -> IntArray:
        """Bytes of each properties text."""
        return self._column(8)

    @property
    def last_store_timestamp_ms(self) -> int:
        """The store time of the last row; there must be one."""
        return self.few[-1][5] if self.few is not None else int(self.store_timestamp_ms[-1])

    def __len__(self) -> int:
        return self.count

    @property
    def indexed(self) -> BoolArray:
        """Which rows belong into their ConsumeQueue."""
        transaction = self.sys_flag & TRANSACTION_BITS
        return np.isin(transaction, (0, TRANSACTION_COMMIT))

    @property
    def all_indexed(self) -> bool:
        """Whether every row belongs into its ConsumeQueue, as it does unless somebody uses transactions."""
        return not (self.sys_flag & TRANSACTION_BITS).any() or bool(self.indexed.all())

    def groups(self) -> list[DispatchGroup]:
        """Return the rows of every queue, queues in the order of their first row."""
        if len(self.runs) == 1:
            topic, queue_id, start, stop = self.runs[0]
            return [DispatchGroup(topic, queue_id, slice(start, stop))]
        ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for topic, queue_id, start, stop in self.runs:
            ranges.setdefault((topic, queue_id), []).append((start, stop))
        groups = []
        for (topic, queue_id), parts in ranges.items():
            if len(parts) == 1:
                rows: slice | IntArray = slice(*parts[0])
            else:
                rows = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in parts])
            groups.append(DispatchGroup(topic, queue_id, rows))
        return groups


def scan_dispatch(
    buffer: Buffer,
    *,
    base_physical_offset: int | None = None,
    levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    columns: bool | None = None,
) -> DispatchRows:
    """Return the rows of all whole records from the buffer's start on.

    With `base_physical_offset`, the log offset of the buffer's start, a record that claims to lie elsewhere is
    invalid and ends the rows. `levels_ms` are the delay levels, which decide when a parked message is due. `columns`
    forces one of the two ways; None chooses by the number of records.

    Copies a buffer once that is not `bytes`, as a view's text cannot be searched; keeps no view of it.
    """
    data = bytes(buffer)
    if columns is None:
        columns = len(data) >= COLUMNS_THRESHOLD * RECORD_BYTES_MIN and _holds_many(data)
    if columns:
        return _scan_columns(data, base_physical_offset, levels_ms)
    return _scan_structs(data, base_physical_offset, levels_ms)


def _holds_many(data: bytes) -> bool:
    """Guess by the first record's size whether there are enough records for array operations to pay."""
    size = int.from_bytes(data[:4], "big")
    return size * COLUMNS_THRESHOLD <= len(data)


def _scan_structs(data: bytes, base_physical_offset: int | None, levels_ms: Sequence[int]) -> DispatchRows:
    rows: list[Row] = []
    runs: list[DispatchRun] = []
    run_topic = b""
    run_queue = -1
    run_start = 0
    stopped_by: RecordScan | None = None
    end = len(data)
    position = 0
    while position < end:
        body_size = -1
        if end - position >= RECORD_BYTES_MIN:
            (size, magic, queue_id, queue_offset, physical_offset, sys_flag, stored_at, body_size) = (
                _HEAD.unpack_from(data, position)
            )
            stop = position + size
        # The quick way is for version 1 with IPv4 hosts, which is nearly everything.
        sound = False
        if (
            0 <= body_size <= size - RECORD_BYTES_MIN
            and magic == MAGIC_V1
            and queue_id >= 0
            and not sys_flag & HOST_BITS
            and stop <= end
        ):
            topic_at = position + HEAD_BYTES + body_size + 1
            properties = topic_at + data[topic_at - 1] + 2
            sound = (
                topic_at + 2 < properties <= min(stop, topic_at + 129)
                and _SHORT(data, properties - 2)[0] == stop - properties
            )
            topic = data[topic_at : properties - 2]
        if not sound:
            scan, extent = locate(data, position, end, check_crc=False)
            if extent is None:
                stopped_by = scan
                break
            stop, topic, properties, stored_at = _parts(data, position, scan.size, extent)
            (size, _, queue_id, queue_offset, physical_offset, sys_flag, _, _) = _HEAD.unpack_from(
                data, position
            )
        if base_physical_offset is not None and physical_offset != base_physical_offset + position:
            stopped_by = _elsewhere(size, physical_offset, base_physical_offset + position)
            break
        if topic != run_topic or queue_id != run_queue:
            if rows:
                runs.append(DispatchRun(_text(run_topic), run_queue, run_start, len(rows)))
            run_topic, run_queue, run_start = topic, queue_id, len(rows)
        if run_topic == _PARKED:
            code = parked_tags_code(data, properties, stop, stored_at, levels_ms)
        else:
            code = tags_code_in(data, properties, stop)
        rows.append(
            (
                position,
                physical_offset,
                size,
                queue_offset,
                code,
                stored_at,
                sys_flag,
                properties,
                stop - properties,
            )
        )
        position = stop
    if rows:
        runs.append(DispatchRun(_text(run_topic), run_queue, run_start, len(rows)))
    return DispatchRows(None, rows, runs, position, stopped_by)


def _parts(data: bytes, position: int, size: int, extent: Extent) -> tuple[int, bytes, int, int]:
    topic = data[extent.topic : extent.topic + extent.topic_size]
    (stored_at,) = _LONG(data, extent.store_timestamp)
    return position + size, topic, extent.properties, stored_at


def _scan_columns(data: bytes, base_physical_offset: int | None, levels_ms: Sequence[int]) -> DispatchRows:
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
            stopped_by = _elsewhere(stopped_by.size, claimed, base_physical_offset + consumed)

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
    runs = _runs_of(_text(records.topic), head["queue_id"].astype(np.int64))
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
        return [DispatchRun(_text(first), int(queue_id[0]), 0, count)]
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    topics = repeat(_text(first)) if names is None else (_text(names[row]) for row in starts)
    return list(map(DispatchRun, topics, queue_id[starts].tolist(), starts, [*starts[1:], count]))


def _elsewhere(size: int, claimed: int, actual: int) -> RecordScan:
    return RecordScan(
        ScanStatus.INVALID, size, f"PHYSICALOFFSET is {claimed}, but the record lies at {actual}"
    )


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")


_HEAD: Final = struct.Struct(">ii4xi4xqqi16xq20xi")
_SHORT: Final = I16.unpack_from
_LONG: Final = struct.Struct(">q").unpack_from
_PARKED: Final = SCHEDULE_TOPIC.encode()
assert _HEAD.size == HEAD_BYTES
