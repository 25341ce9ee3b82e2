"""The end of the CommitLog: its last records cut off at every byte, and bytes behind it that do not belong there."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

from crash.checker import Violation
from faults.made import FILE_BYTES, Made, Place, check_ends_at, check_refused, make, read_from, sample
from faults.outcome import Outcome, scratch
from faults.readers import check_readers
from reput_protocol.record import decode_record, encode_record


def log_cuts(seed: int, images: int) -> Outcome:
    """The last three records cut off at every byte: with zeros behind, or the file itself ending there."""
    outcome = Outcome()
    rng = random.Random(seed)
    with scratch() as directory:
        bases = {
            (state, crc): make(directory / f"{state}-{crc}", rng, state=state, record_crc=crc)
            for state in ("unflushed", "killed", "orderly")
            for crc in (False, True)
        }
        begins = {key: read_from(base, directory / "tried") for key, base in bases.items()}
        cases = [
            (key, how, position)
            for key, base in bases.items()
            for how in ("zeros", "short")
            for position in range(base.places[-3].start, base.places[-1].end)
        ]
        for key, how, position in sample(cases, images, rng):
            base = bases[key]
            made = base.copy(directory / "image")
            path = made.file_of(position)
            kept = path.read_bytes()[: position % FILE_BYTES]
            path.write_bytes(kept if how == "short" else kept.ljust(FILE_BYTES, b"\0"))
            if how == "short":
                found = check_refused(made, path, names_repair=False)
            elif (damaged := base.first_changed(made, covered=key[0] != "unflushed")) is None:
                found = check_ends_at(made, base.places[-1].end)
            elif key[0] == "unflushed":
                found = check_ends_at(made, damaged.start)
            elif damaged.start < begins[key]:
                found = _check_noticed(base, made)
            else:
                found = check_refused(made, path, damaged.start % FILE_BYTES)
            outcome.add(f"seed {seed}, {key}, {how} from byte {position}", found)
            shutil.rmtree(made.options.data_dir)
            if outcome.enough:
                break
    return outcome


def _check_noticed(base: Made, made: Made) -> list[Violation]:
    """Check what a reader makes of a cut in a file that a start does not read."""
    changed: list[Place] = [place for place in base.places if base.record(place) != made.record(place)]
    noticed, found = check_readers(made, changed)
    return found if noticed else [*found, Violation("noticed", "a record was cut and the reader saw nothing")]


def garbage_after_the_end(seed: int, images: int) -> Outcome:
    """Noise, halves and copies of records behind the log's end, and old bytes in a file made ahead."""
    outcome = Outcome()
    rng = random.Random(seed)
    with scratch() as directory:
        bases = {state: make(directory / state, rng, state=state) for state in ("orderly", "killed")}
        while outcome.images < images and not outcome.enough:
            state = rng.choice(list(bases))
            how = rng.choice(
                ("noise", "another record", "half a record", "record behind a gap", "stale file")
            )
            made = bases[state].copy(directory / "image")
            _add_garbage(made, how, rng)
            where = f"seed {seed}, image {outcome.images}, {state}, {how}"
            outcome.add(where, check_ends_at(made, made.places[-1].end))
            shutil.rmtree(made.options.data_dir)
    return outcome


def _add_garbage(made: Made, how: str, rng: random.Random) -> None:
    end = made.places[-1].end
    path = made.file_of(end)
    position = end % FILE_BYTES
    record = made.record(rng.choice(made.places))
    match how:
        case "noise":
            garbage = rng.randbytes(rng.randrange(1, FILE_BYTES - position))
        case "another record":  # sound but for the place that it names
            garbage = record
        case "half a record":
            garbage = _moved(record, end)[: rng.randrange(1, len(record))]
        case "record behind a gap":  # sound, place and all, but nothing leads to it
            gap = rng.randrange(8, 200)
            garbage = bytes(gap) + _moved(record, end + gap)
        case _:
            fresh = made.file_of(end + FILE_BYTES)
            old = made.file_of(0).read_bytes()
            if rng.random() < 0.5:
                old = _moved(record, end - position + FILE_BYTES).ljust(FILE_BYTES, b"\0")
            fresh.write_bytes(old)
            return
    data = bytearray(path.read_bytes())
    garbage = garbage[: FILE_BYTES - position]
    data[position : position + len(garbage)] = garbage
    path.write_bytes(data)


def _moved(record: bytes, offset: int) -> bytes:
    """A record that says that it belongs at a log offset, checksum and all."""
    return encode_record(replace(decode_record(record), physical_offset=offset))
