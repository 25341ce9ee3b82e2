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
        steps = SqlFilter.parsing(expression)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                compiled: SqlFilter = done.value
                return compiled

    @staticmethod
    def parsing(expression: str) -> Generator[None, None, SqlFilter]:
        """Compile an expression as `parse` does, with a pause after each fraction of a millisecond; return the filter.

        Raises:
            FilterSyntaxError: it cannot be compiled; says where and why.
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
        """Tell whether an expression was compiled, or refused, a short while ago: to do so again costs nothing."""
        return expression in _outcomes

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


_outcomes: dict[str, SqlFilter | FilterSyntaxError] = {}
"""What became of the last expressions, the last one used at the end. Refusals are remembered too: who sends a bad
expression tends to send it again."""


def _compiling(expression: str) -> Generator[None, None, SqlFilter | FilterSyntaxError]:
    from reput_protocol.filter.sql.grammar import parsing

    try:
        check_size(expression)
        root = yield from parsing(expression)
    except FilterSyntaxError as error:
        return FilterSyntaxError(error.reason, error.position, expression)
    return SqlFilter(expression, root.size, root.lookups, root.evaluate)
