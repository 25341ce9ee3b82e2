from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reput_protocol.dispatch_rows import COLUMNS, DispatchRows, DispatchRun
from reput_protocol.dispatch_scan import scan_dispatch
from reput_protocol.hashing import tags_code
from reput_protocol.record import Host, Record, ScanStatus, encode_blank, encode_record

WAYS = pytest.mark.parametrize("columns", [False, True])


def log_of(records: list[Record], base: int = 4096) -> bytes:
    """The records with the physical offsets that they have in a log which starts at `base`."""
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


@WAYS
def test_rows_runs_and_groups(columns: bool) -> None:
    records = [
        orders(0, 5),
        orders(0, 6, ""),
        orders(1, 9, "refunded"),
        orders(0, 7),
        Record("%RETRY%" + "g" * 140, b"", properties=b"a\x01TAGS\x02"),
        orders(1, 10, born_host=Host("::1", 1)),
    ]
    log = log_of(records)
    rows = scan_dispatch(log, base_physical_offset=4096, columns=columns)
    assert (rows.consumed, rows.stopped_by) == (len(log), None)
    assert rows.physical_offset.tolist() == (rows.position + 4096).tolist()
    assert rows.size.tolist() == [len(encode_record(record)) for record in records]
    assert rows.queue_offset.tolist() == [5, 6, 9, 7, 0, 10]
    assert rows.store_timestamp_ms.tolist() == [1005, 1006, 1009, 1007, 0, 1010]
    assert rows.tags_code.tolist() == [tags_code(record.tag) for record in records]
    assert rows.all_indexed
    for row, record in enumerate(records):
        at = int(rows.properties_position[row])
        assert log[at : at + int(rows.properties_size[row])] == record.properties
    retry = records[4].topic
    assert rows.runs == [
        DispatchRun("orders", 0, 0, 2),
        DispatchRun("orders", 1, 2, 3),
        DispatchRun("orders", 0, 3, 4),
        DispatchRun(retry, 0, 4, 5),
        DispatchRun("orders", 1, 5, 6),
    ]
    groups = rows.groups()
    assert [(topic, queue_id) for topic, queue_id, _ in groups] == [("orders", 0), ("orders", 1), (retry, 0)]
    assert [rows.queue_offset[group].tolist() for *_, group in groups] == [[5, 6, 7], [9, 10], [0]]
    assert groups[2].rows == slice(4, 5)


@WAYS
def test_transactions_are_flagged(columns: bool) -> None:
    rows = scan_dispatch(log_of([orders(0, n, sys_flag=n * 4) for n in range(4)]), columns=columns)
    assert rows.indexed.tolist() == [True, False, True, False]
    assert not rows.all_indexed
    assert scan_dispatch(log_of([orders(0, 0, sys_flag=8)]), columns=columns).all_indexed


@WAYS
def test_parked_messages_carry_their_deliver_time(columns: bool) -> None:
    parked = Record(
        "SCHEDULE_TOPIC_XXXX", b"", 2, store_timestamp_ms=1000, properties=b"DELAY\x013\x02TAGS\x01a\x02"
    )
    rows = scan_dispatch(log_of([orders(0, 0), parked, parked]), levels_ms=(1, 2, 3), columns=columns)
    assert rows.tags_code.tolist() == [tags_code("paid"), 1003, 1003]


@WAYS
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
def test_where_the_records_end(columns: bool, rest: bytes, status: ScanStatus, size: int, count: int) -> None:
    log = log_of([orders(0, number) for number in range(count)])
    rows = scan_dispatch(memoryview(log + rest), columns=columns)
    assert (len(rows), rows.consumed) == (count, len(log))
    assert rows.stopped_by is not None
    assert rows.stopped_by[:2] == (status, size)
    assert bool(rows.stopped_by.reason) == (status is not ScanStatus.BLANK)
    assert rows.groups() == [("orders", 0, slice(0, count))][:count]


@WAYS
def test_a_record_that_says_it_lies_elsewhere_ends_the_rows(columns: bool) -> None:
    log = bytearray(log_of([orders(0, number) for number in range(80)]))
    size = len(log) // 80
    log[30 * size + 28 : 30 * size + 36] = (7).to_bytes(8, "big")
    rows = scan_dispatch(log, base_physical_offset=4096, columns=columns)
    assert (len(rows), rows.consumed) == (30, 30 * size)
    assert rows.stopped_by is not None
    assert rows.stopped_by[:2] == (ScanStatus.INVALID, size)
    assert rows.stopped_by.reason == f"PHYSICALOFFSET is 7, but the record lies at {4096 + 30 * size}"
    assert len(scan_dispatch(log, columns=columns)) == 80


def test_the_number_of_records_chooses_the_way_and_both_say_the_same() -> None:
    for records in (
        [orders(n % 3, n) for n in range(500)],
        [orders(0, 1, body_size) for body_size in ("a", "b")],
        [],
    ):
        log = log_of(records)
        results = [scan_dispatch(log, columns=columns) for columns in (None, False, True)]
        for result in results[1:]:
            assert_same(result, results[0])


def assert_same(one: DispatchRows, other: DispatchRows) -> None:
    for name in (*COLUMNS, "runs", "consumed", "stopped_by"):
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype == np.int64
            assert left.tolist() == right.tolist(), name
        else:
            assert left == right, name
