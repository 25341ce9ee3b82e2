"""The fenced blocks of README.md and docs/, and which of them are run.

A comment before a block, `<!-- not run: REASON -->`, says that no test runs it. A Python block with a title is a file
that the reader saves; the commands after it run it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
LANGUAGES: Final = (
    *("console", "go", "java", "javascript", "json", "mermaid"),
    *("python", "rust", "sh", "sql", "text", "toml", "yaml"),
)

_BLOCK = re.compile(r'(?ms)^(?:<!-- not run: ([^\n]*?) -->\n+)?```([^\s`]*)(?: title="([^"\n]+)")?[^\n]*\n(.*?)^```$')


class Block(NamedTuple):
    """One block of a page."""

    page: str
    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    return [
        Block(name, text.count("\n", 0, found.start(2)) + 1, found[2], found[3], found[4], found[1])
        for found in _BLOCK.finditer(text)
    ]


PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCKS: Final = [block for path in PAGES for block in _blocks_of(path)]
RUN: Final = [block for block in BLOCKS if block.not_run is None]
