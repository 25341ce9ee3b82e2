"""SQL92 expressions: what they match, where invalid ones fail, and that no expression costs too much.

tests/property/test_filters_property.py and tests/conformance/test_filter_library.py compare the odd cases with two
other implementations.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.sql.conditions import NotComparable
from reput_protocol.filter.sql.sql_filter import CHARACTERS_MAX, DEPTH_MAX, NAME_CHARACTERS_MAX, PARTS_MAX
from reput_protocol.properties import encode_properties

ORDER = encode_properties({"TAGS": "paid", "amount": "250", "region": "eu-west", "price": "2.5", "on": "true"})


def matches(expression: str, properties: bytes = ORDER) -> bool:
    return SqlFilter.parse(expression).matches(properties)


@pytest.mark.parametrize(
    "expression",
    [
        "amount > 100 AND region = 'eu-west'",
        "amount BETWEEN 250 AND 300",
        "amount NOT BETWEEN 0 AND 249",
        "region IN ('us', 'eu-west')",
        "region NOT IN ('us')",
        "missing IS NULL AND region IS NOT NULL",
        "region STARTSWITH 'eu' and region endswith 'st' and region Contains '-'",
        "TAGS = 'paid' OR missing > 1",
        "NOT (amount < 100)",
        "price = 2.5 AND price > 0.1",
        "on = TRUE",
        "amount = 250 -- the last word",
        "amount/* so */=/* many */250",
        "amount > 100 AND amount < 300 OR nothing = 1",
        "amount <> 251",
    ],
)
def test_an_expression_that_is_true(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "region",  # text is not true
        "missing = 1",
        "NOT (missing = 1)",  # unknown
        "missing NOT IN ('x')",
        "missing NOT CONTAINS 'x'",
        "price = 2",  # 2.5 is not a whole number
        "region > 5 OR TRUE",  # not comparable: ends the evaluation
        "NOT (region > 5)",
        "amount = 5 AND region = 'eu-west'",
        "Amount = 250",
        "amount BETWEEN 5 AND -1",
    ],
)
def test_an_expression_that_is_not_true(expression: str) -> None:
    assert not matches(expression)


def test_unknown_false_and_failure_are_told_apart() -> None:
    assert SqlFilter.parse("missing > 5").evaluate(ORDER) is None
    assert SqlFilter.parse("amount > 500").evaluate(ORDER) is False
    with pytest.raises(NotComparable):
        SqlFilter.parse("region > 5").evaluate(ORDER)


def test_properties_are_found_whatever_is_around_them() -> None:
    assert matches("a = '1'", b"a\x011")
    assert matches("a = '2'", b"a\x011\x02b\x01x\x02a\x012\x02")  # the last one counts
    assert matches("a = '1'", b"a\x011\x02a\x01\x02")  # without a value it does not count
    assert not matches("a = '1'", b"ba\x011\x02")
    assert matches("a IS NULL", b"")
    assert matches("a = '\ufffd'", b"a\x01\xff\x02")  # as a reader of the message sees it


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("", 0, "empty"),
        (" \n", 0, "empty"),
        ("a >", 3, "ends too early; a property, a value"),
        ("a > 5 AND", 9, "ends too early"),
        ("a > 'x'", 4, "a text has no order"),
        ("a > TRUE", 4, "TRUE has no order"),
        ("b = 1 AND a = 'x", 14, "does not end"),
        ("a = 1 b = 2", 6, "b has no place here; an operator, AND, OR or the end"),
        ("a == 5", 3, "one ="),
        ("a != 5", 2, "<>"),
        ('"a" = 5', 0, "single quotes"),
        ("a LIKE 'x'", 2, "CONTAINS"),
        ("a + 1 > 5", 2, "no arithmetic"),
        ("a = NULL", 4, "IS NULL"),
        ("NULL = a", 0, "IS NULL"),
        ("TRUE = 5", 7, "cannot be compared"),
        ("a BETWEEN 5 AND 1", 10, "the lower one comes first"),
        ("a BETWEEN 'a' AND 'b'", 10, "no order"),
        ("5 IN ('x')", 0, "IN asks about a property"),
        ("NOT a IN ('x')", 0, "IN asks about a property, not about a condition"),
        ("a IN (5)", 6, "a text in 'single quotes'"),
        ("a IN ('x' 'y')", 10, ") or , was expected"),
        ("a CONTAINS b", 11, "a text in 'single quotes'"),
        ("5", 0, "neither true nor false"),
        ("a = 1 OR 'x'", 9, "neither true nor false"),
        ("a = 0.0", 4, "write 0"),
        ("a = 1e999", 4, "numbers end at"),
        ("a = 9223372036854775808", 4, "whole numbers end at"),
        ("a = '\ud800'", 5, "half of a character"),
        ("(a = 1", 6, "OR or ) was expected"),
        ("NOT a > 5", 0, "a condition has no order"),
        ("a = 1)", 5, "the end was expected"),
        ("a IS 5", 5, "NOT or NULL was expected"),
        ("a = /* 5", 4, "comment"),
        ("a = /**5/ 5", 4, "comment"),
    ],
)
def test_a_bad_expression_is_refused_where_it_is_bad(expression: str, position: int, reason: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        SqlFilter.parse(expression)
    assert caught.value.position == position
    assert reason in caught.value.reason
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.position, copy.reason, str(copy)) == (position, caught.value.reason, str(caught.value))


def test_the_place_is_shown() -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        SqlFilter.parse("amount > 5 AND\n\tregion ? 'x'")
    assert str(caught.value).splitlines() == [
        "'?' has no place here (at character 23)",
        "  amount > 5 AND  region ? 'x'",
        "                         ^",
    ]
    with pytest.raises(FilterSyntaxError) as caught:
        SqlFilter.parse("a = 1 OR " * 100 + "b ? 2" + " OR a = 1" * 100)
    _, shown, caret = str(caught.value).splitlines()
    assert shown.startswith("  ...")
    assert shown.endswith("...")
    assert shown[caret.index("^")] == "?"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a = 1 OR " * CHARACTERS_MAX, "characters"),
        (" OR ".join(["a=1"] * PARTS_MAX), "parts"),
        (" AND ".join(["(a=1 OR b=2)"] * (PARTS_MAX // 7 + 1)), "parts"),
        ("NOT " * DEPTH_MAX + "TRUE", "deep"),
        ("- " * DEPTH_MAX + "a IS NULL", "deep"),
        ("a" + " IS NULL" * DEPTH_MAX, "deep"),
        ("a = 1" + " = TRUE" * DEPTH_MAX, "deep"),
        ("a OR (" * DEPTH_MAX + "b" + ")" * DEPTH_MAX, "deep"),
        ("a" * (NAME_CHARACTERS_MAX + 1) + " = 1", "a name of 256 characters"),
        ("(" * (CHARACTERS_MAX - 1), "ends too early"),
        ("a = " + "- " * (CHARACTERS_MAX // 2 - 4), "ends too early"),
        ("'" * (CHARACTERS_MAX - 1), "does not end"),
        ("/*" * (CHARACTERS_MAX // 2), "no arithmetic"),
        ("/*" + "*" * (CHARACTERS_MAX - 2), "comment"),
        ("1" * (CHARACTERS_MAX - 4) + " = a", "whole numbers end"),
    ],
)
def test_an_expression_that_would_cost_too_much_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(FilterSyntaxError, match=reason):
        SqlFilter.parse(expression)


def test_what_is_within_the_bounds_is_evaluated() -> None:
    wide = SqlFilter.parse(" OR ".join(["a=1"] * ((PARTS_MAX - 1) // 3)))
    assert wide.parts <= PARTS_MAX
    assert wide.matches(b"a\x011\x02")
    assert matches("(" * 2000 + "amount = 250" + ")" * 2000)
    assert matches("NOT " * (DEPTH_MAX - 2) + "TRUE")
    assert matches(f"region IN ({', '.join(map(repr, map(str, range(800))))}, 'eu-west')")
    assert matches("a" * NAME_CHARACTERS_MAX + " IS NULL")


def test_an_expression_is_compiled_once() -> None:
    assert SqlFilter.parse("amount = 4711") is SqlFilter.parse("amount = 4711")
    for _ in range(2):
        with pytest.raises(FilterSyntaxError) as caught:
            SqlFilter.parse("amount = 4711 ?")
        assert caught.value.__context__ is None


def test_the_parser_is_loaded_with_the_first_expression() -> None:
    code = (
        "import sys, reput_client.blocking, reput_client.transport.aio, reput_broker.store.message_store\n"
        "from reput_protocol.filter.sql import SqlFilter\n"
        "assert 'lark' not in sys.modules\n"
        "SqlFilter.parse('a = 1')\n"
        "assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
