"""The kernel reads the timer log's units as reading them one by one does."""

from __future__ import annotations

import struct
from array import array

from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.kernel.timer import chain_timer_units, filled_slots, timer_units, timer_units_ahead

SLOTS = 7
T0 = 1_700_000_000_000

# Size, previous, magic, write time, delay, physical offset, record size, hash of the topic, reserved.
fields = st.tuples(
    st.sampled_from([52, 52, 52, 0, 51]),
    st.just(-1),
    st.sampled_from([1, 2, 4, 5, 15, 16, -1]),
    st.sampled_from([0, -1, T0, T0 + 999, -(1 << 63), (1 << 63) - 1]) | st.integers(T0, T0 + 9000),
    st.sampled_from([0, 5000, -1, (1 << 31) - 1, -(1 << 31)]),
    st.integers(0, 9) | st.sampled_from([-1, (1 << 63) - 1]),
    st.just(100),
    st.sampled_from([77, -5]),
    st.just(0),
)
some = st.lists(fields, max_size=30)
Fields = tuple[int, int, int, int, int, int, int, int, int]


def packed(units: list[Fields]) -> bytes:
    return b"".join(struct.pack(">iqiqiqiiq", *unit) for unit in units)


def is_unit(unit: Fields) -> bool:
    return unit[0] == 52 and 0 <= unit[2] <= 15


def slot_of(unit: Fields) -> int:
    return unit[3] + unit[4] if 0 <= unit[3] < 1 << 62 else -1


@given(some, st.sampled_from([0, T0, T0 + 3000]))
def test_units_and_those_ahead(units: list[Fields], since_ms: int) -> None:
    count = 0
    while count < len(units) and is_unit(units[count]):
        count += 1
    assert timer_units(packed(units)) == count
    ahead = [unit for unit in units if is_unit(unit) and slot_of(unit) >= since_ms]
    found = timer_units_ahead(packed(units), since_ms)
    assert list(zip(found[::2], found[1::2], strict=True)) == [(slot_of(unit), unit[5]) for unit in ahead]


@given(st.lists(some, max_size=3), st.sampled_from([0, T0, T0 + 3000]), st.sets(st.integers(0, 9)))
def test_chains(pieces: list[list[Fields]], since_ms: int, done: set[int]) -> None:
    slots: dict[int, list[int]] = {}
    waiting: dict[int, int] = {}
    first, last_done = [], []
    wheel, counted = bytearray(32 * SLOTS), dict(waiting)
    position = 0
    for units in pieces:
        kept = [(at, unit) for at, unit in enumerate(units) if is_unit(unit) and slot_of(unit) >= since_ms]
        taken = [(position + 52 * at, unit) for at, unit in kept if unit[5] not in done]
        for at, unit in taken:
            second = slot_of(unit) // 1000
            sign = -1 if unit[2] & 4 else 1
            slot = slots.setdefault(second % SLOTS, [0, at, 0, 0])
            if slot[0] == 0:
                slot[1] = at
            slot[0], slot[2], slot[3] = second, at, slot[3] + sign
            waiting[unit[7]] = waiting.get(unit[7], 0) + sign
        first = [slot_of(unit) // 1000 * 1000 for _, unit in taken]
        last_done = [slot_of(unit) for _, unit in kept if unit[5] in done]
        found = chain_timer_units(wheel, packed(units), position, since_ms, array("q", sorted(done)), counted)
        assert found == (min(first, default=-1), max(last_done, default=-1))
        position += 52 * len(units)
    assert counted == waiting
    expected = b"".join(struct.pack(">qqqii", *slots.get(slot, (0, 0, 0, 0)), 0) for slot in range(SLOTS))
    assert wheel == expected


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([-1, 0, 52])), max_size=6), st.integers(-1, 3))
def test_slots_with_a_chain(slots: list[tuple[int, int]], second: int) -> None:
    data = b"".join(struct.pack(">qqqii", held, 0, last, 1, 0) for held, last in slots)
    expected = [at for at, (held, last) in enumerate(slots) if held == second + at and last >= 0]
    assert filled_slots(data, second) == expected
