"""A compiled filter expression."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.sql.compiler import check_size
from reput_protocol.filter.sql.values import Evaluate, NotComparable

_OUTCOMES_MAX: Final = 256


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SqlFilter:
    """A filter by properties. Evaluation takes no lock and changes nothing."""

    expression: str
    parts: int
    """Operands and operations: its cost in time and memory."""
    lookups: int
    """Maximum property lookups of one evaluation."""
    _evaluate: Evaluate = field(repr=False)

    @staticmethod
    def parse(expression: str) -> SqlFilter:
        """Compile an expression, or return the filter compiled for it before.

        Raises:
            FilterSyntaxError: it cannot be compiled; says where and why.
        """
        steps = SqlFilter.parsing(expression)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                compiled: SqlFilter = done.value
                return compiled

    @staticmethod
    def parsing(expression: str) -> Generator[None, None, SqlFilter]:
        """Like `parse`, yielding after each fraction of a millisecond; return the filter.

        Raises:
            FilterSyntaxError: as `parse`.
        """
        outcome = _outcomes.pop(expression, None)
        if outcome is None:
            outcome = yield from _compiling(expression)
        _outcomes[expression] = outcome
        while len(_outcomes) > _OUTCOMES_MAX:
            _outcomes.pop(next(iter(_outcomes)), None)
        if isinstance(outcome, SqlFilter):
            return outcome
        raise FilterSyntaxError(outcome.reason, outcome.position, outcome.expression)

    @staticmethod
    def is_known(expression: str) -> bool:
        """Return whether an expression was compiled or rejected recently, so that again it costs nothing."""
        return expression in _outcomes

    def evaluate(self, properties: bytes) -> bool | None:
        """Return whether the expression is true, false or unknown for these encoded properties.

        Raises:
            NotComparable: it compares values that cannot be compared, such as a word with a number.
        """
        value: bool | None = self._evaluate(properties)
        return value

    def matches(self, properties: bytes) -> bool:
        """Return whether the expression is true for these encoded properties."""
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False


_outcomes: dict[str, SqlFilter | FilterSyntaxError] = {}
"""Outcomes of recent expressions, least recently used first; clients also repeat rejected ones."""


def _compiling(expression: str) -> Generator[None, None, SqlFilter | FilterSyntaxError]:
    from reput_protocol.filter.sql.grammar import parsing

    try:
        check_size(expression)
        root = yield from parsing(expression)
    except FilterSyntaxError as error:
        return FilterSyntaxError(error.reason, error.position, expression)
    return SqlFilter(expression, root.size, root.lookups, root.evaluate)
