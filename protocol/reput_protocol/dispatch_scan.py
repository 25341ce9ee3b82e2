"""Follow the log: where its records lie and what ConsumeQueue and index need of each.

The bytes come from the broker's own log and are already trusted, so no checksums are verified; but lengths are, so that
nothing is read outside the buffer and damage stops the scan instead of misleading it. Few records are read one by one
here, many by `dispatch_columns`; tests hold both ways equal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.columns import COLUMNS_THRESHOLD
from reput_protocol.delay_levels import DELAY_LEVELS_MS
from reput_protocol.dispatch_columns import lies_elsewhere, scan_columns, topic_text
from reput_protocol.dispatch_rows import DispatchRows, DispatchRun, Row
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.record_layout import HEAD_BYTES, HOST_BITS, I16, MAGIC_V1, RECORD_BYTES_MIN
from reput_protocol.record_scan import Extent, RecordScan, locate
from reput_protocol.tag_codes import parked_tags_code, tags_code_in


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
        return scan_columns(data, base_physical_offset, levels_ms)
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
            stopped_by = lies_elsewhere(size, physical_offset, base_physical_offset + position)
            break
        if topic != run_topic or queue_id != run_queue:
            if rows:
                runs.append(DispatchRun(topic_text(run_topic), run_queue, run_start, len(rows)))
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
        runs.append(DispatchRun(topic_text(run_topic), run_queue, run_start, len(rows)))
    return DispatchRows(None, rows, runs, position, stopped_by)


def _parts(data: bytes, position: int, size: int, extent: Extent) -> tuple[int, bytes, int, int]:
    topic = data[extent.topic : extent.topic + extent.topic_size]
    (stored_at,) = _LONG(data, extent.store_timestamp)
    return position + size, topic, extent.properties, stored_at


_HEAD: Final = struct.Struct(">ii4xi4xqqi16xq20xi")
_SHORT: Final = I16.unpack_from
_LONG: Final = struct.Struct(">q").unpack_from
_PARKED: Final = SCHEDULE_TOPIC.encode()
assert _HEAD.size == HEAD_BYTES
