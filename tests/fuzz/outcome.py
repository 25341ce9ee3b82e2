"""Arguments and result of a kind of fuzzing."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

VIOLATIONS_MAX = 20
"""A kind stops after so many."""

_GROWTH_MAX_B = 16 << 20


@dataclass(slots=True)
class Outcome:
    """How many inputs were tried, how they were answered, and what broke."""

    cases: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    growth_b: int = 0
    """How much more memory the process held at the end than near the beginning."""

    @property
    def enough(self) -> bool:
        """Whether there is nothing more to learn."""
        return len(self.violations) >= VIOLATIONS_MAX

    def note_memory(self, before_b: int) -> None:
        """Hold the process's memory against what it was before most of the inputs."""
        self.growth_b = private_b() - before_b
        if self.growth_b > _GROWTH_MAX_B:
            self.violations.append(f"memory grew by {self.growth_b >> 20} MiB in {self.cases:,} inputs")


class _Malloc(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]
    fordblks: int


def private_b() -> int:
    """Return how much memory this process uses that is not a file's.

    Without what malloc keeps for reuse, if glibc tells: after one large frame that can be as much as all else.
    """
    status = Path("/proc/self/status").read_text()
    held = int(status.partition("RssAnon:")[2].split()[0]) << 10
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return held
    tell.restype = _Malloc
    return held - int(tell().fordblks)


@contextmanager
def defects_in_the_log(outcome: Outcome) -> Iterator[None]:
    """Count as a violation what is logged with an exception: bad input is the client's fault and never raises."""

    def judge(_logger: object, _method: str, event: Any) -> Any:
        error = event.get("exc_info") or ("a defect of" in event.get("hint", "") and event.get("detail"))
        if error and not outcome.enough:
            outcome.violations.append(
                f"{event['event']}: {event.get('path') or event.get('code')}: {error!r}"
            )
        raise structlog.DropEvent

    before = structlog.get_config()
    was_configured = structlog.is_configured()
    structlog.configure(processors=[judge])
    try:
        yield
    finally:
        if was_configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()
