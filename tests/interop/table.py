"""The tables of clients and features, and their places in docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interop.catalogue import CLIENTS, COLUMNS, FEATURES, Column

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
PASSED: Final = "passed"
LACKS: Final = "not offered"
FAILED: Final = "fails"
_END: Final = "\n<!-- end of what is made -->\n"


@dataclass(frozen=True, slots=True)
class Result:
    """Of one feature in one column: it holds, fails with a reason, or the client lacks it."""

    reason: str | None = None
    is_lacking: bool = False

    @property
    def holds(self) -> bool:
        """Whether it does not fail."""
        return self.reason is None

    def __str__(self) -> str:
        return LACKS if self.is_lacking else PASSED if self.holds else FAILED


Results = Mapping[tuple[Column, str], Result]


class Table:
    """A table of the page: some columns, and the features that a client of theirs offers.

    Args:
        made_by: the command that writes it.
        columns: its columns after the first, which has the features.
    """

    def __init__(self, made_by: str, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.features = [
            feature for feature in FEATURES if any(feature not in CLIENTS[column.client].lacks for column in columns)
        ]
        self._begin = f"<!-- made by `{made_by}` -->\n\n"

    def text(self, results: Results) -> str:
        """Return the columns and features that were checked, in Markdown."""
        return _markdown(
            [each for each in self.columns if any((each, feature) in results for feature in self.features)],
            [each for each in self.features if any((column, each) in results for column in self.columns)],
            {key: str(result) for key, result in results.items()},
        )

    def write(self, results: Results) -> None:
        """Write what was checked into the page; other cells stay."""
        before, rest = PAGE.read_text(encoding="utf-8").split(self._begin)
        _, after = rest.split(_END, maxsplit=1)
        cells = {**self._cells_of_page(), **{key: str(result) for key, result in results.items()}}
        made = _markdown(self.columns, self.features, cells)
        PAGE.write_text(f"{before}{self._begin}{made}{_END}{after}", "utf-8")

    def of_page(self) -> list[list[str]]:
        """Return the cells of the table in the page, its header first."""
        made = PAGE.read_text(encoding="utf-8").partition(self._begin)[2].partition(_END)[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in made.splitlines()]
        return [rows[0], *rows[2:]]

    def head(self) -> list[str]:
        """Return the header that the page should have."""
        return ["Feature", *(column.title for column in self.columns)]

    def _cells_of_page(self) -> dict[tuple[Column, str], str]:
        titles, *rows = self.of_page()
        columns = {column.title: column for column in self.columns}
        features = {title: feature for feature, title in FEATURES.items()}
        return {
            (columns[title], features[row[0]]): cell
            for row in rows
            for title, cell in zip(titles[1:], row[1:], strict=True)
            if title in columns and row[0] in features
        }


REMOTING: Final = Table("make interop ARGS=--write", [each for each in COLUMNS if not each.proxy])
GRPC: Final = Table("make interop KIND=grpc ARGS=--write", [each for each in COLUMNS if each.proxy])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Features of gRPC clients that were checked through both proxies, by client and feature."""

    same: list[tuple[str, str]]
    better: list[tuple[str, str]]
    """They hold only through Reput's."""
    worse: list[tuple[str, str]]
    """They hold only through RocketMQ's."""


def compare(results: Results) -> Comparison:
    """Compare what holds through Reput's proxy and through RocketMQ's."""
    found = Comparison([], [], [])
    for (column, feature), ours in results.items():
        theirs = results.get((Column(column.client, "apache"), feature))
        if column.proxy != "reput" or theirs is None or ours.is_lacking:
            continue
        kind = found.same if ours.holds == theirs.holds else found.better if ours.holds else found.worse
        kind.append((column.client, feature))
    return found


def _markdown(columns: Sequence[Column], features: Sequence[str], cells: Mapping[tuple[Column, str], str]) -> str:
    rows = [["Feature", *(column.title for column in columns)], ["---"] * (1 + len(columns))]
    rows += [[FEATURES[each], *(cells.get((column, each), "") for column in columns)] for each in features]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
