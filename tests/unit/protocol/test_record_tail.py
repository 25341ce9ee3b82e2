"""The properties of a record are found without its body, in every form of a record; damage is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.record.layout import (
    HEAD_BYTES_MAX,
    MAGIC_V1,
    MAGIC_V2,
    properties_of,
    properties_of_tail,
    tail_position,
)
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, encode_record

IPV4, IPV6 = Host("10.0.0.1", 1), Host("2001:db8::1", 1)
records = st.builds(
    Record,
    topic=st.sampled_from(["t", "orders", "%RETRY%" + "g" * 140]),
    queue_id=st.just(0),
    body=st.binary(max_size=60),
    properties=st.sampled_from([b"", b"a\x011\x02", b"a\x01" + b"x" * 300 + b"\x02"]),
    born_host=st.sampled_from([IPV4, IPV6]),
    store_host=st.sampled_from([IPV4, IPV6]),
)


@given(record=records, before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_the_properties_of_a_record_anywhere(record: Record, before: bytes, after: bytes) -> None:
    data = bytes(encode_record(record))
    for buffer in (before + data + after, memoryview(before + data + after)):
        assert properties_of(buffer, len(before), len(data)) == record.properties
    head = data[:HEAD_BYTES_MAX]
    tail = tail_position(head, 0, len(data))
    assert tail is not None
    magic = MAGIC_V1 if len(record.topic) < 128 else MAGIC_V2
    assert properties_of_tail(data[tail:], 0, len(data) - tail, magic) == record.properties


@given(record=records, flip=st.integers(0, 1 << 20), cut=st.integers(0, 400))
def test_damage_is_never_an_exception(record: Record, flip: int, cut: int) -> None:
    data = bytearray(encode_record(record))
    size = len(data)
    data[flip % size] ^= 1 << flip % 8
    properties_of(bytes(data), 0, size)
    assert properties_of(bytes(data[:-1]), 0, size) is None
    properties_of(bytes(data), 0, max(0, size - cut))


@pytest.mark.parametrize("place", [0, 4, 84])
def test_an_invalid_head(place: int) -> None:
    data = bytearray(encode_record(Record("t", b"body")))
    data[place : place + 4] = b"\x7f\xff\xff\xff"
    assert properties_of(bytes(data), 0, len(data)) is None
    assert properties_of(b"", 0, 0) is None
