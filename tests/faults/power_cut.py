"""Power cuts and kills between any two events of a recorded run; and again during the recovery."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

from crash.checker import Violation
from faults.disk import Disk, Event
from faults.image_check import check_image
from faults.outcome import Outcome, runs
from faults.recorder import Recorder
from faults.workload import Workload, abandon
from reput_broker.store.message_store import MessageStore
from support.stores import FakeClock

IMAGES_A_RUN = 150
STEPS_A_RUN = 160
KILL_SHARE = 0.25
CUTS_A_RECOVERY = 4


def power_cuts(seed: int, images: int) -> Outcome:
    """Record runs, cut each between events, check every image."""
    return record_and_cut(seed, images)


def kills_during_recovery(seed: int, images: int) -> Outcome:
    """Record the recovery of each image too, and cut that, and what that left once more."""
    return record_and_cut(seed, images, recoveries=True)


def record_and_cut(
    seed: int, images: int, *, recoveries: bool = False, workload_of: type[Workload] = Workload
) -> Outcome:
    """Record runs of a workload until so many images of them have been checked."""
    outcome = Outcome()
    for run_seed, directory in runs(seed, images, outcome):
        workload = workload_of(directory / "live", run_seed)
        try:
            workload.run(STEPS_A_RUN)
        except Exception as error:
            outcome.add(f"seed {run_seed}", [Violation("runs", f"{type(error).__name__}: {error}")])
            continue
        left = min(IMAGES_A_RUN, images - outcome.images)
        _cut_run(workload, run_seed, left, directory, outcome, recoveries)
    return outcome


def _cut_run(workload: Workload, seed: int, images: int, directory: Path, outcome: Outcome, recoveries: bool) -> None:
    rng = random.Random(seed)
    events = workload.recorder.events
    cuts = max(1, images // CUTS_A_RECOVERY) if recoveries else images
    positions = sorted(rng.choices(range(len(events) + 1), k=cuts))
    disk = workload.recorder.start()
    done = 0
    target = directory / "image"
    for number, position in enumerate(positions):
        for event in events[done:position]:
            disk.apply(event)
        done = position
        last = events[position - 1] if position else None
        killed = rng.random() < KILL_SHARE
        at = position - _cut(disk, last, killed, rng, target)
        where = f"seed {seed}, cut {number} after event {position} ({'kill' if killed else 'power cut'})"
        if recoveries:
            _cut_recovery(workload, target, at, killed, where, rng, outcome, depth=2)
        else:
            outcome.add(where, _check(workload, target, at, killed, rng))
        shutil.rmtree(target)
        if outcome.enough:
            return


def _cut(disk: Disk, last: Event | None, killed: bool, rng: random.Random, target: Path) -> int:
    """Write the image; return how many events at its end did not happen after all."""
    if killed:
        return int(disk.after_kill(last, rng, target))
    disk.after_power_cut(rng, target)
    return 0


def _check(workload: Workload, image: Path, position: int, killed: bool, rng: random.Random) -> list[Violation]:
    return check_image(
        image,
        workload.options,
        workload.ledger,
        position,
        killed=killed,
        now_ms=workload.clock.now_ms,
        again=rng.random() < 0.5,
    )


def _cut_recovery(
    workload: Workload,
    image: Path,
    position: int,
    killed: bool,
    where: str,
    rng: random.Random,
    outcome: Outcome,
    depth: int,
) -> None:
    """Let the image recover, recorded; then cut that recovery a few times and check, or recover again."""
    recorder = Recorder(image)
    store = MessageStore(replace(workload.options, data_dir=image), clock_ms=FakeClock(workload.clock.now_ms))
    with recorder:
        try:
            store.open()
        except Exception as error:
            outcome.add(where, [Violation("starts", f"{type(error).__name__}: {error}")])
            return
        abandon(store)
    events = recorder.events
    cuts = CUTS_A_RECOVERY if depth == 2 else 1
    for cut_at in sorted(rng.choices(range(len(events) + 1), k=cuts)):
        disk = recorder.start()
        for event in events[:cut_at]:
            disk.apply(event)
        dies = rng.random() < 0.5
        again = image.with_name(f"{image.name}-{depth}")
        _cut(disk, events[cut_at - 1] if cut_at else None, dies, rng, again)
        inner = f"{where}, then event {cut_at} of {len(events)} of recovery ({'kill' if dies else 'power cut'})"
        if depth > 1 and rng.random() < 0.3:
            _cut_recovery(workload, again, position, killed and dies, inner, rng, outcome, depth - 1)
        else:
            outcome.add(inner, _check(workload, again, position, killed and dies, rng))
        shutil.rmtree(again)
