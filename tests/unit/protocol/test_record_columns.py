"""Columns of records have the records' values."""

from __future__ import annotations

import pytest

from reput_protocol.buffers import Buffer
from reput_protocol.kernel.records import scan_records
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, decode_record, encode_record

MIXED = [
    Record(
        topic=topic,
        body=b"x" * (number % 5),
        queue_id=number,
        flag=-number,
        queue_offset=number << 33,
        physical_offset=number << 34,
        sys_flag=8,
        born_timestamp_ms=1_700_000_000_000 + number,
        born_host=born,
        store_timestamp_ms=1_800_000_000_000 + number,
        store_host=store,
        reconsume_times=number,
        prepared_transaction_offset=number << 35,
        properties=properties,
    )
    for number, (topic, born, store, properties) in enumerate(
        (topic, born, store, properties)
        for topic in ("orders", "%RETRY%" + "g" * 130, "é")
        for born in (Host("10.0.0.1", 1), Host("::1", 2))
        for store in (Host("10.0.0.2", 3), Host("::2", 4))
        for properties in (b"TAGS\x01paid\x02", b"", b"a\x01b\x02TAGS\x01z")
    )
]
SAME_SIZE = [Record("t", b"%04d" % number, queue_offset=number) for number in range(300)]
INTEGER_COLUMNS = (
    "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp_ms", "store_timestamp_ms",
    "reconsume_times",
)  # fmt: skip


def columns_of(data: Buffer, start: int = 0) -> RecordColumns:
    return RecordColumns(data, scan_records(data, start, len(data))[0])


@pytest.mark.parametrize("records", [MIXED, SAME_SIZE, MIXED + SAME_SIZE + MIXED, MIXED[:1], []])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_columns_say_what_the_records_say(records: list[Record], kind: type[memoryview]) -> None:
    buffer = b"".join(encode_record(record) for record in records)
    columns = columns_of(kind(b"before" + buffer + b"after"), 6)
    decoded = [decode_record(bytes(columns.buffer), position) for position in columns.position.tolist()]
    assert len(columns) == len(records)
    assert sum(columns.size.tolist()) == len(buffer)
    if records:
        assert columns.end == 6 + len(buffer)
    for name in INTEGER_COLUMNS:
        assert getattr(columns, name).tolist() == [getattr(record, name) for record in decoded], name
    for row, record in enumerate(decoded):
        assert bytes(columns.body(row)) == record.body
        assert bytes(columns.topic(row)) == record.topic.encode()
        assert bytes(columns.properties(row)) == record.properties
        assert columns.born_host(row) == record.born_host
        assert columns.store_host(row) == record.store_host
    assert columns.checksum_faults() == []


def test_records_are_taken_by_number_by_mask_and_by_tag() -> None:
    columns = columns_of(b"".join(map(encode_record, MIXED)))
    tags = [record.tag for record in MIXED]
    numbers = list(range(len(MIXED)))
    assert columns.with_tag(["z", "nowhere"]).queue_id.tolist() == [n for n in numbers if tags[n] == "z"]
    assert columns.take([3, 1]).queue_id.tolist() == [3, 1]
    assert columns.take(columns.queue_id < 2).queue_id.tolist() == [0, 1]
    some = columns.take(slice(4, 8))
    assert some.checksum_faults() == []
    values, codes = some.distinct(some.property("TAGS"))
    assert [values[code] for code in codes.tolist()] == tags[4:8]


def test_bodies_that_fail_their_checksum_are_found() -> None:
    buffer = bytearray(b"".join(encode_record(record) for record in SAME_SIZE))
    starts = columns_of(buffer).body_position.tolist()
    for row in (3, 200):
        buffer[starts[row]] ^= 1
    columns = columns_of(buffer)
    assert [row for row, _ in columns.checksum_faults()] == [3, 200]
    assert columns.checksum_faults(bodies=False) == []


def test_a_checksum_of_the_whole_record_is_always_verified() -> None:
    buffer = bytearray(b"".join(encode_record(record, with_crc=True) for record in MIXED))
    assert columns_of(buffer).checksum_faults(bodies=False) == []
    at = int(columns_of(buffer).position[5]) + 17  # the flag, not covered by BODYCRC
    buffer[at] ^= 1
    for bodies in (True, False):
        ((row, reason),) = columns_of(buffer).checksum_faults(bodies=bodies)
        assert (row, "checksum property" in reason) == (5, True)
