"""Messages with an exact time while there is no memory, or no room on the disk, for the timer's wheel."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.delay import timer_wheel
from reput_broker.delay.timer_wheel import SLOT_BYTES
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.base.file_io import create_file
from support.delayed import WHEEL_SLOTS, DelayBench, bench_options
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

WHEEL_BYTES = WHEEL_SLOTS * SLOT_BYTES


class Scarce:
    """Whether there is memory, and disk, for a wheel."""

    lacks: str | None = None


@pytest.fixture(params=["memory", "disk"])
def scarce(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scarce]:
    scarce = Scarce()
    real_mmap, real_create = mmap.mmap, create_file

    def map_or_not(fd: int, size: int, *arguments: Any, **named: Any) -> mmap.mmap:
        if size == WHEEL_BYTES and scarce.lacks == "memory":
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return real_mmap(fd, size, *arguments, **named)

    def create_or_not(path: Path, size: int) -> int:
        if scarce.lacks == "disk":
            raise DiskFull(path, size)
        return real_create(path, size)

    monkeypatch.setattr(mmap, "mmap", map_or_not)
    monkeypatch.setattr(timer_wheel, "create_file", create_or_not)
    scarce.lacks = request.param
    yield scarce
    scarce.lacks = None


def on_time(bench: DelayBench, due: dict[bytes, int]) -> None:
    assert bench.delivered() == {body: [when] for body, when in due.items()}


async def test_the_first_timed_message_waits_for_the_wheel(
    tmp_path: Path, scarce: Scarce, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        due = {b"a": bench.timed(b"a", 60_000), b"b": bench.level(b"b", 1)}
        await trio.sleep(20)
        assert list(bench.delivered()) == [b"b"], "levels need no wheel"
        scarce.lacks = None
        await trio.sleep(60)
    on_time(bench, due)
    said = capsys.readouterr()
    assert (said.err + said.out).count("timer_files_not_made") == 1, "once, however often it is tried"
    bench.stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_start_without_a_wheel_takes_messages_and_loses_none(tmp_path: Path, scarce: Scarce, end: str) -> None:
    wanted, scarce.lacks = scarce.lacks, None
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        due = {b"%d" % n: bench.timed(b"%d" % n, 40_000 + 1000 * n) for n in range(30)}
        await trio.sleep(5)
    for _ in range(2):  # the second run ends without a wheel
        bench = bench.kill() if end == "kill" else bench.restart()
        scarce.lacks = wanted
        if bench.delays.timers.wheel.exists:
            bench.stop()
            bench = bench.go_on()
        async with bench.running():
            await trio.sleep(2)
            assert bench.delays.waiting_from() == 0, "no file with a waiting message is deleted"
            body = b"new%d" % len(due)
            due[body] = bench.timed(body, 50_000)
            await trio.sleep(2)
        assert bench.delivered() == {}
    async with bench.running():
        scarce.lacks = None
        await trio.sleep(100)
    on_time(bench, due)
    bench.stop()
