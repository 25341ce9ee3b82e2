"""Where the queues of a directory end, and the units that its records need."""

from __future__ import annotations

from reput_broker.store.base.dispatch import QueueRows
from reput_broker.store.queue.table import digest_of_ends
from reput_protocol.kernel.units import queue_units
from reput_protocol.store.layout import StoreLayout
from reput_protocol.store.unit import UNIT_BYTES, unpack_unit
from reput_protocol.store.unit_files import OpenFiles, UnitFiles

_READ_UNITS = 65_536


def units_of(run: QueueRows) -> bytearray:
    """Return the units of consecutive records of a queue."""
    return queue_units(run.physical_offsets, run.sizes, run.tags_codes, run.first_queue_offset, -1, -1)[0]


def queue_ends(layout: StoreLayout, log_end: int) -> dict[tuple[str, int], int]:
    """Return where each queue ends if only units of records before a log offset count."""
    ends: dict[tuple[str, int], int] = {}
    files = OpenFiles()
    try:
        for queue in layout.queues:
            units = UnitFiles(queue.stream, files)
            end = units.end
            while end > units.first:
                first = max(units.first, end - _READ_UNITS)
                data = units.read_bytes(first * UNIT_BYTES, (end - first) * UNIT_BYTES)
                while end > first and unpack_unit(data, end - 1 - first).physical_offset >= log_end:
                    end -= 1
                if end > first:
                    break
            ends[queue.topic, queue.queue_id] = end
    finally:
        files.close()
    return ends


def queues_digest(layout: StoreLayout) -> int:
    """Return the checksum of where all queues begin and end, as an orderly stop computes it."""
    ends: list[tuple[str, int, int, int, int]] = []
    files = OpenFiles()
    try:
        for queue in layout.queues:
            if queue.stream.files:
                units = UnitFiles(queue.stream, files)
                last = units.read(units.end - 1, 1)[0]
                ends.append((queue.topic, queue.queue_id, units.first, units.end, last.end_offset))
    finally:
        files.close()
    return digest_of_ends(ends)
