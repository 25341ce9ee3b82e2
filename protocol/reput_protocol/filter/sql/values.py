"""The values of an expression, and the comparison of values of different types.

A property is text, here UTF-8 bytes; literals are text, integers of 32 or 64 bits, doubles and truth values. Both
values are converted by the `Conversion` for their types (RocketMQ: ComparisonExpression.__compare). Text that cannot be
converted raises `NotComparable`, which ends the evaluation: the message does not match.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

Evaluate: TypeAlias = Callable[[bytes], Any]
"""Takes encoded properties and returns a value of one type, or None."""

_I32: Final = (-0x8000_0000, 0x7FFF_FFFF)
_I64: Final = (-0x8000_0000_0000_0000, 0x7FFF_FFFF_FFFF_FFFF)
_I64_DIGITS: Final = 19

_DECIMAL: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SUFFIXED: Final = re.compile(rb"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]")
_HEXADECIMAL: Final = re.compile(
    rb"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
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
