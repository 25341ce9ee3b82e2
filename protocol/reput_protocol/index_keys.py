"""The keys under which records are found, hashed: the unique id and every key of each record of a batch.

A key is indexed as `TOPIC#KEY` under Java's string hash (store format 5.2, 5.6; RocketMQ: IndexService.buildIndex).
The keys of many records are hashed at once, by column or by place; what cannot be read so, and few records, go one by
one. All ways give the same, which a test holds them to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reput_protocol.dispatch_rows import DispatchRows, Row
from reput_protocol.hashing import index_hash, java_hash
from reput_protocol.properties import find_property_in, split_keys
from reput_protocol.properties_table import PropertiesTexts
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_ROLLBACK

IntArray: TypeAlias = NDArray[np.int64]

_MASK: Final = 0xFFFF_FFFF
_I32_MIN: Final = -0x8000_0000
_NO_KEYS: Final = np.empty(0, dtype=np.int64)


class KeyHashes(NamedTuple):
    """The hashes of a batch's keys in the order in which they are indexed, and the row of each."""

    hashes: Sequence[int] | IntArray
    rows: Sequence[int] | IntArray


def index_keys(topic: str, unique_key: str | None, keys: str | None) -> list[str]:
    """Return what one record is indexed under, given its topic and the values of `UNIQ_KEY` and `KEYS`."""
    texts = [f"{topic}#{unique_key}"] if unique_key else []
    return texts + [f"{topic}#{key}" for key in split_keys(keys)]


def index_hashes(java_hashes: IntArray) -> IntArray:
    """Make Java's hashes of keys what the index files them under, as `index_hash` does for one."""
    return np.where(java_hashes == _I32_MIN, 0, np.abs(java_hashes))


def hash_keys(data: bytes, rows: DispatchRows) -> KeyHashes:
    """Hash the keys of all records that `rows` found in `data`; those of rolled back transactions have none."""
    if rows.few is not None:
        return _hash_few(data, rows.few, rows)
    assert rows.texts is not None
    found = _hash_many(data, rows, rows.texts)
    rolled_back = rows.sys_flag & TRANSACTION_BITS == TRANSACTION_ROLLBACK
    if rolled_back.any():
        kept = ~rolled_back[found.rows]
        return KeyHashes(found.hashes[kept], found.rows[kept])
    return KeyHashes(*found)


# -- one by one --------------------------------------------------------------------------------------------------


def _hash_few(data: bytes, few: list[Row], rows: DispatchRows) -> KeyHashes:
    hashes: list[int] = []
    owners: list[int] = []
    for topic, _, start, stop in rows.runs:
        for number in range(start, stop):
            row = few[number]
            if row[6] & TRANSACTION_BITS != TRANSACTION_ROLLBACK:
                found = _hashes_of(data, topic, row[7], row[7] + row[8])
                hashes += found
                owners += [number] * len(found)
    return KeyHashes(hashes, owners)


def _hash_alone(data: bytes, rows: DispatchRows, alone: IntArray) -> _Columns:
    hashes: list[int] = []
    owners: list[int] = []
    starts = rows.properties_position[alone]
    columns = zip(
        alone.tolist(), starts.tolist(), (starts + rows.properties_size[alone]).tolist(), strict=True
    )
    runs = iter(rows.runs)
    topic, run_stop = "", 0
    for number, start, end in columns:
        while number >= run_stop:
            topic, _, _, run_stop = next(runs)
        found = _hashes_of(data, topic, start, end)
        hashes += found
        owners += [number] * len(found)
    return _Columns(np.array(hashes, dtype=np.int64), np.array(owners, dtype=np.int64))


def _hashes_of(data: bytes, topic: str, start: int, end: int) -> list[int]:
    found: list[int] = []
    unique_key = find_property_in(data, b"UNIQ_KEY", start, end)
    if unique_key is not None:
        found.append(_hash_of(topic, unique_key))
    keys = find_property_in(data, b"KEYS", start, end)
    if keys is not None:
        found += [_hash_of(topic, key) for key in keys.split(b" ") if key]
    return found


def _hash_of(topic: str, key: bytes) -> int:
    if not key.isascii():
        return index_hash(f"{topic}#{key.decode('utf-8', 'replace')}")
    value = _prefix_hash(topic)
    for unit in key:
        value = (31 * value + unit) & _MASK
    # As `index_hash`: the absolute value of the signed number, whose one value without a positive twin is 0.
    return value if value < 0x8000_0000 else (0x1_0000_0000 - value) & 0x7FFF_FFFF


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str) -> int:
    return java_hash(f"{topic}#") & _MASK


# -- many at once ------------------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    hashes: IntArray
    rows: IntArray


def _hash_many(data: bytes, rows: DispatchRows, texts: PropertiesTexts) -> _Columns:
    prefixes = _prefixes(rows)
    keys = texts.keys()
    hashes = [
        index_hashes(each.after(prefixes if isinstance(prefixes, int) else prefixes[each.rows]))
        for each in keys
    ]
    if hashes and all(isinstance(each.rows, slice) for each in keys):
        # Every record has as many keys, which is usual: interleave the columns.
        return _Columns(np.stack(hashes, axis=1).ravel(), np.repeat(np.arange(len(rows)), len(hashes)))
    numbers = np.arange(len(rows))
    owners = [numbers[each.rows] for each in keys]
    if len(texts.alone):
        of_rest = _hash_alone(data, rows, texts.alone)
        hashes.append(of_rest.hashes)
        owners.append(of_rest.rows)
    if not hashes:
        return _Columns(_NO_KEYS, _NO_KEYS)
    values, of_rows = np.concatenate(hashes), np.concatenate(owners)
    order = np.argsort(of_rows, kind="stable")  # by record; within a record as they were appended
    return _Columns(values[order], of_rows[order])


def _prefixes(rows: DispatchRows) -> int | NDArray[np.uint32]:
    """Return the hash of what comes before every key, `TOPIC#`: one number if there is one topic."""
    runs = rows.runs
    if all(run.topic == runs[0].topic for run in runs):
        return _prefix_hash(runs[0].topic)
    prefixes = np.empty(len(rows), dtype=np.uint32)
    for topic, _, start, stop in runs:
        prefixes[start:stop] = _prefix_hash(topic)
    return prefixes
