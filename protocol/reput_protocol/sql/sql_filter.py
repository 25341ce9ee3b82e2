"""A compiled filter expression."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.sql.compiler import check_size
from reput_protocol.sql.values import Evaluate, NotComparable

_CACHED_MAX: Final = 256


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SqlFilter:
    """Which messages somebody wants, by their properties. Evaluating it takes no lock and changes nothing."""

    expression: str
    parts: int
    """How many operands and operations it has: what evaluating it costs, and what it takes in memory."""
    lookups: int
    """How many properties one evaluation looks up at most."""
    _evaluate: Evaluate = field(repr=False)

    @staticmethod
    def parse(expression: str) -> SqlFilter:
        """Compile an expression; the one that was compiled before if it is the same.

        Raises:
            FilterSyntaxError: it cannot be compiled; says where and why.
        """
        outcome = _parse(expression)
        if isinstance(outcome, SqlFilter):
            return outcome
        raise FilterSyntaxError(outcome.reason, outcome.position, outcome.expression)

    def evaluate(self, properties: bytes) -> bool | None:
        """Return what the expression is for a message with this properties text: true, false or unknown.

        Raises:
            NotComparable: it compares what cannot be compared, a word with a number for example.
        """
        value: bool | None = self._evaluate(properties)
        return value

    def matches(self, properties: bytes) -> bool:
        """Tell whether the expression is true for a message with this properties text."""
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False


@lru_cache(maxsize=_CACHED_MAX)
def _parse(expression: str) -> SqlFilter | FilterSyntaxError:
    # Refusals are remembered too: who sends a bad expression tends to send it again.
    from reput_protocol.sql.grammar import parse

    try:
        check_size(expression)
        root = parse(expression)
    except FilterSyntaxError as error:
        return FilterSyntaxError(error.reason, error.position, expression)
    return SqlFilter(expression, root.size, root.lookups, root.evaluate)
