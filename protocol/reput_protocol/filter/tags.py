"""Tag filters: `*`, or tags joined by `||` (RocketMQ: FilterAPI, ExpressionMessageFilter).

The broker compares only hashes of tags, which collide, so the client compares the tags.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.record.layout import tags_code

if TYPE_CHECKING:
    from reput_protocol.filter.sql import SqlFilter

ALL: Final = "*"
_SEPARATOR: Final = "||"
TAGS_MAX: Final = 512
"""Tags in an expression: parsing takes the broker's time, and storing its memory."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A filter by tag.

    `codes` are the signed 32-bit hashes of `tags`. Both are empty for a filter that matches everything, and for an
    expression of blanks, which matches nothing.
    """

    expression: str
    matches_all: bool
    tags: frozenset[str]
    codes: frozenset[int]

    @staticmethod
    def parse(expression: str | None) -> TagFilter:
        """Return the filter for `expression`; None, an empty text and `*` match everything.

        Raises:
            FilterSyntaxError: separators only, or more than `TAGS_MAX` tags.
        """
        return _parse(expression or ALL)

    def matches_tag(self, tag: str | None) -> bool:
        """Return whether a message with this tag matches; None matches only a filter for everything."""
        return self.matches_all or tag in self.tags


def tag_hash(code: int) -> int:
    """Return the tag hash in a ConsumeQueue unit's code: its low 32 bits, signed."""
    low = code & 0xFFFF_FFFF
    return low - 0x1_0000_0000 if low & 0x8000_0000 else low


MessageFilter: TypeAlias = Union[TagFilter, "SqlFilter"]
"""A consumer's filter."""


@lru_cache(maxsize=1024)
def _parse(expression: str) -> TagFilter:
    tags = expression.count(_SEPARATOR) + 1
    if tags > TAGS_MAX:
        raise FilterSyntaxError(
            f"filter expression {expression[:80]!r}... has {tags} tags; {TAGS_MAX} are allowed, or filter by an "
            "SQL92 expression",
            0,
        )
    if expression == ALL:
        return TagFilter(ALL, True, frozenset(), frozenset())
    parts = expression.split(_SEPARATOR)
    if not any(parts):
        raise FilterSyntaxError(
            f"filter expression {expression[:80]!r} names no tag; write tags joined by ||, or * for everything", 0
        )
    found = frozenset(tag for part in parts if (tag := part.strip()))
    return TagFilter(expression, False, found, frozenset(map(tags_code, found)))
