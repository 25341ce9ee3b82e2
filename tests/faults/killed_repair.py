"""A repair that is interrupted anywhere: repeated, it has kept every message, and copies of all it removed.

The log is in one directory or in several, perhaps on another disk; with the damage there are files that no one can
read, of the same names in each directory.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from crash.checker import Violation
from faults.outcome import Outcome, runs
from faults.recorder import Recorder
from faults.workload import abandon
from reput_broker.store.base.errors import ForeignFile, StoreDamaged
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_broker.tools.repair import apply_repair
from reput_broker.tools.repair_plan import RepairPlan, plan_repair
from reput_broker.tools.verify import Verification
from reput_protocol.record.record import Record
from support.stores import FakeClock, dispatch_all, opened, put, read_queue, small_options, tree

IMAGES_A_RUN = 20
QUEUES = (("T", 0), ("T", 1), ("U", 0))
FILE_BYTES = 4096
LAYOUTS = (("store/commitlog",), ("disk1/log", "disk2/log"), ("disk1/log", "store/commitlog"))
KILL_SHARE = 0.6
START_SHARE = 0.3


@dataclass(slots=True)
class Broken:
    """A store with damage in it, and what must be left of it."""

    top: Path
    """The store directory and the other disks are below this."""
    options: StoreOptions
    places: list[tuple[tuple[str, int], bytes, int, int]] = field(default_factory=list)
    """Queue, body, and where the record begins and ends."""
    foreign: list[bytes] = field(default_factory=list)
    """What is in files that must go, and must not be lost."""

    def at(self, top: Path) -> Broken:
        """The same in a copy."""
        names = [top / path.relative_to(self.top) for path in self.options.commit_log_dirs]
        options = replace(self.options, data_dir=top / "store", commit_log_dirs=tuple(names))
        return Broken(top, options, self.places, self.foreign)

    def file_of(self, offset: int) -> Path:
        """The file of the log that holds an offset."""
        name = f"{offset - offset % FILE_BYTES:020d}"
        return next(path / name for path in self.options.log_dirs if (path / name).exists())

    def record(self, start: int, end: int) -> bytes:
        """The bytes of a record."""
        return self.file_of(start).read_bytes()[start % FILE_BYTES :][: end - start]


def killed_repairs(seed: int, images: int) -> Outcome:
    """Repairs, each cut between its events by kills and power cuts, then repeated, perhaps after a start."""
    outcome = Outcome()
    for run_seed, directory in runs(seed, images, outcome):
        rng = random.Random(run_seed)
        broken = _make(directory / "live", rng)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "rename", _between_disks(os.rename))
            try:
                _cut(broken, directory, images, outcome, f"seed {run_seed}", rng)
            except Exception as error:
                outcome.add(f"seed {run_seed}", [Violation("repairs", f"{type(error).__name__}: {error}")])
    return outcome


def _make(top: Path, rng: random.Random) -> Broken:
    """A store, ended in order or not, then damaged."""
    names = tuple(top / name for name in rng.choice(LAYOUTS))
    broken = Broken(top, small_options(top / "store", commit_log_dirs=names))
    store = opened(broken.options)
    for number in range(rng.randrange(30, 50)):
        queue = rng.choice(QUEUES)
        body = b"%03d:" % number + rng.randbytes(rng.randrange(20, 500))
        properties = b"KEYS\x01k%d\x02" % number
        result = store.put_record(Record(queue[0], body, queue_id=queue[1], properties=properties))
        broken.places.append((queue, body, result.physical_offset, result.end_offset))
    dispatch_all(store)
    store.flush_consume_queues()
    store.write_checkpoint()
    if rng.random() < 0.5:
        assert store.close()
    else:
        abandon(store)
    _damage(broken, rng)
    return broken


def _damage(broken: Broken, rng: random.Random) -> None:
    places, root = broken.places, broken.options.data_dir
    if rng.random() < 0.5:  # as RocketMQ leaves it: a start then reads all of the log
        checkpoint = root / "checkpoint"
        checkpoint.write_bytes(checkpoint.read_bytes()[:40].ljust(4096, b"\0"))
        _, body, start, end = rng.choice(places)
    else:
        _, body, start, end = places[-1 - rng.randrange(3)]
    data = broken.record(start, end)
    _flip(broken, start + data.index(body) + rng.randrange(len(body)), rng)
    earlier = [place for place in places if place[3] <= start]
    if earlier and rng.random() < 0.4:  # its magic number, which the repair knows
        _flip(broken, rng.choice(earlier)[2] + 4 + rng.randrange(4), rng)
    for directory in broken.options.log_dirs:
        _add_foreign(broken, directory / "notes.txt", rng)
    first, *others = broken.options.log_dirs
    for path in sorted(first.glob("0*")) if others else ():
        if rng.random() < 0.5 and not (others[0] / path.name).exists():
            _add_foreign(broken, others[0] / path.name, rng)
    if rng.random() < 0.3:
        (root / "config").mkdir()
        _add_foreign(broken, root / "config" / "topics.json", rng)


def _flip(broken: Broken, offset: int, rng: random.Random) -> None:
    path = broken.file_of(offset)
    data = bytearray(path.read_bytes())
    data[offset % FILE_BYTES] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _add_foreign(broken: Broken, path: Path, rng: random.Random) -> None:
    data = b"foreign" + rng.randbytes(100)
    path.write_bytes(data.ljust(FILE_BYTES, b"\0") if path.name.startswith("0") else data)
    broken.foreign.append(data)


def _between_disks(real: Callable[..., None]) -> Callable[..., None]:
    """A rename from one disk to another, as the system answers it."""

    def rename(source: Any, target: Any, **options: Any) -> None:
        disks = [next((n for n in ("disk1", "disk2") if f"/{n}/" in str(path)), "") for path in (source, target)]
        if disks[0] != disks[1]:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
        real(source, target, **options)

    return rename


def _plan(broken: Broken) -> tuple[Verification, RepairPlan]:
    found = Verification(broken.options.data_dir, commit_log_dirs=broken.options.commit_log_dirs)
    found.run()
    return found, plan_repair(found)


def _cut(broken: Broken, directory: Path, images: int, outcome: Outcome, where: str, rng: random.Random) -> None:
    found, plan = _plan(broken)
    if plan.truncation is None or plan.left:  # there is damage that may stay, where no start reads
        return
    cut_at = plan.truncation.offset
    gone = [broken.record(start, end) for _, _, start, end in broken.places if end > cut_at]
    recorder = Recorder(broken.top)
    with recorder:
        apply_repair(found, plan)
    disk, events, done = recorder.start(), recorder.events, 0
    count = min(IMAGES_A_RUN, images - outcome.images)
    for position in sorted(rng.choices(range(len(events) + 1), k=count)):
        for event in events[done:position]:
            disk.apply(event)
        done = position
        image = directory / "image"
        killed = rng.random() < KILL_SHARE
        if killed:
            disk.after_kill(events[position - 1] if position else None, rng, image)
        else:
            disk.after_power_cut(rng, image)
        start_first = rng.random() < START_SHARE
        how = f"{'kill' if killed else 'power cut'} after event {position} of {len(events)}"
        outcome.add(
            f"{where}, cut at {cut_at}, {how}{', started' if start_first else ''}",
            _check(broken.at(image), cut_at, gone, start_first),
        )
        shutil.rmtree(image)
        if outcome.enough:
            return


def _check(broken: Broken, cut_at: int, gone: list[bytes], start_first: bool) -> list[Violation]:
    """Perhaps try to start; repair again where that is refused; then look for everything."""
    found: list[Violation] = []
    if start_first:
        before = tree(broken.top)
        store = _opened(broken)
        if isinstance(store, MessageStore):
            return [*_check_served(store, broken, cut_at), *_check_kept(broken, gone)]
        if not isinstance(store, ForeignFile | StoreDamaged) or tree(broken.top) != before:
            found.append(Violation("nothing changed", f"by the start: {type(store).__name__}: {store}"))
    try:
        verification, plan = _plan(broken)
        if not plan.is_empty:
            apply_repair(verification, plan)
        left = _plan(broken)[1]
    except Exception as error:
        return [*found, Violation("can be begun again", f"{type(error).__name__}: {error}")]
    if not left.is_empty:
        found.append(Violation("repaired", f"a repair still wants to {left.lines()}"))
    store = _opened(broken)
    if not isinstance(store, MessageStore):
        return [*found, Violation("starts", f"{type(store).__name__}: {store}")]
    return [*found, *_check_served(store, broken, cut_at), *_check_kept(broken, gone)]


def _opened(broken: Broken) -> MessageStore | Exception:
    store = MessageStore(broken.options, clock_ms=FakeClock())
    try:
        store.open()
    except Exception as error:
        return error
    return store


def _check_served(store: MessageStore, broken: Broken, cut_at: int) -> list[Violation]:
    """Every message before the cut is served, no other, and each queue continues after its last."""
    found = []
    try:
        for queue in QUEUES:
            wanted = [body for name, body, _, end in broken.places if name == queue and end <= cut_at]
            if [record.body for record in read_queue(store, *queue)] != wanted:
                found.append(Violation("byte-equal", f"{queue} does not hold what lay before the cut"))
            result = put(store, b"one more", topic=queue[0], queue_id=queue[1])
            if result.queue_offset != len(wanted):
                found.append(Violation("queue offsets", f"{queue} goes on at {result.queue_offset}"))
        dispatch_all(store)
        return found
    except Exception as error:
        return [*found, Violation("serves", f"{type(error).__name__}: {error}")]
    finally:
        abandon(store)


def _check_kept(broken: Broken, gone: list[bytes]) -> list[Violation]:
    """Every removed record is in a side directory, and so does every file that is not where it was."""
    everywhere = {path: path.read_bytes() for path in broken.top.rglob("*") if path.is_file()}
    root = broken.options.data_dir
    sides = [data for path, data in everywhere.items() if "repair-" in str(path.relative_to(root.parent))]
    lost = [data for data in gone if not any(data in kept for kept in sides)]
    lost += [data for data in broken.foreign if not any(data in kept for kept in everywhere.values())]
    return [Violation("kept", f"{len(lost)} records or files are nowhere, like {lost[0][:40]!r}")] if lost else []
