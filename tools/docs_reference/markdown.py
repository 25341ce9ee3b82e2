"""Text of the code as Markdown."""

from __future__ import annotations

import re


def escaped(text: str) -> str:
    """Return plain text as Markdown; what is in backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]])", r"\\\1", part) for part in parts)


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")
