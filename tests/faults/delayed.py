"""Delayed messages, and a power cut or a kill between any two events of their schedule.

A run parks, delivers and cancels by the fake clock, is killed and stopped in between, and is recorded. Cut anywhere,
the directory is gone on with until everything is due: each message that was acknowledged by then has come once, none
too early, and none whose cancellation was acknowledged.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import trio

from crash.checker import Violation
from faults.outcome import Outcome, runs
from faults.recorder import Recorder
from reput_broker.store.base.options import StoreOptions
from support.delay_churn import Churn, Ledger, judge
from support.delayed import DelayBench, bench_options
from support.stores import T0
from support.tasks import run_by_the_clock

IMAGES_A_RUN = 40
TURNS = 3
KILL_SHARE = 0.4
WHEEL_SLOTS = 600
_MARGIN_MS = 8_000


def delayed_messages(seed: int, images: int) -> Outcome:
    """Record runs, interrupt each between events, and continue from every interruption."""
    outcome = Outcome()
    for run_seed, directory in runs(seed, images, outcome):
        live = directory / "live"
        live.mkdir()
        recorder = Recorder(live)
        options = bench_options(live, commit_log_file_size=16_384, index_slots=50, index_entries=200)
        churn = run_by_the_clock(lambda: _record(options, recorder, run_seed))  # noqa: B023 - called at once
        where = f"seed {run_seed}"
        if churn.ledger.violations:
            outcome.add(where, [Violation("runs", text) for text in churn.ledger.violations])
            continue
        _cut(churn, recorder, options, directory, where, min(IMAGES_A_RUN, images - outcome.images), outcome)
    return outcome


def bench_of(options: StoreOptions, offset_ms: int = 0) -> DelayBench:
    """A broker's schedule with a small wheel, whose progress is saved often."""
    return DelayBench(
        options, offset_ms=offset_ms, wheel_slots=WHEEL_SLOTS, file_reserved_time="2m", flush_interval="150ms"
    )


async def _record(options: StoreOptions, recorder: Recorder, seed: int) -> Churn:
    with recorder:
        churn = Churn(bench_of(options), seed, now=lambda: len(recorder.events))
        await churn.run(TURNS)
        churn.bench.abandon()
    return churn


def _cut(
    churn: Churn, recorder: Recorder, options: StoreOptions, directory: Path, where: str, images: int, outcome: Outcome
) -> None:
    rng = random.Random(where)
    events, disk, done = recorder.events, recorder.start(), 0
    target = directory / "image"
    for number, position in enumerate(sorted(rng.choices(range(len(events) + 1), k=images))):
        for event in events[done:position]:
            disk.apply(event)
        done = position
        killed = rng.random() < KILL_SHARE
        at = position
        if killed:
            at -= disk.after_kill(events[position - 1] if position else None, rng, target)
        else:
            disk.after_power_cut(rng, target)
        begun_ms = max((clock_ms for event, clock_ms in churn.clock if event <= position), default=T0)
        paused_ms = rng.choice((0, 0, rng.randrange(2_000), rng.randrange(60_000)))
        image = replace(options, data_dir=target)
        ledger, start_ms = churn.ledger, begun_ms + paused_ms
        found = run_by_the_clock(lambda: _go_on(image, ledger, at, start_ms))  # noqa: B023 - called at once
        kind = "kill" if killed else "power cut"
        outcome.add(f"{where}, cut {number} after event {position} ({kind})", found)
        shutil.rmtree(target)
        if outcome.enough:
            return


async def _go_on(options: StoreOptions, ledger: Ledger, at: int, start_ms: int) -> list[Violation]:
    """Start on what a cut left, wait until everything is due, and judge."""
    try:
        bench = bench_of(options, start_ms - T0)
    except Exception as error:
        return [Violation("starts", f"{type(error).__name__}: {error}")]
    last_ms = max((later.due_ms for later in ledger.later.values()), default=start_ms)
    async with bench.running():
        await trio.sleep(max(_MARGIN_MS, last_ms + _MARGIN_MS - start_ms) / 1000)
    found = [Violation("comes once", text) for text in judge(bench, ledger, clock_was_set=False, at=at)]
    dropped = {reason: count for reason, count in bench.stats.dropped.items() if count}
    if dropped:
        found.append(Violation("comes once", f"given up: {dropped}"))
    bench.abandon()
    return found
