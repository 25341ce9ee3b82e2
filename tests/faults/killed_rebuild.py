"""A rebuild of queues and index that is interrupted anywhere: the next start has every queue offset and every key.

One of the queues has lost all its messages to retention: nothing in the log tells where it ended.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from crash.checker import Violation
from faults.disk import Exchange, Rename
from faults.outcome import Outcome, runs
from faults.recorder import Recorder
from faults.workload import abandon
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_broker.store.opening import directory_swap
from reput_broker.tools.rebuild import REBUILDERS, rebuild
from reput_protocol.record.record import Record, decode_record
from support.retention import Cleaning, FakeMachine
from support.store_samples import examine
from support.stores import FakeClock, dispatch_all, opened, put, read_queue, small_options

IMAGES_A_RUN = 40
QUIET = ("quiet", 0)
QUEUES = (("T", 0), ("T", 1), ("U", 0))
FULL_DISK = 0.88
KILL_SHARE = 0.6
AGAIN_SHARE = 0.25


@dataclass(slots=True)
class Kept:
    """A store, and what must be in it."""

    options: StoreOptions
    stored: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """Every message that was ever put, by queue."""
    begins: dict[tuple[str, int], int] = field(default_factory=dict)
    """The first message of each queue that is still in the log."""


def killed_rebuilds(seed: int, images: int) -> Outcome:
    """Rebuilds, each cut between its events by kills and power cuts, then started, or rebuilt again and started."""
    outcome = Outcome()
    for run_seed, directory in runs(seed, images, outcome):
        rng = random.Random(run_seed)
        kept = make_kept(directory / "live", rng)
        kinds = rng.choice((["queues"], ["queues"], ["index"], ["queues", "index"]))
        one_step = rng.random() < 0.5
        with pytest.MonkeyPatch.context() as patch:
            if not one_step:
                patch.setattr(directory_swap, "exchange", lambda *_: False)
            _cut(kept, kinds, directory, images, outcome, f"seed {run_seed}, {kinds}, one step: {one_step}", rng)
    return outcome


def make_kept(root: Path, rng: random.Random) -> Kept:
    """A store whose first log files have expired, ended in order or not."""
    kept = Kept(small_options(root, consume_queue_entries=rng.choice((3, 10))))
    store = opened(kept.options)
    for number in range(rng.randrange(60, 90)):
        queue = QUIET if number < 4 else rng.choice(QUEUES)
        body = b"%03d:" % number + rng.randbytes(rng.randrange(20, 300))
        properties = b"KEYS\x01k%d\x02" % number
        store.put_record(Record(queue[0], body, queue_id=queue[1], properties=properties))
        kept.stored.setdefault(queue, []).append(body)
    dispatch_all(store)
    store.flush_consume_queues()
    store.write_checkpoint()
    cleaning = Cleaning(store, FakeMachine(used=FULL_DISK), delete_files_batch=rng.randrange(1, 3))
    assert cleaning.clean()
    kept.begins = {queue: store.min_offset_in_queue(*queue) for queue in kept.stored}
    if rng.random() < 0.5:
        assert store.close()
    else:
        abandon(store)
    return kept


def _cut(
    kept: Kept, kinds: list[str], directory: Path, images: int, outcome: Outcome, where: str, rng: random.Random
) -> None:
    root = kept.options.data_dir
    found = examine(root)
    recorder = Recorder(root)
    with recorder:
        rebuild(found.layout, found.log.kept_end, [REBUILDERS[kind] for kind in kinds])
    disk, events, done = recorder.start(), recorder.events, 0
    count = min(IMAGES_A_RUN, images - outcome.images)
    # Half of them where the old gives way to the new.
    swaps = [number for number, event in enumerate(events) if isinstance(event, Exchange | Rename)]
    near = [rng.choice(swaps) + rng.randrange(4) for _ in range(count // 2)]
    anywhere = rng.choices(range(len(events) + 1), k=count - len(near))
    for position in sorted(min(number, len(events)) for number in (*near, *anywhere)):
        for event in events[done:position]:
            disk.apply(event)
        done = position
        image = directory / "image"
        killed = rng.random() < KILL_SHARE
        if killed:
            disk.after_kill(events[position - 1] if position else None, rng, image)
        else:
            disk.after_power_cut(rng, image)
        again = rng.random() < AGAIN_SHARE
        how = f"{'kill' if killed else 'power cut'} after event {position} of {len(events)}"
        outcome.add(
            f"{where}, {how}{', rebuilt again' if again else ''}",
            [*(_rebuild_again(image, kinds) if again else []), *check_kept(kept, image)],
        )
        shutil.rmtree(image)
        if outcome.enough:
            return


def _rebuild_again(image: Path, kinds: list[str]) -> list[Violation]:
    try:
        found = examine(image)
        rebuild(found.layout, found.log.kept_end, [REBUILDERS[kind] for kind in kinds])
    except Exception as error:
        return [Violation("can be begun again", f"{type(error).__name__}: {error}")]
    left = [path.name for pattern in ("*.tmp", "*.replaced") for path in image.glob(pattern)]
    return [Violation("can be begun again", f"{left} were left")] if left else []


def check_kept(kept: Kept, image: Path) -> list[Violation]:
    """Start, and look for every queue offset, every message and every key; then continue each queue."""
    store = MessageStore(replace(kept.options, data_dir=image), clock_ms=FakeClock())
    try:
        store.open()
    except Exception as error:
        return [Violation("starts", f"{type(error).__name__}: {error}")]
    try:
        while store.index_step():
            pass
        store.complete_index()
        found = []
        for queue, stored in kept.stored.items():
            end, begin = store.max_offset_in_queue(*queue), kept.begins[queue]
            if end != len(stored):
                found.append(Violation("queue offsets", f"{queue} ends at {end}, not at {len(stored)}"))
            elif [record.body for record in read_queue(store, *queue)] != stored[begin:]:
                found.append(Violation("byte-equal", f"{queue} does not hold what was put"))
            for body in stored[begin:]:
                key = f"k{int(body[:3])}"
                found_by_key = store.query_message(queue[0], key, 64).records
                if [decode_record(record).body for record in found_by_key] != [body]:
                    found.append(Violation("keys", f"{key} of {queue} is not found"))
            result = put(store, b"one more", topic=queue[0], queue_id=queue[1])
            if result.queue_offset != len(stored):
                found.append(Violation("queue offsets", f"{queue} goes on at {result.queue_offset}"))
        dispatch_all(store)
        return found
    except Exception as error:
        return [Violation("serves", f"{type(error).__name__}: {error}")]
    finally:
        abandon(store)
