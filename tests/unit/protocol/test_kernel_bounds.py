"""Contradictory arguments of the kernel are refused, compiled or not, before any byte is touched."""

from __future__ import annotations

from array import array

import pytest

from reput_protocol.kernel.index import follow_chain, insert_keys
from reput_protocol.kernel.units import queue_units


@pytest.mark.parametrize(("slots", "entries"), [(0, 3), (3, -1), (1 << 62, 3), (1, 922_337_203_685_477_581), (40, 3)])
def test_an_index_file_that_cannot_hold_its_slots_and_entries_is_refused(slots: int, entries: int) -> None:
    with pytest.raises(ValueError, match="no index file"):
        insert_keys(bytearray(200), slots, entries, array("q", [1]), 0, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="no index file"):
        follow_chain(bytes(200), slots, entries, 1, 0, 1)


@pytest.mark.parametrize(("sizes", "tags_codes"), [([], [1, 2]), ([1, 2], []), ([1, 2, 3], [1, 2])])
def test_columns_of_different_lengths_are_refused(sizes: list[int], tags_codes: list[int]) -> None:
    with pytest.raises(ValueError, match="2 offsets"):
        queue_units(array("q", [0, 100]), array("q", sizes), array("q", tags_codes), 0, -1, 0)
