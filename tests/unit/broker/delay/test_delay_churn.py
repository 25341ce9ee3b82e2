"""Delayed messages while the broker is killed, its clock set and its files taken away at random: see delay_churn.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.delay_churn import Churn
from support.delayed import DelayBench, bench_options
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

TURNS = 7


async def churn(directory: Path, seed: int, *, jumps: bool = False, loses_files: bool = False) -> None:
    """One run; messages further ahead than a minute are delayed again on their way."""
    bench = DelayBench(
        bench_options(directory / "store"),
        wheel_slots=7200,
        file_reserved_time="2m",
        flush_interval="200ms",
        timer_max_delay="1h",
    )
    run = Churn(bench, seed, jumps=jumps, loses_files=loses_files)
    await run.run(TURNS)
    violations = await run.finish()
    assert not violations, (seed, violations[:5])
    assert not any(run.bench.stats.dropped.values())
    run.bench.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_kills_and_stops(tmp_path: Path, seed: int) -> None:
    await churn(tmp_path, seed)


@pytest.mark.parametrize("seed", range(100, 105))
async def test_kills_and_a_clock_that_is_set(tmp_path: Path, seed: int) -> None:
    await churn(tmp_path, seed, jumps=True)


@pytest.mark.parametrize("seed", range(200, 206))
async def test_kills_and_files_that_are_lost_or_damaged(tmp_path: Path, seed: int) -> None:
    await churn(tmp_path, seed, jumps=seed % 2 == 0, loses_files=True)
