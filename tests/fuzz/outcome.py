"""Arguments and result of a kind of fuzzing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import structlog

VIOLATIONS_MAX = 20
"""A kind stops after so many."""

_GROWTH_MAX_B = 48 << 20
"""After a large frame the allocators of Python and of the system keep up to 30 MiB for reuse."""
_MORE_BLOCKS_MAX = 100_000
"""Of some 400,000 of a broker. In a million inputs, one more for every ninth would be found."""


class Memory(NamedTuple):
    """What this process holds: bytes that are not a file's, and Python's blocks, of which an object has one or two."""

    private_b: int
    blocks: int

    @classmethod
    def now(cls) -> Memory:
        """Measure it."""
        return cls(private_b(), sys.getallocatedblocks())


@dataclass(slots=True)
class Outcome:
    """How many inputs were tried, how they were answered, and what broke."""

    cases: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    growth_b: int = 0
    """How much more memory the process held at the end than near the beginning."""
    more_blocks: int = 0

    @property
    def enough(self) -> bool:
        """Whether there is nothing more to learn."""
        return len(self.violations) >= VIOLATIONS_MAX

    def note_memory(self, before: Memory) -> None:
        """Hold the process's memory against what it was before most of the inputs."""
        now = Memory.now()
        self.growth_b = now.private_b - before.private_b
        self.more_blocks = now.blocks - before.blocks
        if self.growth_b > _GROWTH_MAX_B:
            self.violations.append(f"memory grew by {self.growth_b >> 20} MiB in {self.cases:,} inputs")
        if self.more_blocks > _MORE_BLOCKS_MAX:
            self.violations.append(f"{self.more_blocks:,} more objects after {self.cases:,} inputs")


def private_b() -> int:
    """Return how much memory this process holds that is not a file's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


@contextmanager
def defects_in_the_log(outcome: Outcome) -> Iterator[None]:
    """Count as a violation what is logged with an exception: bad input is the client's fault and never raises."""

    def judge(_logger: object, _method: str, event: Any) -> Any:
        error = event.get("exc_info") or ("a defect of" in event.get("hint", "") and event.get("detail"))
        if error and not outcome.enough:
            outcome.violations.append(f"{event['event']}: {event.get('path') or event.get('code')}: {error!r}")
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
