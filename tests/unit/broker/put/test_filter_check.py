"""From an expression to a filter: what is served, what is refused, and how much may be in use at once."""

from __future__ import annotations

import gc

import pytest

from reput_broker.config.sections import FiltersConfig
from reput_broker.put.held_pulls import FilterCheck
from reput_broker.remoting.request import Refusal
from reput_protocol.codes import ResponseCode
from reput_protocol.errors import ErrorCode, FilterSyntaxError
from reput_protocol.filter.sql import SqlFilter, sql_filter
from reput_protocol.filter.tags import TagFilter


def test_tags_are_the_default_and_everything_needs_no_filter() -> None:
    check = FilterCheck(FiltersConfig())
    for kind in (None, "", "TAG"):
        for expression in (None, "", "*"):
            assert check.filter_of(kind, expression) is None
        assert isinstance(check.filter_of(kind, "a || b"), TagFilter)
    assert isinstance(check.filter_of("SQL92", "a = 1"), SqlFilter)


@pytest.mark.parametrize(("kind", "expression"), [("SQL92", "a ="), ("SQL92", None), ("sql92", "a = 1"), ("TAG", "||")])
def test_an_invalid_expression_has_a_separate_code_in_a_subscription(kind: str, expression: str | None) -> None:
    check = FilterCheck(FiltersConfig())
    with pytest.raises(FilterSyntaxError) as caught:
        check.filter_of(kind, expression)
    with pytest.raises(Refusal) as refused:
        check.filter_of_subscription(kind, expression)
    assert (refused.value.error, refused.value.response_code) == (ErrorCode.FILTER_SYNTAX, 27)
    assert refused.value.text == str(caught.value)


def test_sql_can_be_turned_off() -> None:
    check = FilterCheck(FiltersConfig(sql=False))
    assert isinstance(check.filter_of("TAG", "a"), TagFilter)
    for kind in ("SQL92", "XPATH"):
        with pytest.raises(Refusal) as refused:
            check.filter_of(kind, "a = 1")
        assert refused.value.response_code == ResponseCode.SYSTEM_ERROR


def test_expressions_in_use_are_bounded_and_unused_ones_not_counted() -> None:
    check = FilterCheck(FiltersConfig(sql_characters_max=8192))
    long = [f"a = '{str(number) * 7000}'" for number in (1, 2)]
    in_use = check.filter_of("SQL92", long[0])
    assert check.filter_of("SQL92", long[0]) is in_use, "the same one again costs nothing"
    with pytest.raises(Refusal, match=r"filters\.sql_characters_max") as refused:
        check.filter_of("SQL92", long[1])
    assert refused.value.error is ErrorCode.BUSY
    assert check.filter_of("SQL92", "a = 1") is not None
    del in_use
    sql_filter._outcomes.clear()
    gc.collect()
    assert check.filter_of("SQL92", long[1]) is not None
