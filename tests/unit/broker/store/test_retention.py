"""When files of the log are deleted, which, and what follows them; clocks and disk are fakes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reput_broker.store import retention as clean_consume_queue
from reput_broker.store.base.dispatch import DeletedTopics, DispatchBatch
from reput_broker.store.base.errors import FileMissing, FlushFailed
from reput_broker.store.base.results import Block, Extent, GetStatus, PutStatus, StoreStats
from reput_broker.store.index.service import IndexService
from reput_broker.store.message_store import MessageStore
from reput_broker.store.opening import start as opening
from reput_broker.store.queue.reput import LogFollower
from reput_broker.store.retention import (
    MANUAL_ROUNDS,
    UNREADABLE,
    DiskLevel,
    DiskWatch,
    RetentionRules,
    disk_used_ratio,
)
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.inside import log_of
from support.retention import HOUR_MS, RESERVED_MS, Cleaning, FakeMachine, fill, settle, store_files
from support.stores import BORN_HOST, T0, bodies, dispatch_all, killed, opened, put, read_queue, small_options

SIZE = 4096


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def store(tmp_path: Path, machine: FakeMachine) -> Iterator[MessageStore]:
    """A store of six log files whose clock is the machine's."""
    made = opened(small_options(tmp_path / "store"), clock_of(machine))
    fill(made, 6)
    machine.age(made.options.data_dir)
    yield made
    made.close()


def clock_of(machine: FakeMachine) -> Callable[[], int]:
    return lambda: machine.now_ms


# -- when -----------------------------------------------------------------------------------------------------


def test_nothing_is_deleted_outside_the_hours_while_there_is_space(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine)
    machine.now_ms += 10 * RESERVED_MS
    assert not cleaning.log.look()
    assert cleaning.log.delete_next() is None
    assert len(store_files(store)) == 6


def test_in_the_hour_files_past_their_time_go_from_the_oldest_on(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine)
    directory = store.options.commit_log_dir
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    young = directory / store_files(store)[3]
    os.utime(young, (machine.now_ms / 1000, machine.now_ms / 1000))
    assert [(file.base_offset, file.size, file.reason) for file in cleaning.clean_log()] == [
        (0, SIZE, "time"),
        (SIZE, SIZE, "time"),
        (2 * SIZE, SIZE, "time"),
    ], "and none behind one that is young enough"
    assert store.min_physical_offset == 3 * SIZE
    assert cleaning.clean_log() == []


def test_a_file_goes_at_the_very_moment_its_time_is_over(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine, delete_when=frozenset({4, 16}))
    machine.hour = 16
    machine.now_ms += RESERVED_MS - 1
    assert cleaning.clean_log() == []
    machine.now_ms += 1
    assert len(cleaning.clean_log()) == 5


def test_a_wall_clock_that_is_set_expires_nothing(store: MessageStore, machine: FakeMachine) -> None:
    """Forward: until the time has passed indeed. Back: until it is later by that clock as well."""
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    for jump_ms in (RESERVED_MS, -RESERVED_MS):
        machine.now_ms += jump_ms
        machine.set_forward_ms += jump_ms
        assert cleaning.clean_log() == []
    machine.now_ms += RESERVED_MS - 1
    assert cleaning.clean_log() == []
    machine.now_ms += 1
    assert len(cleaning.clean_log()) == 5


def test_the_last_file_stays_however_old_it_is(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += 100 * RESERVED_MS
    machine.used = 0.99
    assert len(cleaning.clean_log()) == 5
    assert store_files(store) == [f"{5 * SIZE:020d}"]
    assert cleaning.log.is_held_back


def test_a_round_ends_after_the_batch(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine, delete_files_batch=2)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    assert [len(cleaning.clean_log()) for _ in range(4)] == [2, 2, 1, 0]


def test_deletion_by_hand_works_at_any_hour_for_twenty_rounds(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine, delete_files_batch=1)
    cleaning.log.delete_manually()
    assert cleaning.clean_log() == [], "what is young stays all the same"
    machine.now_ms += RESERVED_MS
    assert len(cleaning.clean_log()) == 1
    assert sum(cleaning.log.look() for _ in range(50)) == MANUAL_ROUNDS - 2


def test_above_the_first_limit_files_past_their_time_go_at_any_hour(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine)
    machine.used = 0.75
    machine.now_ms += RESERVED_MS
    assert cleaning.clean_log() == []
    machine.used = 0.76
    assert {file.reason for file in cleaning.clean_log()} == {"time"}
    assert cleaning.log.disk.level is DiskLevel.CLEAN
    assert store.is_writable


def test_above_the_second_limit_files_go_whatever_their_age_and_no_more_than_needed(
    store: MessageStore, machine: FakeMachine
) -> None:
    cleaning = Cleaning(store, machine)
    machine.used = 0.85
    assert cleaning.clean_log() == []
    machine.used = 0.86
    assert cleaning.log.look()
    for _ in range(2):
        deleted = cleaning.log.delete_next()
        assert deleted is not None
        assert deleted.reason == "disk"
    machine.used = 0.85
    assert cleaning.log.delete_next() is None
    assert len(store_files(store)) == 4
    assert store.is_writable


def test_early_deletion_can_be_forbidden(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine, clean_file_forcibly=False)
    machine.used = 0.95
    assert cleaning.clean_log() == []
    assert put(store, b"x").status is PutStatus.DISK_FULL
    machine.now_ms += RESERVED_MS
    assert [file.reason for file in cleaning.clean_log()] == ["time"] * 5


def test_the_disk_of_the_queues_counts_as_well(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine)
    machine.used_by_queues = 0.86
    assert len(cleaning.clean_log()) == 5
    machine.used_by_queues = 0.91
    cleaning.clean_log()
    assert "consumequeue" in (store.disk_full_reason or "")


# -- refusing puts --------------------------------------------------------------------------------------------


def test_puts_are_refused_above_the_third_limit_until_it_is_down_to_the_second(
    store: MessageStore, machine: FakeMachine
) -> None:
    events: list[str] = []
    object.__setattr__(store.options, "on_event", lambda event, _facts: events.append(event))
    cleaning = Cleaning(store, machine, clean_file_forcibly=False)
    machine.used = 0.90
    cleaning.clean_log()
    before = store.max_physical_offset
    assert put(store, b"at the limit").status is PutStatus.PUT_OK
    machine.used = 0.91
    cleaning.clean_log()
    assert put(store, b"x").status is PutStatus.DISK_FULL
    assert "91%" in (store.disk_full_reason or "")
    assert "store.disk_warning_ratio" in (store.disk_full_reason or "")
    assert not store.is_writable
    machine.used = 0.86
    cleaning.clean_log()
    assert put(store, b"x").status is PutStatus.DISK_FULL, "between the limits nothing changes"
    between = cleaning.log.disk.level
    dispatch_all(store)
    assert bodies(store)[-1] == b"at the limit", "reading and dispatching go on"
    machine.used = 0.85
    cleaning.clean_log()
    assert put(store, b"again").status is PutStatus.PUT_OK
    assert store.disk_full_reason is None
    assert (between, cleaning.log.disk.level) == (DiskLevel.REFUSE, DiskLevel.CLEAN)
    assert events == ["store_disk_above_limit", "store_disk_below_limit"]
    assert store.max_physical_offset > before


def test_no_file_is_made_for_puts_that_are_refused(store: MessageStore, machine: FakeMachine) -> None:
    while not store.should_prepare_next_file():
        put(store, bytes(300))
    store.refuse_for_disk("the disk is too full")
    assert not store.should_prepare_next_file()
    assert not store.needs_new_file(4000)
    store.refuse_for_disk(None)
    assert store.should_prepare_next_file()
    assert store.needs_new_file(4000)


def test_a_refusal_for_the_disk_does_not_outlive_a_restart(store: MessageStore) -> None:
    store.refuse_for_disk("the disk is too full")
    assert store.close()
    store.open()
    assert put(store, b"x").status is PutStatus.PUT_OK


def test_the_fullest_disk_and_the_emptiest_log_disk_count(tmp_path: Path) -> None:
    used = {"a": 0.95, "b": 0.2, "q": 0.3}
    watch = DiskWatch(lambda path: used[path.name], [tmp_path / "a", tmp_path / "b"], tmp_path / "q")
    rules = RetentionRules()
    assert watch.look(rules) is DiskLevel.OK
    assert watch.used_ratio == 0.3
    used["b"] = 0.80
    assert watch.look(rules) is DiskLevel.CLEAN
    assert not watch.forces
    used["b"] = 0.92
    assert watch.look(rules) is DiskLevel.REFUSE
    assert str(tmp_path / "b") in (watch.refusal or "")


def test_a_disk_that_cannot_be_read_has_expired_files_deleted_and_refuses_nothing(tmp_path: Path) -> None:
    watch = DiskWatch(lambda _path: UNREADABLE, [tmp_path], tmp_path)
    assert watch.look(RetentionRules()) is DiskLevel.CLEAN
    assert not watch.forces
    assert watch.refusal is None


@pytest.mark.parametrize(
    ("blocks", "free", "available", "ratio"),
    [(1000, 500, 500, 0.5), (1000, 500, 400, 0.56), (1000, 99, 99, 0.91), (1000, 100, 100, 0.9), (0, 0, 0, -1.0)],
)
def test_use_is_rounded_up_to_a_whole_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, available: int, ratio: float
) -> None:
    asked: list[Path] = []

    def statvfs(path: Path) -> Any:
        asked.append(path)
        return SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert disk_used_ratio(tmp_path / "not" / "there" / "yet") == ratio
    assert asked == [tmp_path]


def test_a_disk_of_the_log_that_cannot_be_read_does_not_hide_that_the_others_are_full(tmp_path: Path) -> None:
    broken, full = tmp_path / "broken", tmp_path / "full"
    used = {broken: UNREADABLE, full: 0.99, tmp_path: 0.5}
    watch = DiskWatch(used.__getitem__, [broken, full], tmp_path)
    assert watch.look(RetentionRules()) is DiskLevel.REFUSE
    assert watch.forces
    used[full] = 0.1
    assert watch.look(RetentionRules()) is DiskLevel.CLEAN


def test_a_disk_that_does_not_answer_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.0 < disk_used_ratio(tmp_path) <= 1.0

    def statvfs(_path: Path) -> Any:
        raise OSError("gone")

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert disk_used_ratio(tmp_path) == UNREADABLE


# -- readers --------------------------------------------------------------------------------------------------


class Starts:
    """A dispatcher that notes where each batch begins."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def dispatch(self, batch: DispatchBatch) -> None:
        self.offsets.append(batch.start_offset)


def test_following_the_log_from_an_expired_offset_continues_with_the_first_record(
    store: MessageStore, machine: FakeMachine
) -> None:
    expired_and_held(store, machine)[1].release()
    first, log = store.min_physical_offset, log_of(store)
    assert first > 0
    seen: list[list[int]] = []
    for position in (0, first):
        starts, no_marks = Starts(), DeletedTopics(store.options.data_dir / "none")
        end = log.visible_end
        reader = LogFollower(log, [starts], no_marks, StoreStats(), limit=end, position=position, levels_ms=())
        while reader.step(1):
            pass
        assert reader.position == end()
        seen.append(starts.offsets)
    assert seen[0] == seen[1]
    assert seen[0][0] == first


def expired_and_held(store: MessageStore, machine: FakeMachine, **rules: object) -> tuple[Cleaning, Any]:
    """A round in which the oldest file was held."""
    cleaning = Cleaning(store, machine, **rules)
    held = store.hold_extents([Extent(0, 100)])
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    assert cleaning.clean_log() == [], "nothing goes behind a file that stays"
    return cleaning, held


def test_a_file_that_is_held_stays_until_it_is_released(store: MessageStore, machine: FakeMachine) -> None:
    whole = store.read_extents([Extent(0, 100)])
    cleaning, held = expired_and_held(store, machine)
    assert len(store_files(store)) == 6
    assert cleaning.log.hanged is not None
    assert store.min_physical_offset == SIZE, "it does not count as part of the log any more"
    assert store.message_at(0) is None
    for cold in (False, True):
        with pytest.raises(FileMissing):
            store.read_extents([Extent(0, 100)], cold=cold)
    with pytest.raises(FileMissing):
        store.hold_extents([Extent(0, 100)])
    assert cleaning.clean_log() == []
    assert held.read() == whole, "its reader reads on"
    held.release()
    held.release()
    assert [file.base_offset for file in cleaning.clean_log()] == [0, SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE]


def test_a_held_file_is_tried_again_periodically_without_a_round(store: MessageStore, machine: FakeMachine) -> None:
    cleaning, held = expired_and_held(store, machine)
    machine.hour = 12
    held.release()
    machine.waited_ms += 119_999
    assert cleaning.clean_log() == []
    machine.waited_ms += 1
    assert [(file.base_offset, file.reason) for file in cleaning.clean_log()] == [(0, "time")]
    assert len(store_files(store)) == 5
    machine.waited_ms += 1_000_000
    assert cleaning.log.retry_hanged() is None, "only what was tried before is tried again"


def test_the_wait_for_a_reader_is_bounded(store: MessageStore, machine: FakeMachine) -> None:
    whole = store.read_extents([Extent(0, 100)])
    cleaning, held = expired_and_held(store, machine)
    machine.waited_ms += 119_999
    assert cleaning.clean_log() == []
    machine.waited_ms += 1
    assert len(cleaning.clean_log()) == 5
    assert held.read() == whole, "the name is gone, the bytes are still the reader's"
    held.release()


def test_extents_in_several_files_hold_them_all(store: MessageStore, machine: FakeMachine) -> None:
    extents = [Extent(0, 50), Extent(60, 50), Extent(SIZE, 50)]
    whole = store.read_extents(extents)
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    with store.hold_extents(extents) as held:
        assert cleaning.clean_log() == []
        assert held.read() == whole
    assert len(cleaning.clean_log()) == 5
    with pytest.raises(FileMissing):
        store.hold_extents([Extent(5 * SIZE, 50), Extent(0, 50)])
    fill(store, 1)
    machine.age(store.options.data_dir)
    machine.now_ms += RESERVED_MS
    assert len(cleaning.clean_log()) == 1, "a hold that failed half way holds nothing"


def test_a_held_file_that_is_still_there_at_the_next_start_is_an_ordinary_file(
    store: MessageStore, machine: FakeMachine, tmp_path: Path
) -> None:
    expected = bodies(store)
    cleaning, held = expired_and_held(store, machine)
    cleaning.clean_queues()
    image = opened(killed(store, tmp_path / "image"))
    assert image.min_physical_offset == 0
    assert bodies(image) == expected
    assert image.close()
    held.release()


# -- which files may not go -----------------------------------------------------------------------------------


def test_records_that_no_queue_knows_yet_are_kept_even_on_a_full_disk(
    store: MessageStore, machine: FakeMachine
) -> None:
    cleaning = Cleaning(store, machine)
    for number in range(16):
        put(store, b"%d" % number + bytes(900), queue_id=1)
    machine.used = 0.99
    assert len(cleaning.clean_log()) == 5
    assert cleaning.log.is_held_back
    dispatch_all(store)
    assert cleaning.clean_log() == [], (
        "entries that are not on the disk could be lost, and their offsets be given again"
    )
    store.flush_consume_queues()
    cleaning.clean()
    assert len(store_files(store)) == 1
    assert store.max_offset_in_queue("T", 1) == 16


def test_a_file_removed_by_hand_is_released(store: MessageStore, machine: FakeMachine) -> None:
    (store.options.commit_log_dir / store_files(store)[0]).unlink()
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    assert [file.base_offset for file in cleaning.clean_log()] == [0]
    assert store.min_physical_offset == SIZE


def test_a_file_that_cannot_be_removed_is_tried_again(
    store: MessageStore, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_args, **_options: (_ for _ in ()).throw(PermissionError("no")))
        with pytest.raises(PermissionError):
            cleaning.clean_log()
    assert store.min_physical_offset == SIZE
    assert len(cleaning.clean_log()) == 5


def test_each_removal_is_on_the_disk_before_the_next(
    store: MessageStore, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were two on their way at once, a power cut could keep the older file and lose the younger: a gap."""
    steps: list[str] = []
    real_unlink, real_fsync = Path.unlink, os.fsync

    def unlink(path: Path, missing_ok: bool = False) -> None:
        steps.append(f"unlink {path.parent.name}")
        real_unlink(path, missing_ok=missing_ok)

    def fsync(fd: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        real_fsync(fd)

    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(os, "fsync", fsync)
    assert len(cleaning.clean()) == 5
    assert steps == ["unlink commitlog", "sync commitlog"] * 5 + ["unlink 0", "sync 0"] * 2


def test_a_removal_that_the_disk_does_not_confirm_is_logged(
    store: MessageStore, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    monkeypatch.setattr(os, "fsync", lambda _fd: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(FlushFailed):
        cleaning.clean_log()


# -- what follows the log -------------------------------------------------------------------------------------


def test_queues_follow_the_log(store: MessageStore, machine: FakeMachine) -> None:
    put(store, b"small", queue_id=1)
    settle(store)
    machine.age(store.options.data_dir)
    before = bodies(store)
    cleaning = Cleaning(store, machine)
    assert cleaning.clean_queues() == 0, "the log begins where it always did"
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    first_kept = store.min_offset_in_queue("T", 0)
    assert first_kept == 0
    cleaning.log.look()
    for _ in range(4):
        cleaning.log.delete_next()
    result = store.get_message("T", 0, 0, 100, 1 << 20)
    assert result.status is GetStatus.MESSAGE_WAS_REMOVING, "the queue has not followed yet"
    assert cleaning.clean_queues() == 1
    low = store.min_offset_in_queue("T", 0)
    assert low > 10, "the first queue file held ten"
    assert bodies(store) == before[low:]
    assert read_queue(store)[0].physical_offset >= store.min_physical_offset
    result = store.get_message("T", 0, 0, 100, 1 << 20)
    assert (result.status, result.next_begin_offset, result.min_offset) == (GetStatus.OFFSET_TOO_SMALL, low, low)
    assert store.get_message("T", 0, low - 1, 100, 1 << 20).status is GetStatus.OFFSET_TOO_SMALL
    assert not cleaning.queues.look(), "once is enough"


def test_a_queue_all_of_whose_messages_are_gone_keeps_its_place(
    store: MessageStore, machine: FakeMachine, tmp_path: Path
) -> None:
    count = store.max_offset_in_queue("T", 0)
    fill(store, 2, topic="U")
    machine.age(store.options.data_dir)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    Cleaning(store, machine).clean()
    for live in (store, opened(killed(store, tmp_path / "image"))):
        assert (live.min_offset_in_queue("T", 0), live.max_offset_in_queue("T", 0)) == (count, count)
        assert live.get_message("T", 0, count, 1, 100).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert live.get_message("T", 0, 0, 1, 100).next_begin_offset == count
        assert put(live, b"next").queue_offset == count
        dispatch_all(live)
        assert bodies(live) == [b"next"]


def test_a_topic_deleted_while_its_queues_are_cleaned_does_no_harm(store: MessageStore, machine: FakeMachine) -> None:
    fill(store, 1, topic="U")
    machine.age(store.options.data_dir)
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    cleaning.clean_log()
    assert cleaning.queues.look()
    store.delete_topic("T")
    assert put(store, b"anew").queue_offset == 0
    settle(store)
    while cleaning.queues.step() is not None:
        pass
    assert bodies(store) == [b"anew"]


def test_many_queues_are_cleaned_in_pieces(
    tmp_path: Path, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_consume_queue, "QUEUES_PER_STEP", 4)
    store = opened(small_options(tmp_path), clock_of(machine))
    for queue_id in range(10):
        put(store, b"x", queue_id=queue_id)
    fill(store, 2)
    machine.age(tmp_path)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    cleaning = Cleaning(store, machine)
    cleaning.clean_log()
    assert cleaning.queues.look()
    steps = 0
    while cleaning.queues.step() is not None:
        steps += 1
    assert steps == 10 // 4
    assert store.min_offset_in_queue("T", 9) == 1
    store.close()


class FakeIndex:
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.failing = False

    def delete_expired(self, min_physical_offset: int) -> int:
        self.asked.append(min_physical_offset)
        if self.failing:
            raise OSError("not now")
        return 3


def test_index_files_are_cleaned_after_the_queues(tmp_path: Path, machine: FakeMachine) -> None:
    index = FakeIndex()
    store = opened(small_options(tmp_path), clock_of(machine))
    fill(store, 4)
    machine.age(tmp_path)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    cleaning = Cleaning(store, machine)
    cleaning.queues._index, cleaning.queues._index_file_size = cast("IndexService", index), 1000
    cleaning.clean_log()
    index.failing = True
    with pytest.raises(OSError, match="not now"):
        cleaning.clean_queues()
    assert store.min_offset_in_queue("T", 0) > 0
    index.failing = False
    assert cleaning.queues.look(), "a round that failed is done again"
    steps = []
    while (step := cleaning.queues.step()) is not None:
        steps.append(step)
    assert steps == [("index", 3, 3000)]
    assert index.asked == [3 * SIZE, 3 * SIZE]
    store.close()


# -- starts after deletions -----------------------------------------------------------------------------------


def test_stops_of_any_kind_after_deletions_leave_a_directory_that_opens_and_agrees(
    store: MessageStore, machine: FakeMachine, tmp_path: Path
) -> None:
    before = bodies(store)
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    images = [killed(store, tmp_path / "0")]
    assert cleaning.log.look()
    while cleaning.log.delete_next() is not None:
        images.append(killed(store, tmp_path / str(len(images))))
    cleaning.queues.look()
    while cleaning.queues.step() is not None:
        images.append(killed(store, tmp_path / str(len(images))))
    for number, options in enumerate(images):
        start = min(number, 5) * SIZE
        for kind in ("abnormal", "clean", "clean"):
            again = MessageStore(options, clock_ms=clock_of(machine))
            report = again.open()
            assert (report.kind, report.dispatched, report.truncated_bytes) == (kind, 0, 0)
            assert again.min_physical_offset == start
            low = again.min_offset_in_queue("T", 0)
            assert bodies(again) == before[low:]
            assert again.store_timestamp("T", 0, low) > 0
            assert (
                again.get_message("T", 0, low - 1, 1, 100).status
                is (GetStatus.OFFSET_TOO_SMALL if low else GetStatus.FOUND)
                or low == 0
            )
            assert again.close()
    assert store.close()
    store.open()
    assert bodies(store) == before[store.min_offset_in_queue("T", 0) :]


def test_an_orderly_start_after_deletions_checks_the_last_file_only(store: MessageStore, machine: FakeMachine) -> None:
    cleaning = Cleaning(store, machine)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    cleaning.rules = RetentionRules(delete_files_batch=2)
    assert cleaning.clean() == [0, SIZE]
    assert store.close()
    report = store.open()
    assert (report.kind, report.checked_from) == ("clean", 5 * SIZE)


@pytest.mark.parametrize("lost", ["consumequeue", "checkpoint", "consumequeue/T", "deletedTopics"])
def test_queues_are_rebuilt_from_a_log_that_does_not_begin_at_0(
    store: MessageStore, machine: FakeMachine, tmp_path: Path, lost: str
) -> None:
    fill(store, 2, topic="U")
    machine.age(store.options.data_dir)
    cleaning = Cleaning(store, machine, delete_files_batch=4)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    cleaning.clean()
    low, expected = store.min_offset_in_queue("T", 0), bodies(store)
    options = killed(store, tmp_path / "image")
    path = options.data_dir / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for _ in range(2):
        again = opened(options)
        assert again.min_offset_in_queue("T", 0) == low
        assert bodies(again) == expected
        assert again.close()


@pytest.mark.parametrize("stopped_by", ["us", "RocketMQ"])
def test_a_start_killed_while_it_rebuilds_queues_is_repeated(
    store: MessageStore, machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: str
) -> None:
    """A queue with no message in the part that a start reads would otherwise stay incomplete unnoticed."""
    expected = bodies(store)
    machine.now_ms += HOUR_MS
    fill(store, 3, topic="U")
    machine.now_ms += HOUR_MS
    put(store, b"the last", topic="U")
    assert store.close()
    shutil.rmtree(store.options.consume_queue_dir / "T")
    if stopped_by == "RocketMQ":
        checkpoint = store.options.data_dir / "checkpoint"
        checkpoint.write_bytes(checkpoint.read_bytes()[:40].ljust(4096, b"\0"))

    class Killed(BaseException):
        pass

    image = tmp_path / "image"

    def kill(*_args: object) -> None:
        shutil.copytree(store.options.data_dir, image)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_dispatch", kill)
        with pytest.raises(Killed):
            store.open()
    again = opened(small_options(image))
    assert bodies(again) == expected
    assert again.close()
    store.open()


def test_deleting_during_reads_and_puts(tmp_path: Path, machine: FakeMachine) -> None:
    """Readers in the owner's thread and in others get whole messages or the word that they are gone, nothing else."""
    store = opened(small_options(tmp_path), clock_of(machine))
    cleaning = Cleaning(store, machine, delete_files_batch=1, delete_when=frozenset(range(24)), file_reserved_ms=0)
    machine.now_ms = 1 << 42  # long after any file was changed
    stop = threading.Event()
    failures: list[BaseException] = []

    def clean() -> None:
        try:
            while not stop.is_set():
                store.flush_commit_log()
                store.flush_consume_queues()
                if cleaning.log.look():
                    cleaning.log.delete_next()
                if cleaning.queues.look():
                    while cleaning.queues.step() is not None:
                        pass
        except BaseException as error:
            failures.append(error)

    def read_cold() -> None:
        try:
            while not stop.is_set():
                start = store.min_physical_offset
                try:
                    with store.hold_extents([Extent(start, 60)]) as held:
                        assert held.read()[4:7] == b"\xda\xa3\x20"
                except FileMissing:
                    assert store.min_physical_offset > start
        except BaseException as error:
            failures.append(error)

    put(store, b"first", queue_id=1)
    threads = [threading.Thread(target=clean), threading.Thread(target=read_cold)]
    for thread in threads:
        thread.start()
    offset = seen = number = 0
    while number < 300 or (store.min_physical_offset <= 5 * SIZE and number < 20_000 and not failures):
        assert put(store, b"%06d" % number + bytes(300)).queue_offset == number
        store.reput_step()
        result = store.get_message("T", 0, offset, 4, 1 << 20)
        if result.status is GetStatus.FOUND:
            try:
                data = store.read_extents(result.extents)
            except FileMissing:
                assert result.extents[0].physical_offset < store.min_physical_offset
            else:
                assert b"%06d" % offset in data
                seen += result.count
        assert result.next_begin_offset >= offset
        offset = result.next_begin_offset if number % 50 else store.min_offset_in_queue("T", 0)
        store.offset_by_timestamp("T", 0, machine.now_ms)
        store.earliest_message_time("T", 0)
        number += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen
    assert store.min_physical_offset > 5 * SIZE
    assert store.close()
    store.open()
    assert store.max_offset_in_queue("T", 0) == number
    store.close()


def test_files_derived_from_a_held_file_stay_until_it_is_gone(
    store: MessageStore, machine: FakeMachine, tmp_path: Path
) -> None:
    """After a kill the file is part of the log again, and so are its queue entries."""
    fill(store, 8)
    machine.age(store.options.data_dir)
    held = store.hold_extents([Extent(4 * SIZE, 50)])
    cleaning = Cleaning(store, machine, delete_files_batch=100)
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    assert cleaning.clean() == [0, SIZE, 2 * SIZE, 3 * SIZE]
    low = store.min_offset_in_queue("T", 0)
    assert read_queue(store)[0].physical_offset == 5 * SIZE, "readers are past it"
    image = opened(killed(store, tmp_path / "image"))
    assert image.min_physical_offset == 4 * SIZE
    assert image.min_offset_in_queue("T", 0) < low
    assert read_queue(image)[0].physical_offset == 4 * SIZE
    image.close()
    held.release()
    assert len(cleaning.clean()) > 5
    assert not cleaning.queues.look()


def put_with_key(store: MessageStore, key: str) -> None:
    block = bytearray(encode_put_block([Message("T", bytes(200), keys=[key])], "T", 0, T0))
    store.put_one(Block(block, "T", 0, 1, BORN_HOST))


def test_the_index_follows_the_log(store: MessageStore, machine: FakeMachine, tmp_path: Path) -> None:
    index = store._index
    assert index is not None
    for number in range(120):
        put_with_key(store, f"ID{number}")
    settle(store)
    store.flush_index()
    machine.age(store.options.data_dir)
    files = len(index.files)
    assert files >= 3
    machine.hour = 4
    machine.now_ms += RESERVED_MS
    cleaning = Cleaning(store, machine, delete_files_batch=100)
    cleaning.clean()
    assert len(index.files) < files
    assert len(list(store.options.index_dir.iterdir())) == len(index.files)
    for live in (store, opened(killed(store, tmp_path / "image"))):
        start = live.min_physical_offset
        live.complete_index()
        found = [number for number in range(120) if live.query_message("T", f"ID{number}", 1).records]
        assert found == list(range(found[0], 120)), "every key whose message is still there"
        assert start < live.max_physical_offset
    assert store.close()
    report = store.open()
    assert report.kind == "clean"
    store.complete_index()
    assert store.query_message("T", "ID119", 1).records
