"""A part of an expression: what type of value it has, how that is evaluated, and what the compiler may ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from reput_protocol.filter.sql.values import Evaluate, Kind
from reput_protocol.properties import find_property_in


@dataclass(slots=True)
class Node:
    """One operand or operation.

    RocketMQ's compiler tells parts apart by their class; the flags stand for its questions: `is_condition` for
    BooleanExpression, `is_literal` for ConstantExpression, `name` for PropertyExpression.
    """

    kind: Kind
    evaluate: Evaluate
    start: int
    """The character of the expression where it begins."""
    depth: int = 1
    """How many parts lie within each other here."""
    size: int = 1
    """How many parts there are."""
    lookups: int = 0
    """How many properties are looked up at most."""
    is_condition: bool = False
    """Whether it can stand where a truth value is needed."""
    is_literal: bool = False
    is_known: bool = False
    """Whether it has the same value for every message: `value`. That holds for literals, and for `-5`."""
    value: object = None
    name: str | None = None
    """Of a property."""
    joined_by: str = ""
    """AND or OR, if it is a row of conditions."""
    row: list[Evaluate] = field(default_factory=list)
    """The conditions of such a row, which `evaluate` goes through."""

    def shown(self) -> str:
        """What it is, for whoever has to mend the expression."""
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
    """Return the part that stands for the property `name`."""
    return Node(Kind.TEXT, _property_lookup(name), start, lookups=1, name=name)


def literal_node(kind: Kind, value: object, start: int) -> Node:
    """Return the part that stands for a value of the expression itself; None is NULL."""
    is_condition = kind in (Kind.BOOLEAN, Kind.NOTHING)
    return Node(
        kind, lambda _: value, start, is_condition=is_condition, is_literal=True, is_known=True, value=value
    )


def _property_lookup(name: str) -> Evaluate:
    """Return what finds the value of property `name` in a properties text, without decoding anything else.

    Bytes that are no UTF-8 become U+FFFD, as they do for whoever reads the message.
    """
    name_bytes = name.encode()

    def look_up(text: bytes) -> bytes | None:
        value = find_property_in(text, name_bytes, 0, len(text))
        if value is None or value.isascii():
            return value
        return value.decode("utf-8", "replace").encode()

    return look_up
