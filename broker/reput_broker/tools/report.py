"""What an examination of a store found: faults, each with its file and byte, notes, and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FAULTS_KEPT = 1000
"""Faults of one kind that are kept with their words; of the rest only the number is."""

FIGURES = ("records", "log_bytes", "log_files", "units", "index_entries", "offsets")

Progress = Callable[[int, int], None]
"""Called now and then with bytes done and bytes in all."""


def no_progress(_done: int, _total: int) -> None:
    """Take a progress report and do nothing."""


class Fault(NamedTuple):
    """Something in a file that must not be so."""

    kind: str
    """What it concerns: `file`, `log`, `record`, `order` (of messages
    in the log), `queue`, `index`, `checkpoint`, `topics`, `offsets`, `journal`."""
    file: Path
    position: int
    """Byte in the file."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.reason}"


class Report:
    """Collects what was found. A fault is damage; a note is something that a start takes care of, or does not mind."""

    def __init__(self, faults_kept: int = FAULTS_KEPT) -> None:
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.kinds: Counter[str] = Counter()
        """How many faults of each kind there are, kept or not."""
        self.figures: Counter[str] = Counter(dict.fromkeys(FIGURES, 0))
        """What was looked at, each of `FIGURES` at least."""
        self._faults_kept = faults_kept

    @property
    def fault_count(self) -> int:
        """All faults, those that were not kept included."""
        return sum(self.kinds.values())

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged."""
        return not self.kinds

    def fault(self, kind: str, file: Path, position: int, reason: str) -> None:
        """Add a fault."""
        self.kinds[kind] += 1
        if self.kinds[kind] <= self._faults_kept:
            self.faults.append(Fault(kind, file, position, reason))

    def note(self, text: str) -> None:
        """Add a note."""
        self.notes.append(text)
