"""Where records lie that came back to back, and whether those of a pull are the ones that were asked for.

Sizes are checked, so that what is decoded later stays within its record. No checksum covers topic, queue id and queue
offset of a record (unless it has the whole-record one), and what leads to a record, the broker's queue entry, may be
damaged too; so both are compared with the pull, whose messages follow each other. The usual pull passes as one table or
in one loop; anything else is judged record by record (`pull_survey`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.errors import RecordMalformed
from reput_protocol.record_layout import HEAD_BYTES, HOST_BITS, I16, I32, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

# Size, magic, queue id, queue offset, sysFlag, body length. With an IPv6 host the last is elsewhere.
_HEAD: Final = struct.Struct(">ii4xi4xq8xi44xi").unpack_from
_SIZES: Final = struct.Struct(">ii28xi44xi").unpack_from
_UNPACK_I16: Final = I16.unpack_from
_UNPACK_I32: Final = I32.unpack_from
_TOPIC_BYTES_V2: Final = 128
# As many records as make array code worth its start; most pulls of fewer bytes hold fewer. Where they differ in size,
# the loop is as fast up to some hundreds.
_TABLE_ROWS_MIN: Final = 64
_RUN_ROWS_MIN: Final = 400
_TABLE_BYTES_MIN: Final = _TABLE_ROWS_MIN * RECORD_BYTES_MIN


class Pulled(NamedTuple):
    """What a pull asked for, and where the broker says that the next one begins."""

    topic: str
    queue_id: int
    offset: int
    next_offset: int
    filtered: bool = False
    """Whether the broker leaves out messages by their tags."""


class RecordSpan(NamedTuple):
    """Where one record lies, and which message of which queue it says it is."""

    start: int
    end: int
    topic: bytes
    queue_id: int
    queue_offset: int


def record_positions(records: Buffer) -> list[int]:
    """Return where each record of back-to-back `records` starts, plus the end; the sizes of each are checked.

    Raises:
        RecordMalformed: sizes do not add up or a magic is wrong; `index` and `position` name the record.
    """
    positions: list[int] = []
    append = positions.append
    position = 0
    end = len(records)
    while position < end:
        append(position)
        position = span_at(records, position, end, len(positions) - 1).end
    append(position)
    return positions


def pulled_positions(records: bytes, pulled: Pulled) -> list[int] | None:
    """Do the same for what a pull brought; None if not all of it is as it must be."""
    positions = table_positions(records, pulled) if len(records) >= _TABLE_BYTES_MIN else None
    return checked_positions(records, pulled) if positions is None else positions


def table_positions(records: bytes, pulled: Pulled) -> list[int] | None:
    """Return what `checked_positions` does for many records of one topic and form; None says nothing."""
    # These bring NumPy, which a program may never need.
    from reput_protocol.record_run import RecordRun, read_run
    from reput_protocol.record_table import RecordTable, read_table

    table = read_table(records, None, _TABLE_ROWS_MIN)
    found: RecordTable | RecordRun | None = table
    if table is None and _UNPACK_I32(records)[0] * _RUN_ROWS_MIN <= len(records):
        found = read_run(records, None, _TABLE_ROWS_MIN)
    if found is None or found.stopped_by is not None or found.topic != pulled.topic.encode():
        return None
    queue_offsets = found.head["queue_offset"].astype("i8")
    after = int(queue_offsets[-1]) + 1
    if (
        queue_offsets[0] < pulled.offset
        or (after > pulled.next_offset if pulled.filtered else after != pulled.next_offset)
        or (found.head["queue_id"] != pulled.queue_id).any()
        or (queue_offsets[1:] <= queue_offsets[:-1]).any()
    ):
        return None
    if table is not None:
        return list(range(0, len(records) + 1, table.size))
    return [*found.position.tolist(), len(records)]


def checked_positions(records: bytes, pulled: Pulled) -> list[int] | None:
    """Do what `pulled_positions` does, record by record."""
    topic_text, wanted, least, next_offset, filtered = pulled
    topic, topic_field, common_magic = _topic_field(topic_text)
    topic_size = len(topic_field)
    positions: list[int] = []
    append = positions.append
    position = 0
    end = len(records)
    last_start = end - RECORD_BYTES_MIN
    while position < end:
        while position <= last_start:
            # The common case in as few steps as can be: version 1, IPv4 hosts. What fails here is judged below.
            size, magic, queue_id, queue_offset, sys_flag, body_size = _HEAD(records, position)
            record_end = position + size
            topic_at = position + HEAD_BYTES + body_size
            topic_end = topic_at + topic_size
            if (
                queue_offset < least
                or queue_id != wanted
                or magic != common_magic
                or sys_flag & HOST_BITS
                or body_size < 0
                or records[topic_at:topic_end] != topic_field
                or record_end > end
                or not 0 <= record_end - topic_end - 2 == _UNPACK_I16(records, topic_end)[0]
            ):
                break
            append(position)
            least = queue_offset + 1
            position = record_end
        if position >= end:
            break
        append(position)
        try:
            span = span_at(records, position, end, len(positions) - 1)
        except RecordMalformed:
            return None
        if span.topic != topic or span.queue_id != wanted or span.queue_offset < least:
            return None
        least = span.queue_offset + 1
        position = span.end
    # Nothing is left out without a filter, but for messages that expired before the first one.
    if position and (least > next_offset or (not filtered and least != next_offset)):
        return None
    append(position)
    return positions


@lru_cache(maxsize=64)
def _topic_field(topic: str) -> tuple[bytes, bytes, int]:
    """The topic's bytes, its field in a record of version 1, and the magic of such a record; 0 if it fits into none."""
    encoded = topic.encode()
    if len(encoded) >= _TOPIC_BYTES_V2:
        return encoded, b"", 0
    return encoded, bytes((len(encoded),)) + encoded, MAGIC_V1


def host_growth(sys_flag: int) -> int:
    """How many bytes longer the head of a record is for its IPv6 hosts."""
    return (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)


def span_at(records: Buffer, position: int, end: int, index: int) -> RecordSpan:
    """Look at the record at a position; its sizes are checked.

    Raises:
        RecordMalformed: they do not add up, or its magic is wrong; it is said to be record number `index`.
    """
    if end - position < RECORD_BYTES_MIN:
        raise RecordMalformed(index, position, f"{end - position} bytes left, too few for a record")
    size, magic, queue_id, queue_offset, sys_flag, body_size = _HEAD(records, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordMalformed(index, position, f"unknown magic {magic & 0xFFFF_FFFF:#010x}")
    record_end = position + size
    if size < RECORD_BYTES_MIN or record_end > end:
        raise RecordMalformed(
            index, position, f"size {size} does not fit into the {end - position} bytes left"
        )
    at: int = position + HEAD_BYTES
    if sys_flag & HOST_BITS:
        at += host_growth(sys_flag)
        if at > record_end:
            raise RecordMalformed(index, position, f"size {size} is too small for a record with IPv6 hosts")
        (body_size,) = _UNPACK_I32(records, at - 4)
    at += body_size
    if body_size < 0 or at + 2 > record_end:
        raise RecordMalformed(index, position, f"body of {body_size} bytes does not fit into the record")
    topic_size = records[at] if magic == MAGIC_V1 else _UNPACK_I16(records, at)[0]
    at += 1 if magic == MAGIC_V1 else 2
    topic_end = at + topic_size
    if (
        topic_size < 0
        or topic_end + 2 > record_end
        or topic_end + 2 + _UNPACK_I16(records, topic_end)[0] != record_end
    ):
        raise RecordMalformed(index, position, "topic and properties do not add up to the record's size")
    return RecordSpan(position, record_end, bytes(records[at:topic_end]), queue_id, queue_offset)
