"""Every byte of one flushed record flipped, with and without the checksum of the whole record."""

from __future__ import annotations

import random
import shutil
from itertools import product
from pathlib import Path

from crash.checker import Violation
from faults.made import FILE_BYTES, Made, Place, make, sample, try_open
from faults.outcome import Outcome, scratch
from faults.workload import abandon
from reput_broker.store.errors import StoreDamaged
from reput_protocol.properties import CRC_PROPERTY_BYTES
from reput_protocol.record import Record, decode_record
from stores import read_queue, tree

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
"""Sizes, body and identity: every flip there is detected, whatever the options."""

CHECKSUM = "__CRC32# and the 0x02 before it"
"""Where these bytes are changed the property is none any more: then nothing else is, and nobody notices."""


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
        columns = list(dict.fromkeys((crc, state) for _, crc, state in self.counts))
        heads = [f"{state}{' +CRC' if crc else ''}" for crc, state in columns]
        lines = [f"{'field':32}" + "".join(f"{head:>20}" for head in heads)]
        for field in fields:
            cells = [self.counts.get((field, *column), [0, 0]) for column in columns]
            lines.append(f"{field:32}" + "".join(f"{f'{hit}/{all_}':>20}" for all_, hit in cells))
        return lines


def flips(seed: int, images: int) -> Outcome:
    """Every byte of one flushed record flipped, with and without its own checksum: which starts are refused?"""
    outcome = Outcome()
    rng = random.Random(seed)
    table = Flips()
    with scratch() as directory:
        bases = {
            (state, crc): make(directory / f"{state}-{crc}", rng, state=state, record_crc=crc)
            for state in ("orderly", "killed", "undispatched")
            for crc in (False, True)
        }
        cases = []
        for key, base in bases.items():
            place = base.places[-5]
            bits = range(8) if images >= 10_000 else (rng.randrange(8),)
            cases += [(key, position, bit) for position, bit in product(range(place.end - place.start), bits)]
        for key, position, bit in sample(cases, images, rng):
            base = bases[key]
            place = base.places[-5]
            made = base.copy(directory / "image")
            path = made.file_of(place.start)
            data = bytearray(path.read_bytes())
            record = decode_record(bytes(data), place.start % FILE_BYTES)
            data[place.start % FILE_BYTES + position] ^= 1 << bit
            path.write_bytes(data)
            field = field_at(record, position)
            detected, found = _judge_flip(made, path, place)
            must = field in ALWAYS or (key[1] and field != CHECKSUM)
            if must and not detected:
                found.append(Violation("flip detected", f"{field}: nobody noticed"))
            table.add(field, key[1], key[0], detected)
            outcome.add(f"seed {seed}, {key}, byte {position} ({field}) bit {bit}", found)
            shutil.rmtree(made.options.data_dir)
            if outcome.enough:
                break
    outcome.notes = table.lines()
    return outcome


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
