"""Messages of active slots in memory: walking over one slot reads only that slot."""

from __future__ import annotations

import random
import time

from reput_broker.delay.active_slots import ActiveSlots
from reput_broker.delay.delayed_record import Due

SLOT, OTHER = 5000, 6000


def due(physical_offset: int, slot_ms: int = SLOT) -> Due:
    return Due(slot_ms + physical_offset % 1000, physical_offset, 100, 0, slot_ms, False)


def offsets(dues: list[Due]) -> list[int]:
    return [one.physical_offset for one in dues]


def test_a_page_reads_only_its_own_slot() -> None:
    timers = ActiveSlots()
    for slot_ms in (SLOT, OTHER):
        timers.activate(slot_ms, is_loaded=True)
    for physical_offset in range(100_000):
        timers.push(due(physical_offset, OTHER))
    for physical_offset in range(200_000, 201_000):
        timers.push(due(physical_offset))
    after, seen, began = -1, 0, time.process_time()
    while page := timers.waiting_in(SLOT, after, 10):
        seen, after = seen + len(page), page[-1].physical_offset
    assert seen == 1000
    assert time.process_time() - began < 0.5, "100 pages: sorting all that is loaded takes as long for each few"


def test_pages_hold_what_waits_while_messages_come_and_go() -> None:
    timers = ActiveSlots()
    timers.activate(SLOT, is_loaded=True)
    there = random.Random(7).sample(range(1000), 300)
    for physical_offset in there:
        timers.push(due(physical_offset))
    first = offsets(timers.waiting_in(SLOT, -1, 100))
    assert first == sorted(there)[:100]
    gone = sorted(there)[100:250:2]
    for physical_offset in gone:
        timers.done(physical_offset)
    timers.push(due(5000))
    timers.push(due(1500))
    timers.push(due(1500))
    rest = offsets(timers.waiting_in(SLOT, first[-1], 1000))
    assert rest == [*sorted({*there[:], 1500, 5000} - {*first, *gone})]
    assert len(timers) == 300 - len(gone) + 2
    taken = timers.take(10_000, 3)
    assert len(offsets(timers.waiting_in(SLOT, -1, 1000))) == len(timers), "they wait until they are delivered"
    timers.give_back(taken)
    for physical_offset in offsets(timers.waiting()):
        timers.done(physical_offset)
    assert timers.waiting_in(SLOT, -1, 10) == []
    assert timers.finish_before(SLOT + 1000)[0] == SLOT + 1000
