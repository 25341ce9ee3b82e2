"""The three header types behind one interface."""

from __future__ import annotations

import pytest

from reput_protocol.errors import HeaderMalformed, UnknownHeaderType
from reput_protocol.wire.frames import decode_header, encode_header
from reput_protocol.wire.header import FIELDS_MAX, Header, HeaderType, value_text


@pytest.mark.parametrize("header_type", list(HeaderType))
def test_each_type_reads_what_it_writes(header_type: HeaderType) -> None:
    header = Header(105, 7, 2, "why", {"topic": "TopicTest"}, 3, 1)
    assert decode_header(header_type, encode_header(header, header_type)) == header


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownHeaderType, match="0x02"):
        decode_header(2, b"")
    with pytest.raises(UnknownHeaderType):
        encode_header(Header(0, 0), 255)


def test_flags() -> None:
    assert not Header(0, 0).is_response
    assert Header(0, 0, 1).is_response
    assert Header(0, 0, 2).is_oneway
    assert Header(0, 0, 3).is_response


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), (-7, "-7"), (1.5, "1.5"), ("x", "x"), (b"x", "x")]
)
def test_text_of_values(value: bool | int | float | str | bytes, text: str) -> None:
    assert value_text(value) == text


def test_an_absent_value_has_no_text() -> None:
    with pytest.raises(ValueError, match="absent"):
        value_text(None)


@pytest.mark.parametrize("header_type", list(HeaderType))
def test_a_header_has_a_bounded_number_of_fields(header_type: HeaderType) -> None:
    most = Header(105, 7, ext={str(number): "x" for number in range(FIELDS_MAX)})
    assert decode_header(header_type, encode_header(most, header_type)).ext == most.ext
    most.ext["one more"] = "x"
    with pytest.raises(HeaderMalformed):
        decode_header(header_type, encode_header(most, header_type))


def test_repeated_fields_are_counted_each_time() -> None:
    head = encode_header(Header(105, 7), HeaderType.BINARY)[:-4]
    assert decode_header(HeaderType.BINARY, head + (6 * 1024).to_bytes(4, "big") + bytes(6 * 1024)).ext == {"": ""}
    with pytest.raises(HeaderMalformed, match="1024 fields"):
        decode_header(HeaderType.BINARY, head + (60_000).to_bytes(4, "big") + bytes(60_000))
