"""The operators of an expression, in three-valued logic; each function returns an evaluation.

None is SQL's unknown: a property that a message does not have, or what follows from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from reput_protocol.filter.sql.nodes import Node
from reput_protocol.filter.sql.values import Conversion, Evaluate, Kind, NotComparable, conversion

Compare = Callable[[Any, Any], bool]

ORDER: Final[dict[str, Compare]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


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


def _with_constant(
    evaluate_left: Evaluate, convert: Callable[[Any], Any], constant: Any, compare: Compare
) -> Evaluate:
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
