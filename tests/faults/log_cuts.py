"""The end of the CommitLog: its last records truncated at every byte, and foreign bytes after it."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

from crash.checker import Violation
from faults.made import FILE_BYTES, Made, check_ends_at, check_refused, make, read_from, sample
from faults.outcome import Outcome, scratch
from faults.readers import check_readers
from reput_protocol.record.record import decode_record, encode_record


def log_cuts(seed: int, images: int) -> Outcome:
    """The last three records truncated at every byte: with zeros after it, or at the end of the file."""
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
            if how == "zeros":
                found = _check_zeros(base, made, position, key[0], begins[key])
            elif any(kept) or key[0] == "orderly":
                found = check_refused(made, path, names_repair=False)
            elif key[0] == "killed":  # as if the process had been killed when it made the file, but for the mark
                found = check_refused(made, path, 0)
            else:
                found = check_ends_at(made, base.end_of_file(position - FILE_BYTES))
            outcome.add(f"seed {seed}, {key}, {how} from byte {position}", found)
            shutil.rmtree(made.options.data_dir)
            if outcome.enough:
                break
    return outcome


def _check_zeros(base: Made, made: Made, position: int, state: str, begin: int) -> list[Violation]:
    """A file has zeros from a position on; a start reads from `begin`."""
    damaged = base.first_changed(made, covered=state != "unflushed")
    path = made.file_of(position)
    blank = base.end_of_file(position)
    in_blank = path != base.file_of(base.places[-1].start) and blank <= position < blank + 8
    if state == "unflushed":
        if in_blank and path.read_bytes() != base.file_of(position).read_bytes():
            return check_ends_at(made, blank)
        return check_ends_at(made, base.places[-1].end if damaged is None else damaged.start)
    if position < begin and (damaged is None or damaged.start < begin):
        return check_readers(made, base.changed(made), must=base.changed(made, covered=True))
    if damaged is None:
        return check_ends_at(made, base.places[-1].end)
    return check_refused(made, path, damaged.start % FILE_BYTES)


def garbage_after_the_end(seed: int, images: int) -> Outcome:
    """Noise, halves and copies of records after the log's end, and old bytes in a file made ahead."""
    outcome = Outcome()
    rng = random.Random(seed)
    with scratch() as directory:
        bases = {state: make(directory / state, rng, state=state) for state in ("orderly", "killed")}
        while outcome.images < images and not outcome.enough:
            state = rng.choice(list(bases))
            how = rng.choice(("noise", "another record", "half a record", "record behind a gap", "stale file"))
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
    return bytes(encode_record(replace(decode_record(record), physical_offset=offset)))
