"""Expressions as trees with their text and their value, evaluated in the simplest way.

This is the other opinion about SQL filters: it shares no code with the broker, parses nothing, and follows RocketMQ's
rules (ComparisonExpression, UnaryExpression, LogicExpression) by their words, with values that know their Java type.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeAlias


class Refused(Exception):
    """The compiler must not take the expression."""


class Failed(Exception):
    """Evaluating it fails for this message."""


@dataclass(frozen=True)
class Int:
    """A java.lang.Integer."""

    number: int


@dataclass(frozen=True)
class Long:
    """A java.lang.Long."""

    number: int


@dataclass(frozen=True)
class Double:
    """A java.lang.Double."""

    number: float


Value: TypeAlias = "Int | Long | Double | str | bool | None"
Properties: TypeAlias = Mapping[str, str]


@dataclass
class Style:
    """How a tree is written down: keywords in any case, blanks and comments anywhere."""

    rng: Random
    plain: bool = False

    def word(self, word: str) -> str:
        if self.plain:
            return word
        return self.rng.choice((word, word.lower(), word.title()))

    def join(self, *parts: str) -> str:
        """The parts with something between them."""
        if self.plain:
            return " ".join(parts)
        gaps = (" ", " ", " ", "  ", "\t", "\n", "\r\n", " /* and > so 'on */ ", "/***/", " -- so\n", "\f")
        first, *others = parts
        return first + "".join(self.rng.choice(gaps) + part for part in others)


class Tree:
    """A part of an expression. `level` is how tightly its outermost operator binds, 0 the least."""

    level = 5
    is_condition = True

    def write(self, style: Style) -> str:
        raise NotImplementedError

    def check(self) -> None:
        """Raise Refused if it must not compile."""

    def value(self, properties: Properties) -> Value:
        """Its value for a message; raises Failed."""
        raise NotImplementedError

    def written_at(self, level: int, style: Style) -> str:
        """Written so that it can be the operand of an operator that binds at `level`; in parentheses if need be."""
        text = self.write(style)
        if self.level >= level and (style.plain or style.rng.random() < 0.85):
            return text
        return f"({text})" if style.plain else style.join("(", text, ")")


@dataclass
class Literal(Tree):
    """A number, a text, TRUE, FALSE or NULL: `text` is how it is written, unless it is a text itself."""

    constant: Value
    text: str = ""

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        return self.constant is None or isinstance(self.constant, bool)

    def write(self, style: Style) -> str:
        if isinstance(self.constant, str):
            return "'" + "''".join(self.constant.split("'")) + "'"
        return style.word(self.text) if self.text.isalpha() else self.text

    def check(self) -> None:
        if isinstance(self.constant, Long) and self.constant.number > 2**63 - 1:
            raise Refused
        if isinstance(self.constant, Double) and self.constant.number in (0.0, math.inf):
            raise Refused

    def value(self, properties: Properties) -> Value:
        return self.constant


@dataclass
class Property(Tree):
    """A property by its name."""

    name: str
    is_condition = False

    def write(self, style: Style) -> str:
        return self.name

    def value(self, properties: Properties) -> Value:
        return properties.get(self.name)


@dataclass
class Negated(Tree):
    """`-operand`, or `+operand`."""

    operand: Tree
    sign: str = "-"
    level = 4

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        return self.sign == "+" and self.operand.is_condition

    def write(self, style: Style) -> str:
        return style.join(self.sign, self.operand.written_at(4, style))

    def check(self) -> None:
        self.operand.check()

    def value(self, properties: Properties) -> Value:
        value = self.operand.value(properties)
        if self.sign == "+":
            return value
        if isinstance(value, Int):
            return Int(-value.number)
        if isinstance(value, Long):
            return Long(-value.number)
        return Double(-value.number) if isinstance(value, Double) else None


@dataclass
class Opposite(Tree):
    """`NOT operand`."""

    operand: Tree
    level = 4

    def write(self, style: Style) -> str:
        return style.join(style.word("NOT"), self.operand.written_at(4, style))

    def check(self) -> None:
        check_condition(self.operand)

    def value(self, properties: Properties) -> Value:
        value = truth(self.operand, properties)
        return None if value is None else not value


@dataclass
class Ordered(Tree):
    """`left < right` and its kin."""

    left: Tree
    operator: str
    right: Tree
    level = 3

    def write(self, style: Style) -> str:
        return style.join(self.left.written_at(3, style), self.operator, self.right.written_at(4, style))

    def check(self) -> None:
        check_ordered(self.left)
        check_ordered(self.right)

    def value(self, properties: Properties) -> Value:
        left = self.left.value(properties)
        right = None if left is None else self.right.value(properties)
        if left is None or right is None:
            return None
        if isinstance(left, str) and isinstance(right, str):
            left, right = as_double(left), as_double(right)
        return holds(compare(left, right), self.operator)


@dataclass
class Equal(Tree):
    """`left = right` or `left <> right`."""

    left: Tree
    right: Tree
    unequal: bool = False
    level = 2

    def write(self, style: Style) -> str:
        operator = "<>" if self.unequal else "="
        return style.join(self.left.written_at(2, style), operator, self.right.written_at(3, style))

    def check(self) -> None:
        self.left.check()
        self.right.check()
        left, right = bare(self.left), bare(self.right)
        for operand in (left, right):
            if isinstance(operand, Literal) and operand.constant is None:
                raise Refused
        both = isinstance(left, Literal) and isinstance(right, Literal)
        if both and left.is_condition and not right.is_condition:
            raise Refused

    def value(self, properties: Properties) -> Value:
        left, right = self.left.value(properties), self.right.value(properties)
        if left is None and right is not None:
            return None
        equal = left is None if left is None or right is None else compare(left, right) == 0
        return equal != self.unequal


@dataclass
class IsNull(Tree):
    """`operand IS [NOT] NULL`."""

    operand: Tree
    negated: bool
    level = 2

    def write(self, style: Style) -> str:
        words = ("IS", "NOT", "NULL") if self.negated else ("IS", "NULL")
        return style.join(self.operand.written_at(2, style), *map(style.word, words))

    def check(self) -> None:
        self.operand.check()

    def value(self, properties: Properties) -> Value:
        return (self.operand.value(properties) is None) != self.negated


@dataclass
class Searched(Tree):
    """`operand [NOT] CONTAINS 'wanted'` and its kin."""

    operand: Tree
    search: str
    wanted: str
    negated: bool
    level = 3

    def write(self, style: Style) -> str:
        words = ["NOT", self.search] if self.negated else [self.search]
        return style.join(self.operand.written_at(3, style), *map(style.word, words), Literal(self.wanted).write(style))

    def check(self) -> None:
        self.operand.check()

    def value(self, properties: Properties) -> Value:
        if not self.wanted:
            return False
        value = self.operand.value(properties)
        if not isinstance(value, str):
            return False
        size = len(self.wanted)
        if self.search == "STARTSWITH":
            found = value[:size] == self.wanted
        elif self.search == "ENDSWITH":
            found = value[-size:] == self.wanted
        else:
            found = any(value[at : at + size] == self.wanted for at in range(len(value)))
        return found != self.negated


@dataclass
class Between(Tree):
    """`operand [NOT] BETWEEN low AND high`."""

    operand: Tree
    low: Tree
    high: Tree
    negated: bool
    level = 3

    def write(self, style: Style) -> str:
        words = ["NOT", "BETWEEN"] if self.negated else ["BETWEEN"]
        return style.join(
            self.operand.written_at(3, style),
            *map(style.word, words),
            self.low.written_at(4, style),
            style.word("AND"),
            self.high.written_at(4, style),
        )

    def check(self) -> None:
        for operand in (self.operand, self.low, self.high):
            check_ordered(operand)
        low, high = bare(self.low), bare(self.high)
        if not self.negated and isinstance(low, Literal) and isinstance(high, Literal):
            assert low.constant is not None
            assert high.constant is not None
            if compare(high.constant, low.constant) < 0:
                raise Refused

    def value(self, properties: Properties) -> Value:
        if self.negated:
            below = Ordered(self.operand, "<", self.low)
            return AnyOf([below, Ordered(self.operand, ">", self.high)]).value(properties)
        above = Ordered(self.operand, ">=", self.low)
        return AllOf([above, Ordered(self.operand, "<=", self.high)]).value(properties)


@dataclass
class Among(Tree):
    """`operand [NOT] IN ('a', 'b')`."""

    operand: Tree
    texts: list[str]
    negated: bool
    level = 3

    def write(self, style: Style) -> str:
        words = ["NOT", "IN"] if self.negated else ["IN"]
        texts = style.join(*[Literal(text).write(style) + "," for text in self.texts])
        return style.join(self.operand.written_at(3, style), *map(style.word, words), f"({texts.rpartition(',')[0]})")

    def check(self) -> None:
        self.operand.check()
        if not isinstance(bare(self.operand), Property):
            raise Refused

    def value(self, properties: Properties) -> Value:
        value = self.operand.value(properties)
        return None if value is None else (value in self.texts) != self.negated


@dataclass
class Row(Tree):
    """Conditions joined by AND or by OR."""

    operands: list[Tree]

    def check(self) -> None:
        for operand in self.operands:
            check_condition(operand)

    def _written(self, word: str, style: Style) -> str:
        first, *others = [operand.written_at(self.level + 1, style) for operand in self.operands]
        return style.join(first, *[part for other in others for part in (style.word(word), other)])


class AllOf(Row):
    """`a AND b AND ...`."""

    level = 1

    def write(self, style: Style) -> str:
        return self._written("AND", style)

    def value(self, properties: Properties) -> Value:
        result: Value = True
        for operand in self.operands:
            value = truth(operand, properties)
            if value is False:
                return False
            result = None if value is None or result is None else True
        return result


class AnyOf(Row):
    """`a OR b OR ...`."""

    level = 0

    def write(self, style: Style) -> str:
        return self._written("OR", style)

    def value(self, properties: Properties) -> Value:
        result: Value = False
        for operand in self.operands:
            value = truth(operand, properties)
            if value is True:
                return True
            result = None if value is None or result is None else False
        return result


# The rules that several kinds of tree share


def bare(tree: Tree) -> Tree:
    """A plus sign is nothing to the compiler."""
    while isinstance(tree, Negated) and tree.sign == "+":
        tree = tree.operand
    return tree


def check_condition(tree: Tree) -> None:
    """A truth value is needed: a condition, or a property in the hope that it is one."""
    tree.check()
    if not tree.is_condition and not isinstance(bare(tree), Property):
        raise Refused


def check_ordered(tree: Tree) -> None:
    """A number is needed: a literal one, a property in the hope that it is one, or the negative of anything."""
    tree.check()
    operand = bare(tree)
    if operand.is_condition or (isinstance(operand, Literal) and isinstance(operand.constant, str)):
        raise Refused


def truth(tree: Tree, properties: Properties) -> bool | None:
    """The value of a condition; a property is text, which is not true."""
    value = tree.value(properties)
    if value is None or isinstance(value, bool):
        return value
    assert isinstance(bare(tree), Property)
    return False


def holds(order: int, operator: str) -> bool:
    """What an order of -1, 0 or 1 says about `<` and its kin."""
    return {">": order > 0, ">=": order >= 0, "<": order < 0, "<=": order <= 0}[operator]


def compare(left: Value, right: Value) -> int:
    """ComparisonExpression.__compare: -1, 0 or 1; raises Failed."""
    if isinstance(left, bool):
        if isinstance(right, bool):
            return (left > right) - (left < right)
        if isinstance(right, str):
            raise Failed  # it casts the wrong one
        return -1
    if isinstance(right, bool):
        if not isinstance(left, str):
            return -1
        return compare(left.lower() == "true", right)
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, str):
        left = converted(left, right)
    elif isinstance(right, str):
        right = converted(right, left)
    assert isinstance(left, Int | Long | Double)
    assert isinstance(right, Int | Long | Double)
    if isinstance(left, Double) or isinstance(right, Double):
        return compare_doubles(float(left.number), float(right.number))
    return (left.number > right.number) - (left.number < right.number)


def compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: NaN is the largest and equal to itself, -0.0 is less than 0.0."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    if left == right == 0:
        signs = math.copysign(1, left), math.copysign(1, right)
        return (signs[0] > signs[1]) - (signs[0] < signs[1])
    return (left > right) - (left < right)


def converted(text: str, like: Value) -> Value:
    """Text as the type of the number that it is compared with."""
    if isinstance(like, Double):
        return as_double(text)
    bits = 32 if isinstance(like, Int) else 64
    digits = text[1:] if text[:1] in ("+", "-") else text
    number = 0
    for char in digits:
        digit = unicodedata.decimal(char, -1) if ord(char) < 0x10000 else -1
        if digit < 0:
            raise Failed
        number = 10 * number + digit
    if not digits:
        raise Failed
    if text[:1] == "-":
        number = -number
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise Failed
    return Int(number) if bits == 32 else Long(number)


def as_double(text: str) -> Double:
    """Double.valueOf."""
    while text and text[0] <= " ":
        text = text[1:]
    while text and text[-1] <= " ":
        text = text[:-1]
    if text.lstrip("+-") in ("NaN", "Infinity") and len(text) - len(text.lstrip("+-")) <= 1:
        return Double(float(text))
    is_hexadecimal = "x" in text.lower()
    if is_hexadecimal and "p" not in text.lower():
        raise Failed
    if text and text[-1] in "fFdD":
        text = text[:-1]
    allowed = "0123456789abcdefABCDEFxXpP+-." if is_hexadecimal else "0123456789eE+-."
    if not all(char in allowed for char in text):
        raise Failed
    try:
        return Double(float.fromhex(text) if is_hexadecimal else float(text))
    except OverflowError:
        return Double(-math.inf if text[0] == "-" else math.inf)
    except ValueError:
        raise Failed from None
