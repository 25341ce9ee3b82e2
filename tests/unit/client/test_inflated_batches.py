"""Compressed bodies that become large make several batches of a bounded size."""

from __future__ import annotations

import zlib
from importlib import import_module

import pytest

from reput_client.consume.pull import read_records
from reput_protocol.codes import MessageSysFlag
from reput_protocol.filter.tags import TagFilter
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.record import Record, encode_record

pa = pytest.importorskip("pyarrow")
batches = import_module("reput_client.arrow.batches")

SCHEMA = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])
BAD, PLAIN = -1, -2


def columns_of(*sizes: int) -> RecordColumns:
    records = []
    for number, size in enumerate(sizes):
        body = b"no zlib" if size == BAD else b"plain" if size == PLAIN else zlib.compress(bytes(size))
        flag = 0 if size == PLAIN else int(MessageSysFlag.COMPRESSED)
        records.append(encode_record(Record("orders", body, sys_flag=flag, queue_offset=number)))
    data = b"".join(records)
    return RecordColumns(data, read_records(data))


def made(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """Return number and size of the bodies of each batch, and which rows were bad."""
    monkeypatch.setattr(batches, "BATCH_INFLATED_BYTES", 1000)
    bad: list[int] = []
    maker = batches.BatchMaker(SCHEMA, TagFilter.parse("*"), lambda _columns, row, _reason: bad.append(row))
    found = [
        [(row["queueOffset"], len(row["body"])) for row in batch.to_pylist()]
        for batch in maker.make(columns_of(*sizes), "broker")
    ]
    return found, bad


def test_a_batch_ends_where_its_bodies_have_become_large(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (600, PLAIN, 600, PLAIN, BAD, 1000, 10, PLAIN)
    found, bad = made(monkeypatch, *sizes)
    assert found == [[(0, 600), (1, 5), (2, 600)], [(3, 5), (5, 1000)], [(6, 10), (7, 5)]]
    assert bad == [4]


@pytest.mark.parametrize(
    ("sizes", "batch_rows", "bad"),
    [((), [], []), ((BAD, BAD), [], [0, 1]), ((PLAIN,), [1], []), ((1000, 1000), [1, 1], [])],
)
def test_no_batch_is_empty(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], batch_rows: list[int], bad: list[int]
) -> None:
    found, bad_found = made(monkeypatch, *sizes)
    assert ([len(rows) for rows in found], bad_found) == (batch_rows, bad)
