"""Units that are put in batches are those that are put one by one, and rows of a queue come together."""

from __future__ import annotations

import tempfile
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reput_broker.store.base.dispatch import DeletedTopics, rows_by_queue
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.files import QueueFileCache
from reput_protocol.properties import encode_properties
from reput_protocol.record.layout import tags_code
from reput_protocol.record.record import Record, encode_record
from reput_protocol.record.scan import scan_dispatch

TRANSACTION_STATES = (0, 4, 8, 12)  # none, prepared, committed, rolled back

records = st.builds(
    Record,
    topic=st.sampled_from(["orders", "deleted"]),
    body=st.binary(max_size=20),
    queue_id=st.integers(0, 2),
    queue_offset=st.integers(0, 3),
    sys_flag=st.sampled_from(TRANSACTION_STATES),
    store_timestamp_ms=st.integers(0, 2**40),
    properties=st.sampled_from(["", "paid", "refunded"]).map(lambda tag: encode_properties({"TAGS": tag})),
)


@given(st.lists(records, min_size=1, max_size=8), st.sampled_from([0, 1, 150, 10_000]))
def test_rows_are_put_together_by_queue(written: list[Record], deleted_below: int) -> None:
    data = b""
    expected: list[list[object]] = []
    latest: dict[tuple[str, int], list[object]] = {}
    for record in written:
        place = len(data)
        data += bytes(encode_record(replace(record, physical_offset=place)))
        hidden = record.topic == "deleted" and place < deleted_below
        if hidden or record.sys_flag & 12 in (4, 12):
            continue
        key = (record.topic, record.queue_id)
        row = (place, len(data) - place, tags_code(record.tag), record.store_timestamp_ms)
        part: Any = latest.get(key)
        if part is None or part[2] + len(part[3]) != record.queue_offset:
            part = latest[key] = [*key, record.queue_offset, [], [], [], []]
            expected.append(part)
        for column, value in zip(part[3:], row, strict=True):
            column.append(value)
    with tempfile.TemporaryDirectory() as directory:
        deleted = DeletedTopics(Path(directory) / "deleted.json")
        deleted.add(["deleted"], deleted_below)
        found = rows_by_queue(scan_dispatch(data), deleted)
    assert [[*rows[:3], *map(list, rows[3:])] for rows in found] == expected


steps = st.tuples(st.sampled_from([-100, 0, 100, 250]), st.integers(-(2**63), 2**63 - 1))


@given(st.integers(0, 12), st.lists(steps, min_size=1, max_size=12), st.integers(1, 12))
def test_units_put_in_a_batch_are_those_put_one_by_one(first: int, moves: list[tuple[int, int]], size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cache = QueueFileCache(4)
        alone, together = (
            ConsumeQueue("orders", 0, Path(directory) / name, 5, cache) for name in ("alone", "together")
        )
        physical, queue_offset = 1000, first
        for batch in batched(moves, size):
            start, offsets, codes = queue_offset, array("q"), array("q")
            for physical_move, code in batch:
                physical += physical_move
                offsets.append(physical)
                codes.append(code)
                alone.put_batch(array("q", [physical]), array("q", [100]), array("q", [code]), queue_offset)
                queue_offset += 1
            together.put_batch(offsets, array("q", [100] * len(batch)), codes, start)
            assert state(alone) == state(together)
            queue_offset = max(0, queue_offset - len(moves) % 3)  # some come again
        cache.close()


def batched(moves: list[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    return [moves[at : at + size] for at in range(0, len(moves), size)]


def state(queue: ConsumeQueue) -> tuple[object, ...]:
    units = [queue.get_unit(offset) for offset in range(queue.min_queue_offset, queue.max_queue_offset)]
    return (
        units,
        queue.min_queue_offset,
        queue.max_queue_offset,
        queue.max_physical_offset,
        queue.duplicates,
        queue.order_errors,
    )
