"""Small store directories, ended in known ways, for faults that change single bytes; and the two right outcomes.

Either the log ends at a known place and continues there, or the start is refused by file and position and nothing
changed.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from crash.checker import Violation
from faults.workload import abandon
from reput_broker.store.base.errors import ForeignFile, StoreDamaged
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.record import Record, decode_record
from support.inside import log_of
from support.stores import FakeClock, dispatch_all, opened, read_queue, small_options, tree

_Case = TypeVar("_Case")

QUEUES = (("T", 0), ("T", 1), ("other", 0))
FILE_BYTES = 4096


class Place(NamedTuple):
    """One record of the log."""

    queue: tuple[str, int]
    body: bytes
    start: int
    end: int


@dataclass(slots=True)
class Made:
    """A store directory and what is in it."""

    options: StoreOptions
    places: list[Place]

    def file_of(self, offset: int) -> Path:
        """The log file that holds a log offset."""
        return self.options.commit_log_dir / f"{offset - offset % FILE_BYTES:020d}"

    def bodies(self, end: int) -> dict[tuple[str, int], list[bytes]]:
        """What the queues hold if the log ends there."""
        return {
            queue: [place.body for place in self.places if place.queue == queue and place.end <= end]
            for queue in QUEUES
        }

    def copy(self, image: Path) -> Made:
        """The same in another directory."""
        shutil.copytree(self.options.data_dir, image)
        return Made(replace(self.options, data_dir=image), self.places)

    def record(self, place: Place) -> bytes:
        """The bytes at a place."""
        return self.file_of(place.start).read_bytes()[place.start % FILE_BYTES :][: place.end - place.start]

    def changed(self, other: Made, *, covered: bool = False) -> list[Place]:
        """The records that are not the same in another copy of the directory.

        With `covered` only what the checks of a flushed record cover is compared: not its properties, whose checksum,
        if there is one, is among them and removed with them.
        """
        found = []
        for place in self.places:
            record = self.record(place)
            size = len(record) - (len(decode_record(record).properties) if covered else 0)
            if other.record(place)[:size] != record[:size]:
                found.append(place)
        return found

    def first_changed(self, other: Made, *, covered: bool = False) -> Place | None:
        """The first of them."""
        return next(iter(self.changed(other, covered=covered)), None)

    def end_of_file(self, offset: int) -> int:
        """Where the records end in the file that holds a log offset: the blank record is there, or nothing."""
        return max(place.end for place in self.places if place.start // FILE_BYTES == offset // FILE_BYTES)


def make(directory: Path, rng: random.Random, *, state: str, record_crc: bool = False, count: int = 25) -> Made:
    """A store of a few files, ended in one of these states.

    orderly: stopped in order. killed: with everything synced and the checkpoint written. undispatched: with the
    log synced, but not the entries of the last ten messages. unflushed: with the last three records never synced.
    """
    options = small_options(directory, record_crc=record_crc)
    store = opened(options, FakeClock())
    made = Made(options, [])
    for number in range(count):
        queue = QUEUES[number % 3]
        body = b"%03d" % number + rng.randbytes(rng.randrange(20, 300))
        properties = b"KEYS\x01k%d\x02TAGS\x01a\x02" % number
        result = store.put_record(Record(queue[0], body, queue_id=queue[1], properties=properties, born_timestamp_ms=1))
        made.places.append(Place(queue, body, result.physical_offset, result.end_offset))
        if number == count - 11 or (number == count - 4 and state == "unflushed"):
            dispatch_all(store)
            store.flush_consume_queues()
            store.write_checkpoint()
        if number < count - 3 or state != "unflushed":
            store.flush_commit_log()
    if state in ("orderly", "killed"):
        dispatch_all(store)
        store.flush_consume_queues()
        store.write_checkpoint()
    if state == "orderly":
        assert store.close()
    else:
        abandon(store)
    return made


def try_open(made: Made) -> tuple[MessageStore | None, Exception | None]:
    """Open it, or say what refused it."""
    store = MessageStore(made.options, clock_ms=FakeClock())
    try:
        store.open()
    except Exception as error:
        return None, error
    return store, None


def read_from(made: Made, scratch: Path) -> int:
    """Where the file begins that a start reads first; `scratch` is where it may be tried."""
    store = MessageStore(made.copy(scratch).options, clock_ms=FakeClock())
    report = store.open()
    abandon(store)
    shutil.rmtree(scratch)
    return report.checked_from


def check_ends_at(made: Made, end: int) -> list[Violation]:
    """Check that the store opens, holds exactly what is before `end`, continues there, and opens again."""
    store, refusal = try_open(made)
    if store is None:
        return [Violation("starts", f"{type(refusal).__name__}: {refusal}")]
    found: list[Violation] = []
    try:
        if store.max_physical_offset != end:
            found.append(Violation("log end", f"the log ends at {store.max_physical_offset}, not {end}"))
        for queue, bodies in made.bodies(end).items():
            if [record.body for record in read_queue(store, *queue)] != bodies:
                found.append(Violation("byte-equal", f"{queue} does not hold what was put"))
        file = log_of(store).files.last_file
        if file is not None and any(file.path.read_bytes()[end - file.base_offset :]):
            found.append(Violation("tail", f"bytes after the end of the log at {end} are not zero"))
        queue = QUEUES[0]
        store.put_record(Record(queue[0], b"one more", queue_id=queue[1]))
        dispatch_all(store)
        end = store.max_physical_offset
    except Exception as error:
        return [*found, Violation("serves", f"{type(error).__name__}: {error}")]
    finally:
        abandon(store)
    store, refusal = try_open(made)
    if store is None:
        return [*found, Violation("starts", f"the second time: {type(refusal).__name__}: {refusal}")]
    try:
        if store.max_physical_offset != end or read_queue(store, *queue)[-1].body != b"one more":
            found.append(Violation("log end", f"the second time it ends at {store.max_physical_offset}, not {end}"))
    finally:
        abandon(store)
    return found


def check_refused(made: Made, path: Path, position: int | None = None, *, names_repair: bool = True) -> list[Violation]:
    """Check that the start is refused for that place, and that not a byte of the directory changed."""
    before = tree(made.options.data_dir)
    names = sorted(made.options.data_dir.rglob("*"))
    store, error = try_open(made)
    if store is not None:
        abandon(store)
        return [Violation("refused", f"damage in {path.name} at {position} was not noticed")]
    found: list[Violation] = []
    if isinstance(error, StoreDamaged):
        if error.file != path or (position is not None and error.position != position):
            found.append(Violation("named", f"{error} instead of {path} at {position}"))
    elif not isinstance(error, ForeignFile) or error.path != path or position is not None:
        found.append(Violation("named", f"{type(error).__name__}: {error} instead of {path} at {position}"))
    if names_repair and "reput store repair" not in str(error):
        found.append(Violation("named", f"{error} does not name the repair"))
    left = sorted(made.options.data_dir.rglob("*"))
    if tree(made.options.data_dir) != before or left != names:
        found.append(Violation("nothing changed", f"the refused start changed the directory: {error}"))
    return found


def sample(cases: list[_Case], images: int, rng: random.Random) -> list[_Case]:
    """All of the cases, or so many of them."""
    return cases if len(cases) <= images else [cases[i] for i in sorted(rng.sample(range(len(cases)), images))]
