"""The kernel finds in the entries of a queue what reading them one by one finds."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from reput_broker.store.base.results import Extent, TransferLimits
from reput_broker.store.message_reader import GET_BYTES_MIN, LogWindow, Selection, select, spans_files
from reput_protocol.filter.tags import TagFilter, tag_hash
from reput_protocol.kernel.units import (
    address_units,
    damaged_unit,
    differing_units,
    doubtful_units,
    files_of_units,
    unit_runs,
    unit_table,
    valid_units,
)
from reput_protocol.record.layout import tags_code
from reput_protocol.store.unit import PRE_BLANK_SIZE, UNIT, ConsumeQueueUnit

Units = list[ConsumeQueueUnit]

CODES = [tags_code("a"), tags_code("größe"), 0, -(1 << 31), (1 << 31) - 1, (1 << 32) + tags_code("a")]
ADDRESSES = [-(1 << 63), -(1 << 31) - 1]
FILTERS = [None, *map(TagFilter.parse, ["*", "a", "größe", "a||größe||c", "none", " || "])]

in_order = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 40]), st.sampled_from([91, 150, 400]), st.sampled_from(CODES + ADDRESSES)),
    max_size=60,
)
damaged = st.builds(
    ConsumeQueueUnit,
    st.sampled_from([0, 1, 4000, 4096, 8192, -1, -(1 << 63), (1 << 63) - 1]) | st.integers(0, 10_000),
    st.sampled_from([0, 1, 96, 97, 4096, -1, PRE_BLANK_SIZE, -(1 << 31)]),
    st.sampled_from(CODES + ADDRESSES),
)


def units_of(moves: list[tuple[int, int, int]]) -> Units:
    units, at = [], 0
    for gap, size, code in moves:
        units.append(ConsumeQueueUnit(at + gap, size, code))
        at += gap + size
    return units


some_units = st.lists(damaged, max_size=12) | in_order.map(units_of)


def packed(units: Units) -> bytes:
    return b"".join(UNIT.pack(*unit) for unit in units)


def selected(
    units: Units,
    window: LogWindow,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    limits: TransferLimits,
    accepts: Callable[[int, int], bool | None],
) -> Selection:
    """The rules of RocketMQ's broker (getMessage, isTheBatchFull), unit by unit."""
    max_bytes = max(max_bytes, GET_BYTES_MIN)
    count = total = missing = scanned = 0
    extents: list[Extent] = []
    for place, size, code in units:
        if count:
            if place >= window.memory_from:
                fits = total + size <= limits.memory_bytes and count < limits.memory_messages
            else:
                fits = total + size <= limits.disk_bytes and count < limits.disk_messages
            if not fits or total + size > max_bytes or total >= max_bytes or count >= max_messages:
                break
        is_address = code < -(1 << 31)
        is_wanted = tag_filter is None or tag_filter.matches_all or tag_hash(code) in tag_filter.codes
        if not is_address and not is_wanted:
            scanned += 1
            continue
        if place < window.min_offset or place + size > window.max_offset or size <= 0:
            scanned += 1
            missing += 1
            continue
        verdict = accepts(place, size)
        if verdict is None:
            break
        scanned += 1
        if verdict:
            count += 1
            total += size
            if extents and extents[-1].physical_offset + extents[-1].size == place:
                extents[-1] = Extent(extents[-1].physical_offset, extents[-1].size + size)
            else:
                extents.append(Extent(place, size))
    return Selection(scanned, count, total, tuple(extents), missing)


@given(
    some_units,
    st.builds(
        LogWindow,
        st.sampled_from([0, 0, 700]),
        st.sampled_from([8192, 1 << 40, (1 << 63) - 1]),
        st.sampled_from([0, 2000, 1 << 40]),
        st.just(4096),
    ),
    st.sampled_from([1, 5, 1000]),
    st.sampled_from([100, 2000, 1 << 20]),
    st.sampled_from(FILTERS),
    st.builds(
        TransferLimits,
        st.sampled_from([300, 3000, 1 << 20]),
        st.sampled_from([3, 32]),
        st.sampled_from([91, 3000]),
        st.sampled_from([1, 8]),
        st.just(0),
    ),
    st.sampled_from([None, 2, 5]),
)
def test_the_rules_of_a_get(
    units: Units,
    window: LogWindow,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    limits: TransferLimits,
    modulus: int | None,
) -> None:
    def accepts(place: int, size: int) -> bool | None:
        return None if (place + size) % 7 == 3 else (place + size) % modulus > 0 if modulus else True

    arguments = (window, max_messages, max_bytes, tag_filter, limits)
    assert select(packed(units), *arguments, accepts) == selected(units, *arguments, accepts)
    assert select(packed(units), *arguments) == selected(units, *arguments, lambda *_: True)


def test_a_position_outside_its_file_is_found_anywhere() -> None:
    window = LogWindow(0, 8192, 0, 4096)
    sound = [Extent(0, 100), Extent(3996, 100), Extent(4096, 4096)]
    assert not spans_files(sound, window)
    assert spans_files([*sound, Extent(3997, 100)], window)


@given(some_units, st.sampled_from([0, 8192, (1 << 63) - 1]))
@example([ConsumeQueueUnit(3996, 100, 1), ConsumeQueueUnit(3996, 101, 1)], 8192)
def test_the_first_damaged_unit(units: Units, log_end: int) -> None:
    expected = [
        number
        for number, (place, size, _) in enumerate(units)
        if place < 0 or size <= 0 or (size != PRE_BLANK_SIZE and (place + size > log_end or place % 4096 + size > 4096))
    ]
    assert damaged_unit(packed(units), log_end, 4096) == (expected[0] if expected else -1)


@given(some_units, st.sampled_from([0, 4000]), st.sampled_from([0, 8192, (1 << 63) - 1]))
def test_the_files_of_units(units: Units, log_start: int, log_end: int) -> None:
    present = [unit for unit in units if unit.size > 0 and log_start <= unit[0] <= log_end - unit[1]]
    found = files_of_units(packed(units), log_start, log_end, 4096)
    files = [place // 4096 for place in found]
    assert len(set(files)) == len(files)
    assert set(files) == {unit.physical_offset // 4096 for unit in present}
    assert set(found) <= {unit.physical_offset for unit in present}


@given(some_units, st.sampled_from([0, 700]), st.sampled_from([4096, (1 << 63) - 1]))
def test_units_as_numbers(units: Units, log_start: int, log_end: int) -> None:
    table, is_sound = unit_table(packed(units), 7, 3, log_start, log_end)
    expected = [(place, size, number, 3) for number, (place, size, _) in enumerate(units, 7)]
    assert list(zip(*[iter(table)] * 4, strict=True)) == expected
    places = [unit.physical_offset for unit in units]
    assert is_sound == (
        places == sorted(places)
        and all(log_start <= place < log_end for place in places)
        and all(unit.size >= 92 and unit.size != PRE_BLANK_SIZE for unit in units)
    )


@given(some_units, st.sampled_from([0, 700]), st.sampled_from([4096, 8192]), st.sampled_from([150, 5000]))
def test_units_whose_records_may_not_be_there(units: Units, log_start: int, log_end: int, size_max: int) -> None:
    table, _ = unit_table(packed(units), 0, 0, log_start, log_end)
    doubtful = [
        row
        for row, (place, size, _) in enumerate(units)
        if not log_start <= place <= log_end - size
        or size > size_max
        or (row + 1 < len(units) and units[row + 1].physical_offset < place + size)
    ]
    assert doubtful_units(table, log_start, log_end, size_max) == doubtful


@given(in_order.map(units_of), st.sampled_from([0, 39, 40]))
def test_records_that_are_read_together(units: Units, gap_max: int) -> None:
    table, _ = unit_table(packed(units), 0, 0, 0, 1 << 40)
    firsts = []
    end = -(1 << 40)
    for row, (place, size, _) in enumerate(units):
        if place > end + gap_max:
            firsts.append(row)
        end = place + size
    assert unit_runs(table, gap_max) == firsts
    overlapping, _ = unit_table(packed([*units, *units]), 0, 0, 0, 1 << 40)
    assert unit_runs(overlapping, gap_max) == firsts + [len(units) + row for row in firsts]


@given(some_units, st.sampled_from([0, 700, 4096, (1 << 63) - 1]))
def test_valid_units_and_addresses(units: Units, place: int) -> None:
    count = 0
    while count < len(units) and 0 <= units[count].physical_offset < place and units[count].size > 0:
        count += 1
    assert valid_units(packed(units), place) == count
    addresses = [
        number for number, unit in enumerate(units) if unit.tags_code in ADDRESSES and unit.physical_offset >= place
    ]
    expected = (addresses[0], addresses[-1]) if addresses else (-1, -1)
    assert address_units(packed(units), place) == expected


@given(some_units, st.sets(st.integers(0, 70)), st.integers(0, 3))
def test_units_of_other_records(units: Units, changed: set[int], start: int) -> None:
    records = array("q", [7] * 3 * start)
    for number, (place, size, _) in enumerate(units):
        is_changed = number in changed
        records.extend((number, place ^ (is_changed and number % 2), size ^ (is_changed and not number % 2)))
    expected = sorted(start + number for number in changed if number < len(units))
    assert differing_units(packed(units), records, start) == expected
