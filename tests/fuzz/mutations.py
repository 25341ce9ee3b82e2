"""Damage to bytes, and how they arrive."""

from __future__ import annotations

from random import Random

_NUMBERS = (b"0", b"-1", b"65536", b"4294967296", b"1e309", b"9" * 30)


def mutated(rng: Random, data: bytes) -> bytes:
    """Return `data` with one to four places changed, removed, repeated or filled with something else."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(damaged) + 1)
        size = min(rng.choice((1, 1, 2, 4, 16, 64)), len(damaged) - at)
        match rng.randrange(7):
            case 0:
                damaged[at : at + size] = rng.randbytes(size)
            case 1:
                del damaged[at : at + size]
            case 2:
                damaged[at:at] = damaged[at : at + size] * rng.randint(1, 8)
            case 3:
                damaged[at:at] = rng.randbytes(rng.randint(1, 16))
            case 4:
                del damaged[at:]
            case 5:
                damaged[at : at + size] = rng.choice(_NUMBERS)
            case 6 if size:
                damaged[at] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def in_parts(rng: Random, data: bytes) -> list[bytes]:
    """Return `data` as it may arrive: mostly in one piece, or split at a few places, or byte by byte."""
    how = rng.random()
    if how < 0.6 or len(data) < 2:
        return [data]
    if how < 0.97:
        places = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, 4)))
        return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if b > a]
    return [data[at : at + 1] for at in range(min(len(data), 200))] + [data[200:]] * (len(data) > 200)
