"""The columns themselves: one row per record, fields as arrays, texts and bodies as views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.delay_levels import DELAY_LEVELS_MS
from reput_protocol.host import Host
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.properties import CRC_PROPERTY_BYTES
from reput_protocol.record_layout import BACK, BORN_HOST_AT, BORN_HOST_IPV6, HEAD_BYTES, STORE_HOST_IPV6
from reput_protocol.record_scan import ScanStatus, locate
from reput_protocol.rows_at import rows_at
from reput_protocol.tag_codes import parked_tags_code, tags_codes_in

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

HEAD_DTYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp_ms", ">i8"),
        ("born_host", "V8"),
        ("store_timestamp_ms", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    ]
)
assert HEAD_DTYPE.itemsize == HEAD_BYTES
I16_TYPE: Final = np.dtype(">i2")
_UNDERSCORE: Final = 0x5F


@dataclass(slots=True)
class RecordColumns:
    """Columns over records that lie back to back in `buffer`; row i is the i-th record.

    Positions are bytes from the buffer's start. `head` holds the fixed fields of every record, big-endian as they
    lie there (of IPv6 records the host fields are not meaningful: use `born_host` and `store_host`); the named
    columns are native copies made on access.
    """

    buffer: Buffer
    position: IntArray
    head: NDArray[Any]
    body_position: IntArray
    body_size: IntArray
    topic_position: IntArray
    topic_size: IntArray
    properties_position: IntArray
    properties_size: IntArray

    def __len__(self) -> int:
        return len(self.position)

    @property
    def size(self) -> NDArray[np.int32]:
        """Bytes of each whole record."""
        return self.head["size"].astype(np.int32)

    @property
    def magic(self) -> NDArray[np.int32]:
        """MAGIC_V1 or MAGIC_V2."""
        return self.head["magic"].astype(np.int32)

    @property
    def body_crc(self) -> NDArray[np.int32]:
        """The stored checksum of each body."""
        return self.head["body_crc"].astype(np.int32)

    @property
    def queue_id(self) -> NDArray[np.int32]:
        """Queue of each record."""
        return self.head["queue_id"].astype(np.int32)

    @property
    def flag(self) -> NDArray[np.int32]:
        """The applications' flags."""
        return self.head["flag"].astype(np.int32)

    @property
    def queue_offset(self) -> IntArray:
        """Message number of each record in its queue."""
        return self.head["queue_offset"].astype(np.int64)

    @property
    def physical_offset(self) -> IntArray:
        """Where each record says that it lies in the commit log."""
        return self.head["physical_offset"].astype(np.int64)

    @property
    def sys_flag(self) -> NDArray[np.int32]:
        """System flags."""
        return self.head["sys_flag"].astype(np.int32)

    @property
    def born_timestamp_ms(self) -> IntArray:
        """Producers' clocks, ms."""
        return self.head["born_timestamp_ms"].astype(np.int64)

    @property
    def store_timestamp_ms(self) -> IntArray:
        """The broker's clock, ms."""
        return self.head["store_timestamp_ms"].astype(np.int64)

    @property
    def reconsume_times(self) -> NDArray[np.int32]:
        """How often each was sent back."""
        return self.head["reconsume_times"].astype(np.int32)

    @property
    def prepared_transaction_offset(self) -> IntArray:
        """Where the prepared half of a committed message lies."""
        return self.head["prepared_transaction_offset"].astype(np.int64)

    def body(self, row: int) -> memoryview:
        """Return a view of the body of record `row`."""
        return self._view(self.body_position[row], self.body_size[row])

    def topic(self, row: int) -> memoryview:
        """Return a view of the topic of record `row`."""
        return self._view(self.topic_position[row], self.topic_size[row])

    def properties(self, row: int) -> memoryview:
        """Return a view of the properties text of record `row`."""
        return self._view(self.properties_position[row], self.properties_size[row])

    def born_host(self, row: int) -> Host:
        """Return the producer's address of record `row`."""
        size = 20 if self.head["sys_flag"][row] & BORN_HOST_IPV6 else 8
        return Host.unpack(self._view(self.position[row] + BORN_HOST_AT, size))

    def store_host(self, row: int) -> Host:
        """Return the broker's address of record `row`."""
        size = 20 if self.head["sys_flag"][row] & STORE_HOST_IPV6 else 8
        return Host.unpack(self._view(self.body_position[row] - BACK.size - size, size))

    def tags_codes(self, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> IntArray:
        """Return what the ConsumeQueue unit of each record holds: the tag's hash, 0, or when a parked one is due."""
        data = self.buffer if not isinstance(self.buffer, memoryview) else bytes(self.buffer)
        starts = self.properties_position.tolist()
        ends = (self.properties_position + self.properties_size).tolist()
        codes = np.array(tags_codes_in(data, starts, ends), dtype=np.int64)
        parked = SCHEDULE_TOPIC.encode()
        for row in np.flatnonzero(self.topic_size == len(parked)).tolist():
            if self.topic(row) == parked:
                stored_at = int(self.head["store_timestamp_ms"][row])
                codes[row] = parked_tags_code(data, starts[row], ends[row], stored_at, levels_ms)
        return codes

    def take(self, rows: IntArray | BoolArray | slice) -> RecordColumns:
        """Return the columns of some records only, by row number, by mask, or from one to another."""
        return RecordColumns(
            self.buffer,
            self.position[rows],
            self.head[rows],
            self.body_position[rows],
            self.body_size[rows],
            self.topic_position[rows],
            self.topic_size[rows],
            self.properties_position[rows],
            self.properties_size[rows],
        )

    def crc_errors(self) -> IntArray:
        """Return the rows whose body does not match its checksum."""
        if not len(self):
            return np.zeros(0, np.int64)
        stated = self.head["body_crc"].astype(np.int64)
        sizes = self.body_size
        if sizes[0] and (sizes == sizes[0]).all():
            # Bodies of one size are taken out by NumPy, which costs half of slicing them one by one.
            bodies = rows_at(self.buffer, self.body_position, int(sizes[0]))
            sums = list(map(crc32, bodies.view(f"V{bodies.shape[1]}")[:, 0].tolist()))
        else:
            # Slices of bytes are copied, and still come cheaper than views of them.
            data = self.buffer if isinstance(self.buffer, bytes) else memoryview(self.buffer)
            starts = self.body_position.tolist()
            ends = (self.body_position + sizes).tolist()
            sums = [crc32(data[start:end]) for start, end in zip(starts, ends, strict=True)]
        return np.flatnonzero((np.array(sums, np.int64) & 0x7FFF_FFFF) != stated)

    def sealed(self) -> IntArray:
        """Return the rows that end with what looks like the whole record's checksum (`__CRC32#`)."""
        data = np.ndarray((len(self.buffer),), np.uint8, self.buffer)
        at = self.position + self.head["size"] - CRC_PROPERTY_BYTES
        return np.flatnonzero((data[at] == _UNDERSCORE) & (self.properties_size >= CRC_PROPERTY_BYTES))

    def crc_faults(self, *, bodies: bool = True) -> list[tuple[int, str]]:
        """Check the checksum of every body, and that of the whole record where there is one.

        Args:
            bodies: False for a reader that hands no bodies out: then only records with a checksum of the whole.

        Returns:
            The row and the words of each that fails.
        """
        suspects = set(self.sealed().tolist())
        if bodies:
            suspects.update(self.crc_errors().tolist())
        found: list[tuple[int, str]] = []
        for row in sorted(suspects):
            start = int(self.position[row])
            scan, _ = locate(self.buffer, start, start + int(self.head["size"][row]), check_crc=True)
            if scan.status is not ScanStatus.RECORD:
                found.append((row, scan.reason))
        return found

    def _view(self, position: int, size: int) -> memoryview:
        return memoryview(self.buffer)[position : position + size]
