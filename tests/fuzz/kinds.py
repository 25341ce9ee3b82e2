"""The kinds of input that are tried, and how much of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fuzz.http_port import fuzz_http
from fuzz.message_port import fuzz_frames
from fuzz.outcome import Outcome


class Tried(NamedTuple):
    """One kind: what tries it, its share of the inputs of a long run, and how many a short run has."""

    kind: Callable[[int, int], Outcome]
    share: float
    short: int


KINDS = {
    "http": Tried(fuzz_http, 1.0, 3_000),
    "frames": Tried(fuzz_frames, 0.1, 1_000),
}
