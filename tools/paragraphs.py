"""Print paragraphs of the documentation, drawn at random with a seed, to judge how they read out of context.

    python tools/paragraphs.py --seed 7 60

A paragraph is prose of at least 25 words in README.md or a page of docs/, a list item included. Headings, tables, code,
comments and quotations are not paragraphs. Each paragraph has the same chance, so long pages give more of them.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
WORDS_MIN: Final = 25

_FENCE = re.compile(r"\s*(```|~~~)")
_NOT_PROSE = re.compile(r"\s*(#|\||>|<!--|!\[|!!!)")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s")


class Paragraph(NamedTuple):
    """Prose of a page, its lines joined, and the number of its first line."""

    page: str
    line: int
    text: str


def paragraphs_of(page: str, text: str) -> list[Paragraph]:
    """Split a page in Markdown into its paragraphs of at least `WORDS_MIN` words."""
    blocks: list[tuple[int, list[str]]] = []
    fenced = open_block = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
            open_block = False
        elif fenced or not line.strip() or _NOT_PROSE.match(line):
            open_block = False
        elif open_block and not _ITEM.match(line):
            blocks[-1][1].append(line.strip())
        else:
            blocks.append((number, [line.strip()]))
            open_block = True
    found = (Paragraph(page, number, " ".join(lines)) for number, lines in blocks)
    return [paragraph for paragraph in found if len(paragraph.text.split()) >= WORDS_MIN]


def main() -> None:
    """Print the paragraphs drawn, each under its page and line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("number", type=int, help="how many paragraphs to print")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same paragraphs (default: 0)")
    arguments = parser.parse_args()
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    paragraphs = [
        paragraph
        for path in pages
        for paragraph in paragraphs_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    drawn = random.Random(arguments.seed).sample(paragraphs, min(arguments.number, len(paragraphs)))
    for number, (page, line, text) in enumerate(drawn, 1):
        print(f"{number}. {page}:{line}\n{text}\n")


if __name__ == "__main__":
    main()
