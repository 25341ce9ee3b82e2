"""The findings of a verification: faults with file and byte, notes, and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FAULTS_KEPT = 1000
"""How many faults of one kind are kept in full; the others are only counted."""

FIGURES = ("records", "log_bytes", "log_files", "units", "index_entries", "offsets")

Progress = Callable[[int, int], None]
"""Called from time to time with bytes done and total bytes."""


def no_progress(_done: int, _total: int) -> None:
    """Ignore a progress report."""


class Fault(NamedTuple):
    """Damage in a file."""

    kind: str
    """What is damaged: `file`, `log`, `record`, `order` (of messages in the log), `queue`, `index`,
    `checkpoint`, `topics`, `offsets`, `journal`."""
    file: Path
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.reason}"


class Report:
    """Collects findings. A fault is damage; a note is something that a start handles or ignores."""

    def __init__(self, faults_kept: int = FAULTS_KEPT) -> None:
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.kinds: Counter[str] = Counter()
        """Number of faults by kind, kept or not."""
        self.figures: Counter[str] = Counter(dict.fromkeys(FIGURES, 0))
        """What was examined, at least each of `FIGURES`."""
        self._faults_kept = faults_kept

    @property
    def fault_count(self) -> int:
        """Number of all faults, kept or not."""
        return sum(self.kinds.values())

    @property
    def is_clean(self) -> bool:
        """Whether there is no fault."""
        return not self.kinds

    def fault(self, kind: str, file: Path, position: int, reason: str) -> None:
        """Add a fault."""
        self.kinds[kind] += 1
        if self.kinds[kind] <= self._faults_kept:
            self.faults.append(Fault(kind, file, position, reason))

    def note(self, text: str) -> None:
        """Add a note."""
        self.notes.append(text)
