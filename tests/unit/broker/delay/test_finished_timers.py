"""What a slave keeps of how far its master's timer was."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from reput_broker.delay.active_slots import ActiveSlots
from reput_broker.delay.delayed_record import Due
from reput_broker.delay.state import encode_finished, load_finished, read_answer
from reput_broker.delay.timer_message_store import FinishedTimers, Timed, TimerMessageStore
from reput_broker.tables.config_file import ConfigFile

HEAD = struct.pack(">7q", 5000, 11, 22, 22, 0, 1, 2)
NOW_MS = 1_700_000_000_000


def saved(path: Path, body: bytes) -> FinishedTimers | None:
    file = ConfigFile(path / "masterTimer.json")
    file.save(json.dumps(read_answer(body)).encode())
    return load_finished(file)


def test_the_answer_of_a_reput_master_and_of_rocketmq(tmp_path: Path) -> None:
    assert load_finished(ConfigFile(tmp_path / "masterTimer.json")) is None
    finished = FinishedTimers(6000, 33, 44, 55)
    assert saved(tmp_path, HEAD + encode_finished(finished)) == finished
    apache = saved(tmp_path, HEAD)
    assert apache is not None
    assert (apache.read_ms, apache.queue_offset, apache.replay_from) == (5000, 22, None)
    with pytest.raises(ValueError, match="55 bytes"):
        read_answer(HEAD[:55])


def timed(out_ms: int, *, stored_ms: int = NOW_MS, physical_offset: int = 100) -> Timed:
    return Timed(physical_offset, 10, stored_ms, out_ms, out_ms, 0, cancels=False)


def test_what_counts_as_finished(tmp_path: Path) -> None:
    day_ms = 86_400_000
    timers = TimerMessageStore(tmp_path, log_file_size=4096, roll_window_ms=lambda: 2 * day_ms, slots=604_800)
    assert not timers.was_finished(0, timed(NOW_MS - 5000)), "no master said so"
    finished = FinishedTimers(NOW_MS, queue_offset=10, late_from=1000, replay_from=7)
    assert timers.open(0, 10, NOW_MS, lambda _: None, finished) == 7, "not the whole log"
    assert not timers.is_rebuilt
    assert timers.was_finished(9, timed(NOW_MS - 5000))
    assert not timers.was_finished(9, timed(NOW_MS)), "its slot was not finished"
    assert not timers.was_finished(10, timed(NOW_MS - 5000)), "it was not in a slot"
    assert not timers.was_finished(9, timed(NOW_MS - 5000, physical_offset=1000)), "it may have been late"
    far_ms = NOW_MS + 3 * day_ms
    assert not timers.was_finished(9, timed(far_ms, stored_ms=NOW_MS - day_ms // 4)), "it rolls later"
    assert timers.was_finished(9, timed(far_ms, stored_ms=NOW_MS - 3 * day_ms)), "it has rolled: its copy counts"
    timers.close()


def test_a_message_is_late_if_it_was_due_before_the_first_unfinished_slot() -> None:
    active = ActiveSlots()
    active.activate(NOW_MS, is_loaded=True)
    for offset, due_ms in ((300, NOW_MS + 10), (200, NOW_MS - 10), (250, NOW_MS - 20)):
        active.push(Due(due_ms, offset, 10, 0, NOW_MS))
    assert active.first_late(NOW_MS, 999) == 200
    assert active.first_late(NOW_MS - 50, 999) == 999
