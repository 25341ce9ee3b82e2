"""The wheel and its log match a plain table of delayed messages by second, through restarts and lost files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from reput_broker.delay.delayed_record import OffsetSet
from reput_broker.delay.timer_log import NO_POSITION
from reput_broker.delay.timer_message_store import Timed, TimerMessageStore
from reput_broker.delay.timer_wheel import PRECISION_MS, slot_of
from support.stores import T0

SLOTS = 400
WINDOW_MS = 60_000
FILE_BYTES = 52 * 4 + 16
NOW_MS = T0 + 500
parked = st.lists(
    st.tuples(st.integers(-5_000, 190_000), st.integers(0, 3_000), st.booleans()), min_size=1, max_size=60
)
"""For each message when it is due from NOW on, how long ago it was put, and whether it cancels another one."""


def timed(number: int, due_in_ms: int, age_ms: int, cancels: bool) -> Timed:
    due_ms = NOW_MS + due_in_ms
    return Timed(
        1000 * (number + 1), 100, NOW_MS - age_ms, slot_of(due_ms - 1), due_ms, 7, cancels=cancels, stays=cancels
    )


def expected_slot(one: Timed, read_ms: int) -> tuple[int, bool]:
    """The rule in other words: a message waits in its own second, or halfway or a whole window on the way there."""
    begin = slot_of(one.stored_ms)
    ahead = one.out_ms - begin
    if one.stays or ahead < WINDOW_MS:
        return max(one.out_ms, read_ms), False
    step = WINDOW_MS // 2 if ahead - WINDOW_MS < WINDOW_MS // 3 else WINDOW_MS
    return max(begin + slot_of(step), read_ms), True


@contextmanager
def directory() -> Iterator[Path]:
    path = tempfile.mkdtemp(prefix="reput-timers-")
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


def opened(data_dir: Path, count: int) -> TimerMessageStore:
    timers = TimerMessageStore(data_dir, log_file_size=FILE_BYTES, roll_window_ms=lambda: WINDOW_MS, slots=SLOTS)
    timers.open(0, count, NOW_MS, lambda _: None)
    timers.recover(NOW_MS, OffsetSet())
    return timers


def feed(timers: TimerMessageStore, entries: list[Timed]) -> None:
    while timers.queue_offset < len(entries):
        if timers.needs_files() or timers.log.should_prepare_file():
            timers.make_files()
        assert timers.add(entries[timers.queue_offset : timers.queue_offset + 7], NOW_MS)


def save(timers: TimerMessageStore) -> None:
    progress = timers.progress(10**9)
    timers.flush()
    timers.checkpoint.save(progress, NOW_MS)


def chains(timers: TimerMessageStore) -> dict[int, list[tuple[int, bool, bool]]]:
    """Who waits in which slot, the oldest first, as the wheel and the log say."""
    found = {}
    start = timers.read_ms
    for slot_ms, slot in timers.wheel.filled(start, start + SLOTS * PRECISION_MS):
        units, position = timers.log.chain(slot.last, 10_000)
        assert position == NO_POSITION
        assert slot.number == sum(-1 if unit.cancels else 1 for unit in units)
        assert all(unit.slot_ms == slot_ms for unit in units)
        found[slot_ms] = [(unit.physical_offset, unit.rolls, unit.cancels) for unit in reversed(units)]
    return found


def table(entries: list[Timed], read_ms: int) -> dict[int, list[tuple[int, bool, bool]]]:
    """The same from the messages alone."""
    found: dict[int, list[tuple[int, bool, bool]]] = {}
    for one in entries:
        slot_ms, rolls = expected_slot(one, read_ms)
        found.setdefault(slot_ms, []).append((one.physical_offset, rolls, one.cancels))
    return found


@settings(deadline=None, max_examples=60)
@given(parked, st.integers(0, 60), st.sampled_from(["nothing", "wheel", "log", "check", "flip"]), st.randoms())
def test_every_message_waits_in_its_slot_whatever_is_lost(
    items: list[tuple[int, int, bool]], saved_at: int, lost: str, rng: object
) -> None:
    entries = [timed(number, *item) for number, item in enumerate(items)]
    saved_at = min(saved_at, len(entries))
    with directory() as data_dir:
        timers = opened(data_dir, len(entries))
        feed(timers, entries[:saved_at])
        save(timers)
        feed(timers, entries)
        expected = table(entries, timers.read_ms)
        assert chains(timers) == expected
        for slot_ms, waiting in expected.items():  # and each is found again without its slot
            for physical_offset, _, _ in waiting:
                assert timers.slot_with(physical_offset) == slot_ms
        assert timers.first_waiting(10**9) == 1000
        timers.close()

        if lost == "wheel":
            (data_dir / "timerwheel").unlink()
        elif lost == "check":
            (data_dir / "config" / "timercheck").unlink()
        elif lost == "log" and saved_at:
            max((data_dir / "timerlog").iterdir()).unlink()
        elif lost == "flip" and saved_at:
            path = min((data_dir / "timerlog").iterdir())
            content = bytearray(path.read_bytes())
            content[rng.randrange(52 * min(4, saved_at))] ^= 1 << rng.randrange(8)  # type: ignore[attr-defined]
            path.write_bytes(content)

        again = opened(data_dir, len(entries))
        if lost in ("nothing", "wheel"):
            assert again.queue_offset == saved_at
        elif lost in ("check", "flip") and saved_at:
            assert again.queue_offset == 0
            assert again.is_rebuilt
        feed(again, entries)
        assert chains(again) == expected
        again.close()
