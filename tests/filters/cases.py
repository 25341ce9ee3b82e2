"""Random expressions and messages that meet often: few names, values near each other, every odd form of a number."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from filters.expressions import (
    AllOf,
    Among,
    AnyOf,
    Between,
    Double,
    Equal,
    Failed,
    Int,
    IsNull,
    Literal,
    Long,
    Negated,
    Opposite,
    Ordered,
    Property,
    Refused,
    Searched,
    Style,
    Tree,
    Value,
)

NAMES = ("a", "b", "amount", "region", "$x_1", "_", "TAGS", "nullable", "ORDER", "A")
TEXTS = ("x", "eu-west", "eu", "west", "it's", "'", "true", "False", "5", "-1", "größe", "\U0001f600", "", "x y\n", "%")
VALUES = (
    *("0", "1", "2", "5", "-1", "-5", "7", "100", "2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "9007199254740993", "+5", "005"),
    *("-0", "0.5", "5.0", "5.", ".5", "1e2", "1E-2", "-0.0", "0.0", "NaN", "Infinity", "-Infinity", "nan", "inf"),
    *("1e999", "-1e999", "1e-999", "5f", "5.0d", "0x1p3", "0x1.8P-1f", "0x1", " 5", "5 ", "\t5.0\n", "1_0", "1,5"),
    *("5L", "\u0665", "\uff15", "5\u0665", "\U0001d7d3", "\xa05", "--5", "+", "-", ".", "e5", "0x", "null", "TRUE"),
    *("t", "000000000000000000000000000005", "x" * 40),
)  # fmt: skip
WHOLES = (
    *("0", "1", "2", "5", "5l", "7L", "100", "2147483647", "2147483648", "9007199254740993"),
    "9223372036854775807",
)
DECIMALS = (
    *("0.5", "5.0", "5.", ".5", "1e2", "1E-2", "2.5e+1", "1.7976931348623157e308", "9007199254740992.0"),
    "4.9e-324",
)
REFUSED_NUMBERS = ("9223372036854775808", "0.0", "0e5", "1e999", "1e-999", "99999999999999999999999999")
WORDS = ("TRUE", "FALSE", "NULL")
SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")


@dataclass(frozen=True)
class Case:
    """An expression and what it must be for each of some messages."""

    text: str
    tree: Tree
    messages: list[dict[str, str]]

    def expected(self) -> str | list[bool | str | None]:
        """`refused`, or for each message true, false, None or `failed`."""
        try:
            self.tree.check()
            if not self.tree.is_condition:
                AllOf([self.tree]).check()
        except Refused:
            return "refused"
        return [_outcome(self.tree, message) for message in self.messages]


def _outcome(tree: Tree, message: dict[str, str]) -> bool | str | None:
    try:
        value = AnyOf([tree]).value(message)
    except Failed:
        return "failed"
    assert value is None or isinstance(value, bool)
    return value


def random_case(rng: Random, messages: int = 1) -> Case:
    """An expression and messages for it."""
    tree = random_condition(rng, rng.choice((0, 1, 1, 2, 2, 3, 4)))
    text = tree.write(Style(rng, plain=rng.random() < 0.3))
    return Case(text, tree, [random_properties(rng) for _ in range(messages)])


def random_properties(rng: Random) -> dict[str, str]:
    """The properties of a message."""
    names = rng.sample(NAMES, rng.randrange(len(NAMES)))
    return {name: rng.choice(VALUES if rng.random() < 0.6 else TEXTS) or "x" for name in names}


def random_condition(rng: Random, depth: int) -> Tree:
    """Something that is true, false or unknown, or in rare cases nothing that compiles."""
    if rng.random() < 0.03:
        return random_operand(rng, depth)
    if depth > 0 and rng.random() < 0.6:
        count = rng.choice((2, 2, 2, 3, 5))
        parts = [random_condition(rng, depth - 1) for _ in range(count)]
        choice = rng.random()
        if choice < 0.4:
            return AllOf(parts)
        if choice < 0.8:
            return AnyOf(parts)
        return Opposite(parts[0])
    return rng.choice((_ordered, _ordered, _equal, _equal, _is_null, _searched, _between, _among, _single))(rng, depth)


def _ordered(rng: Random, depth: int) -> Tree:
    return Ordered(
        random_operand(rng, depth), rng.choice((">", ">=", "<", "<=")), random_operand(rng, depth, number=0.6)
    )


def _equal(rng: Random, depth: int) -> Tree:
    return Equal(random_operand(rng, depth), random_operand(rng, depth, number=0.3), rng.random() < 0.4)


def _is_null(rng: Random, depth: int) -> Tree:
    return IsNull(random_operand(rng, depth), rng.random() < 0.5)


def _searched(rng: Random, depth: int) -> Tree:
    return Searched(random_operand(rng, depth), rng.choice(SEARCHES), rng.choice(TEXTS), rng.random() < 0.4)


def _between(rng: Random, depth: int) -> Tree:
    low, high = (random_operand(rng, depth, number=0.9) for _ in range(2))
    return Between(random_operand(rng, depth), low, high, rng.random() < 0.4)


def _among(rng: Random, depth: int) -> Tree:
    operand = Property(rng.choice(NAMES)) if rng.random() < 0.95 else random_operand(rng, depth)
    return Among(operand, rng.choices(TEXTS + VALUES, k=rng.choice((1, 2, 6))), rng.random() < 0.4)


def _single(rng: Random, depth: int) -> Tree:
    return _literal(rng.choice(WORDS)) if rng.random() < 0.5 else Property(rng.choice(NAMES))


def random_operand(rng: Random, depth: int, number: float = 0.1) -> Tree:
    """Something that has a value: a property most of the time, a number with the given probability."""
    choice = rng.random()
    if choice < number:
        return _number(rng)
    choice = rng.random()
    if choice < 0.75:
        return Property(rng.choice(NAMES))
    if choice < 0.82:
        return Literal(rng.choice(TEXTS))
    if choice < 0.86:
        return _number(rng)
    if choice < 0.9:
        return _literal(rng.choice(WORDS))
    if choice < 0.95:
        return Negated(random_operand(rng, 0, number=0.5), rng.choice("-+"))
    return random_condition(rng, depth - 1) if depth > 0 else Property(rng.choice(NAMES))


def _number(rng: Random) -> Tree:
    choice = rng.random()
    text = rng.choice(WHOLES if choice < 0.6 else DECIMALS if choice < 0.985 else REFUSED_NUMBERS)
    literal = _literal(text)
    return Negated(literal) if rng.random() < 0.2 else literal


def _literal(text: str) -> Literal:
    constants: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
    if text in constants:
        return Literal(constants[text], text)
    if text.rstrip("lL").isdigit():
        number = int(text.rstrip("lL"))
        return Literal(Int(number) if number < 2**31 else Long(number), text)
    return Literal(Double(float(text)), text)
