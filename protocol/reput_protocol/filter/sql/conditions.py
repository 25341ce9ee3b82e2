"""The operators of an expression, in three-valued logic; each function returns an evaluation.

None is SQL's unknown: a property that a message does not have, or what follows from it.

A property is text, here UTF-8 bytes; literals are text, integers of 32 or 64 bits, doubles and truth values. Both
values of a comparison are converted by the `Conversion` for their types (RocketMQ: ComparisonExpression.__compare).
Text that cannot be converted raises `NotComparable`, which ends the evaluation: the message does not match.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from reput_protocol.properties import find_property_in

Evaluate: TypeAlias = Callable[[bytes], Any]
"""Takes encoded properties and returns a value of one type, or None."""

_I32: Final = (-0x8000_0000, 0x7FFF_FFFF)
_I64: Final = (-0x8000_0000_0000_0000, 0x7FFF_FFFF_FFFF_FFFF)
_I64_DIGITS: Final = 19

_DECIMAL: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SUFFIXED: Final = re.compile(rb"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]")
_HEXADECIMAL: Final = re.compile(rb"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED: Final = {
    sign + word: float((sign + word).decode()) for sign in (b"", b"+", b"-") for word in (b"NaN", b"Infinity")
}
_TRIMMED: Final = bytes(range(0x21))  # what Java's String.trim removes
_F64: Final = struct.Struct(">d")
_I64_OF: Final = struct.Struct(">q")


class Kind(Enum):
    """The type of a value."""

    TEXT = auto()
    INT = auto()
    """32 bits: text compared with it must also be one."""
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NOTHING = auto()
    """Always None."""


NUMBERS: Final = frozenset({Kind.INT, Kind.LONG, Kind.DOUBLE})


class NotComparable(Exception):
    """Two values cannot be compared; the message does not match."""


class Conversion(NamedTuple):
    """Conversions of left and right value, such that Python compares the results as Java would."""

    left: Callable[[Any], Any]
    right: Callable[[Any], Any]


def to_int(value: bytes) -> int:
    """Read 32-bit decimal text like Integer.valueOf; raises NotComparable."""
    return _to_whole(value, _I32)


def to_long(value: bytes) -> int:
    """Read 64-bit decimal text like Long.valueOf; raises NotComparable."""
    return _to_whole(value, _I64)


def _to_whole(value: bytes, bounds: tuple[int, int]) -> int:
    number = int(value) if value.isdigit() and len(value) < _I64_DIGITS else _to_large(value)
    if not bounds[0] <= number <= bounds[1]:
        raise NotComparable
    return number


def _to_large(value: bytes) -> int:
    """Read a sign, leading zeros and digits of any script, like Java."""
    text = value.decode("utf-8", "replace")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or max(digits) > "\uffff":
        raise NotComparable
    # int() reads other scripts as well, but not thousands of digits.
    significant = digits.lstrip("0") if digits.isascii() else digits
    if len(significant) > 4 * _I64_DIGITS:
        raise NotComparable
    return int(text[: len(text) - len(digits)] + (significant or "0"))


def to_double(value: bytes) -> float:
    """Read a number like Double.valueOf; raises NotComparable."""
    if _DECIMAL.fullmatch(value):
        return float(value)
    trimmed = value.strip(_TRIMMED)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed)
    if trimmed in _NAMED:
        return _NAMED[trimmed]
    if match := _SUFFIXED.fullmatch(trimmed):
        return float(match[1])
    if match := _HEXADECIMAL.fullmatch(trimmed):
        try:
            return float.fromhex(match[1].decode())
        except OverflowError:
            return float("-inf" if trimmed.startswith(b"-") else "inf")
    raise NotComparable


def to_boolean(value: bytes) -> bool:
    """Read a truth value like Boolean.valueOf: all but `true`, in any case, is false."""
    return value.lower() == b"true"


def double_rank(value: float) -> int:
    """Return an integer in the order of Double.compareTo: -0.0 before 0.0, NaN last and equal to itself."""
    if value != value:
        return 0x7FF8_0000_0000_0000
    bits: int = _I64_OF.unpack(_F64.pack(value))[0]
    return bits if bits >= 0 else bits ^ 0x7FFF_FFFF_FFFF_FFFF


def conversion(left: Kind, right: Kind, *, is_order: bool) -> Conversion | None:
    """Return how values of two types, neither of them None, are compared; None if they are never equal.

    `is_order`: for `<`, `<=`, `>` and `>=`, which order two texts as numbers; `=` compares them as they are.
    """
    if left is Kind.TEXT and right is Kind.TEXT and is_order:
        return Conversion(_text_rank, _text_rank)
    if left is Kind.BOOLEAN and right is Kind.TEXT:
        return Conversion(_refuse, _as_it_is)  # RocketMQ fails on this, not the other way round
    if left is right or Kind.NOTHING in (left, right):
        rank = double_rank if left is Kind.DOUBLE else _as_it_is
        return Conversion(rank, rank)
    if left is Kind.TEXT:
        return Conversion(_OF_TEXT[right], double_rank if right is Kind.DOUBLE else _as_it_is)
    if right is Kind.TEXT:
        return Conversion(double_rank if left is Kind.DOUBLE else _as_it_is, _OF_TEXT[left])
    if Kind.BOOLEAN in (left, right):
        return None
    if Kind.DOUBLE in (left, right):
        return Conversion(_number_rank, _number_rank)
    return Conversion(_as_it_is, _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _refuse(_: Any) -> Any:
    raise NotComparable


def _text_rank(value: bytes) -> int:
    return double_rank(to_double(value))


def _number_rank(value: float) -> int:
    return double_rank(float(value))


_OF_TEXT: Final[dict[Kind, Callable[[bytes], Any]]] = {
    Kind.BOOLEAN: to_boolean,
    Kind.INT: to_int,
    Kind.LONG: to_long,
    Kind.DOUBLE: _text_rank,
}


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
    return Node(kind, lambda _: value, start, is_condition=is_condition, is_literal=True, is_known=True, value=value)


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


Compare = Callable[[Any, Any], bool]

ORDER: Final[dict[str, Compare]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def ordered(left: Node, right: Node, compare: Compare) -> Evaluate:
    """`left < right`, and with `<=`, `>`, `>=`: unknown if either is."""
    convert_left, convert_right = _order_of(left, right)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate
    if right.is_known:
        return _with_constant(evaluate_left, convert_left, convert_right(right.value), compare)

    def evaluate(text: bytes) -> bool | None:
        one = evaluate_left(text)
        if one is None:
            return None
        other = evaluate_right(text)
        if other is None:
            return None
        return compare(convert_left(one), convert_right(other))

    return evaluate


def between(operand: Node, low: Node, high: Node, *, negated: bool) -> Evaluate:
    """`operand >= low AND operand <= high`, or its negation."""
    if low.is_known and high.is_known and low.kind is high.kind:
        convert, convert_bound = _order_of(operand, low)
        least, most = convert_bound(low.value), convert_bound(high.value)
        evaluate_operand = operand.evaluate

        def evaluate(text: bytes) -> bool | None:
            value = evaluate_operand(text)
            return None if value is None else (least <= convert(value) <= most) != negated

        return evaluate
    if negated:
        return any_of((ordered(operand, low, operator.lt), ordered(operand, high, operator.gt)))
    return all_of((ordered(operand, low, operator.ge), ordered(operand, high, operator.le)))


def is_in_order(low: Node, high: Node) -> bool:
    """Return whether of two literal numbers the first is not larger."""
    convert_low, convert_high = _order_of(low, high)
    return bool(convert_low(low.value) <= convert_high(high.value))


def _order_of(left: Node, right: Node) -> Conversion:
    found = conversion(left.kind, right.kind, is_order=True)
    assert found is not None, "truth values were rejected before"
    return found


def equal(left: Node, right: Node) -> Evaluate:
    """`left = right`. As in RocketMQ, a missing left side is unknown, a missing right side unequal."""
    found = conversion(left.kind, right.kind, is_order=False)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate
    if found is not None and right.is_known and right.value is not None:
        try:
            constant = found.right(right.value)
        except NotComparable:
            pass  # fails only when a message needs the comparison
        else:
            return _with_constant(evaluate_left, found.left, constant, operator.eq)

    def evaluate(text: bytes) -> bool | None:
        one = evaluate_left(text)
        other = evaluate_right(text)
        if one is None:
            return True if other is None else None
        if other is None or found is None:
            return False
        return bool(found.left(one) == found.right(other))

    return evaluate


def _with_constant(evaluate_left: Evaluate, convert: Callable[[Any], Any], constant: Any, compare: Compare) -> Evaluate:
    def evaluate(text: bytes) -> bool | None:
        value = evaluate_left(text)
        return None if value is None else compare(convert(value), constant)

    return evaluate


def is_null(operand: Node, *, negated: bool) -> Evaluate:
    """`operand IS [NOT] NULL`: never unknown."""
    evaluate_operand = operand.evaluate
    if negated:
        return lambda text: evaluate_operand(text) is not None
    return lambda text: evaluate_operand(text) is None


def among(operand: Node, texts: Sequence[bytes], *, negated: bool) -> Evaluate:
    """`operand [NOT] IN (texts)`."""
    evaluate_operand = operand.evaluate
    members = frozenset(texts)

    def evaluate(text: bytes) -> bool | None:
        value = evaluate_operand(text)
        return None if value is None else (value in members) != negated

    return evaluate


_SEARCH: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}


def searched(operand: Node, search: str, wanted: bytes, *, negated: bool) -> Evaluate:
    """`operand [NOT] CONTAINS wanted` and the others: false, even negated, if either text is missing."""
    evaluate_operand = operand.evaluate
    if not wanted:
        return lambda _: False
    has = _SEARCH[search]
    is_text = operand.kind is Kind.TEXT

    def evaluate(text: bytes) -> bool:
        value = evaluate_operand(text)  # even if it is not text: this may raise NotComparable
        return is_text and value is not None and has(value, wanted) != negated

    return evaluate


def negative(operand: Node) -> Evaluate:
    """`-operand` if not constant: text and truth values have no negative."""
    evaluate_operand = operand.evaluate

    def evaluate(text: bytes) -> None:
        evaluate_operand(text)

    return evaluate


def truth(operand: Node) -> Evaluate:
    """A property as a condition: text is not true."""
    evaluate_operand = operand.evaluate
    return lambda text: None if evaluate_operand(text) is None else False


def opposite(operand: Node) -> Evaluate:
    """`NOT operand`."""
    evaluate_operand = operand.evaluate

    def evaluate(text: bytes) -> bool | None:
        value = evaluate_operand(text)
        return None if value is None else not value

    return evaluate


def all_of(evaluations: Sequence[Evaluate]) -> Evaluate:
    """`a AND b AND ...`: false at the first that is false, else unknown if one was."""

    def evaluate(text: bytes) -> bool | None:
        result: bool | None = True
        for evaluation in evaluations:
            value = evaluation(text)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return evaluate


def any_of(evaluations: Sequence[Evaluate]) -> Evaluate:
    """`a OR b OR ...`: true at the first that is true, else unknown if one was."""

    def evaluate(text: bytes) -> bool | None:
        result: bool | None = False
        for evaluation in evaluations:
            value = evaluation(text)
            if value is None:
                result = None
            elif value:
                return True
        return result

    return evaluate
