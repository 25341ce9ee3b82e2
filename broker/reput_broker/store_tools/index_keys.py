"""What queue and index are made of: tags codes and the hashes of keys, for the records of a batch.

(RocketMQ: CommitLog, IndexService.buildIndex.) Each record is filed under `TOPIC#UNIQ_KEY` and `TOPIC#TOKEN` for every
token of KEYS; rolled back ones are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_broker.store_tools.log_reader import LogBatch
from reput_broker.store_tools.property_shapes import PropertyShapes
from reput_protocol.columns import IntArray
from reput_protocol.hashing import index_hash, java_hash
from reput_protocol.index_keys import index_hashes, index_keys
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.properties import KEYS, UNIQ_KEY, decode_properties
from reput_protocol.properties_table import java_hashes
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_ROLLBACK
from reput_protocol.tag_codes import parked_tags_code, tags_code_in

_PARKED = SCHEDULE_TOPIC.encode()


class KeyHashes(NamedTuple):
    """One entry per key, in the order in which they are filed."""

    rows: IntArray
    """Which record of the batch."""
    hashes: NDArray[np.int32]


def keys_of(topic: str, properties: bytes) -> list[str]:
    """Return what one record is filed under."""
    found = decode_properties(properties)
    return index_keys(topic, found.get(UNIQ_KEY), found.get(KEYS))


def tags_codes(
    batch: LogBatch, topics: list[bytes], shapes: PropertyShapes, levels_ms: Sequence[int]
) -> IntArray:
    """Return what the queue unit of each record holds: the tag's hash, 0, or when a parked one is due."""
    columns = batch.columns
    codes = np.zeros(len(columns), np.int64)
    for shaped in shapes.shaped:
        place = shaped.values.get(b"TAGS")
        if place is not None:
            codes[shaped.rows] = java_hashes(shaped.table[:, place[0] : place[1]])
    starts, sizes = columns.properties_position, columns.properties_size
    for row in shapes.alone:
        codes[row] = tags_code_in(batch.data, int(starts[row]), int(starts[row] + sizes[row]))
    if _PARKED in topics:
        for row in range(len(columns)):
            if topics[row if len(topics) > 1 else 0] == _PARKED:
                stored_at = int(columns.head["store_timestamp_ms"][row])
                end = int(starts[row] + sizes[row])
                codes[row] = parked_tags_code(batch.data, int(starts[row]), end, stored_at, levels_ms)
    return codes


def key_hashes(batch: LogBatch, topics: list[bytes], shapes: PropertyShapes) -> KeyHashes:
    """Return the hashes of all keys of a batch."""
    columns = batch.columns
    rows_found: list[IntArray] = []
    hashes_found: list[NDArray[np.int32]] = []
    prefix_of = {
        topic: java_hash(topic.decode("utf-8", "replace") + "#") & 0xFFFF_FFFF for topic in set(topics)
    }
    prefixes: NDArray[np.uint32] | int = prefix_of[topics[0]]
    if len(topics) > 1:
        prefixes = np.array([prefix_of[topic] for topic in topics], np.uint32)
    for shaped in shapes.shaped:
        parts = [shaped.values[b"UNIQ_KEY"]] if b"UNIQ_KEY" in shaped.values else []
        own = prefixes if isinstance(prefixes, int) else prefixes[shaped.rows]
        for start, stop in parts + shaped.key_tokens:
            rows_found.append(shaped.rows)
            hashes_found.append(index_hashes(java_hashes(shaped.table[:, start:stop], own)).astype(np.int32))
    for row in shapes.alone:
        topic = topics[row if len(topics) > 1 else 0].decode("utf-8", "replace")
        keys = keys_of(topic, bytes(columns.properties(row)))
        if keys:
            rows_found.append(np.full(len(keys), row, np.int64))
            hashes_found.append(np.array([index_hash(key) for key in keys], np.int32))
    if not rows_found:
        return KeyHashes(np.empty(0, np.int64), np.empty(0, np.int32))
    rows = np.concatenate(rows_found)
    hashes = np.concatenate(hashes_found)
    order = np.argsort(rows, kind="stable")
    transaction = columns.head["sys_flag"] & TRANSACTION_BITS
    if transaction.any():
        order = order[(transaction != TRANSACTION_ROLLBACK)[rows[order]]]
    return KeyHashes(rows[order], hashes[order])
