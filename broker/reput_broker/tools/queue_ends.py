"""Where the queues of a directory begin and end: reading only."""

from __future__ import annotations

from reput_broker.store.queue.table import digest_of_ends
from reput_broker.store.queue.unit import UNIT_BYTES, unpack_unit
from reput_broker.tools.layout import StoreLayout
from reput_broker.tools.unit_files import OpenFiles, UnitFiles

_READ_UNITS = 65_536


def queue_ends(layout: StoreLayout, log_end: int) -> dict[tuple[str, int], int]:
    """Where each queue ends with the units of records before a log offset."""
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
    """Return the checksum that an orderly stop makes of where all queues begin and end."""
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
