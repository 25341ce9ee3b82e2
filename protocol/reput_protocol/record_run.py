"""Records of one topic and of different sizes, back to back: what most queues, blocks and stretches of the log are.

Tags, keys and bodies differ in length from message to message. Then each record says where its parts lie; all that is
left to show is that these parts add up and that topic, version and kinds of hosts are those of the first one. Records
of one size are dearer here than as a `record_table`.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_protocol.columns import chain
from reput_protocol.properties_table import PropertiesTexts, read_texts
from reput_protocol.record_columns import HEAD_DTYPE, I16_TYPE, IntArray
from reput_protocol.record_layout import HEAD_BYTES, HOST_BITS
from reput_protocol.record_scan import RecordScan, locate
from reput_protocol.rows_at import windows


class RecordRun(NamedTuple):
    """Records from the start of the buffer on, all of one topic."""

    position: IntArray
    """Where each record starts."""
    sizes: IntArray
    """Bytes of each whole record."""
    head: NDArray[Any]
    """The fixed fields of every record (`HEAD_DTYPE`)."""
    physical_offset: IntArray
    """Where each record says that it lies in the log."""
    topic: bytes
    properties_position: IntArray
    """Where each properties text starts."""
    properties_size: IntArray
    """Bytes of each properties text."""
    end: int
    """Where the records end."""
    stopped_by: RecordScan | None
    """What lies there: None is the end of the buffer."""

    @property
    def sys_flag(self) -> IntArray:
        """The system flag of each record."""
        return self.head["sys_flag"].astype(np.int64)

    def texts(self, data: bytes) -> PropertiesTexts:
        """Read the properties of the scanned bytes."""
        return read_texts(data, self.properties_position, self.properties_size)


def read_run(data: bytes, base_physical_offset: int | None, least: int) -> RecordRun | None:
    """Return all whole records of `data`; None if they are not of one topic and form, or fewer than `least`.

    With `base_physical_offset`, the log offset of the first byte, every record must say that it lies where it does.
    None says nothing about the records: they may be sound or not.
    """
    total = len(data)
    _, first = locate(data, 0, total, check_crc=False)
    if first is None or data[_SYS_FLAG_LOW] & HOST_BITS:
        return None
    positions, end = chain(data, 0, total)
    count = len(positions)
    if count < least:
        return None
    position = np.frombuffer(array("q", positions), np.int64)
    heads = windows(data, HEAD_BYTES)[position]
    alike = (heads.view(np.uint64).reshape(count, -1) & _ALIKE).tobytes()
    if alike != alike[:HEAD_BYTES] * count:
        return None
    head = heads.view(HEAD_DTYPE)
    sizes = head["size"].astype(np.int64)
    body_size = head["body_size"].astype(np.int64)
    topic_field = data[first.body + first.body_size : first.properties - 2]
    topic_at = position + HEAD_BYTES + body_size
    properties = topic_at + (len(topic_field) + 2)
    properties_size = position + sizes - properties
    # Nothing lies outside of its record, and so outside of the buffer, if none of these is negative.
    if int(body_size.min()) < 0 or int(properties_size.min()) < 0:
        return None
    if windows(data, len(topic_field))[topic_at].tobytes() != topic_field * count:
        return None
    if (np.ndarray((total - 1,), I16_TYPE, data, 0, (1,))[properties - 2] != properties_size).any():
        return None
    physical_offset = head["physical_offset"].astype(np.int64)
    if base_physical_offset is not None and (physical_offset != position + base_physical_offset).any():
        return None
    if int(head["queue_id"].min()) < 0:
        return None
    stopped_by: RecordScan | None = None
    if end < total:
        stopped_by, other = locate(data, end, total, check_crc=False)
        if other is not None:
            return None
    topic = data[first.topic : first.topic + first.topic_size]
    return RecordRun(
        position, sizes, head, physical_offset, topic, properties, properties_size, end, stopped_by
    )


_SYS_FLAG_LOW: Final = 39
# The bits of a head on which the places of all parts depend, but for the sizes: magic and kinds of hosts.
_ALIKE_BYTES: Final = np.zeros(HEAD_BYTES, np.uint8)
_ALIKE_BYTES[4:8] = 0xFF
_ALIKE_BYTES[_SYS_FLAG_LOW] = HOST_BITS
_ALIKE: Final = _ALIKE_BYTES.view(np.uint64)
