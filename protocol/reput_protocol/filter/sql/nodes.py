"""A part of an expression: the type of its value and its evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from reput_protocol.filter.sql.values import Evaluate, Kind
from reput_protocol.properties import find_property_in


@dataclass(slots=True)
class Node:
    """One operand or operation.

    RocketMQ's compiler distinguishes parts by class, here flags do: `is_condition` is BooleanExpression, `is_literal`
    ConstantExpression, `name` PropertyExpression.
    """

    kind: Kind
    evaluate: Evaluate
    start: int
    """Where it begins in the expression."""
    depth: int = 1
    size: int = 1
    """Number of parts."""
    lookups: int = 0
    """Maximum property lookups."""
    is_condition: bool = False
    """Whether it may be used as a truth value."""
    is_literal: bool = False
    is_known: bool = False
    """Whether it has the same `value` for every message, like literals and `-5`."""
    value: object = None
    name: str | None = None
    """The name of a property."""
    joined_by: str = ""
    """AND or OR for a chain of conditions."""
    row: list[Evaluate] = field(default_factory=list)
    """The conditions of the chain."""

    def shown(self) -> str:
        """Return a description for error messages."""
        if self.name is not None:
            return f"property {self.name}"
        if self.is_literal and self.value is None:
            return "NULL"
        if self.is_literal and self.kind is Kind.TEXT:
            return "a text"
        if self.is_literal and self.kind is Kind.BOOLEAN:
            return "TRUE" if self.value else "FALSE"
        if self.is_known:
            return f"the number {self.value}"
        return "a condition" if self.is_condition else "a negated value"


def property_node(name: str, start: int) -> Node:
    """Return the part for property `name`."""
    return Node(Kind.TEXT, _property_lookup(name), start, lookups=1, name=name)


def literal_node(kind: Kind, value: object, start: int) -> Node:
    """Return the part for a literal; None is NULL."""
    is_condition = kind in (Kind.BOOLEAN, Kind.NOTHING)
    return Node(
        kind, lambda _: value, start, is_condition=is_condition, is_literal=True, is_known=True, value=value
    )


def _property_lookup(name: str) -> Evaluate:
    """Return a function that finds property `name` in encoded properties without decoding the others.

    Invalid UTF-8 becomes U+FFFD, as when messages are read.
    """
    name_bytes = name.encode()

    def look_up(text: bytes) -> bytes | None:
        value = find_property_in(text, name_bytes, 0, len(text))
        if value is None or value.isascii():
            return value
        return value.decode("utf-8", "replace").encode()

    return look_up
