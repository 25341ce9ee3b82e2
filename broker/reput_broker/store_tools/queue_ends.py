"""Where the queues of a directory end, as far as the log goes: reading only."""

from __future__ import annotations

import numpy as np

from reput_broker.store_tools.layout import StoreLayout
from reput_broker.store_tools.unit_files import OpenFiles, UnitFiles

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
                offsets = units.read(first, end - first)["physical_offset"]
                kept = np.flatnonzero(offsets < log_end)
                if len(kept):
                    end = first + int(kept[-1]) + 1
                    break
                end = first
            ends[queue.topic, queue.queue_id] = end
    finally:
        files.close()
    return ends
