"""What dispatch reads of records: positions, tags codes, deliver times, groups by queue."""

from dataclasses import replace
from typing import Any

import pytest

from reput_protocol.properties import decode_properties
from reput_protocol.record.layout import encode_blank, tags_code
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, encode_record
from reput_protocol.record.scan import SEEN, DispatchRun, ScanStatus, scan_dispatch


def log_of(records: list[Record], base: int = 4096) -> bytes:
    """Encode the records for a log that starts at `base`."""
    log = b""
    for record in records:
        log += encode_record(replace(record, physical_offset=base + len(log)))
    return log


def orders(queue_id: int, queue_offset: int, tag: str = "paid", **fields: Any) -> Record:
    return Record(
        "orders",
        b"body",
        queue_id,
        queue_offset=queue_offset,
        store_timestamp_ms=1000 + queue_offset,
        properties=f"UNIQ_KEY\x01U\x02TAGS\x01{tag}\x02".encode() if tag else b"",
        **fields,
    )


def test_rows_runs_and_groups() -> None:
    records = [
        orders(0, 5),
        orders(0, 6, ""),
        orders(1, 9, "refunded"),
        orders(0, 7),
        Record("%RETRY%" + "g" * 140, b"", properties=b"a\x01TAGS\x02"),
        orders(1, 10, born_host=Host("::1", 1)),
    ]
    log = log_of(records)
    rows = scan_dispatch(log, base_physical_offset=4096)
    assert (rows.consumed, rows.stopped_by) == (len(log), None)
    positions = rows.column("position")
    assert list(rows.column("physical_offset")) == [position + 4096 for position in positions]
    assert list(rows.column("size")) == [len(encode_record(record)) for record in records]
    assert list(rows.column("queue_offset")) == [5, 6, 9, 7, 0, 10]
    assert list(rows.column("store_timestamp_ms")) == [1005, 1006, 1009, 1007, 0, 1010]
    assert list(rows.tags_codes) == [tags_code(record.tag) for record in records]
    for row, record in enumerate(records):
        assert rows.properties(row) == record.properties
    retry = records[4].topic
    assert rows.runs == [
        DispatchRun("orders", 0, 0, 2, 0),
        DispatchRun("orders", 1, 2, 3, 0),
        DispatchRun("orders", 0, 3, 4, 0),
        DispatchRun(retry, 0, 4, 5, 0),
        DispatchRun("orders", 1, 5, 6, 0),
    ]


def test_transactions_have_runs_of_their_own() -> None:
    rows = scan_dispatch(log_of([orders(0, n, sys_flag=n * 4) for n in range(4)]))
    assert [(run.transaction, run.transaction in SEEN) for run in rows.runs] == [
        (0, True), (4, False), (8, True), (12, False),
    ]  # fmt: skip
    prepared = scan_dispatch(log_of([orders(0, 0, sys_flag=4) for _ in range(3)]))
    assert prepared.runs == [DispatchRun("orders", 0, 0, 3, 4)], "they take no place in their queue"


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"DELAY\x013\x02TAGS\x01a\x02", 1000 + 300),
        (b"TAGS\x01a\x02", 97),
        (b"DELAY\x0199\x02", 1000 + 300),
        (b"DELAY\x01no\x02TAGS\x01a\x02", 97),
        (b"DELAY\x010\x02", 0),
        (b"DELAY\x01" + b"9" * 5000 + b"\x02", 0),
    ],
)
def test_delayed_messages_carry_their_deliver_time(properties: bytes, code: int) -> None:
    delayed = Record("SCHEDULE_TOPIC_XXXX", b"", 2, store_timestamp_ms=1000, properties=properties)
    other = Record("OTHER_TOPIC_OF_19_CH", b"", properties=properties)
    rows = scan_dispatch(log_of([orders(0, 0), delayed, delayed, other]), levels_ms=(100, 200, 300))
    of_other = tags_code(decode_properties(properties).get("TAGS"))
    assert list(rows.tags_codes) == [tags_code("paid"), code, code, of_other]


def test_a_deliver_time_beyond_all_times_wraps_as_javas_does() -> None:
    latest = (1 << 63) - 1
    delayed = Record("SCHEDULE_TOPIC_XXXX", b"", store_timestamp_ms=latest, properties=b"DELAY\x011\x02")
    assert list(scan_dispatch(log_of([delayed]), levels_ms=(1000,)).tags_codes) == [999 - (1 << 63)]


@pytest.mark.parametrize(
    ("rest", "status", "size"),
    [
        (encode_blank(4000), ScanStatus.BLANK, 4000),
        (encode_blank(4000) + bytes(3992), ScanStatus.BLANK, 4000),
        (bytes(200), ScanStatus.INVALID, 0),
        (encode_record(orders(0, 9))[:50], ScanStatus.TRUNCATED, len(encode_record(orders(0, 9)))),
        (b"\0\0\0", ScanStatus.TRUNCATED, 0),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 100])
def test_where_the_records_end(rest: bytes, status: ScanStatus, size: int, count: int) -> None:
    log = log_of([orders(0, number) for number in range(count)])
    rows = scan_dispatch(memoryview(log + rest))
    assert (len(rows), rows.consumed) == (count, len(log))
    assert rows.stopped_by is not None
    assert rows.stopped_by[:2] == (status, size)
    assert bool(rows.stopped_by.reason) == (status is not ScanStatus.BLANK)
    assert rows.runs == [DispatchRun("orders", 0, 0, count, 0)][:count]


def test_a_record_with_a_wrong_position_ends_the_rows() -> None:
    log = bytearray(log_of([orders(0, number) for number in range(80)]))
    size = len(log) // 80
    log[30 * size + 28 : 30 * size + 36] = (7).to_bytes(8, "big")
    rows = scan_dispatch(log, base_physical_offset=4096)
    assert (len(rows), rows.consumed) == (30, 30 * size)
    assert rows.stopped_by is not None
    assert rows.stopped_by[:2] == (ScanStatus.INVALID, size)
    assert rows.stopped_by.reason == f"PHYSICALOFFSET is 7, but the record lies at {4096 + 30 * size}"
    assert len(scan_dispatch(log)) == 80
