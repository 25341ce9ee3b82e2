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
    """Of one feature of one client: it holds, fails with a reason, or the client lacks it."""

    reason: str | None = None
    is_lacking: bool = False

    @property
    def holds(self) -> bool:
        """Whether it does not fail."""
        return self.reason is None

    def __str__(self) -> str:
        return LACKS if self.is_lacking else PASSED if self.holds else FAILED


Results = Mapping[tuple[str, str], Result]


def text(results: Results, clients: Sequence[str] = tuple(CLIENTS)) -> str:
    """Return the table in Markdown, with the features that were checked."""
    return _markdown(
        clients,
        {key: str(result) for key, result in results.items()},
        [feature for feature in FEATURES if any((name, feature) in results for name in clients)],
    )


def write(results: Results) -> None:
    """Write what was checked into the table of the page; other cells stay."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    cells = {**_cells_of_page(), **{key: str(result) for key, result in results.items()}}
    PAGE.write_text(
        f"{before}{BEGIN}{_markdown(tuple(CLIENTS), cells, tuple(FEATURES))}{END}{after}", "utf-8"
    )


def of_page() -> list[list[str]]:
    """Return the cells of the page's table, its header first."""
    made = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in made.splitlines()]
    return [rows[0], *rows[2:]]


def head() -> list[str]:
    """Return the header of the page's table."""
    return ["Feature", *(_title(name) for name in CLIENTS)]


def _title(name: str) -> str:
    return f"{CLIENTS[name].title} {CLIENTS[name].version}".strip()


def _cells_of_page() -> dict[tuple[str, str], str]:
    titles, *rows = of_page()
    names = {_title(name): name for name in CLIENTS}
    features = {title: feature for feature, title in FEATURES.items()}
    return {
        (names[title], features[row[0]]): cell
        for row in rows
        for title, cell in zip(titles[1:], row[1:], strict=True)
        if title in names and row[0] in features
    }


def _markdown(clients: Sequence[str], cells: Mapping[tuple[str, str], str], features: Sequence[str]) -> str:
    rows = [["Feature", *map(_title, clients)], ["---"] * (1 + len(clients))]
    rows += [[FEATURES[each], *(cells.get((name, each), "") for name in clients)] for each in features]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
