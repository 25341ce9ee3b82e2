"""Pulled messages: decoded on demand, checked before anything is returned."""

from __future__ import annotations

import copy
import pickle
import zlib
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_client.consume.group.serving import RetriedMessage
from reput_client.consume.pull import PulledMessages, read_records
from reput_client.errors import DamagedMessage, UnsupportedCompression
from reput_client.received import DamagedRecord, ReceivedMessage
from reput_protocol.errors import RecordMalformed
from reput_protocol.filter.tags import TagFilter
from reput_protocol.properties import find_property
from reput_protocol.record.layout import encode_blank
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, encode_record


def record(**fields: object) -> bytes:
    values: dict[str, object] = {
        "topic": "t",
        "body": b"hello",
        "queue_id": 3,
        "flag": -7,
        "queue_offset": 11,
        "physical_offset": 222,
        "born_timestamp_ms": 1000,
        "store_timestamp_ms": 2000,
        "born_host": Host("1.2.3.4", 5),
        "store_host": Host("127.0.0.1", 10911),
        "reconsume_times": 2,
        "properties": b"UNIQ_KEY\x01id1\x02TAGS\x01paid\x02KEYS\x01a b\x02",
    }
    with_crc = bool(fields.pop("with_crc", False))
    return bytes(encode_record(Record(**{**values, **fields}), with_crc=with_crc))  # type: ignore[arg-type]


def received(encoded: bytes) -> ReceivedMessage:
    (message,) = PulledMessages("t", encoded, None, "broker-a")
    return message


V6 = Host("2001:db8::1", 7)


@pytest.mark.parametrize("hosts", [{}, {"born_host": V6}, {"store_host": V6}, {"born_host": V6, "store_host": V6}])
@pytest.mark.parametrize("topic", ["t", "%RETRY%" + "g" * 150])
@pytest.mark.parametrize("with_crc", [False, True])
def test_every_field_of_every_layout(hosts: dict[str, Host], topic: str, with_crc: bool) -> None:
    encoded = record(topic=topic, with_crc=with_crc, **hosts)
    message = received(encoded)
    assert message.body == message.raw_body == b"hello"
    assert message.tag == "paid"
    assert message.keys == ("a", "b")
    assert message.message_id == "id1"
    assert {name: value for name, value in message.properties.items() if name != "__CRC32#"} == {
        "UNIQ_KEY": "id1",
        "TAGS": "paid",
        "KEYS": "a b",
    }
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 11, 222)
    assert (message.flag, message.reconsume_times) == (-7, 2)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1000, 2000)
    assert message.born_host == str(hosts.get("born_host", Host("1.2.3.4", 5)))
    assert message.store_host == str(hosts.get("store_host", Host("127.0.0.1", 10911)))
    assert message.broker_name == "broker-a"
    assert message.record == encoded
    assert message.record_bytes == len(encoded)
    assert len(message.offset_message_id) == (56 if "store_host" in hosts else 32)


def test_only_spaces_separate_keys() -> None:
    assert received(record(properties="KEYS\x01 a\tb c\u3000d  e\x02".encode())).keys == ("a\tb", "c\u3000d", "e")


def test_a_message_without_properties() -> None:
    message = received(record(properties=b"", body=b""))
    assert message.tag is None
    assert message.keys == ()
    assert message.properties == {}
    assert message.body == b""
    assert message.message_id == message.offset_message_id == "7F00000100002A9F00000000000000DE"
    assert "t/3 at 11" in repr(message)


@pytest.mark.parametrize("look", ["body", "raw_body", "tag", "keys", "properties", "message_id"])
def test_a_changed_body_is_never_returned(look: str) -> None:
    encoded = bytearray(record())
    encoded[88] ^= 1
    with pytest.raises(DamagedMessage, match="message t/3 at offset 11: BODYCRC is"):
        getattr(received(bytes(encoded)), look)


def test_a_checksum_of_the_whole_record_guards_the_properties_too() -> None:
    encoded = bytearray(record(with_crc=True))
    at = encoded.index(b"paid")
    encoded[at] ^= 1
    with pytest.raises(DamagedMessage):
        _ = received(bytes(encoded)).tag


@pytest.mark.parametrize("sys_flag", [0x1, 0x301])
def test_zlib_bodies_are_inflated(sys_flag: int) -> None:
    packed = zlib.compress(b"long " * 1000)
    message = received(record(body=packed, sys_flag=sys_flag))
    assert message.body == b"long " * 1000
    assert message.raw_body == packed


@pytest.mark.parametrize(("sys_flag", "name"), [(0x101, "LZ4"), (0x201, "Zstandard"), (0x501, "unknown method 5")])
def test_other_compressions_are_named(sys_flag: int, name: str) -> None:
    message = received(record(sys_flag=sys_flag))
    with pytest.raises(UnsupportedCompression, match=name) as caught:
        _ = message.body
    found = caught.value
    assert (found.topic, found.queue_id, found.queue_offset) == (message.topic, message.queue_id, message.queue_offset)
    assert message.raw_body == b"hello"


@pytest.mark.parametrize("body", [b"no zlib", zlib.compress(b"x" * 1000)[:-5]])
def test_a_body_that_cannot_be_inflated_is_damaged(body: bytes) -> None:
    with pytest.raises(DamagedMessage, match="compressed"):
        _ = received(record(body=body, sys_flag=1)).body


def test_a_body_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput_protocol.record.compression.INFLATED_BYTES_MAX", 1000)
    with pytest.raises(DamagedMessage, match="larger than 1000 bytes"):
        _ = received(record(body=zlib.compress(bytes(5000)), sys_flag=1)).body


def test_messages_are_a_sequence() -> None:
    encoded = b"".join(record(queue_offset=number) for number in range(5))
    for buffer in (encoded, memoryview(encoded), bytearray(encoded)):
        messages = PulledMessages("t", buffer)
        assert len(messages) == 5
        assert [message.queue_offset for message in messages] == [0, 1, 2, 3, 4]
        assert messages[-1].queue_offset == 4
        assert [message.queue_offset for message in messages[1:3]] == [1, 2]
        assert messages.record_bytes == len(encoded)
        with pytest.raises(IndexError):
            messages[5]
    assert not PulledMessages("t", b"")


def test_tags_that_share_a_hash_are_told_apart() -> None:
    # "AaAa" and "BBBB" have one hash, so the broker returns both.
    encoded = b"".join(record(properties=b"TAGS\x01" + tag + b"\x02") for tag in (b"AaAa", b"BBBB", b"AaAa"))
    messages = PulledMessages("t", encoded, TagFilter.parse("AaAa"))
    assert [message.tag for message in messages] == ["AaAa", "AaAa"]
    assert len(messages) == 2
    assert messages[1].tag == "AaAa"


def test_a_filter_does_not_stop_at_a_damaged_message() -> None:
    encoded = bytearray(record())
    encoded[88] ^= 1
    (message,) = PulledMessages("t", bytes(encoded), TagFilter.parse("paid"))
    with pytest.raises(DamagedMessage):
        _ = message.body


def test_records_that_do_not_add_up_are_refused() -> None:
    good = record()
    for bad, index, reason in (
        (good + good[:50], 1, "TOTALSIZE is"),
        (good + good[:-1], 1, "TOTALSIZE is"),
        (good + bytes(7), 1, "7 bytes are left"),
        (good + good + encode_blank(50), 2, "a blank record"),
        (good[:4] + b"\0\0\0\0" + good[8:], 0, "magic"),
        (good[:84] + (10_000).to_bytes(4, "big") + good[88:], 0, "BODYLEN 10000"),
        (good[:84] + (0x8000_0000).to_bytes(4, "big") + good[88:], 0, "BODYLEN -"),
        (good[:84] + (4).to_bytes(4, "big") + good[88:], 0, "TOPICLEN"),
        ((92).to_bytes(4, "big") + good[4:92], 0, "BODYLEN"),
    ):
        with pytest.raises(RecordMalformed, match=reason) as refused:
            read_records(bad)
        assert (refused.value.index, refused.value.position) == (index, index * len(good))


@given(st.binary(max_size=300), st.integers(0, 2), st.data())
def test_no_bytes_get_past_the_size_check_and_then_out_of_bounds(junk: bytes, copies: int, data: st.DataObject) -> None:
    encoded = bytearray(record(born_host=V6) * copies + junk)
    if encoded:
        for _ in range(3):
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages = PulledMessages("t", bytes(encoded))
    except RecordMalformed:
        return
    for message in messages:
        try:
            _ = (message.body, message.properties, message.tag)
        except (DamagedMessage, UnsupportedCompression):
            continue
        _ = (message.store_host, message.born_host, message.store_timestamp_ms, message.offset_message_id)


TAG_TEXTS = st.lists(
    st.sampled_from(
        [
            "TAGS\x01a\x02",
            "TAGS\x01bb\x02",
            "XTAGS\x01a\x02",
            "k\x01TAGS\x02",
            "KEYS\x01q\x02",
            "TAGS\x01\x02",
            "TAGS\x01c",
        ]
    ),
    max_size=4,
).map("".join)


COPIES: list[Callable[[ReceivedMessage], ReceivedMessage]] = [
    lambda message: pickle.loads(pickle.dumps(message)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_copy_carries_the_message_and_not_its_pull(duplicate: Callable[[ReceivedMessage], ReceivedMessage]) -> None:
    records = [record(body=bytes([number]) * 10_000, queue_offset=number) for number in range(100)]
    message = PulledMessages("t", b"".join(records), None, "broker-a")[70]
    message.send_back_id = "id"
    copied = duplicate(message)
    assert len(pickle.dumps(copied)) == len(pickle.dumps(message)) < len(records[70]) + 400
    assert _seen(copied) == _seen(message)


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_copy_of_a_damaged_message_is_damaged(duplicate: Callable[[ReceivedMessage], ReceivedMessage]) -> None:
    changed = received(record().replace(b"hello", b"hellO"))
    unreadable = DamagedRecord("t", "broker-a", 3, 11, b"other bytes", "its record cannot be read")
    for message in (changed, unreadable):
        copied = duplicate(message)
        with pytest.raises(DamagedMessage) as expected:
            _ = message.body
        with pytest.raises(DamagedMessage) as caught:
            _ = copied.body
        assert str(caught.value) == str(expected.value)
        assert (copied.record, copied.queue, copied.queue_offset) == (message.record, message.queue, 11)


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_copy_of_a_redelivered_message_keeps_topic_and_queue(
    duplicate: Callable[[ReceivedMessage], ReceivedMessage],
) -> None:
    encoded = record(topic="%RETRY%g", properties=b"RETRY_TOPIC\x01orders\x02")
    (pulled,) = PulledMessages("%RETRY%g", encoded, None, "broker-a")
    message = RetriedMessage.of(pulled)
    copied = duplicate(message)
    assert type(copied) is RetriedMessage
    assert (copied.topic, copied.queue.topic) == ("orders", "%RETRY%g")
    assert _seen(copied) == _seen(message)


def _seen(message: ReceivedMessage) -> dict[str, object]:
    """Return all that a program can see of a message."""
    names = [
        name
        for name in dir(ReceivedMessage)
        if isinstance(getattr(ReceivedMessage, name), property) or name == "send_back_id"
    ]
    return {name: getattr(message, name) for name in names}


def test_times_are_in_utc() -> None:
    message = received(record(born_timestamp_ms=1_700_000_000_001, store_timestamp_ms=1_700_000_000_999))
    assert message.born_at == datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)
    assert message.stored_at == datetime(2023, 11, 14, 22, 13, 20, 999_000, UTC)
    assert message.born_at.tzinfo is UTC
    with pytest.raises(OverflowError):
        _ = received(record(born_timestamp_ms=1 << 62)).born_at


@given(st.lists(st.tuples(TAG_TEXTS, st.booleans()), min_size=1, max_size=12))
def test_a_tag_is_the_same_whatever_was_read_before(texts: list[tuple[str, bool]]) -> None:
    for text, long_topic in texts:
        properties = text.encode()
        encoded = record(topic="%RETRY%" + "g" * 150 if long_topic else "TAGS\x01a\x02", properties=properties)
        value = find_property(properties, b"TAGS")
        assert received(encoded).tag == (None if value is None else value.decode())


@pytest.mark.parametrize("tag", ["x" * 300, "a\x00b", "größe"])
def test_unusual_tags_are_read_each_time(tag: str) -> None:
    for wanted in (tag, "usual", tag, tag):
        assert received(record(properties=f"UNIQ_KEY\x01i\x02TAGS\x01{wanted}\x02".encode())).tag == wanted
