from dataclasses import replace

import numpy as np
import pytest

from reput_protocol.columns import chain, decode_columns, patch_columns
from reput_protocol.delay_levels import DELAY_LEVELS_MS
from reput_protocol.errors import RecordMalformed
from reput_protocol.hashing import tags_code
from reput_protocol.record import Host, Record, decode_record, encode_blank, encode_record

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
    "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip


@pytest.mark.parametrize("records", [MIXED, SAME_SIZE, MIXED + SAME_SIZE + MIXED, MIXED[:1], []])
def test_columns_say_what_the_records_say(records: list[Record]) -> None:
    buffer = b"".join(encode_record(record) for record in records)
    columns = decode_columns(b"before" + buffer + b"after", 6, 6 + len(buffer))
    decoded = [decode_record(columns.buffer, position) for position in columns.position.tolist()]
    assert len(columns) == len(records)
    assert sum(columns.size.tolist()) == len(buffer)
    for name in INTEGER_COLUMNS:
        assert getattr(columns, name).tolist() == [getattr(record, name) for record in decoded], name
    for row, record in enumerate(decoded):
        assert bytes(columns.body(row)) == record.body
        assert bytes(columns.topic(row)) == record.topic.encode()
        assert bytes(columns.properties(row)) == record.properties
        assert columns.born_host(row) == record.born_host
        assert columns.store_host(row) == record.store_host
    assert columns.tags_codes().tolist() == [tags_code(record.tag) for record in decoded]
    assert columns.crc_errors().tolist() == []


def test_bodies_that_fail_their_checksum_are_found() -> None:
    buffer = bytearray(b"".join(encode_record(record) for record in SAME_SIZE))
    columns = decode_columns(buffer)
    for row in (3, 200):
        buffer[columns.body_position[row]] ^= 1
    assert decode_columns(buffer).crc_errors().tolist() == [3, 200]


def test_a_parked_record_has_its_deliver_time_for_a_tags_code() -> None:
    def parked(properties: bytes) -> Record:
        return Record("SCHEDULE_TOPIC_XXXX", b"", store_timestamp_ms=1000, properties=properties)

    records = [
        parked(b"DELAY\x013\x02TAGS\x01a\x02"),
        parked(b"TAGS\x01a\x02"),
        parked(b"DELAY\x0199\x02"),
        parked(b"DELAY\x01no\x02TAGS\x01a\x02"),
        parked(b"DELAY\x010\x02"),
        replace(parked(b"DELAY\x011\x02"), store_timestamp_ms=(1 << 63) - 1),
        parked(b"DELAY\x01" + b"9" * 5000 + b"\x02"),
        Record("OTHER_TOPIC_OF_19_CH", b"", properties=b"DELAY\x013\x02"),
    ]
    codes = decode_columns(b"".join(map(encode_record, records))).tags_codes()
    assert codes.tolist() == [
        1000 + DELAY_LEVELS_MS[2],
        97,
        1000 + DELAY_LEVELS_MS[17],
        97,
        0,
        999 - (1 << 63),
        0,
        0,
    ]
    assert decode_columns(encode_record(records[0])).tags_codes([7, 8, 9]).tolist() == [1009]


@pytest.mark.parametrize(
    ("row", "position", "data", "reason"),
    [
        (0, 4, b"\0", "magic"),
        (5, 4, b"\0", "magic"),
        (9, 84, b"\x7f", "BODYLEN"),
        (9, 92, b"\xff", "TOPICLEN -1"),
        (9, 94, b"\xff", "PROPLEN"),
        (9, 36, b"\0\0\0\x10", "does not fit|too small"),
        (299, 0, b"\x7f", "TOTALSIZE"),
        (299, 0, b"\0\0\0\0", "TOTALSIZE"),
        (299, 12, b"\xff", "QUEUEID"),
    ],
)
def test_the_first_bad_record_is_named(row: int, position: int, data: bytes, reason: str) -> None:
    buffer = bytearray(b"".join(encode_record(record) for record in SAME_SIZE))
    start = row * (len(buffer) // len(SAME_SIZE))
    buffer[start + position : start + position + len(data)] = data
    with pytest.raises(RecordMalformed, match=reason) as refused:
        decode_columns(buffer)
    assert (refused.value.index, refused.value.position) == (row, start)


def test_what_is_left_over_is_named() -> None:
    buffer = encode_record(MIXED[0])
    for rest in (b"\0", b"\0" * 100, buffer[:-1], encode_blank(50)):
        with pytest.raises(RecordMalformed) as refused:
            decode_columns(buffer + rest)
        assert (refused.value.index, refused.value.position) == (1, len(buffer))


def test_chain_follows_long_runs_of_one_size_and_leaves_them() -> None:
    sizes = [100] * 50 + [101] + [100] * 3 + [120] * 7 + [100] * 40
    buffer = b"".join(size.to_bytes(4, "big") + bytes(size - 4) for size in sizes)
    positions, stop = chain(buffer, 0, len(buffer))
    assert np.diff([*positions, stop]).tolist() == sizes
    assert chain(buffer[:-1], 0, len(buffer) - 1) == (positions[:-1], positions[-1])


@pytest.mark.parametrize("records", [SAME_SIZE, MIXED])
@pytest.mark.parametrize("with_crc", [False, True])
def test_patching_columns_gives_what_encoding_would(records: list[Record], with_crc: bool) -> None:
    buffer = bytearray(b"".join(encode_record(record, with_crc=with_crc) for record in records))
    columns = decode_columns(buffer)
    born_host, store_host = Host("10.8.0.1", 8), Host("10.8.0.2", 9)
    patch_columns(
        buffer,
        columns,
        first_queue_offset=1 << 40,
        first_physical_offset=1 << 41,
        store_timestamp_ms=1_900_000_000_000,
        born_host=born_host.packed(),
        store_host=store_host.packed(),
    )
    for row, (record, position) in enumerate(zip(records, columns.position.tolist(), strict=True)):
        patched = decode_record(buffer, position)  # which also verifies the whole-record checksum
        assert patched.queue_offset == (1 << 40) + row
        assert patched.physical_offset == (1 << 41) + position
        assert patched.store_timestamp_ms == 1_900_000_000_000
        assert patched.born_host == (record.born_host if record.born_host.is_ipv6 else born_host)
        assert patched.store_host == (record.store_host if record.store_host.is_ipv6 else store_host)
        assert (patched.body, patched.topic) == (record.body, record.topic)
