"""A slave that becomes the master delivers every delayed message once, from what its masters told it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio

from reput_broker.delay import timer_log, timer_wheel
from reput_broker.delay.levels import DelayOffsetFile
from reput_broker.delay.state import read_answer
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.base.file_io import create_file
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tables.config_file import ConfigFile, encode
from support.delayed import DelayBench, bench_options
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

CHAINS = 4


class Disk:
    """The disk for the files of the timer and for the log."""

    is_full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()

    def create_or_not(path: Path, size: int) -> int:
        if disk.is_full:
            raise DiskFull(path, size)
        return create_file(path, size)

    for module in (timer_wheel, timer_log):
        monkeypatch.setattr(module, "create_file", create_or_not)
    return disk


FILES = ("timerwheel", "timerlog", "config/timercheck", "config/delayOffset.json", "config/masterTimer.json")
"""What a member has of its own; in these tests the log is one for all."""


def copy_tables(bench: DelayBench, slave: Path | None = None) -> None:
    """Replace a slave's files by the answers of its master, as the slave does every few seconds."""
    config = (slave or bench.options.data_dir) / "config"
    offsets = DelayOffsetFile(config / "delayOffset.json").file
    offsets.save(encode(bench.delays.offset_members()))
    finished = bench.delays.finished_timers()
    if finished:
        answer = bench.delays.timer_checkpoint() + finished
        ConfigFile(config / "masterTimer.json").save(encode(read_answer(answer)))


def move_files(source: Path, target: Path) -> None:
    for name in FILES:
        if (source / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).rename(target / name)


def take_over(bench: DelayBench, *, copies: bool = True, offset_ms: int = 0) -> DelayBench:
    """End a master; return the slave that takes over, which has the same log, and no files of a timer."""
    if copies:
        copy_tables(bench)
    bench.abandon()
    data_dir = bench.options.data_dir
    for path in (data_dir / "timerwheel", data_dir / "config" / "timercheck"):
        path.unlink(missing_ok=True)
    shutil.rmtree(data_dir / "timerlog", ignore_errors=True)
    bench.offset_ms = offset_ms
    return bench.go_on()


def refuse_puts(bench: DelayBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.store, "put_encoded", lambda *_: PutResult(PutStatus.DISK_FULL))


def each_once(bench: DelayBench, bodies: set[bytes]) -> None:
    found = bench.delivered()
    assert {body: len(times) for body, times in found.items() if len(times) > 1} == {}, "more than once"
    assert found.keys() == bodies


async def test_from_a_master_that_had_no_room_for_its_timer(tmp_path: Path, disk: Disk) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        bodies = {b"%d" % n for n in range(100) if bench.timed(b"%d" % n, 100 * n + 50)}
        await trio.sleep(12)
    copy_tables(bench)
    async with bench.running():
        bench.timed(b"after the answer", 100)
        await trio.sleep(2)
    bench = take_over(bench, copies=False)
    disk.is_full = True
    async with bench.running():
        await trio.sleep(5)
        assert bench.delays.timers_behind() == 101
    bench = take_over(bench)
    disk.is_full = False
    async with bench.running():
        await trio.sleep(5)
    each_once(bench, bodies | {b"after the answer"})
    bench.stop()


@pytest.mark.parametrize(("behind_ms", "restarts"), [(0, 0), (30_000, 0), (30_000, 2)])
async def test_from_a_master_in_whose_time_delivered_messages_are_not_due(
    tmp_path: Path, behind_ms: int, restarts: int
) -> None:
    """Its clock is behind, or the second in which they were due is not over."""
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        await trio.sleep(10 - trio.current_time() % 1)
        bodies = {b"%d" % n for n in range(100) if bench.timed(b"%d" % n, 200 * n + 100)}
        await trio.sleep(10.4)
    bench = take_over(bench, copies=not restarts, offset_ms=-behind_ms)
    for _ in range(restarts):
        async with bench.running():
            await trio.sleep(5)
        bench = bench.kill()
    async with bench.running():
        await trio.sleep(0.2)
    bench = take_over(bench)
    async with bench.running():
        await trio.sleep(60)
    each_once(bench, bodies)
    bench.stop()


async def test_from_a_master_that_could_not_deliver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was late there does not make the later ones undelivered that an earlier master had delivered."""
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        bodies = {b"late"}
        bench.timed(b"late", 9_000)
        for number in range(50):
            bodies.add(b"%d" % number)
            bench.timed(b"%d" % number, 100 * number + 50)
        await trio.sleep(7)
    await trio.sleep(4)
    bench = take_over(bench)
    refuse_puts(bench, monkeypatch)
    async with bench.running():
        await trio.sleep(4)
    bench = take_over(bench)
    async with bench.running():
        await trio.sleep(4)
    each_once(bench, bodies)
    bench.stop()


async def test_a_message_that_was_late_where_it_is_rescheduled_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"), file_reserved_time="1m")
    async with bench.running():
        bench.timed(b"far", 150_000)
        await trio.sleep(5)
    await trio.sleep(70)
    bench = take_over(bench)
    refuse_puts(bench, monkeypatch)
    async with bench.running():
        await trio.sleep(2.5)
    bench = take_over(bench)
    async with bench.running():
        await trio.sleep(200)
    each_once(bench, {b"far"})
    bench.stop()


async def test_from_a_master_that_has_not_loaded_what_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        bench.timed(b"waits", 5_000)
        await trio.sleep(2)
    await trio.sleep(10)
    bench = take_over(bench)
    refuse_puts(bench, monkeypatch)
    async with bench.running():
        await trio.sleep(5)
    bench = take_over(bench.kill())
    async with bench.running():
        await trio.sleep(2)
    each_once(bench, {b"waits"})
    bench.stop()


@pytest.mark.parametrize("seed", range(CHAINS))
async def test_through_a_chain_of_masters(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    bench = DelayBench(bench_options(tmp_path / "store"), file_reserved_time="1m")
    members, master = [tmp_path / f"b{number}" for number in range(3)], 0
    bodies: set[bytes] = set()
    for _ in range(10):
        disk.is_full = chance.random() < 0.3
        if chance.random() < 0.3:
            refuse_puts(bench, monkeypatch)
        async with bench.running():
            for _ in range(chance.randrange(1, 4)):
                for _ in range(chance.randrange(20)):
                    body = b"%d" % len(bodies)
                    bodies.add(body)
                    if chance.random() < 0.2:
                        bench.level(body, chance.randrange(1, 4))
                    else:
                        bench.timed(body, chance.randrange(1, chance.choice((1000, 5000, 5000, 100_000))))
                    await trio.sleep(chance.random() / 4)
                await trio.sleep(chance.choice((0.1, 1, 3, 12)))
                for number, slave in enumerate(members):
                    if number != master and chance.random() < 0.4:
                        copy_tables(bench, slave)
        bench.abandon()
        move_files(bench.options.data_dir, members[master])
        master = chance.randrange(3)
        move_files(members[master], bench.options.data_dir)
        bench.offset_ms = chance.choice((0, 0, 0, -20_000, 20_000))
        await trio.sleep(chance.choice((0, 0, 5)))
        bench = bench.go_on()
    disk.is_full = False
    async with bench.running():
        await trio.sleep(200)
    each_once(bench, bodies)
    bench.stop()
