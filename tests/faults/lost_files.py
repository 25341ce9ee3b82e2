"""Any file but the log's deleted or garbled, after an orderly stop and after a kill: the start repairs it or refuses.

Written over every file of the directory. What must hold of each: either the start is refused, it
names the file, and nothing has changed; or everything in the log is served, and a group's committed offset is there or
the loss is named. Entries of a queue that are older than what a start reads are the exception: a start does not look at
them, and if they were changed in place, a reader that checks what it is given notices; none is served another message
as good, or passes over one.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import structlog

from crash.checker import Violation
from faults.outcome import Outcome, scratch
from faults.workload import QUEUES, abandon, open_tables
from reput_broker.store.base.errors import ForeignFile, StoreDamaged
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import ConfigFileDamaged
from reput_broker.tables.table_saver import save_now
from reput_protocol.errors import RecordMalformed
from support.stores import FakeClock, dispatch_all, opened, put, read_queue, small_options, tree

WAYS = ("deleted", "emptied", "zeros", "noise", "halved", "one bit")
IN_PLACE = ("zeros", "noise", "one bit")
STATES = ("orderly", "killed")
MESSAGES = 120
Bodies = dict[tuple[str, int], list[bytes]]


def lost_files(seed: int, images: int) -> Outcome:
    """Each file in each way, then two at a time, until there have been so many images."""
    outcome = Outcome()
    noticed = 0
    rng = random.Random(seed)
    with scratch() as directory:
        bases = {state: _make(directory / state, rng, state) for state in STATES}
        cases: list[tuple[str, tuple[tuple[Path, str], ...]]] = []
        for state, (options, _) in bases.items():
            cases += [(state, ((path, way),)) for path in _derived(options) for way in WAYS]
        rng.shuffle(cases)
        while len(cases) < images:
            state = rng.choice(STATES)
            pair = rng.sample(_derived(bases[state][0]), 2)
            if state == "killed" and Path("checkpoint") in pair:
                continue  # after a kill its count of entries is what misses a queue: one covers for the other
            cases.append((state, tuple((path, rng.choice(WAYS)) for path in pair)))
        for state, spoils in cases[:images]:
            options, bodies = bases[state]
            image = directory / "image"
            shutil.copytree(options.data_dir, image)
            for path, way in spoils:
                _spoil(image / path, way, rng)
            what = " and ".join(f"{path} {way}" for path, way in spoils)
            found = _check(replace(options, data_dir=image), bodies, spoils)
            if found and all(violation.promise == "reader notices" for violation in found):
                noticed += 1
                found = []
            outcome.add(f"seed {seed}, {state}, {what}", found)
            shutil.rmtree(image)
            if outcome.enough:
                break
    outcome.notes.append(f"noticed by readers, not at the start: {noticed} changes of old queue entries")
    return outcome


def _make(directory: Path, rng: random.Random, state: str) -> tuple[StoreOptions, Bodies]:
    """A store of several log files, with a queue that got nothing of late, a deleted topic, offsets and topics."""
    options = small_options(directory)
    store = opened(options, FakeClock())
    bodies: Bodies = {queue: [] for queue in QUEUES}
    put(store, b"to be deleted", topic="gone")
    dispatch_all(store)
    store.delete_topic("gone")
    for number in range(MESSAGES):
        queue = ("rare", 0) if number < 5 else QUEUES[number % 3]
        body = b"%03d" % number + rng.randbytes(rng.randrange(20, 300))
        put(store, body, topic=queue[0], queue_id=queue[1], tag="a")
        bodies[queue].append(body)
        dispatch_all(store)
    store.flush_consume_queues()
    store.write_checkpoint()
    offsets, topics = open_tables(directory, FakeClock())
    topics.create_on_send("T")
    save_now(topics)
    for offset in (3, 7):
        offsets.commit("g", "T", 0, offset)
        save_now(offsets)
        topics.create_on_send(f"T{offset}")
        save_now(topics)
    offsets.commit("g", "T", 0, 9)
    offsets.close()
    if state == "orderly":
        assert store.close()
    else:
        abandon(store)
    return options, bodies


def _derived(options: StoreOptions) -> list[Path]:
    """Every file but the log's and the lock."""
    root = options.data_dir
    return sorted(
        path.relative_to(root)
        for path in root.rglob("*")
        if path.is_file() and path.parent != options.commit_log_dir and path.name != "lock"
    )


def _spoil(path: Path, way: str, rng: random.Random) -> None:
    if way == "deleted":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    match way:
        case "emptied":
            data.clear()
        case "zeros":
            data[:] = bytes(len(data))
        case "noise":
            data[:] = rng.randbytes(len(data))
        case "halved":
            del data[len(data) // 2 :]
        case _ if data:
            used = max(1, len(bytes(data).rstrip(b"\0")))
            data[rng.randrange(used)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _check(options: StoreOptions, bodies: Bodies, spoils: tuple[tuple[Path, str], ...]) -> list[Violation]:
    before = tree(options.data_dir)
    store = MessageStore(options, clock_ms=FakeClock())
    try:
        store.open()
    except (ForeignFile, StoreDamaged) as error:
        return _check_refusal(options.data_dir, before, str(error), spoils)
    except Exception as error:
        return [Violation("starts", f"{type(error).__name__}: {error}")]
    found: list[Violation] = []
    try:
        in_place = any(way in IN_PLACE and path.parts[0] == "consumequeue" for path, way in spoils)
        found += _check_served(store, bodies, in_place)
        found += _check_tables(options.data_dir, spoils)
    finally:
        abandon(store)
    return found


def _check_refusal(
    root: Path, before: dict[str, bytes], text: str, spoils: tuple[tuple[Path, str], ...]
) -> list[Violation]:
    found = []
    pair = len(spoils) > 1
    if not any(str(root / path) in text for path, _ in spoils) and not (pair and str(root) in text):
        found.append(Violation("named", text))
    after = tree(root)
    changed = sorted(path for path in before.keys() | after.keys() if after.get(path) != before.get(path))
    if changed:
        found.append(Violation("nothing changed", f"the refused start changed {changed}"))
    return found


def _check_served(store: MessageStore, bodies: Bodies, in_place: bool) -> list[Violation]:
    found = []
    for queue, expected in bodies.items():
        try:
            served = [record.body for record in read_queue(store, *queue)]
        except (AssertionError, RecordMalformed, StoreDamaged) as error:
            promise = "reader notices" if in_place else "serves"
            found.append(Violation(promise, f"{queue}: {type(error).__name__}: {error}"))
            continue
        except Exception as error:
            found.append(Violation("serves", f"{queue}: {type(error).__name__}: {error}"))
            continue
        if served != expected or store.max_offset_in_queue(*queue) != len(expected):
            found.append(
                Violation(
                    "byte-equal",
                    f"{queue}: {len(served)} messages of {len(expected)}, the queue ends at "
                    f"{store.max_offset_in_queue(*queue)}",
                )
            )
    return found


def _check_tables(root: Path, spoils: tuple[tuple[Path, str], ...]) -> list[Violation]:
    touched = {path.name.removesuffix(".bak") for path, _ in spoils if path.parent.name == "config"}
    if not touched:
        with structlog.testing.capture_logs():
            offsets, topics = open_tables(root, FakeClock())
        offsets.close()
        good = offsets.query("g", "T", 0) == 9 and topics.get("T7") is not None
        return [] if good else [Violation("tables", "offsets or topics changed")]
    with structlog.testing.capture_logs() as said:
        try:
            offsets, topics = open_tables(root, FakeClock())
        except ConfigFileDamaged as error:
            named = any(str(root / path) in str(error) for path, _ in spoils)
            return [] if named else [Violation("named", str(error))]
        except Exception as error:
            return [Violation("tables", f"{type(error).__name__}: {error}")]
    offsets.close()
    lost = offsets.query("g", "T", 0) != 9 or topics.get("T7") is None
    missing = any(way in ("deleted", "emptied") for _, way in spoils)
    if lost and not said and not missing:
        return [Violation("tables", f"offset {offsets.query('g', 'T', 0)} instead of 9, and nothing was said")]
    return []
