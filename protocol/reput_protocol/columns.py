"""Many records at once: where each lies and what it says, as NumPy columns.

Decoding 256 records field by field costs a Python program 256 times what one costs. Here one array operation gathers
the fixed parts of all records, and every field is a strided view into that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel import seal_record
from reput_protocol.record_columns import HEAD_DTYPE, BoolArray, IntArray, RecordColumns
from reput_protocol.record_layout import (
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    HEAD_BYTES,
    HOST_BITS,
    I32,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    STORE_HOST_IPV6,
)
from reput_protocol.record_scan import locate, patch_record

__all__ = [
    "BoolArray",
    "IntArray",
    "RecordColumns",
    "all_equal",
    "chain",
    "decode_columns",
    "gather",
    "patch_columns",
    "patch_positions",
]


def all_equal(buffer: Buffer, position: IntArray, expected: bytes) -> bool:
    """Tell whether `expected` lies at every `position`; each must have as many bytes before the buffer's end."""
    size = len(expected)
    window = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer, 0, (1,))
    found = window[position].view(np.uint8).reshape(-1, size)
    return bool((found == np.frombuffer(expected, np.uint8)).all())


def decode_columns(buffer: Buffer, start: int = 0, end: int | None = None) -> RecordColumns:
    """Return the columns of the records that fill `[start, end)` of `buffer`; nothing is copied but the fixed fields.

    Body checksums are not verified: see `RecordColumns.crc_errors`.

    Raises:
        RecordMalformed: the first record that is not sound, or where the bytes stop being records.
    """
    end = len(buffer) if end is None else end
    positions, stop = chain(buffer, start, end)
    columns, sound = gather(buffer, positions)
    if stop == end and sound.all():
        return columns
    index = len(sound) if sound.all() else int(np.argmin(sound))
    position = stop if index == len(sound) else positions[index]
    scan, extent = locate(buffer, position, end, check_crc=False)
    assert extent is None, f"columns refuse the record at {position} and structs accept it"
    raise RecordMalformed(index, position, scan.reason or "a blank record, the end of a file")


def chain(buffer: Buffer, start: int, end: int) -> tuple[list[int], int]:
    """Follow the sizes from `start`: return where records would begin, and where following them had to stop.

    Only sizes are looked at, so garbage may be among them; every position has a whole record's size before `end`.
    """
    positions: list[int] = []
    position = start
    unpack = I32.unpack_from
    last_start = end - RECORD_BYTES_MIN
    append = positions.append
    while position <= last_start:
        (size,) = unpack(buffer, position)
        if not RECORD_BYTES_MIN <= size <= end - position:
            break
        # Messages of one producer tend to be of one size: check all that would fit in one stroke.
        second = position + size
        if second + size <= end and unpack(buffer, second)[0] == size:
            sizes = np.ndarray(((end - position) // size,), ">i4", buffer, position, (size,))
            different = sizes != size
            same = int(different.argmax()) if different.any() else len(sizes)
            positions.extend(range(position, position + same * size, size))
            position += same * size
            if same >= _STROKE_MIN:
                continue
        # A few sizes take turns, or each record has its own: some steps without a look at what follows.
        for _ in range(_STEPS):
            if position > last_start:
                break
            (size,) = unpack(buffer, position)
            if not RECORD_BYTES_MIN <= size <= end - position:
                return positions, position
            append(position)
            position += size
    return positions, position


def gather(buffer: Buffer, positions: Sequence[int] | IntArray) -> tuple[RecordColumns, BoolArray]:
    """Return the columns of the records at `positions`, as `chain` found them, and which of them are sound.

    The fields of a record that is not sound have no meaning, but lie within the buffer.
    """
    position = np.array(positions, dtype=np.int64)
    if not len(position):
        empty = position
        head = np.empty(0, HEAD_DTYPE)
        return RecordColumns(buffer, empty, head, empty, empty, empty, empty, empty, empty), np.ones(
            0, np.bool_
        )
    total = len(buffer)
    head = np.ndarray((total - HEAD_BYTES + 1,), _HEAD_VOID, buffer, 0, (1,))[position].view(HEAD_DTYPE)
    bytes_: NDArray[np.int8] = np.ndarray((total,), np.int8, buffer)
    shorts: NDArray[np.int16] = np.ndarray((total - 1,), ">i2", buffer, 0, (1,))

    stop = position + head["size"]
    magic = head["magic"]
    sound: BoolArray = magic == MAGIC_V1
    length_size: IntArray | int = 1
    if not sound.all():
        version_2 = magic == MAGIC_V2
        sound |= version_2
        length_size = 1 + version_2.astype(np.int64)
    body = position + HEAD_BYTES
    if (head["sys_flag"] & HOST_BITS).any():
        body, fits = _gather_shifted(buffer, position, stop, head)
        sound &= fits
    spare = stop - body - (length_size + 3)
    body_size = head["body_size"].astype(np.int64)
    sound &= (body_size >= 0) & (body_size <= spare)
    sound &= head["queue_id"] >= 0
    # Where a length is already known to be wrong, read from the record's own start instead: never outside the buffer.
    length_at: IntArray = np.where(sound, body + body_size, position)
    topic: IntArray = length_at + length_size
    topic_size: IntArray = bytes_[length_at].astype(np.int64)
    if not isinstance(length_size, int):
        topic_size = np.where(length_size == 2, shorts[length_at].astype(np.int64), topic_size)
    sound &= (topic_size > 0) & (topic_size <= stop - topic - 2)
    length_at = np.where(sound, topic + topic_size, position)
    properties_size: IntArray = shorts[length_at].astype(np.int64)
    properties = length_at + 2
    sound &= (properties_size >= 0) & (properties + properties_size == stop)
    return (
        RecordColumns(
            buffer, position, head, body, body_size, topic, topic_size, properties, properties_size
        ),
        sound,
    )


def _gather_shifted(
    buffer: Buffer, position: IntArray, stop: IntArray, head: NDArray[Any]
) -> tuple[IntArray, BoolArray]:
    """Read again the fields that lie behind a host, for IPv6 records where they lie 12 bytes later per address.

    Returns where bodies begin, and which records are large enough to have one.
    """
    total = len(buffer)
    longs = np.ndarray((total - 7,), ">i8", buffer, 0, (1,))
    ints = np.ndarray((total - 3,), ">i4", buffer, 0, (1,))
    sys_flag = head["sys_flag"]
    born_shift = np.where(sys_flag & BORN_HOST_IPV6, 12, 0)
    shift = born_shift + np.where(sys_flag & STORE_HOST_IPV6, 12, 0)
    fits: BoolArray = position + HEAD_BYTES + shift < stop
    born_shift[~fits] = shift[~fits] = 0
    head["store_timestamp_ms"] = longs[position + 56 + born_shift]
    head["reconsume_times"] = ints[position + 72 + shift]
    head["prepared_transaction_offset"] = longs[position + 76 + shift]
    head["body_size"] = ints[position + 84 + shift]
    return position + HEAD_BYTES + shift, fits


def patch_columns(
    buffer: bytearray | memoryview,
    columns: RecordColumns,
    *,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
) -> None:
    """Write the broker's fields into all records of `columns`, which lie in `buffer`.

    They get consecutive queue offsets, physical offsets by their positions, one time and one pair of 8-byte hosts (a
    20-byte host stays). Whole-record checksums are renewed.
    """
    if ((columns.head["sys_flag"] & HOST_BITS) != 0).any():
        for row, position in enumerate(columns.position.tolist()):
            sys_flag = columns.head["sys_flag"][row]
            patch_record(
                buffer,
                position,
                queue_offset=first_queue_offset + row,
                physical_offset=first_physical_offset + position,
                store_timestamp_ms=store_timestamp_ms,
                # An 8-byte host cannot take the place of a 20-byte one.
                born_host=None if sys_flag & BORN_HOST_IPV6 else born_host,
                store_host=None if sys_flag & STORE_HOST_IPV6 else store_host,
            )
        return
    patch_positions(
        buffer,
        columns.position,
        first_queue_offset,
        first_physical_offset,
        born_host + store_timestamp_ms.to_bytes(8, "big", signed=True) + store_host,
    )
    for position in columns.position.tolist():
        seal_record(buffer, position)


def patch_positions(
    buffer: bytearray | memoryview,
    position: IntArray,
    first_queue_offset: int,
    first_physical_offset: int,
    hosts_and_time: bytes,
) -> None:
    """Write offsets and the 24 bytes of both IPv4 hosts with the store time between them at all `position`s."""
    total = len(buffer)
    offsets = np.empty((len(position), 2), ">i8")
    offsets[:, 0] = np.arange(first_queue_offset, first_queue_offset + len(position))
    offsets[:, 1] = position + first_physical_offset
    np.ndarray((total - 15,), _OFFSETS_VOID, buffer, 0, (1,))[position + QUEUE_OFFSET_AT] = offsets.view(
        _OFFSETS_VOID
    )[:, 0]
    constant = np.frombuffer(hosts_and_time, _HOSTS_VOID)
    np.ndarray((total - 23,), _HOSTS_VOID, buffer, 0, (1,))[position + BORN_HOST_AT] = constant


_STROKE_MIN: Final = 32
_STEPS: Final = 64
_HEAD_VOID: Final = np.dtype(f"V{HEAD_BYTES}")
_OFFSETS_VOID: Final = np.dtype("V16")
_HOSTS_VOID: Final = np.dtype("V24")
