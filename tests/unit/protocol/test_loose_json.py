"""JSON as Java's library writes it: bare integers and objects as keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.commands import base as loose_json
from reput_protocol.commands.base import encode_json, read_json
from reput_protocol.errors import BodyMalformed

KEY = (("brokerName", "broker-a"), ("queueId", 1), ("topic", "T"))


def test_object_keys_become_sorted_members() -> None:
    text = b'{"offsetTable" : {{"topic":"T","queueId":1,"brokerName":"broker-a"} : 42 , {"queueId":2}:[1,{}]}}'
    assert read_json(text) == {"offsetTable": {KEY: 42, (("queueId", 2),): [1, {}]}}


def test_bare_integer_keys_are_text() -> None:
    assert read_json(b'{0:"a",-1:[]}') == {"0": "a", "-1": []}


def test_written_json_is_compact_and_sorted() -> None:
    assert encode_json({"b": [1, 2], "a": "ü"}) == '{"a":"ü","b":[1,2]}'.encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_the_loose_reader_reads_all_strict_json_alike(value: object) -> None:
    """A bare key in front makes the loose reader read the rest, too."""
    rest = json.dumps(value)
    assert read_json(f'{{0:1,"rest":{rest}}}'.encode()) == {"0": 1, "rest": json.loads(rest)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"{0:}",
        b"{0:1",
        b"{0:1,}",
        b"{0:1}x",
        b"{0 1}",
        b"{a:1}",
        b"{0:[1,]}",
        b"{0:NaN}",
        b'{"a":NaN}',
        b'{0:"\\x"}',
        b'{0:"a}',
        b"{0:01}",
        b"{{0:{}}:1}",
        b'{{"a":[]}:1}',
        b'{{"a":{}}:1}',
        b"{0:" + b"9" * 5000 + b"}",
        b'{"a":{"b":1}:2}',
        b"{0:1" + b" " * 8192 + b"}",
        b"{" * 100_000,
        b"[" * 100_000,
        b"{0:" * 100_000,
    ],
)
def test_other_json_is_malformed(data: bytes) -> None:
    with pytest.raises(BodyMalformed):
        read_json(data)


def test_text_with_loose_keys_is_bounded_unless_its_writer_is_trusted() -> None:
    """A client's large request is refused; a broker's answer of that size is read."""
    text = b'{"t":{' + b",".join(b'{"queueId":%d}:%d' % (number, number) for number in range(150)) + b"}}"
    with pytest.raises(BodyMalformed):
        read_json(text)
    read = read_json(text, loose_bytes_max=len(text))["t"]
    assert read == {(("queueId", number),): number for number in range(150)}


@pytest.mark.parametrize("pattern", ["{", '{"', "{0 ", "1", '\\"', "{} ", "-", '"'])
def test_hostile_text_is_looked_at_once(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text without a key is one match: no character is a new start."""
    calls = []
    tokens = loose_json._UP_TO_KEY

    class Counted:
        def sub(self, replace: Callable[[re.Match[str]], str], text: str) -> str:
            def counted(match: re.Match[str]) -> str:
                calls.append(match)
                return replace(match)

            return tokens.sub(counted, text)

    monkeypatch.setattr(loose_json, "_UP_TO_KEY", Counted())
    with pytest.raises(BodyMalformed):
        read_json(b"{" + pattern.encode() * 2000)
    assert len(calls) <= 2
