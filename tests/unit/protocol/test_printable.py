"""Texts from messages in output: control characters are escaped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.printable import printable, printable_body, printable_json, printable_lines

HOSTILE = "\x1b[2J\u202egpj.exe\u2066\x9b31m\x7f\u2028\ud800"


def test_text_that_prints_stays_as_it_is() -> None:
    for text in ("orders", "Bestellungen äöü", "注文\u3000一覧", "a\xa0b", "👍 [red]"):
        assert printable(text) == text


def test_control_and_invisible_characters_are_escaped() -> None:
    escaped = "\\x1b[2J\\u202egpj.exe\\u2066\\x9b31m\\x7f\\u2028\\ud800"
    assert printable(HOSTILE) == escaped
    assert printable("a\nb\tc\r") == "a\\nb\\tc\\r"
    assert printable_lines("a\nb\tc\r" + HOSTILE) == "a\nb\tc\\r" + escaped
    assert printable_body(b"\xff\x1b[0m\n") == "\\xff\\x1b[0m\n"


@given(st.dictionaries(st.text(), st.text()))
def test_json_stays_the_same_value(value: dict[str, str]) -> None:
    text = printable_json(value)
    assert json.loads(text) == value
    assert printable(text) == text


@pytest.mark.parametrize("char", ["\U000e0001", "\U0001f600", "\x9b"])
def test_json_escapes_are_those_of_json(char: str) -> None:
    assert json.loads(printable_json([char])) == [char]
