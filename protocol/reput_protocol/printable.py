"""Text for people: escapes what does not print in foreign text; counts of things.

Unescaped, escape sequences, bidirectional overrides and line breaks in a topic, client id or body move the cursor,
reorder a line or forge another one.
"""

from __future__ import annotations

import json
from typing import Any
from unicodedata import category


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return `1 queue`, `2 queues`; `many` is the plural if not `one` with an s."""
    return f"{count} {one}" if count == 1 else f"{count} {many or one + 's'}"


class _Escapes(dict[int, str]):
    """A table for `str.translate` that fills itself."""

    def __init__(self, kept: str, *, as_json: bool = False) -> None:
        self._kept = kept
        self._as_json = as_json

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if not (char.isprintable() or char in self._kept or category(char) == "Zs"):
            char = json.dumps(char)[1:-1] if self._as_json else char.encode("unicode_escape").decode()
        if len(self) < _KNOWN_MAX:
            self[code] = char
        return char


_KNOWN_MAX = 4096
_ONE_LINE = _Escapes("")
_LINES = _Escapes("\n\t")
_JSON = _Escapes("", as_json=True)


def printable(text: str) -> str:
    """Return a text on one line: characters that do not print are escaped as in a Python string."""
    return text if text.isprintable() else text.translate(_ONE_LINE)


def printable_lines(text: str) -> str:
    """Like `printable`, but keep line breaks and tabs."""
    return text if text.isprintable() else text.translate(_LINES)


def printable_body(body: bytes) -> str:
    """Return a body as text with its line breaks and tabs; bytes that are not UTF-8 are escaped."""
    return printable_lines(bytes(body).decode("utf-8", "backslashreplace"))


def printable_json(value: Any, **options: Any) -> str:
    """Return JSON whose characters that do not print are escaped; `options` as for `json.dumps`."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return text if text.isprintable() else text.translate(_JSON)
