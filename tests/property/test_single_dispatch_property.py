"""One record in a step of dispatch takes a shorter way; it leads to where the way for many leads."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from reput_broker.store.consume_queue import ConsumeQueue
from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dispatch import QueueRows, rows_by_queue
from reput_broker.store.queue_files import QueueFileCache
from reput_protocol.properties import encode_properties
from reput_protocol.record import Record, encode_record
from reput_protocol.record_batch import scan_dispatch

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


def plain(queues: list[QueueRows]) -> list[tuple[object, ...]]:
    """Queue by queue: where offsets do not follow each other, the parts of different queues come in any order."""
    ordered = sorted(queues, key=lambda rows: (rows.topic, rows.queue_id))
    return [
        (rows.topic, rows.queue_id, rows.first_queue_offset, *([int(value) for value in c] for c in rows[3:]))
        for rows in ordered
    ]


@given(st.lists(records, min_size=1, max_size=3), st.sampled_from([0, 1, 150, 10_000]))
def test_rows_of_few_records_are_those_of_many(written: list[Record], deleted_below: int) -> None:
    data = b""
    for record in written:
        data += bytes(encode_record(replace(record, physical_offset=len(data))))
    with tempfile.TemporaryDirectory() as directory:
        deleted = DeletedTopics(Path(directory) / "deleted.json")
        deleted.add("deleted", deleted_below)
        few = rows_by_queue(scan_dispatch(data, columns=False), deleted)
        assert plain(few) == plain(rows_by_queue(scan_dispatch(data, columns=True), deleted))


steps = st.tuples(
    st.sampled_from([-100, 0, 100, 250]),
    st.sampled_from([-2, -1, 0, 0, 0, 1]),
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.integers(0, 12), st.lists(steps, max_size=12))
def test_units_put_alone_are_those_put_by_the_rules_for_many(
    first: int, moves: list[tuple[int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cache = QueueFileCache(4)
        alone, by_rules = (
            ConsumeQueue("orders", 0, Path(directory) / name, 5, cache) for name in ("alone", "by rules")
        )
        physical, queue_offset = 1000, first
        for physical_move, queue_move, code in moves:
            physical += physical_move
            queue_offset = max(0, queue_offset + queue_move)
            alone.put_message_position_info(physical, 100, code, queue_offset)
            by_rules.put_batch([physical], [100], [code], queue_offset)
            queue_offset += 1
            assert state(alone) == state(by_rules)
        cache.close()


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
