"""Where the valid units of a queue end: after a start, and when the log was cut (RocketMQ: ConsumeQueue)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .consume_queue_ext_unit import MAX_ADDRESS
from .consume_queue_unit import UNIT_BYTES, UNIT_DTYPE, ConsumeQueueUnit, unpack_unit
from .sparse_file_queue import RECOVERED_FILES, SparseFileQueue

_CHUNK_UNITS = 16_384

# A power cut keeps or loses whole sectors, a killed write stops between pages, which are several sectors.
_SECTOR_BYTES = 512


class _Valid(NamedTuple):
    end: int
    last: ConsumeQueueUnit | None


def recover(
    files: SparseFileQueue,
    check_last: Callable[[ConsumeQueueUnit], bool] | None,
    report_cut: Callable[[int, int], None],
) -> int:
    """Cut a just loaded queue off after its valid units; return the end of the last one's record, -1 without any.

    Scans the last three files. A unit is valid with a physical offset >= 0 and a size > 0. The last valid one can
    be torn, with its end still zero, if it straddles a sector boundary; then `check_last` decides. A queue that
    holds nothing but pre-blank units is emptied: in RocketMQ it would pass for one that has indexed 2 GiB.
    """
    if files.is_empty:
        return -1
    begin = max(files.first_start, files.last_start - (RECOVERED_FILES - 1) * files.file_size)
    end, last = _valid_until(files, begin, files.end, None)
    if last is None and end > files.first_start:
        last = _unit_before(files, end)
    if last is not None and check_last is not None and _may_be_torn(files, end) and not check_last(last):
        end -= UNIT_BYTES
        last = _unit_before(files, end) if end > files.first_start else None
    if last is None or last.is_pre_blank:
        end, last = files.first_start, None
    rewritten = files.cut(end)
    if rewritten:
        report_cut(end + rewritten, end)
    return last.end_offset if last is not None else -1


def truncate(files: SparseFileQueue, physical_offset: int, report_cut: Callable[[int, int], None]) -> int:
    """Cut a queue off before the first unit at or after a physical offset; return the new end of the indexed log."""
    old_end = files.end
    end, last = files.first_start, None
    start = files.last_start
    while not files.is_empty and start >= files.first_start:
        stop = min(start + files.file_size, files.end)
        end, last = _valid_until(files, start, stop, physical_offset)
        if last is not None:
            break
        start -= files.file_size
    if last is None or last.is_pre_blank:
        end, last = files.first_start, None
    if files.cut(end) or end < old_end:
        report_cut(old_end, end)
    return last.end_offset if last is not None else physical_offset


def last_address(files: SparseFileQueue) -> ConsumeQueueUnit | None:
    """Return the last unit that holds the address of an extended entry; None if none does.

    Looks at the last unit first. Where extended entries have only just been turned on it goes on to the first.
    """
    end = files.end
    count = 1
    while end > files.first_start:
        inside = end - (end - 1) // files.file_size * files.file_size
        start = end - min(count * UNIT_BYTES, inside)
        data = files.read(start, end - start)
        addresses = np.flatnonzero(np.frombuffer(data, UNIT_DTYPE)["tags_code"] <= MAX_ADDRESS)
        if len(addresses):
            at = int(addresses[-1]) * UNIT_BYTES
            return unpack_unit(data[at : at + UNIT_BYTES])
        end = start
        count = _CHUNK_UNITS
    return None


def _valid_until(files: SparseFileQueue, position: int, stop: int, physical_limit: int | None) -> _Valid:
    """Walk over valid units below a physical offset; return where they end and the last of them."""
    last: ConsumeQueueUnit | None = None
    while position < stop:
        in_file = files.file_size - position % files.file_size
        data = files.read(position, min(_CHUNK_UNITS * UNIT_BYTES, in_file, stop - position))
        units = np.frombuffer(data, UNIT_DTYPE)
        good = (units["physical_offset"] >= 0) & (units["size"] > 0)
        if physical_limit is not None:
            good &= units["physical_offset"] < physical_limit
        count = len(units) if good.all() else int(good.argmin())
        if count:
            last = unpack_unit(data[(count - 1) * UNIT_BYTES : count * UNIT_BYTES])
            position += count * UNIT_BYTES
        if count < len(units):
            break
    return _Valid(position, last)


def _unit_before(files: SparseFileQueue, end: int) -> ConsumeQueueUnit:
    return unpack_unit(files.read(end - UNIT_BYTES, UNIT_BYTES))


def _may_be_torn(files: SparseFileQueue, end: int) -> bool:
    # File sizes need not be a multiple of a sector, so count from the start of the file.
    inside = (end - 1) % files.file_size
    return (inside - UNIT_BYTES + 1) // _SECTOR_BYTES != inside // _SECTOR_BYTES
