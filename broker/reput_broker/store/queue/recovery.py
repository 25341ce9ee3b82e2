"""Find where the valid units of a queue end (RocketMQ: ConsumeQueue)."""

from __future__ import annotations

from typing import NamedTuple

from reput_broker.store.queue.files import RECOVERED_FILES, SparseFileQueue
from reput_protocol.kernel.units import address_units, valid_units
from reput_protocol.store.unit import UNIT_BYTES, ConsumeQueueUnit, unpack_unit

_CHUNK_UNITS = 16_384
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class UnitsEnd(NamedTuple):
    """Where the valid units of a queue end."""

    position: int
    """Logic position; the start of the first file if there are no valid units."""
    last: ConsumeQueueUnit | None


class _Valid(NamedTuple):
    end: int
    last: ConsumeQueueUnit | None


def find_end(files: SparseFileQueue) -> UnitsEnd:
    """Find where the valid units of a loaded queue end.

    Scans the last three files. A unit is valid with a physical offset >= 0 and a size > 0. Pre-blank units alone do not
    count; RocketMQ would take them for an index of 2 GiB.
    """
    if files.is_empty:
        return UnitsEnd(0, None)
    begin = max(files.first_start, files.last_start - (RECOVERED_FILES - 1) * files.file_size)
    end, last = _valid_until(files, begin, files.end, _HIGHEST)
    if last is None and end > files.first_start:
        last = _unit_before(files, end)
    return _without_blanks(files, end, last)


def find_end_before(files: SparseFileQueue, physical_offset: int) -> UnitsEnd:
    """Find the end of the valid units of records before a physical offset: the first other unit ends them."""
    end, last = files.first_start, None
    start = files.last_start
    while not files.is_empty and start >= files.first_start:
        stop = min(start + files.file_size, files.end)
        end, last = _valid_until(files, start, stop, physical_offset)
        if last is not None:
            break
        start -= files.file_size
    return _without_blanks(files, end, last)


def _without_blanks(files: SparseFileQueue, end: int, last: ConsumeQueueUnit | None) -> UnitsEnd:
    if last is None or last.is_pre_blank:
        return UnitsEnd(files.first_start, None)
    return UnitsEnd(end, last)


def last_address(files: SparseFileQueue, end: int) -> ConsumeQueueUnit | None:
    """Return the last unit before a position that holds the address of an extended entry, or None.

    Usually that is the last unit. If extended entries have only just been enabled, it reads on to the first.
    """
    count = 1
    while end > files.first_start:
        inside = end - (end - 1) // files.file_size * files.file_size
        start = end - min(count * UNIT_BYTES, inside)
        data = files.read(start, end - start)
        _, found = address_units(data, _LOWEST)
        if found >= 0:
            return unpack_unit(data, found)
        end = start
        count = _CHUNK_UNITS
    return None


def first_address(files: SparseFileQueue, end: int, min_physical_offset: int) -> ConsumeQueueUnit | None:
    """Return the first unit before a position with an address and a record in the log, or None."""
    position = files.first_start
    count = 1
    while position < end:
        in_file = files.file_size - position % files.file_size
        data = files.read(position, min(count * UNIT_BYTES, in_file, end - position))
        found, _ = address_units(data, min_physical_offset)
        if found >= 0:
            return unpack_unit(data, found)
        position += len(data)
        count = _CHUNK_UNITS
    return None


def _valid_until(files: SparseFileQueue, position: int, stop: int, physical_limit: int) -> _Valid:
    last: ConsumeQueueUnit | None = None
    while position < stop:
        in_file = files.file_size - position % files.file_size
        data = files.read(position, min(_CHUNK_UNITS * UNIT_BYTES, in_file, stop - position))
        count = valid_units(data, physical_limit)
        if count:
            last = unpack_unit(data, count - 1)
            position += count * UNIT_BYTES
        if count < len(data) // UNIT_BYTES:
            break
    return _Valid(position, last)


def _unit_before(files: SparseFileQueue, end: int) -> ConsumeQueueUnit:
    return unpack_unit(files.read(end - UNIT_BYTES, UNIT_BYTES))
