"""What a scan has tried and what was answered, as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

_TEXT_MAX: Final = 90
_SHOWN: Final = 3


@dataclass(slots=True)
class Finding:
    """One kind of attempt at one port."""

    port: int | str
    tried: str
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Answers that a client without a user must not get."""

    def note(self, answer: str, *, wrong: bool = False, count: int = 1) -> None:
        """Count an answer."""
        self.answers[answer] += count
        if wrong:
            self.wrong.append(answer)

    def expect(self, holds: bool, answer: str) -> None:
        """Count an answer that is wrong unless `holds`."""
        self.note(answer, wrong=not holds)


UNAVAILABLE: Final = 3
"""The exit code of a scan where there can be no namespaces."""
HEAD: Final = "| Port | Tried | Answered |\n|---|---|---|"


def row(finding: Finding) -> str:
    """Return a row of the table, in the form of the documentation's tables."""
    common = finding.answers.most_common()
    texts = [f"{count:,}: {answer[:_TEXT_MAX]}" for answer, count in common[:_SHOWN]]
    if len(common) > _SHOWN:
        texts.append(f"{sum(count for _, count in common[_SHOWN:]):,}: others")
    return f"| {finding.port} | {finding.tried} | {'; '.join(texts)} |"
