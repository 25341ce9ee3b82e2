"""Checks of a directory, and how often each was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conformance.apache import Apache
from conformance.counts import COUNTS
from conformance.workload import Sent
from reput_protocol.kernel.tables import java_hash
from reput_protocol.record.record import Record, decode_record

LATEST = (1 << 62) - 1
KEYS_TRIED = 60
FOUND_AT_ONCE = 64
"""RocketMQ's bound."""
TIMES_TRIED = 40


class Queue(NamedTuple):
    """Offsets of a queue, and its records as they are in the log."""

    min_offset: int
    max_offset: int
    records: list[bytes]


View = dict[tuple[str, int], Queue]
"""Everything in a store that can be read by queue offset."""


def apache_view(apache: Apache) -> View:
    """Everything that RocketMQ's store reads by queue offset."""
    return {
        (topic, queue_id): Queue(*bounds, apache.records("read", topic=topic, queueId=queue_id))
        for (topic, queue_id), bounds in apache.queues().items()
    }


def same(ours: View, theirs: View) -> None:
    """Both read the same records at the same queue offsets."""
    assert {key: queue[:2] for key, queue in ours.items()} == {key: queue[:2] for key, queue in theirs.items()}
    for key, queue in ours.items():
        assert queue.records == theirs[key].records, f"queue {key}"
        assert len(queue.records) == queue.max_offset - queue.min_offset
        for offset, record in enumerate(queue.records, queue.min_offset):
            assert decode_record(record).queue_offset == offset
        COUNTS["messages equal by queue offset"] += len(queue.records)


def holds(view: View, queues: Mapping[tuple[str, int], Sequence[Sent]]) -> None:
    """Every queue holds what was sent to it, in order, as far as it has not been deleted."""
    assert view.keys() == queues.keys()
    for key, messages in queues.items():
        queue = view[key]
        assert queue.max_offset == len(messages)
        for record, sent in zip(queue.records, messages[queue.min_offset :], strict=True):
            _is_message(decode_record(record), sent)
        COUNTS["messages equal to what was sent"] += len(queue.records)


def _is_message(record: Record, sent: Sent) -> None:
    assert (record.topic, record.queue_id, record.body) == (sent.topic, sent.queue_id, sent.body)
    assert record.property_map() == sent.properties
    assert (record.flag, record.reconsume_times) == (sent.flag, sent.reconsume_times)
    assert record.sys_flag & 0xF == sent.sys_flag
    assert record.born_host.ip == sent.born_ip


def by_id(apache: Apache, view: View) -> None:
    """RocketMQ finds every record by its place in the log, which is what an offset message id says."""
    records = [record for queue in view.values() for record in queue.records]
    ids = [str(decode_record(record).physical_offset) for record in records]
    assert apache.records("by_id", ids=ids) == records
    COUNTS["messages equal by id"] += len(ids)


def times_of(queue: Queue) -> list[int]:
    """Times around those at which messages of a queue were stored."""
    stored = sorted({decode_record(record).store_timestamp_ms for record in queue.records})
    chosen = stored[:: max(1, len(stored) // (TIMES_TRIED // 3))]
    return [0, *sorted({time + step for time in chosen for step in (-1, 0, 1)}), LATEST]


def by_key(apache: Apache, view: View, *, indexed_from: int = 0) -> None:
    """RocketMQ finds every message by its keys: those in the log from `indexed_from` on, at least.

    It compares hashes only, so it may find others whose key has the same hash.
    """
    found_by: dict[tuple[str, str], set[int]] = {}
    hashes: dict[int, set[int]] = {}
    for queue in view.values():
        for record in map(decode_record, queue.records):
            for key in {*record.keys, *filter(None, [record.unique_key])}:
                found_by.setdefault((record.topic, key), set()).add(record.physical_offset)
                hashes.setdefault(java_hash(f"{record.topic}#{key}"), set()).add(record.physical_offset)
    needed_by = {
        name: {offset for offset in offsets if offset >= indexed_from}
        for name, offsets in found_by.items()
        if len(offsets) < FOUND_AT_ONCE
    }
    every = sorted(name for name, needed in needed_by.items() if needed)
    for topic, key in every[:: max(1, len(every) // KEYS_TRIED)]:
        found = apache.records("by_key", topic=topic, key=key, max=FOUND_AT_ONCE, begin=0, end=LATEST)
        offsets = {decode_record(record).physical_offset for record in found}
        missing = needed_by[topic, key] - offsets
        assert not missing, f"key {key} of {topic} does not find what lies at {missing}"
        assert offsets <= hashes[java_hash(f"{topic}#{key}")], f"key {key} of {topic} finds others"
        COUNTS["messages found by key"] += len(needed_by[topic, key])
