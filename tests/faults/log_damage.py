"""Damage among flushed records: the start is refused by file and position, and nothing is truncated."""

from __future__ import annotations

import random
import shutil

from faults.made import FILE_BYTES, Made, Place, check_refused, make, read_from
from faults.outcome import Outcome, scratch

STATES = ("orderly", "killed", "undispatched")
WAYS = ("zeros", "noise", "another record", "one bit", "lost sector")


def damage_in_the_middle(seed: int, images: int) -> Outcome:
    """Stretches of flushed records overwritten, in what a start reads; sound flushed records follow."""
    outcome = Outcome()
    rng = random.Random(seed)
    with scratch() as directory:
        bases = {}
        for state in STATES:
            base = make(directory / state, rng, state=state)
            begin = read_from(base, directory / "tried")
            bases[state] = (base, [place for place in base.places[:-1] if place.start >= begin])
        while outcome.images < images and not outcome.enough:
            state = rng.choice(STATES)
            base, places = bases[state]
            place, how = rng.choice(places), rng.choice(WAYS)
            made = base.copy(directory / "image")
            _damage(made, place, how, rng)
            first = base.first_changed(made, covered=True)
            if first is not None:
                found = check_refused(made, made.file_of(first.start), first.start % FILE_BYTES)
                outcome.add(f"seed {seed}, image {outcome.images}, {state}, {how} at {place.start}", found)
            shutil.rmtree(made.options.data_dir)
    return outcome


def _damage(made: Made, place: Place, how: str, rng: random.Random) -> None:
    path = made.file_of(place.start)
    data = bytearray(path.read_bytes())
    start = place.start % FILE_BYTES
    size = place.end - place.start
    match how:
        case "zeros":
            data[start : start + size] = bytes(size)
        case "noise":
            data[start : start + size] = rng.randbytes(size)
        case "another record":
            other = made.record(rng.choice([p for p in made.places if p != place]))[:size]
            data[start : start + len(other)] = other
        case "one bit":  # of size, magic or checksum
            data[start + rng.randrange(12)] ^= 1 << rng.randrange(8)
        case _:
            at = rng.randrange(start // 512, (start + size - 1) // 512 + 1) * 512
            data[at : at + 512] = bytes(512)
    path.write_bytes(data)
