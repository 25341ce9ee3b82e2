"""Which messages of a topic a consumer asks for: by tag, or by their properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from reput_protocol.filters import ALL, TagFilter
from reput_protocol.group_terms import ExpressionType


@dataclass(frozen=True, slots=True)
class Wanted:
    """An expression for the broker to filter by, and what is left to compare here."""

    expression_type: ExpressionType
    expression: str
    tag_filter: TagFilter | None
    """Of tags a broker compares the hashes; a SQL92 expression it evaluates completely."""

    @property
    def is_everything(self) -> bool:
        """Whether no message is left out."""
        return self.tag_filter is not None and self.tag_filter.matches_all

    @classmethod
    def of(cls, tags: str, sql: str | None) -> Self:
        """Return what `tags` or `sql` asks for; a SQL92 expression is left to the broker, which judges it.

        Raises:
            FilterSyntaxError: `tags` cannot be parsed.
            ValueError: there are both.
        """
        if sql is None:
            tag_filter = TagFilter.parse(tags)
            return cls(ExpressionType.TAG, tag_filter.expression, tag_filter)
        if tags != ALL:
            raise ValueError("pass tags= or sql=, not both; in an expression the tag is the property TAGS")
        return cls(ExpressionType.SQL92, sql, None)
