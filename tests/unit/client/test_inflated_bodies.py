"""Decompressed bodies are bounded in total, not only each."""

from __future__ import annotations

import zlib

import pytest

from reput_client.consume import columns as columns_module
from reput_client.consume.columns import MessageColumns
from reput_client.consume.pull import read_records
from reput_client.errors import InflatedTooLarge
from reput_protocol.codes import MessageSysFlag
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.record import Record, encode_record

MIB = 1 << 20


def columns_of(*sizes: int) -> MessageColumns:
    """Return messages with compressed bodies of these decompressed sizes."""
    records = b"".join(
        encode_record(
            Record("orders", zlib.compress(bytes(size)), sys_flag=int(MessageSysFlag.COMPRESSED), queue_offset=n)
        )
        for n, size in enumerate(sizes)
    )
    return MessageColumns("orders", 0, RecordColumns(records, read_records(records)))


def test_the_total_is_limited_and_the_error_has_the_remedy() -> None:
    columns = columns_of(400, 400, 400)
    with pytest.raises(InflatedTooLarge, match=r"max_inflated=1000.*columns.take\(slice\(2\)\)") as refused:
        columns.bodies(max_inflated=1000)
    assert (refused.value.limit, refused.value.rows) == (1000, 2)
    assert columns.bodies(max_inflated=1200)[1].tolist() == [0, 400, 800, 1200]
    assert len(columns.take(slice(2)).bodies(max_inflated=1000)[0]) == 800


def test_arrow_has_the_same_bound() -> None:
    pytest.importorskip("pyarrow")
    columns = columns_of(400, 400, 400)
    with pytest.raises(InflatedTooLarge):
        columns.to_arrow(("body",), max_inflated=1000)
    assert columns.to_arrow(("queueOffset",), max_inflated=1).num_rows == 3
    assert columns.to_arrow(("body",)).column(0).to_pylist() == [bytes(400)] * 3


def test_there_is_a_bound_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, largest = columns_of(*[1] * 60), bytes(64 * MIB)
    inflated = 0

    def inflate(_data: object) -> bytes:
        nonlocal inflated
        inflated += len(largest)
        return largest

    monkeypatch.setattr(columns_module, "inflate", inflate)
    with pytest.raises(InflatedTooLarge):
        columns.bodies()
    assert inflated <= 320 * MIB
