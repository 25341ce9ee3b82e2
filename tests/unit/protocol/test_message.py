"""Messages that a client makes: properties, keys, limits, and what cannot be sent."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reput_protocol.errors import InvalidMessage, InvalidName
from reput_protocol.properties import decode_properties
from reput_protocol.property_rules import properties_fault
from reput_protocol.record.message import Message, encode_keys_texts, encode_properties_text


def test_properties_text_puts_the_unique_id_first() -> None:
    message = Message("orders", b"x", tag="paid", keys=["o-42", "c-7"], properties={"a": "1"})
    text = encode_properties_text(message, "ID")
    assert text == b"UNIQ_KEY\x01ID\x02TAGS\x01paid\x02KEYS\x01o-42 c-7\x02a\x011\x02"
    assert properties_fault(text) is None


def test_the_messages_own_unique_id_wins() -> None:
    message = Message("orders", b"x", unique_id="MINE")
    assert encode_properties_text(message, "ID") == b"UNIQ_KEY\x01MINE\x02"
    assert encode_properties_text(Message("orders", b"x"), None) == b""


def test_text_beyond_ascii_is_canonical() -> None:
    message = Message("orders", b"x", tag="größe", keys=("订单",), properties={"😀": "\x00\n"})
    text = encode_properties_text(message, None)
    assert properties_fault(text) is None
    assert decode_properties(text) == {"TAGS": "größe", "KEYS": "订单", "😀": "\x00\n"}


def test_bodies_are_kept_as_they_are() -> None:
    body = bytearray(b"abc")
    assert Message("orders", body).body is body
    assert len(Message("orders", memoryview(b"abcdefgh").cast("Q")).body) == 8
    assert Message("orders", b"").body == b""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"body": "text"}, r"body\.encode\(\)"),
        ({"body": 3}, "must be bytes"),
        ({"body": memoryview(b"abcd")[::2]}, "gaps"),
        ({"tag": ""}, "tag is empty"),
        ({"tag": "a\x01"}, "0x01 or 0x02"),
        ({"tag": 3}, "tag must be str"),
        ({"keys": "o-42"}, r"keys=\['o-42'\]"),
        ({"keys": {"a"}}, "must be a sequence"),
        ({"keys": ["a", ""]}, "key is empty"),
        ({"keys": ["a b"]}, "holds a space"),
        ({"keys": ["a", "b c", ""]}, "holds a space"),
        ({"keys": ["a\x02"]}, "0x01 or 0x02"),
        ({"keys": [3]}, "key must be str"),
        ({"properties": {"DELAY": "3"}}, "pass delay_level="),
        ({"properties": {"TIMER_DELAY_MS": "3"}}, "pass delay_s="),
        ({"properties": {"TIMER_DELIVER_MS": "3"}}, "pass deliver_at="),
        ({"properties": {"TIMER_OUT_MS": "3"}}, "reserved"),
        ({"properties": {"a": ""}}, "is empty"),
        ({"flag": 1 << 31}, "32 bits"),
        ({"flag": "1"}, "32 bits"),
        ({"unique_id": ""}, "unique_id is empty"),
        ({"unique_id": "a b"}, "unique_id 'a b' holds a space"),
        ({"unique_id": 17}, "unique_id must be str"),
    ],
)
def test_what_cannot_be_sent(arguments: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidMessage, match=hint):
        Message(**{"topic": "orders", "body": b"", **arguments})


@pytest.mark.parametrize("topic", ["", "a b", "SCHEDULE_TOPIC_XXXX", 3])
def test_topics_are_checked(topic: Any) -> None:
    with pytest.raises(InvalidName):
        Message(topic, b"")


def test_half_a_character_is_refused_with_a_reason() -> None:
    with pytest.raises(InvalidMessage, match="half of a character"):
        encode_properties_text(Message("orders", b"", tag="\ud83d"), None)


def test_properties_that_do_not_fit_are_refused() -> None:
    encode_properties_text(Message("orders", b"", properties={"a": "x" * 31_740}), None)
    with pytest.raises(InvalidMessage, match="bytes, but at most 31743"):
        encode_properties_text(Message("orders", b"", properties={"a": "x" * 31_741}), None)


@given(
    st.lists(
        st.lists(st.text("aé \x01\u3000\n", max_size=3) | st.just(3), max_size=3)
        | st.sampled_from([("o-1",), "text", {"a"}, None]),
        max_size=4,
    )
)
@example([["a", ""], [" b"]])
@example([["a b"], []])
@example([[""], ["\ud800"]])
def test_keys_of_many_messages_are_those_of_each(keys: Any) -> None:
    def of_each() -> list[bytes]:
        return [encode_properties_text(Message("t", b"", keys=each or ()), None) for each in keys]

    outcomes: list[list[bytes] | str] = []
    for encode in (of_each, lambda: encode_keys_texts([each or () for each in keys])):
        try:
            outcomes.append(encode())
        except InvalidMessage as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
