"""The result of a kind of fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What was tried, and which promises were broken."""

    rounds: int = 0
    notes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, text: str) -> None:
        """Note a violation if something does not hold."""
        if not holds:
            self.violations.append(text)

    def compare(self, what: str, rows_in: Iterable[str], rows_out: Iterable[str]) -> None:
        """Rows in = rows out = distinct; note how many there were."""
        wanted, found = Counter(rows_in), Counter(rows_out)
        twice = sum(count - 1 for count in found.values() if count > 1)
        missing, strange = wanted - found, found - wanted
        self.notes.append(f"{what}: {wanted.total()} rows in, {found.total()} out, {len(found)} distinct")
        self.expect(not missing, f"{what}: {missing.total()} rows are missing, such as {list(missing)[:3]}")
        self.expect(not strange, f"{what}: {strange.total()} rows too many, {twice} of them twice")
