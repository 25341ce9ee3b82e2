"""Records made of a whole batch at once are those made of its units one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reput_protocol.errors import RecordMalformed
from reput_protocol.record.put_block import BatchItem, BlockLimits, decode_batch, encode_batch, records_of_batch
from reput_protocol.record.record import Record, encode_record

_LIMITS = BlockLimits(body_bytes_max=300, properties_bytes_max=200)
_COUNT_MAX = 40


def _made(batch: bytes, sys_flag: int = 0, unusual: Sequence[bytes] = ()) -> tuple[bytes, int] | None:
    made = records_of_batch(
        batch,
        topic="orders",
        queue_id=3,
        sys_flag=sys_flag,
        born_timestamp_ms=1_700_000_000_123,
        count_max=_COUNT_MAX,
        limits=_LIMITS,
        unusual=unusual,
    )
    return None if made is None else (bytes(made[0]), made[1].count)


def _one_by_one(batch: bytes, sys_flag: int = 0) -> tuple[bytes, int] | None:
    try:
        items = decode_batch(batch, _COUNT_MAX)
    except RecordMalformed:
        return None
    records: list[bytes] = []
    for flag, body, properties in items:
        if len(body) > _LIMITS.body_bytes_max or len(properties) > _LIMITS.properties_bytes_max:
            return None
        record = Record(
            "orders",
            body,
            queue_id=3,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=1_700_000_000_123,
            properties=properties,
        )
        records.append(bytes(encode_record(record)))
    return (b"".join(records), len(records)) if items else None


def _flags() -> st.SearchStrategy[int]:
    return st.integers(-(2**31), 2**31 - 1)


@st.composite
def _alike(draw: st.DrawFn) -> list[BatchItem]:
    body_size, text_size = draw(st.integers(0, 40)), draw(st.integers(0, 20))
    body, text = (st.binary(min_size=body_size, max_size=body_size), st.binary(min_size=text_size, max_size=text_size))
    return draw(st.lists(st.builds(BatchItem, _flags(), body, text), min_size=1, max_size=30))


_MIXED = st.lists(
    st.builds(BatchItem, _flags(), st.binary(max_size=40), st.binary(max_size=20)), min_size=1, max_size=30
)


@given(_alike() | _MIXED, st.sampled_from([0, 1, 0x701]))
@example([BatchItem(0, b"", b"")] * 20, 0)
@example([BatchItem(7, b"a" * 301, b"")] * 10, 0)
@example([BatchItem(7, b"a", b"b" * 201)] * 10, 0)
@example([BatchItem(7, b"a", b"b")] * (_COUNT_MAX + 1), 0)
@example([BatchItem(7, b"a", b"b")] * _COUNT_MAX, 0)
def test_a_batch_becomes_the_records_of_its_units(items: list[BatchItem], sys_flag: int) -> None:
    batch = encode_batch(items)
    made, expected = _made(batch, sys_flag), _one_by_one(batch, sys_flag)
    assert made == expected


@given(_alike() | _MIXED, st.data())
def test_a_batch_that_is_refused_one_by_one_gives_nothing(items: list[BatchItem], data: st.DataObject) -> None:
    batch = bytearray(encode_batch(items))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.sampled_from([0, 1, 7, 127, 128, 255]))
    cut = bytes(batch[: data.draw(st.integers(0, len(batch)))]) if data.draw(st.booleans()) else bytes(batch)
    made, expected = _made(cut), _one_by_one(cut)
    assert made == expected


@pytest.mark.parametrize("sizes", [1, 9])
def test_a_batch_with_an_unusual_property_gives_nothing(sizes: int) -> None:
    items = [BatchItem(0, b"DELAY" * 2, b"A\x01b\x02" + b"c" * (number % sizes)) for number in range(16)]
    assert _made(encode_batch(items), unusual=[b"DELAY"]) is not None, "what is in bodies does not count"
    items[11] = BatchItem(0, b"DELAY" * 2, b"DELAY\x013\x02")
    assert _made(encode_batch(items), unusual=[b"DELAY"]) is None
    alike = [BatchItem(0, b"x", b"DELAY\x013\x02")] * 16
    assert _made(encode_batch(alike), unusual=[b"DELAY"]) is None
