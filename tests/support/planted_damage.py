"""Plant damage in a store directory, and know the findings of an audit: this file, this byte, and nothing else.

The places are found here independently: by following the sizes in the log, and by the layout of units, index
entries and tables.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Final, NamedTuple

from support.stores import flip_bit

UNIT_BYTES = 20
_MAGICS = (0xDAA320A7, 0xDAA320AB)
_BLANK = 0xCBD43194
_SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Finding(NamedTuple):
    """A fault as an audit names it."""

    kind: str
    file: Path
    position: int


class Planted(NamedTuple):
    """One damage, and what must be found for it: nothing but this."""

    what: str
    findings: frozenset[Finding]


class Record(NamedTuple):
    """One record of the log."""

    path: Path
    position: int
    size: int
    body: int
    body_size: int

    @property
    def offset(self) -> int:
        """Its log offset."""
        return int(self.path.name) + self.position


class Planter:
    """Damages a directory that was closed in order, each time something else.

    Args:
        root: the directory.
        seed: the same seed damages the same places.
        slots: hash slots of the index files.
    """

    def __init__(self, root: Path, seed: int, *, slots: int) -> None:
        self.root = root
        self._rng = random.Random(seed)
        self._slots = slots
        self._log, self._end = _walk(root / "commitlog")
        self._record_at = {record.offset: number for number, record in enumerate(self._log)}
        self._used: set[int] = set()
        self._spoiled: set[Path] = set()

    def plant(self, *kinds: str) -> list[Planted]:
        """Plant some of `KINDS`, one after the other; those without a place (any more) are left out."""
        return [planted for kind in kinds if (planted := KINDS[kind](self)) is not None]

    # -- the log ---------------------------------------------------------------------------------------------------

    def body(self) -> Planted | None:
        """A flipped bit of a body."""
        record = self._some_record(lambda record: record.body_size > 0)
        if record is None:
            return None
        flip_bit(record.path, record.body + self._rng.randrange(record.body_size), self._rng.randrange(8))
        return _one("body", "record", record.path, record.position)

    def magic(self) -> Planted | None:
        """A flipped bit of a record's magic number."""
        return self._in_head("magic", 4, 8)

    def record_size(self) -> Planted | None:
        """A flipped bit of a record's size."""
        return self._in_head("record size", 2, 4)

    def record_number(self) -> Planted | None:
        """A flipped bit of a record's number in its queue."""
        record = self._some_record(lambda _: True)
        if record is None:
            return None
        flip_bit(record.path, record.position + 20 + self._rng.randrange(3, 8), self._rng.randrange(8))
        return _one("record number", "order", record.path, record.position + 20)

    def record_place(self) -> Planted | None:
        """A flipped bit of a record's own log offset."""
        return self._in_head("record place", 28, 36)

    def log_file_cut(self) -> Planted | None:
        """A file of the log that is too short: the units of what is gone lead nowhere."""
        paths = sorted({record.path for record in self._log})[1:-1]
        numbers = [[n for n, record in enumerate(self._log) if record.path == path] for path in paths]
        free = [some for some in numbers if not self._used & {some[0] - 1, *some, some[-1] + 1}]
        if not free:
            return None
        some = self._rng.choice(free)
        self._used |= set(some)
        torn = self._log[self._rng.choice(some)]
        size = torn.position + self._rng.randrange(1, 80)
        torn.path.write_bytes(torn.path.read_bytes()[:size])
        findings = {Finding("file", torn.path, size), Finding("log", torn.path, size)}
        findings.add(Finding("log", torn.path, torn.position))
        gone = {self._log[number].offset for number in some if self._log[number].offset > torn.offset}
        for path in (self.root / "consumequeue").glob("*/*/*"):
            findings |= {Finding("queue", path, position) for position, offset in _units(path) if offset in gone}
        return Planted("log file cut", frozenset(findings))

    def _in_head(self, what: str, low: int, high: int) -> Planted | None:
        record = self._some_record(lambda _: True)
        if record is None:
            return None
        flip_bit(record.path, record.position + self._rng.randrange(low, high), self._rng.randrange(8))
        return _one(what, "log", record.path, record.position)

    def torn_tail(self) -> Planted | None:
        """The first bytes of a record after the end of the log."""
        path, position = self._end
        if path.stat().st_size - position < 64:
            return None
        torn = self._log[0].path.read_bytes()[:40]
        with path.open("r+b") as file:
            file.seek(position)
            file.write(torn)
        return self._spoil(path, _one("torn tail", "log", path, position))

    def stray_file(self) -> Planted:
        """A file that is none of the log's."""
        path = self.root / "commitlog" / f"notes-{self._rng.randrange(1000)}.txt"
        path.write_text("hello")
        return _one("stray file", "file", path, 0)

    def _some_record(self, suits: Callable[[Record], bool]) -> Record | None:
        """A record that nothing was planted near, neither the first nor the last of its file."""
        numbers = [
            number
            for number in range(1, len(self._log) - 1)
            if not self._used & {number - 1, number, number + 1}
            and self._log[number - 1].path == self._log[number].path == self._log[number + 1].path
            and suits(self._log[number])
        ]
        if not numbers:
            return None
        number = self._rng.choice(numbers)
        self._used.add(number)
        return self._log[number]

    def _take(self, offset: int) -> bool:
        """Take the record at a log offset, if it is there and nothing was planted near."""
        number = self._record_at.get(offset)
        if number is None or self._used & {number - 1, number, number + 1}:
            return False
        self._used.add(number)
        return True

    # -- queues ----------------------------------------------------------------------------------------------------

    def unit(self, what: str, low: int, high: int) -> Planted | None:
        """A flipped bit of a field of a unit."""
        found = self._some_unit()
        if found is None:
            return None
        path, position = found
        flip_bit(path, position + self._rng.randrange(low, high + 1), self._rng.randrange(8))
        field = {"offset": 0, "size": 8, "tag": 12}[what]
        return _one(f"unit {what}", "queue", path, position + field)

    def unit_lost(self) -> Planted | None:
        """A unit that is zeros."""
        found = self._some_unit()
        if found is None:
            return None
        path, position = found
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes(UNIT_BYTES))
        return _one("unit lost", "queue", path, position)

    def _some_unit(self) -> tuple[Path, int] | None:
        """A unit of a queue of messages that are due at once, neither the first nor the last one of its queue."""
        places = []
        for queue in sorted((self.root / "consumequeue").glob("*/*")):
            if queue.parent.name == _SCHEDULE:
                continue
            units = [(path, position, offset) for path in sorted(queue.iterdir()) for position, offset in _units(path)]
            places += units[1:-1]
        self._rng.shuffle(places)
        return next(((path, position) for path, position, offset in places if self._take(offset)), None)

    # -- the key index -----------------------------------------------------------------------------------------------

    def index_previous(self) -> Planted | None:
        """A flipped bit of the entry that an entry names before it."""
        return self._in_entry("index previous", 16, 18, 20)

    def index_seconds(self) -> Planted | None:
        """A flipped bit of an entry's time."""
        return self._in_entry("index seconds", 12, 13, 16)

    def _in_entry(self, what: str, field: int, low: int, high: int) -> Planted | None:
        found = self._some_entry()
        if found is None:
            return None
        path, position, _ = found
        flip_bit(path, position + self._rng.randrange(low, high), self._rng.randrange(8))
        return _one(what, "index", path, position + field)

    def index_offset(self) -> Planted | None:
        """An entry that names a record which is not there: it is wrong, and its key is missing."""
        found = self._some_entry()
        if found is None:
            return None
        path, position, record = found
        flip_bit(path, position + 11, 0)
        findings = {Finding("index", path, position), Finding("index", record.path, record.position)}
        return Planted("index offset", frozenset(findings))

    def index_slot(self) -> Planted | None:
        """A flipped bit of a hash slot."""
        path = self._some_index()
        if path is None:
            return None
        position = 40 + 4 * self._rng.randrange(self._slots)
        flip_bit(path, position + self._rng.randrange(2, 4), self._rng.randrange(8))
        return self._spoil(path, _one("index slot", "index", path, position))

    def index_slot_count(self) -> Planted | None:
        """A flipped bit of the number of slots that are in use."""
        path = self._some_index()
        if path is None:
            return None
        flip_bit(path, 32 + self._rng.randrange(2, 4), self._rng.randrange(8))
        return self._spoil(path, _one("index slot count", "index", path, 32))

    def index_end(self) -> Planted | None:
        """A flipped bit of an index file's last log offset."""
        path = self._some_index()
        if path is None:
            return None
        flip_bit(path, 24 + self._rng.randrange(4, 8), self._rng.randrange(8))
        return self._spoil(path, _one("index end", "index", path, 24))

    def _some_entry(self) -> tuple[Path, int, Record] | None:
        """An entry that is neither the first nor the last of its file."""
        places = []
        for path in sorted((self.root / "index").iterdir()):
            data = path.read_bytes()
            (used,) = struct.unpack_from(">i", data, 36)
            for number in range(2, used - 1):
                position = 40 + 4 * self._slots + UNIT_BYTES * number
                places.append((path, position, *struct.unpack_from(">q", data, position + 4)))
        self._rng.shuffle(places)
        return next(
            (
                (path, position, self._log[self._record_at[offset]])
                for path, position, offset in places
                if self._take(offset)
            ),
            None,
        )

    def _some_index(self) -> Path | None:
        """An index file of which nothing but entries was damaged."""
        paths = [path for path in sorted((self.root / "index").iterdir()) if path not in self._spoiled]
        return self._rng.choice(paths) if paths else None

    # -- checkpoint and tables -----------------------------------------------------------------------------------------

    def checkpoint(self) -> Planted | None:
        """A flipped bit of the checkpoint: one that is covered by a checksum, or else the sign of a field."""
        path = self.root / "checkpoint"
        if path in self._spoiled:
            return None
        if b"RPUTMARK" in path.read_bytes():
            position = self._rng.randrange(72)
            flip_bit(path, position, self._rng.randrange(8))
        else:
            position = 8 * self._rng.randrange(5)
            flip_bit(path, position, 7)
        return self._spoil(path, _one("checkpoint", "checkpoint", path, position))

    def topics(self) -> Planted | None:
        """A topic that calls itself by another name."""
        path = self.root / "config" / "topics.json"
        if path in self._spoiled or not path.exists():
            return None
        text = path.read_text()
        names = [name for name in json.loads(text)["topicConfigTable"] if name.isalnum()]
        name = self._rng.choice(names)
        at = text.index(f'"{name}"', text.index('"topicName"', text.index(f'"{name}"')))
        path.write_text(f"{text[: at + 1]}X{text[at + 1 :]}")
        return self._spoil(path, _one("topics", "topics", path, text.index(f'"{name}"')))

    def offsets(self) -> Planted | None:
        """A flipped bit of a table of offsets that a journal continues."""
        path = self.root / "config" / "consumerOffset.json"
        if path in self._spoiled or not path.with_suffix(".journal").exists():
            return None
        data = path.read_bytes()
        flip_bit(path, data.index(b'"0":') + 4)
        return self._spoil(path, _one("offsets", "offsets", path, 0))

    def _spoil(self, path: Path, planted: Planted) -> Planted:
        self._spoiled.add(path)
        return planted


def _one(what: str, kind: str, path: Path, position: int) -> Planted:
    return Planted(what, frozenset({Finding(kind, path, position)}))


def _walk(directory: Path) -> tuple[list[Record], tuple[Path, int]]:
    """Return every record of a log, and where the last file's records end."""
    records = []
    end = (directory, 0)
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        position = 0
        while position + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, position)
            if magic not in _MAGICS:
                break
            (sys_flag,) = struct.unpack_from(">i", data, position + 36)
            # Born host and store host: an address of four bytes or sixteen, and a port of four.
            head = 76 + sum(20 if sys_flag & flag else 8 for flag in (0x10, 0x20)) - 8
            (body_size,) = struct.unpack_from(">i", data, position + head)
            records.append(Record(path, position, size, position + head + 4, body_size))
            position += size
        if not data[position : position + 8].endswith(struct.pack(">I", _BLANK)):
            end = (path, position)
            if position:
                continue
            break
    return records, end


def _units(path: Path) -> list[tuple[int, int]]:
    """Position and log offset of every unit of a queue's file that is in use."""
    data = path.read_bytes()
    found = []
    for position in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
        offset, size = struct.unpack_from(">qi", data, position)
        if 0 < size < 0x7FFFFFFF:
            found.append((position, offset))
    return found


KINDS: Final[Mapping[str, Callable[[Planter], Planted | None]]] = {
    "body": Planter.body,
    "magic": Planter.magic,
    "record size": Planter.record_size,
    "record number": Planter.record_number,
    "record place": Planter.record_place,
    "log file cut": Planter.log_file_cut,
    "torn tail": Planter.torn_tail,
    "stray file": Planter.stray_file,
    "unit offset": lambda planter: planter.unit("offset", 3, 7),
    "unit size": lambda planter: planter.unit("size", 9, 11),
    "unit tag": lambda planter: planter.unit("tag", 16, 19),
    "unit lost": Planter.unit_lost,
    "index previous": Planter.index_previous,
    "index offset": Planter.index_offset,
    "index seconds": Planter.index_seconds,
    "index slot": Planter.index_slot,
    "index slot count": Planter.index_slot_count,
    "index end": Planter.index_end,
    "checkpoint": Planter.checkpoint,
    "topics": Planter.topics,
    "offsets": Planter.offsets,
}
"""Every kind of damage."""


def explained(planted: Iterable[Planted], found: Set[Finding]) -> str:
    """Say what was planted and not found, and what was found and not planted; nothing if that is the same."""
    wanted = {finding: each.what for each in planted for finding in each.findings}
    lines = [f"planted and not found: {wanted[finding]} {finding}" for finding in wanted.keys() - found]
    lines += [f"found and not planted: {finding}" for finding in found - wanted.keys()]
    return "\n".join(sorted(lines))
