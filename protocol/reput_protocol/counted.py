"""Numbers of things in words."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return `1 queue`, `2 queues`; `many` is the plural where it is not `one` with an s: "messages are"."""
    return f"{count} {one}" if count == 1 else f"{count} {many or one + 's'}"
