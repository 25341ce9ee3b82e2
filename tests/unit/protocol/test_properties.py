"""Properties as text: order, tolerance in reading, reserved names."""

import pytest

from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import check_key, decode_properties, encode_properties, find_property
from reput_protocol.property_rules import check_property, properties_fault, reserved_property


def test_order_is_kept_and_every_value_is_ended() -> None:
    assert encode_properties({"b": "1", "a": "2"}) == b"b\x011\x02a\x012\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),  # RocketMQ 4.9 omits the last 0x02
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),
        (b"\x01b\x02", {}),
        (b"ab\x02", {}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x011\x02a\x01\x02", {"a": "1"}),
        (b"a\x01\x01\x02", {"a": "\x01"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_decoding_is_tolerant(text: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(text) == properties
    value = find_property(text, b"a")
    assert (None if value is None else value.decode("utf-8", "replace")) == properties.get("a")


def test_a_value_or_a_longer_name_does_not_pass_for_the_property() -> None:
    assert find_property(b"x\x01TAGS\x02", b"TAGS") is None
    assert find_property(b"x\x01TAGS\x01a\x02", b"TAGS") is None
    assert find_property(b"MYTAGS\x01a\x02", b"TAGS") is None
    assert find_property(b"TAGS\x01a\x02MYTAGS\x01b\x02x\x01TAGS\x01c\x02", b"TAGS") == b"a"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", None),
        (b"a\x01b\x02", None),
        ("k\x01größe\x02".encode(), None),
        (b"a\x01\x00\x02", None),
        (b"DELAYED\x011\x02POP_CK_OFFSET\x011\x02TRAN_MSGS\x011\x02", None),
        (b"a\x01b\x02__CRC32#\x010000000000\x02", None),
        (b"__CRC32#\x010123456789\x02", None),
        (b"a\x01b", "do not end with 0x02"),
        (b"\x01", "do not end with 0x02"),
        (b"ab\x02", "'ab' has no 0x01"),
        (b"\x02", "'' has no 0x01"),
        (b"\x01b\x02", "'b' has an empty name"),
        (b"a\x01\x02", "'a' has an empty value"),
        (b"a\x01b\x01c\x02", "'a' holds 0x01"),
        (b"a\x01b\xff\x02", "not UTF-8 at their byte 3"),
        (b"__CRC32#\x010123456789\x02a\x01b\x02", "must be the last"),
        (b"__CRC32#\x01012345678x\x02", "must be the last and have ten digits"),
        (b"a\x01b__CRC32#\x010123456789\x02", "'a' holds 0x01"),
        *[
            (f"a\x01b\x02{name}\x011\x02".encode(), f"'{name}' is reserved")
            for name in ("INNER_NUM", "TIMER_OUT_MS", "TIMER_X", "POP_CK", "REAL_QID", "DELAY", "TRAN_MSG")
        ],
    ],
)
def test_only_canonical_text_without_reserved_names_is_accepted(text: bytes, fault: str | None) -> None:
    found = properties_fault(text)
    if fault is None:
        assert found is None
    else:
        assert found is not None
        assert fault in found


def test_reserved_property_names_the_first() -> None:
    assert reserved_property(b"a\x01b\x02REAL_TOPIC\x01x\x02DELAY\x011\x02") == "REAL_TOPIC"
    assert reserved_property(b"a\x01DELAY\x02") is None


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("", "v", "is empty"),
        ("n", "", "is empty"),
        ("n\x01", "v", "0x01 or 0x02"),
        ("n", "v\x02", "0x01 or 0x02"),
        ("DELAY", "3", "pass delay_level="),
        ("TIMER_DELIVER_MS", "3", "pass deliver_at="),
        ("__CRC32#", "3", "reserved"),
        ("TAGS", "a", "pass tag="),
        ("KEYS", "a", "pass keys="),
        ("UNIQ_KEY", "a", "pass unique_id="),
        ("n", 3, "must be str"),
    ],
)
def test_properties_that_a_caller_may_not_set(name: str, value: str, hint: str) -> None:
    with pytest.raises(InvalidMessage, match=hint):
        check_property(name, value)


def test_a_key_with_a_space_would_be_two() -> None:
    check_key("order-42")
    with pytest.raises(InvalidMessage, match="space"):
        check_key("order 42")
