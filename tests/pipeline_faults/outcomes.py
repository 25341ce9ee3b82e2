"""The result of a kind of fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Violation(NamedTuple):
    """A broken promise: the rule, and the facts."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


@dataclass
class Outcome:
    """What was tried, and which promises were broken."""

    rounds: int = 0
    notes: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def expect(self, holds: bool, rule: str, detail: str) -> None:
        """Note a violation of a rule if it does not hold."""
        if not holds:
            self.violations.append(Violation(rule, detail))

    def compare(self, what: str, rows_in: Iterable[str], rows_out: Iterable[str]) -> None:
        """Rows in = rows out = distinct; note how many there were."""
        wanted, found = Counter(rows_in), Counter(rows_out)
        twice = sum(count - 1 for count in found.values() if count > 1)
        missing, strange = wanted - found, found - wanted
        self.notes.append(f"{what}: {wanted.total()} rows in, {found.total()} out, {len(found)} distinct")
        self.expect(not missing, "rows missing", f"{what}: {missing.total()}, such as {list(missing)[:3]}")
        self.expect(not strange, "rows too many", f"{what}: {strange.total()}, {twice} of them twice")
