"""The table of clients and features, and its place in docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interop.catalogue import CLIENTS, FEATURES

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN: Final = "<!-- made by `make interop ARGS=--write` -->\n\n"
END: Final = "\n<!-- end of what is made -->\n"
PASSED: Final = "passed"
LACKS: Final = "not offered"
FAILED: Final = "fails"


@dataclass(frozen=True, slots=True)
class Result:
    """Of one feature of one client: it holds, the client lacks it, or it fails with a reason."""

    reason: str | None = None
    lacks: bool = False

    @property
    def holds(self) -> bool:
        """Whether it does not fail."""
        return self.reason is None

    def __str__(self) -> str:
        if self.lacks:
            return LACKS
        return PASSED if self.holds else FAILED


Results = Mapping[tuple[str, str], Result]


def text(results: Results, clients: Sequence[str] = tuple(CLIENTS)) -> str:
    """Return the table in Markdown, with the features that were checked."""
    titles = [f"{CLIENTS[name].title} {CLIENTS[name].version}".strip() for name in clients]
    rows = [["Feature", *titles], ["---"] * (1 + len(titles))]
    for feature, title in FEATURES.items():
        cells = [str(results.get((name, feature), "")) for name in clients]
        if any(cells):
            rows.append([title, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def write(results: Results) -> None:
    """Replace the table of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{text(results)}{END}{after}", encoding="utf-8")


def of_page() -> list[list[str]]:
    """Return the cells of the page's table, its header first."""
    made = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in made.splitlines()]
    return [rows[0], *rows[2:]]
