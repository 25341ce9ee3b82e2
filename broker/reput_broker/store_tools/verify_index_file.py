"""Check one index file against itself: header, slots, chains, and what is not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.file_io import end_of_data
from reput_broker.store.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from reput_broker.store_tools.index_raw import RawIndex
from reput_broker.store_tools.report import Report
from reput_protocol.record_columns import IntArray

_FAULTS_MAX = 1024
_PIECE = 1 << 18
"""So many entries are looked at at once."""
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
        wanted = int(raw.entries(entry, entry + 1)["physical_offset"][0])
        if value != wanted:
            fault(at, f"{name} is {value}, but the entry there gives log offset {wanted}")
    left = _FAULTS_MAX
    for first, entries in _pieces(raw):
        for index in np.flatnonzero(entries["hash"] < 0)[:left].tolist():
            fault(raw.entry_place(first + index), f"entry {first + index} has a negative hash")
            left -= 1
    _verify_chains(raw, fault)


def _pieces(raw: RawIndex) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the entries in use, and the number of the first, piece by piece: a file may hold 20 million of them."""
    for first in range(1, raw.used, _PIECE):
        yield first, raw.entries(first, min(first + _PIECE, raw.used))


def _slots_of(raw: RawIndex, hashes: NDArray[Any]) -> IntArray:
    slots: IntArray = hashes.astype(np.int64) % raw.slot_count
    return slots


def _verify_chains(raw: RawIndex, fault: _Fault) -> None:
    """Each entry must name the one before it in its slot, each slot its newest one."""
    heads = np.zeros(raw.slot_count, np.int32)
    for first, entries in _pieces(raw):  # of several entries of a slot, the last assignment stays
        heads[_slots_of(raw, entries["hash"])] = np.arange(first, first + len(entries))
    in_use = int(np.count_nonzero(heads))
    if not _are_chains(raw, in_use):
        entries = raw.entries(1, raw.used)
        previous = _entries_before(_slots_of(raw, entries["hash"]))
        for index in np.flatnonzero(entries["previous"] != previous)[:_FAULTS_MAX].tolist():
            found, wanted = int(entries["previous"][index]), int(previous[index])
            fault(
                raw.entry_place(index + 1) + 16,
                f"entry {index + 1} names entry {found} before it, should be {wanted}",
            )
    slots = raw.slots()
    for slot in np.flatnonzero(slots != heads)[:_FAULTS_MAX].tolist():
        fault(
            HEADER_BYTES + SLOT_BYTES * slot,
            f"slot {slot} names entry {int(slots[slot])}, should be {int(heads[slot])}",
        )
    if raw.header.slots_used != in_use:
        fault(32, f"hashSlotCount is {raw.header.slots_used}, but {in_use} slots are in use")


def _are_chains(raw: RawIndex, slots_in_use: int) -> bool:
    """Whether every entry names the one before it in its slot; without the sorting that finding out which it is takes.

    If entries name older ones of their own slot only, and none is named twice, the entries of a slot are chains that
    descend. If there are as many ends of chains as slots in use, each of which has one at least, then each has one
    chain, and that descends through all of its entries.
    """
    hashes = raw.entries(0, raw.used)["hash"]
    is_named = np.zeros(raw.used, np.bool_)
    names = 0
    for first, entries in _pieces(raw):
        previous = entries["previous"].astype(np.int64)
        if (previous < 0).any() or (previous >= np.arange(first, first + len(entries))).any():
            return False
        has_one = previous != 0
        named = previous[has_one]
        if (_slots_of(raw, hashes[named]) != _slots_of(raw, entries["hash"][has_one])).any():
            return False
        is_named[named] = True
        names += len(named)
    return names == int(np.count_nonzero(is_named)) == raw.used - 1 - slots_in_use


def _entries_before(slot_of: IntArray) -> IntArray:
    """Return the entry before each in its slot, 0 where there is none."""
    order = np.argsort(slot_of, kind="stable")
    ordered = slot_of[order]
    previous = np.zeros(len(order), np.int64)
    previous[order[1:]] = np.where(ordered[1:] == ordered[:-1], order[:-1] + 1, 0)
    return previous


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
