"""Arguments and result of a kind of fault."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crash.checker import Violation

VIOLATIONS_MAX = 20
"""A kind stops looking after so many."""


@dataclass(slots=True)
class Outcome:
    """How often a fault was tried, and what broke."""

    images: int = 0
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, where: str, violations: list[Violation]) -> None:
        """Count one image and keep what it violates."""
        self.images += 1
        self.violations += [f"{where}: {violation}" for violation in violations]

    @property
    def enough(self) -> bool:
        """Whether there is nothing more to learn."""
        return len(self.violations) >= VIOLATIONS_MAX


Kind = Callable[[int, int], Outcome]
"""Tries one kind of fault: (seed, how many images or rounds) -> outcome."""


def runs(seed: int, images: int, outcome: Outcome) -> Iterator[tuple[int, Path]]:
    """Yield a seed and an empty directory for one run after the other, until so many images have been checked."""
    number = 0
    while outcome.images < images and not outcome.enough:
        with scratch() as directory:
            yield seed + 1000 * number, directory
        number += 1


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for images: in memory where there is one, since a sync of an image proves nothing."""
    memory = Path("/dev/shm")
    directory = tempfile.mkdtemp(prefix="reput-faults-", dir=memory if memory.is_dir() else None)
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory)
