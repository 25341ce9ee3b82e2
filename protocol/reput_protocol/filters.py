"""Tag filters: `*`, or tags joined by `||` (RocketMQ: FilterAPI, ExpressionMessageFilter).

The broker knows only the hash of a message's tag and filters by that; hashes collide, so whoever hands messages out
compares the tag's text again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.hashing import tags_code
from reput_protocol.sql import SqlFilter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALL: Final = "*"
_SEPARATOR: Final = "||"
_FEW_CODES: Final = 8


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which messages of a queue somebody wants, by tag.

    `codes` are the signed 32-bit hashes of `tags`. Both are empty where everything matches, and also for an expression
    of nothing but blanks, which matches nothing.
    """

    expression: str
    matches_all: bool
    tags: frozenset[str]
    codes: frozenset[int]

    @staticmethod
    def parse(expression: str | None) -> TagFilter:
        """Return the filter that `expression` stands for; None, an empty text and `*` stand for everything.

        Raises:
            FilterSyntaxError: the expression is separators only.
        """
        return _parse(expression or ALL)

    def matches_code(self, code: int) -> bool:
        """Tell whether a message may match whose ConsumeQueue unit holds `code`; its low 32 bits count."""
        if self.matches_all:
            return True
        low = code & 0xFFFF_FFFF
        return (low - 0x1_0000_0000 if low & 0x8000_0000 else low) in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Tell whether a message with this tag matches. A message without a tag matches only a filter for all."""
        return self.matches_all or tag in self.tags

    def mask(self, codes: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return for each of a ConsumeQueue's codes what `matches_code` says of it."""
        low = codes.astype("=i4")  # keeps the low 32 bits
        if not self.matches_all and len(self.codes) <= _FEW_CODES:
            found: NDArray[np.bool_] = low != low
            for code in self.codes:
                found |= low == code
            return found
        import numpy as np  # here, because a client that never asks for a mask does without NumPy

        if self.matches_all:
            return np.ones(low.shape, dtype=np.bool_)
        return np.isin(low, np.fromiter(self.codes, dtype=np.int32, count=len(self.codes)))


MessageFilter: TypeAlias = TagFilter | SqlFilter
"""What a consumer asks for: by tag, or by all properties."""


@lru_cache(maxsize=1024)
def _parse(expression: str) -> TagFilter:
    if expression == ALL:
        return TagFilter(ALL, True, frozenset(), frozenset())
    parts = expression.split(_SEPARATOR)
    if not any(parts):
        raise FilterSyntaxError(
            f"filter expression {expression[:80]!r} names no tag; write tags joined by ||, or * for everything",
            0,
        )
    tags = frozenset(tag for part in parts if (tag := part.strip()))
    return TagFilter(expression, False, tags, frozenset(map(tags_code, tags)))
