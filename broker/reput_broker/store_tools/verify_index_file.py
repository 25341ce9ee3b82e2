"""Check one index file against itself: header, slots, chains, and what is not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.file_io import end_of_data
from reput_broker.store.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from reput_broker.store_tools.index_raw import RawIndex
from reput_broker.store_tools.report import Report
from reput_protocol.columns import IntArray

_FAULTS_MAX = 1024
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
    entries = raw.entries(1, used)
    for at, name, value, wanted in (
        (16, "beginPhyOffset", header.begin_physical_offset, int(entries["physical_offset"][0])),
        (24, "endPhyOffset", header.end_physical_offset, int(entries["physical_offset"][-1])),
    ):
        if value != wanted:
            fault(at, f"{name} is {value}, but the entry there gives log offset {wanted}")
    hashes = entries["hash"].astype(np.int64)
    negative = np.flatnonzero(hashes < 0)
    for index in negative[:_FAULTS_MAX].tolist():
        fault(raw.entry_place(index + 1), f"entry {index + 1} has a negative hash")
    _verify_chains(raw, entries, hashes, fault)


def _verify_chains(raw: RawIndex, entries: NDArray[Any], hashes: IntArray, fault: _Fault) -> None:
    """Each entry must name the one before it in its slot, each slot its newest one."""
    slot_of = hashes % raw.slot_count
    heads = np.zeros(raw.slot_count, np.int32)
    heads[slot_of] = np.arange(1, len(slot_of) + 1)  # of several, the last assignment stays
    in_use = int(np.count_nonzero(heads))
    found_before = entries["previous"].astype(np.int64)
    if not _are_chains(found_before, slot_of, in_use):
        previous = _entries_before(slot_of)
        for index in np.flatnonzero(found_before != previous)[:_FAULTS_MAX].tolist():
            fault(
                raw.entry_place(index + 1) + 16,
                f"entry {index + 1} names entry {int(found_before[index])} before it, should be {int(previous[index])}",
            )
    slots = raw.slots()
    for slot in np.flatnonzero(slots != heads)[:_FAULTS_MAX].tolist():
        fault(
            HEADER_BYTES + SLOT_BYTES * slot,
            f"slot {slot} names entry {int(slots[slot])}, should be {int(heads[slot])}",
        )
    if raw.header.slots_used != in_use:
        fault(32, f"hashSlotCount is {raw.header.slots_used}, but {in_use} slots are in use")


def _are_chains(previous: IntArray, slot_of: IntArray, slots_in_use: int) -> bool:
    """Whether every entry names the one before it in its slot; without the sorting that finding out which it is takes.

    If entries name older ones of their own slot only, and none is named twice, the entries of a slot are chains that
    descend. If there are as many ends of chains as slots in use, each of which has one at least, then each has one
    chain, and that descends through all of its entries.
    """
    count = len(previous)
    named = previous[previous != 0]
    if len(named) != count - slots_in_use or (previous < 0).any() or (previous > np.arange(count)).any():
        return False
    is_named = np.zeros(count + 1, np.bool_)
    is_named[named] = True
    if np.count_nonzero(is_named) != len(named):
        return False
    return bool((slot_of[named - 1] == slot_of[previous != 0]).all())


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
