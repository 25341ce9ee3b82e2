"""Every byte of one flushed record flipped, with and without the checksum of the whole record.

Of a record that a start reads, which starts are refused? Of one in an older file, what does the client make of it?
"""

from __future__ import annotations

import random
import shutil
from itertools import product
from pathlib import Path
from typing import NamedTuple

from crash.checker import Violation
from faults.made import FILE_BYTES, Made, Place, make, read_from, sample, try_open
from faults.outcome import Outcome, scratch
from faults.readers import check_readers
from faults.workload import abandon
from reput_broker.store.base.errors import StoreDamaged
from reput_protocol.properties import CRC_PROPERTY_BYTES
from reput_protocol.record.record import Record, decode_record
from support.stores import read_queue, tree

FIELDS = (
    ("TOTALSIZE", 0, 4), ("MAGIC", 4, 4), ("BODYCRC", 8, 4), ("QUEUEID", 12, 4), ("FLAG", 16, 4),
    ("QUEUEOFFSET", 20, 8), ("PHYSICALOFFSET", 28, 8), ("SYSFLAG", 36, 4), ("BORNTIMESTAMP", 40, 8),
    ("BORNHOST", 48, 8), ("STORETIMESTAMP", 56, 8), ("STOREHOST", 64, 8), ("RECONSUMETIMES", 72, 4),
    ("PREPARED_TRANSACTION_OFFSET", 76, 8), ("BODYLEN", 84, 4),
)  # fmt: skip
ALWAYS = frozenset(
    {"TOTALSIZE", "MAGIC", "BODYCRC", "BODY", "BODYLEN", "TOPICLEN", "PROPLEN", "PHYSICALOFFSET"}
    | {"TOPIC", "QUEUEID", "QUEUEOFFSET"}
)
"""Sizes, body and identity: every flip there is detected with any options."""

NOT_BY_READERS = frozenset({"PHYSICALOFFSET"})
"""A record's position is not part of the message; only a start compares it."""
RECORDS_READ = 5
"""So many records, the flipped one among them, are in the last file, so that a start reads it."""

CHECKSUM = "__CRC32# and the 0x02 before it"
"""Where these bytes are changed the property is not recognised, and the flip is not noticed."""


def field_at(record: Record, position: int) -> str:
    """Which field of a version 1 record with IPv4 hosts a byte belongs to."""
    for name, start, size in FIELDS:
        if start <= position < start + size:
            return name
    position -= 88
    sizes = [("BODY", len(record.body)), ("TOPICLEN", 1), ("TOPIC", len(record.topic)), ("PROPLEN", 2)]
    for name, size in sizes:
        if position < size:
            return name
        position -= size
    if b"__CRC32#" in record.properties and len(record.properties) - position <= CRC_PROPERTY_BYTES + 1:
        return CHECKSUM
    return "PROPERTIES"


COLUMNS = ("orderly", "killed", "undispatched", "reader")


class Flips:
    """How many flips of each field were detected: (field, whole-record checksum, state) -> [flips, detected]."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, bool, str], list[int]] = {}

    def add(self, field: str, crc: bool, state: str, detected: bool) -> None:
        count = self.counts.setdefault((field, crc, state), [0, 0])
        count[0] += 1
        count[1] += detected

    def lines(self) -> list[str]:
        fields = list(dict.fromkeys(field for field, _, _ in self.counts))
        columns = sorted(
            {(crc, state) for _, crc, state in self.counts}, key=lambda column: (COLUMNS.index(column[1]), column[0])
        )
        heads = [f"{state}{' +CRC' if crc else ''}" for crc, state in columns]
        lines = [f"{'field':32}" + "".join(f"{head:>20}" for head in heads)]
        for field in fields:
            cells = [self.counts.get((field, *column), [0, 0]) for column in columns]
            lines.append(f"{field:32}" + "".join(f"{f'{hit}/{all_}':>20}" for all_, hit in cells))
        return lines


class Base(NamedTuple):
    """A directory to flip bits in."""

    made: Made
    crc: bool
    state: str
    place: Place
    """The record to flip bits of, one that a start reads."""
    old_place: Place | None
    """One in an older file."""


def flips(seed: int, images: int) -> Outcome:
    """Every byte of one flushed record flipped, with and without its own checksum: who notices?"""
    outcome = Outcome()
    rng = random.Random(seed)
    table = Flips()
    with scratch() as directory:
        bases = [
            _base(directory, rng, state, crc)
            for state in ("orderly", "killed", "undispatched")
            for crc in (False, True)
        ]
        bits = range(8) if images >= 10_000 else (rng.randrange(8),)
        cases = [
            (base, place, position, bit)
            for base in bases
            for place in (base.place, base.old_place)
            if place is not None
            for position, bit in product(range(place.end - place.start), bits)
        ]
        for base, place, position, bit in sample(cases, images, rng):
            made = base.made.copy(directory / "image")
            path = made.file_of(place.start)
            data = bytearray(path.read_bytes())
            record = decode_record(bytes(data), place.start % FILE_BYTES)
            data[place.start % FILE_BYTES + position] ^= 1 << bit
            path.write_bytes(data)
            field = field_at(record, position)
            must = field in ALWAYS or (base.crc and field != CHECKSUM)
            if place is base.place:
                who = base.state
                detected, found = _judge_flip(made, path, place)
            else:
                who = "reader"
                must &= base.crc or field not in NOT_BY_READERS
                noticed: list[Place] = []
                found = check_readers(made, [place], noticed=noticed)
                detected = bool(noticed)
            if must and not detected:
                found.append(Violation("flip detected", f"{field}: nobody noticed"))
            table.add(field, base.crc, who, detected)
            where = f"{base.state}{' +CRC' if base.crc else ''}, {who}"
            outcome.add(f"seed {seed}, {where}, byte {position} ({field}) bit {bit}", found)
            shutil.rmtree(made.options.data_dir)
            if outcome.enough:
                break
    outcome.notes = table.lines()
    return outcome


def _base(directory: Path, rng: random.Random, state: str, crc: bool) -> Base:
    """A directory whose fifth record from the end is read by a start, with any sizes of the others."""
    for count in range(25, 40):
        target = directory / f"{state}-{crc}-{count}"
        made = make(target, rng, state=state, record_crc=crc, count=count)
        begin = read_from(made, directory / "tried")
        place = made.places[-RECORDS_READ]
        if place.start >= begin:
            old = [place for place in made.places if place.end <= begin]
            return Base(made, crc, state, place, rng.choice(old) if old else None)
    raise AssertionError("no last file holds five records")


def _judge_flip(made: Made, path: Path, place: Place) -> tuple[bool, list[Violation]]:
    """Whether the start was refused; and what is wrong with how it was refused, or with what is served instead."""
    before = tree(made.options.data_dir)
    store, error = try_open(made)
    if store is None:
        found = []
        if not isinstance(error, StoreDamaged) or error.file != path:
            found.append(Violation("named", f"{type(error).__name__}: {error}"))
        if tree(made.options.data_dir) != before:
            found.append(Violation("nothing changed", "the refused start changed the directory"))
        return True, found
    try:
        for queue, bodies in made.bodies(1 << 62).items():
            if [record.body for record in read_queue(store, *queue)] != bodies:
                return False, [Violation("byte-equal", f"{queue} does not hold what was put")]
    except Exception as error:
        return False, [Violation("serves", f"{type(error).__name__}: {error}")]
    finally:
        abandon(store)
    return False, []
