"""Check one index file against itself: header, slots, chains, and what is not used."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from typing import Final

from reput_broker.store.file_io import end_of_data
from reput_broker.store.index.file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from reput_broker.store_tools.index_raw import RawIndex
from reput_broker.store_tools.report import Report
from reput_protocol.kernel import index_chains

_FAULTS_MAX = 1024
_SLOT: Final = struct.Struct(">i")
_Fault = Callable[[int, str], None]


def verify_index_file(raw: RawIndex, report: Report) -> None:
    """Check header, chains and slots of a file, and that what is not used is zero."""

    def fault(position: int, reason: str) -> None:
        report.fault("index", raw.path, position, reason)

    header, used = raw.header, raw.used
    if not 0 <= header.next_entry <= raw.entry_max:
        fault(36, f"indexCount is {header.next_entry}, the file has room for {raw.entry_max}")
    _verify_rest(raw, fault)
    if used < 2:
        return
    for at, name, value, entry in (
        (16, "beginPhyOffset", header.begin_physical_offset, 1),
        (24, "endPhyOffset", header.end_physical_offset, used - 1),
    ):
        wanted = raw.entries(entry, entry + 1)[0].physical_offset
        if value != wanted:
            fault(at, f"{name} is {value}, but the entry there gives log offset {wanted}")
    slots, slots_used, negative, wrong = index_chains(raw.data, raw.slot_count, used, _FAULTS_MAX)
    for number in negative:
        fault(raw.entry_place(number), f"entry {number} has a negative hash")
    for number, found, right in wrong:
        fault(
            raw.entry_place(number) + 16,
            f"entry {number} names entry {found} before it, should be {right}",
        )
    if raw.slots != slots:
        _verify_slots(raw, slots, fault)
    if header.slots_used != slots_used:
        fault(32, f"hashSlotCount is {header.slots_used}, but {slots_used} slots are in use")


def _verify_slots(raw: RawIndex, slots: bytearray, fault: _Fault) -> None:
    """Each slot must name its newest entry."""
    pairs = zip(_SLOT.iter_unpack(raw.slots), _SLOT.iter_unpack(slots), strict=True)
    wrong = ((slot, *found, *right) for slot, (found, right) in enumerate(pairs) if found != right)
    for slot, found, right in islice(wrong, _FAULTS_MAX):
        fault(
            HEADER_BYTES + SLOT_BYTES * slot,
            f"slot {slot} names entry {found}, should be {right}",
        )


def _verify_rest(raw: RawIndex, fault: _Fault) -> None:
    """Entry 0 and all behind the last one must be zero."""
    with raw.path.open("rb") as file:
        fd = file.fileno()
        stop = end_of_data(fd, raw.entries_at, raw.entries_at + ENTRY_BYTES)
        if stop > raw.entries_at:
            fault(stop - 1, "entry 0 is never used, but not zero")
        free = raw.entry_place(raw.used)
        stop = end_of_data(fd, free, raw.size)
        if stop > free:
            fault(free, f"the bytes behind the last entry are not zero, up to byte {stop}")
