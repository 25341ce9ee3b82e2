"""The timer's files, byte for byte as RocketMQ keeps them (store-format 11.4), and what a crash leaves of them."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest

from reput_broker.delay.delayed_record import OffsetSet
from reput_broker.delay.timer_checkpoint import TimerCheckDamaged, TimerCheckpoint, TimerProgress
from reput_broker.delay.timer_log import UNIT, TimerLog, TimerUnit, unpack_timer_unit
from reput_broker.delay.timer_message_store import image_of
from reput_broker.delay.timer_wheel import EMPTY, SLOT_BYTES, SLOTS, Slot, TimerWheel
from reput_broker.store.base.errors import ForeignFile
from support.stores import T0, flip_bit

FILE_BYTES = 52 * 3 + 16
"""Room for three units and the blank one."""


def unit(number: int, previous: int = -1, slot_ms: int = T0, magic: int = 1) -> TimerUnit:
    return TimerUnit(previous, magic, T0 - 5000, slot_ms - T0 + 5000, 1000 * number, 100 + number, 77)


def log_of(directory: Path, count: int = 0) -> TimerLog:
    log = TimerLog(directory, FILE_BYTES)
    log.load()
    for number in range(count):
        append(log, unit(number))
    return log


def append(log: TimerLog, one: TimerUnit) -> int:
    if log.needs_file():
        log.make_file()
    position = log.begin_append()
    log.append(one.pack())
    return position


def test_a_unit_is_laid_out_as_the_format_says() -> None:
    data = TimerUnit(104, 1 | 4, T0, 2_000, 123_456_789_012, 345, -7).pack()
    assert data == struct.pack(">iqiqiqiiq", 52, 104, 5, T0, 2_000, 123_456_789_012, 345, -7, 0)
    assert unpack_timer_unit(data) == TimerUnit(104, 5, T0, 2_000, 123_456_789_012, 345, -7)
    for spoilt in (bytes(52), struct.pack(">i", 51) + data[4:], data[:12] + struct.pack(">i", 16) + data[16:]):
        assert unpack_timer_unit(spoilt) is None


def test_a_file_of_rocketmq_s_size_ends_as_rocketmq_ends_it() -> None:
    """104,857,600 bytes have room for 2,016,492 units and a blank unit of just 16 bytes."""
    assert TimerLog(Path("x"), 104_857_600)._units_end == 52 * 2_016_492 == 104_857_600 - 16


def test_full_files_end_with_a_blank_unit_and_positions_continue_in_the_next_file(tmp_path: Path) -> None:
    log = log_of(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020}", f"{FILE_BYTES:020}"]
    first = (tmp_path / f"{0:020}").read_bytes()
    assert len(first) == FILE_BYTES
    assert first[156:] == struct.pack(">iqi", 16, 0, -875286124)
    assert log.end == FILE_BYTES + 2 * 52
    assert append(log, unit(5)) == FILE_BYTES + 2 * 52
    log.close()
    again = log_of(tmp_path)
    assert (again.first, again.end) == (0, FILE_BYTES + 3 * 52)
    assert again.last_unit() == unit(5)


def test_the_end_is_found_where_the_units_stop(tmp_path: Path) -> None:
    log_of(tmp_path, 4).close()
    path = tmp_path / f"{FILE_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[52:104] = b"\x01" * 52  # torn
    path.write_bytes(data)
    log = log_of(tmp_path)
    assert log.end == FILE_BYTES + 52
    log.cut(log.end)
    assert path.read_bytes()[52:] == bytes(FILE_BYTES - 52)
    log.cut(52)
    assert [p.name for p in tmp_path.iterdir()] == [f"{0:020}"]
    assert (tmp_path / f"{0:020}").read_bytes() == unit(0).pack() + bytes(FILE_BYTES - 52)
    log.cut(0)
    assert append(log, unit(9)) == 0
    log.close()


def test_an_unused_file_created_ahead_has_no_unit(tmp_path: Path) -> None:
    """A process killed between making a file and filling it leaves zeros, or an empty name."""
    log = log_of(tmp_path, 2)
    log.make_file()
    (tmp_path / f"{2 * FILE_BYTES:020}").touch()
    again = log_of(tmp_path)
    assert again.end == 104
    again.cut(again.end)
    assert [p.stat().st_size for p in sorted(tmp_path.iterdir())] == [FILE_BYTES, 0]
    for number in range(2, 9):
        append(again, unit(number))
    assert [fields[6] for _, units in again.pieces() for fields in UNIT.iter_unpack(units)] == [
        100 + n for n in range(9)
    ]


@pytest.mark.parametrize("name", ["x", "123", f"{17:020}"])
def test_a_stranger_s_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(FILE_BYTES))
    with pytest.raises(ForeignFile):
        log_of(tmp_path)


def test_another_file_size_is_refused_and_a_missing_file_noticed(tmp_path: Path) -> None:
    log_of(tmp_path, 8).close()
    with pytest.raises(ForeignFile, match="timer_log_file_size"):
        TimerLog(tmp_path, FILE_BYTES // 2 * 2 + 52).load()
    (tmp_path / f"{FILE_BYTES:020}").unlink()
    log = log_of(tmp_path)
    assert not log.holds(52, ())
    log.cut(0)
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020}"]
    assert not any((tmp_path / f"{0:020}").read_bytes())


def test_the_files_are_compared_with_the_saved_checksums(tmp_path: Path) -> None:
    log = log_of(tmp_path, 5)
    end, digests = log.end, log.digests
    assert [start for start, _ in digests] == [0, FILE_BYTES]
    append(log, unit(5))
    append(log, unit(6))
    log.close()
    again = log_of(tmp_path)
    assert again.holds(end, digests)
    assert not again.holds(again.end + 1, ())
    again.cut(end)
    assert again.digests == digests
    again.close()
    flip_bit(tmp_path / f"{0:020}", 20)
    assert not log_of(tmp_path).holds(end, digests)
    (tmp_path / f"{0:020}").unlink()
    assert log_of(tmp_path).holds(end, digests), "it may have been deleted since"


def test_a_chain_is_followed_backwards_over_files_and_never_in_circles(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    previous = -1
    for number in range(7):
        previous = append(log, unit(number, previous))
    units, position = log.chain(previous, 3)
    assert [u.physical_offset for u in units] == [6000, 5000, 4000]
    rest, end = log.chain(position, 100)
    assert [u.physical_offset for u in rest] == [3000, 2000, 1000, 0]
    assert end == -1
    circle = append(log, unit(8, log.end + 52))
    assert log.chain(circle, 100) == ([], -1)
    assert log.chain(10 * FILE_BYTES, 100) == ([], -1)


def test_a_file_goes_when_all_its_slots_are_done_with(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for number in range(7):
        append(log, unit(number, slot_ms=T0 + 1000 * number))
    assert not log.drop_first_before(T0 + 2000)
    assert log.drop_first_before(T0 + 3000)
    assert log.first == FILE_BYTES
    assert log.drop_first_before(T0 + 9000)
    assert not log.drop_first_before(T0 + 9000), "the last one stays: it says where the next unit goes"
    assert log.last_unit() == unit(6, slot_ms=T0 + 6000)


def test_a_slot_is_laid_out_as_the_format_says(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel")
    wheel.create()
    slot_ms = 1_700_000_123_000
    wheel.put(slot_ms, Slot(52, 104, 2))
    data = (tmp_path / "timerwheel").read_bytes()
    assert len(data) == 38_707_200
    index = 1_700_000_123 % 1_209_600
    assert data[32 * index : 32 * index + 32] == struct.pack(">qqqii", 1_700_000_123, 52, 104, 2, 0)
    assert not any(data[: 32 * index])
    assert wheel.slot(slot_ms) == Slot(52, 104, 2)
    assert wheel.slot(slot_ms + 1000) == EMPTY
    assert wheel.slot(slot_ms + 1000 * SLOTS) == EMPTY, "another turn of the wheel"
    assert wheel.held_by(slot_ms + 1000 * SLOTS) == slot_ms
    assert wheel.filled(slot_ms - 5000, slot_ms + 5000) == [(slot_ms, Slot(52, 104, 2))]
    assert wheel.first_filled(slot_ms - 9_000_000, slot_ms + 1000) == slot_ms
    assert wheel.first_filled(slot_ms + 1000, slot_ms + 9_000_000) is None
    wheel.close()


def test_slots_are_found_over_the_end_of_the_file(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", slots=100)
    wheel.create()
    for second in (198, 199, 200, 203):
        wheel.put(1000 * second, Slot(1, 2, 3))
    assert [slot_ms for slot_ms, _ in wheel.filled(190_000, 210_000)] == [198_000, 199_000, 200_000, 203_000]
    wheel.close()


def test_the_wheel_is_made_from_the_log(tmp_path: Path) -> None:
    """Slots that are done with, and messages that are, count for nothing; those that cancel count against others."""
    log = log_of(tmp_path / "timerlog")
    units = [
        unit(0, -1, T0),
        unit(1, -1, T0 + 1000),
        unit(2, 52, T0 + 1000),
        unit(3, -1, T0 + 5000),
        unit(4, 104, T0 + 1000, magic=5),
        unit(5, -1, T0 - 1000),
    ]
    positions = [append(log, one) for one in units]
    image = image_of(log, 100, T0, consumed=OffsetSet([0]))
    wheel = TimerWheel(tmp_path / "timerwheel", slots=100)
    wheel.create()
    wheel.fill(image.slots)
    assert wheel.filled(T0 - 10_000, T0 + 10_000) == [
        (T0 + 1000, Slot(positions[1], positions[4], 1)),
        (T0 + 5000, Slot(positions[3], positions[3], 1)),
    ]
    assert image.waiting == {77: 2}
    assert (image.first_ms, image.consumed_ms) == (T0 + 1000, T0)
    assert image_of(log, 100, T0, OffsetSet()).first_ms == T0
    wheel.close()


def test_an_empty_wheel_holds_no_chain(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", slots=5000)
    assert wheel.slot(T0) == EMPTY
    assert wheel.filled(0, 1000) == []
    wheel.create()
    wheel.fill(bytearray(5000 * SLOT_BYTES))
    assert not any((tmp_path / "timerwheel").read_bytes())
    wheel.close()


def test_the_checkpoint_is_laid_out_as_the_format_says(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    checkpoint = TimerCheckpoint(path)
    assert checkpoint.load() is None
    progress = TimerProgress(T0, 5200, 100, 123_456, ((0, 77), (4096, 1 << 31)))
    checkpoint.save(progress, T0 + 7)
    data = path.read_bytes()
    assert len(data) == 4096
    covered = struct.pack(">qqqqqqq8sqqI", T0, 5200, 100, 100, 0, T0 + 7, 1, b"RPUTTIME", 123_456, 1, 2)
    covered += struct.pack(">qIqI", 0, 77, 4096, 1 << 31)
    assert data[:112] == covered + struct.pack(">I", crc32(covered))
    assert not any(data[112:])
    assert TimerCheckpoint(path).load() == progress
    written = path.stat().st_mtime_ns
    checkpoint.save(progress, T0 + 9)
    assert path.stat().st_mtime_ns == written, "nothing has changed, nothing is written"


def test_a_checkpoint_of_rocketmq_voids_our_mark(tmp_path: Path) -> None:
    path = tmp_path / "timercheck"
    checkpoint = TimerCheckpoint(path)
    checkpoint.save(TimerProgress(T0, 52, 1, 99), T0)
    data = bytearray(path.read_bytes())
    struct.pack_into(">qqqqqqq", data, 0, T0 + 1000, 104, 2, 2, 0, T0, 5)
    path.write_bytes(data)
    again = TimerCheckpoint(path)
    assert again.load() == TimerProgress(T0 + 1000, 104, 2, None)
    again.save(TimerProgress(T0 + 2000, 104, 2, 7), T0)
    assert TimerCheckpoint(path).load() == TimerProgress(T0 + 2000, 104, 2, 7)
    assert struct.unpack_from(">q", path.read_bytes(), 48) == (6,), "RocketMQ's counter goes on"


def test_a_checkpoint_with_a_flipped_bit_is_not_believed(tmp_path: Path) -> None:
    """Only a counter that has moved on says that RocketMQ wrote it."""
    path = tmp_path / "timercheck"
    TimerCheckpoint(path).save(TimerProgress(T0, 52, 1, 99, ((0, 5),)), T0)
    for position in range(100):
        if 48 <= position < 56 or 56 <= position < 64 or 72 <= position < 80:
            continue  # the counter, our mark, the counter again
        flip_bit(path, position)
        with pytest.raises(TimerCheckDamaged):
            TimerCheckpoint(path).load()
        flip_bit(path, position)
    assert TimerCheckpoint(path).load() == TimerProgress(T0, 52, 1, 99, ((0, 5),))


def test_a_checkpoint_of_another_length_is_refused_and_one_without_content_is_none(tmp_path: Path) -> None:
    path = tmp_path / "timercheck"
    for lost in (b"", bytes(4096)):
        path.write_bytes(lost)
        assert TimerCheckpoint(path).load() is None
    path.write_bytes(bytes(56))
    with pytest.raises(ForeignFile):
        TimerCheckpoint(path).load()
