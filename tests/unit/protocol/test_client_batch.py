"""The body of RocketMQ's batches: both ways, and lengths that are refused."""

import pytest

from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.record.put_block import BatchItem, decode_batch, encode_batch

ITEMS = [BatchItem(1, b"one", b"a\x01b\x02"), BatchItem(-5, b"", b""), BatchItem(0, b"three", b"a\x01b")]


def test_round_trip() -> None:
    assert decode_batch(encode_batch(ITEMS)) == ITEMS
    assert decode_batch(memoryview(encode_batch(ITEMS))) == ITEMS
    assert decode_batch(b"") == []


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, 21, "unit size 21"),
        (0, 10_000, "unit size 10000"),
        (16, -1, "body length -1"),
        (16, 10_000, "body length 10000"),
    ],
)
def test_lengths_are_checked_before_they_are_used(position: int, value: int, reason: str) -> None:
    body = bytearray(encode_batch(ITEMS))
    body[position : position + 4] = value.to_bytes(4, "big", signed=True)
    with pytest.raises(RecordMalformed, match=reason) as refused:
        decode_batch(body)
    assert refused.value.index == 0


def test_the_second_unit_is_named() -> None:
    body = encode_batch(ITEMS)
    first = 22 + 3 + 4
    with pytest.raises(RecordMalformed, match="too few for a unit") as refused:
        decode_batch(body[: first + 5])
    assert (refused.value.index, refused.value.position) == (1, first)
    broken = bytearray(body)
    broken[first + 21] = 7
    with pytest.raises(RecordMalformed, match="properties length 7"):
        decode_batch(broken)


def test_properties_that_do_not_fit() -> None:
    with pytest.raises(InvalidMessage, match="32767"):
        encode_batch([BatchItem(0, b"", bytes(32_768))])
