"""JSON headers: what real clients send is read, other text is refused."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from reput_protocol.codes import LanguageCode
from reput_protocol.errors import HeaderMalformed
from reput_protocol.wire.frames import decode_json_header, encode_json_header
from reput_protocol.wire.header import Header, Value


def test_go_sends_an_empty_remark() -> None:
    header = decode_json_header(
        b'{"code":10,"language":"GO","version":317,"opaque":2,"flag":0,"remark":"","extFields":{"topic":"GoT"}}'
    )
    assert header == Header(10, 2, 0, "", {"topic": "GoT"}, LanguageCode.GO, 317)


def test_ali_ons_sends_bare_numbers_and_booleans() -> None:
    header = decode_json_header(
        b'{"code":11,"opaque":6,"extFields":{"queueId":0,"commitOffset":-1,"unitMode":false,"rate":1.50,"none":null}}'
    )
    assert header.ext == {"queueId": "0", "commitOffset": "-1", "unitMode": "false", "rate": "1.50"}
    assert (header.flag, header.version, header.remark) == (0, 0, None)


@pytest.mark.parametrize("language", ['"COBOL"', "null", "-1", "[]", "1e3"])
def test_an_unknown_language_is_served_as_other(language: str) -> None:
    assert decode_json_header(b'{"code":1,"language":%b}' % language.encode()).language == LanguageCode.OTHER


def test_a_missing_or_null_ext_is_empty() -> None:
    assert decode_json_header(b'{"code":1}').ext == {}
    assert decode_json_header(b'{"code":1,"extFields":null}').ext == {}


def test_unknown_members_are_ignored_and_the_last_of_two_counts() -> None:
    assert decode_json_header(b'{"code":1,"code":2,"x":{"y":[1]}}').code == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"code":1',
        b'{"code":1}x',
        b"{code:1}",
        b'{"code":1,}',
        b'{"code":"1"}',
        b'{"code":1.0}',
        b'{"code":true}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":NaN}',
        b'{"code":1,"opaque":[]}',
        b'{"code":1,"remark":1}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"extFields":{"a":NaN}}',
        b'{"code":1,"extFields":{"a":"\\ud800"}}',
        b'{"code":1,"extFields":{"\\uDFFF":"a"}}',
        b'{"code":1,"remark":"\xff"}',
        b'\xef\xbb\xbf{"code":1}',
        b'{"code":' + b"9" * 60_000 + b"}",
        b'{"code":1,"extFields":{"n":' + b"9" * 60_000 + b"}}",
        b"[" * 65_000,
        b'{"a":' * 13_000,
    ],
)
def test_an_invalid_header_is_malformed(data: bytes) -> None:
    with pytest.raises(HeaderMalformed):
        decode_json_header(data)


def test_a_real_surrogate_pair_is_a_character() -> None:
    assert decode_json_header(b'{"code":1,"remark":"\\ud83d\\ude00"}').remark == "\U0001f600"


def test_written_headers_hold_text_only() -> None:
    """The Go client cannot read a bare number in ext."""
    ext = {"n": 7, "b": True, "f": 1.5, "raw": b"abc", "none": None, "t": "x"}
    members = json.loads(encode_json_header(Header(0, 1, 1, None, ext)))  # type: ignore[arg-type]
    assert members["extFields"] == {"n": "7", "b": "true", "f": "1.5", "raw": "abc", "t": "x"}
    assert "remark" not in members


def test_bytes_that_are_not_text_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        encode_json_header(Header(0, 1, ext={"a": b"\xff"}))


def test_an_unknown_language_number_is_written_as_other() -> None:
    assert json.loads(encode_json_header(Header(0, 1, language=99)))["language"] == "OTHER"


@pytest.mark.parametrize(
    "data",
    [
        b'{"code":10,"extFields":{"a":[' + b",".join([b"[]"] * 300_000) + b"]}}",
        b'{"code":10,"extFields":{' + b",".join(b'"%x":"1"' % number for number in range(90_000)) + b"}}",
        b'{"code":10,"extFields":{' + b",".join(b'"%x\\\\" :1' % number for number in range(90_000)) + b"}}",
    ],
)
def test_a_large_header_makes_few_objects(data: bytes) -> None:
    """Each made a third of a million objects, and took a tenth of a second and more."""
    tracemalloc.start()
    try:
        with pytest.raises(HeaderMalformed):
            decode_json_header(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + 100_000
    finally:
        tracemalloc.stop()


def test_containers_where_no_field_is_make_no_objects() -> None:
    lists = b"[" + b",".join([b"[]"] * 300_000) + b"]"
    tracemalloc.start()
    try:
        header = decode_json_header(b'{"code":10,"language":%b,"unknown":%b}' % (lists, lists))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(lists) + 100_000
    finally:
        tracemalloc.stop()
    assert (header.code, header.language) == (10, LanguageCode.OTHER)


def test_a_large_header_with_long_texts_is_read() -> None:
    ext: dict[str, Value] = {"i": 'a "quoted" \\ text ' * 10_000, "j": "x"}
    assert decode_json_header(encode_json_header(Header(310, 1, ext=ext))).ext == ext


@pytest.mark.parametrize("pair", [b'\\"', b'"\\', b"\\\\", b'""'])
def test_a_text_without_an_end_is_read_once(pair: bytes) -> None:
    """Escaped quotation marks without an end were each searched to the end of the header: a minute for 64 KiB."""
    with pytest.raises(HeaderMalformed):
        decode_json_header(b'{"code":1,"remark":"' + pair * 500_000)
