"""SQL filters: expressions have the same value as in RocketMQ's own library, which refuses the same ones."""

from __future__ import annotations

from random import Random

import pytest

from conformance.counts import COUNTS
from conformance.filter_library import Outcome, outcomes
from filters.cases import random_case, random_properties
from filters.mutations import mutated
from filters.ours import outcome
from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.sql import SqlFilter

pytestmark = pytest.mark.process

CASES = 10_000
SEED = 5
CORNERS = (
    *("a > 5", "a >= 5", "a = 5", "a <> 5", "5 < a", "5 = a", "5 <> a", "a > b", "a = b", "a <> b", "-a = -b"),
    *("a > 2147483648", "a > 5.0", "a = 5L", "a = 0L", "a = 3e2", "a = .5", "a = 5.", "a = -5", "a = +5", "a > - - 5"),
    *("a = 0.0", "a = 1e400", "a = 1e-400", "a = 9223372036854775807", "a = 9223372036854775808", "a = NULL"),
    *("a", "NOT a", "'x'", "5", "TRUE", "NULL", "NOT NULL", "a AND TRUE", "a OR TRUE", "NULL IS NULL", "NULL = a"),
    *("TRUE = a", "a = TRUE", "'true' = TRUE", "TRUE = 'true'", "5 = TRUE", "TRUE = 5", "(a = 1) = 5", "5 = 'abc'"),
    *("a IS NULL IS NULL", "a IS NOT NULL IS NOT NULL", "a = 5 = TRUE", "a > 5 > 3", "a = 'x' CONTAINS 'x'"),
    *("a CONTAINS ''", "a NOT CONTAINS 'x'", "5 CONTAINS '5'", "a CONTAINS 'x' CONTAINS 'y'", "a CONTAINS b"),
    *("a IN ('x')", "a NOT IN ('x','y','z','5','6','7')", "(a) IN ('5')", "+a IN ('5')", "-a IN ('5')", "a IN (5)"),
    *("NOT a IN ('x')", "NOT a = 'x'", "NOT (a = 'x')", "a BETWEEN 1 AND 5", "a BETWEEN 5 AND 1", "a IN ()"),
    *("a BETWEEN 5 AND -1", "a NOT BETWEEN 5 AND 1", "a BETWEEN 'a' AND 'b'", "a BETWEEN NULL AND 1"),
    *("5 BETWEEN a AND b", "a BETWEEN 1 AND 2 AND b = 3", "a BETWEEN 1 AND 2147483648"),
    "a BETWEEN 9007199254740993 AND 9007199254740992.0",
    *("a > 'x'", "a > TRUE", "a > NULL", "a < -'x'", "a = -'x'", "a > (b = 1)", "a > -(b > 1)", "a OR b > 1 AND a"),
    *("a = 'it''s'", "a = '\n'", "a/**/=/***/5", "a = 5 -- so\n", "a = /* / * */ 5", "a\u00a0= 5", "\u0131s = 1"),
    *("\u212a = 1", "a LIKE 'x'", "a != 5", "a == 5", "a + 1 = 5", "a = \"x\"", "a = 'x", "", " ", "()", "(a = 5"),
    "a = 5 AND",
    *("a.b = 1", "a = 5;", "a = 5 #", "A = 5", "aNd = 5", "nota = 5", "NOTa = 5", "a=5and b=5", "a=5AND b=5"),
    "a=5.AND b=5",
)  # fmt: skip


def test_random_expressions_have_rocketmqs_values() -> None:
    """Three opinions: ours, RocketMQ's, and that of the tree which the expression was written from."""
    rng = Random(SEED)
    cases = [random_case(rng, messages=3) for _ in range(CASES)]
    theirs = outcomes((case.text, case.messages) for case in cases)
    for case, their in zip(cases, theirs, strict=True):
        assert outcome(case.text, case.messages) == their, (case.text, case.messages)
        assert case.expected() == their, (case.text, case.messages)
        _count("random expressions", their)


def test_corners_are_rocketmqs() -> None:
    """Everything that is odd about the language, with every kind of value."""
    rng = Random(SEED)
    messages = [{}, *({"a": value} for value in ("5", "x", "true", "5.0", "3000000000", "-0.0", "NaN", "\u0665"))]
    messages += [random_properties(rng) for _ in range(200)]
    for text, their in zip(CORNERS, outcomes((text, messages) for text in CORNERS), strict=True):
        _agree(text, messages, their)
        _count("corners", their)


def test_what_is_nearly_right_is_refused_alike() -> None:
    """Expressions with tokens in the wrong places."""
    rng = Random(SEED)
    messages = [random_properties(rng) for _ in range(5)]
    texts = [mutated(rng, random_case(rng).text) for _ in range(CASES)]
    for text, their in zip(texts, outcomes((text, messages) for text in texts), strict=True):
        _agree(text, messages, their)
        _count("changed expressions", their)


def _agree(text: str, messages: list[dict[str, str]], their: Outcome) -> None:
    ours = outcome(text, messages)
    if ours == their:
        return
    assert ours == "refused", (text, ours, their)
    # RocketMQ ignores what follows the longest beginning that is an expression. So without that we agree.
    with pytest.raises(FilterSyntaxError) as caught:
        SqlFilter.parse(text)
    assert outcome(text[: caught.value.position], messages) == their, (text, caught.value.reason, their)
    COUNTS["SQL filters: expressions of which RocketMQ ignores the end"] += 1


def _count(what: str, their: Outcome) -> None:
    if their == "refused":
        COUNTS[f"SQL filters: {what}, refused by both"] += 1
    else:
        COUNTS[f"SQL filters: {what}, equal values"] += len(their)
