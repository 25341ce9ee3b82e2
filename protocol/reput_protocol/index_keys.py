"""The keys under which records are found, hashed: the unique id and every key of each record of a batch.

A key is indexed as `TOPIC#KEY` under Java's string hash (store format 5.2, 5.6; RocketMQ: IndexService.buildIndex).
Messages of one producer have properties of one shape: the same names at the same places, values of the same lengths.
Rows with properties of one size are therefore laid beneath each other as a table, and if the table is regular, whole
columns of it are hashed at once; every other row goes one by one. Both ways give the same, which a test holds them to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from reput_protocol.dispatch_rows import DispatchRows, Row
from reput_protocol.hashing import index_hash, java_hash
from reput_protocol.properties import find_property_in
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_ROLLBACK

IntArray: TypeAlias = NDArray[np.int64]

_TABLE_ROWS_MIN: Final = 8
"""So many rows of one size cost the same either way."""
_MASK: Final = 0xFFFF_FFFF
_POWERS_MAX: Final = 32_768
_POWERS: NDArray[np.uint32] = np.ones(1, dtype=np.uint32)
_NAME_END: Final = 1
_VALUE_END: Final = 2
_SPACE: Final = 0x20


class KeyHashes(NamedTuple):
    """The hashes of a batch's keys in the order in which they are indexed, and the row of each."""

    hashes: Sequence[int] | IntArray
    rows: Sequence[int] | IntArray


def index_keys(topic: str, unique_key: str | None, keys: str | None) -> list[str]:
    """Return what one record is indexed under, given its topic and the values of `UNIQ_KEY` and `KEYS`."""
    texts = [f"{topic}#{unique_key}"] if unique_key else []
    if keys:
        texts += [f"{topic}#{key}" for key in keys.split(" ") if key]
    return texts


def hash_keys(data: bytes, rows: DispatchRows) -> KeyHashes:
    """Hash the keys of all records that `rows` found in `data`; those of rolled back transactions have none."""
    few = rows.few
    if few is not None:
        return _hash_few(data, few, rows)
    table = _hash_tables(data, rows)
    return table if table is not None else _hash_many(data, rows)


# -- one by one --------------------------------------------------------------------------------------------------


def _hash_few(data: bytes, few: list[Row], rows: DispatchRows) -> KeyHashes:
    hashes: list[int] = []
    owners: list[int] = []
    for topic, _, start, stop in rows.runs:
        for number in range(start, stop):
            row = few[number]
            if row[6] & TRANSACTION_BITS == TRANSACTION_ROLLBACK:
                continue
            for value in _hashes_of(data, topic, row[7], row[7] + row[8]):
                hashes.append(value)
                owners.append(number)
    return KeyHashes(hashes, owners)


def _hash_many(data: bytes, rows: DispatchRows) -> KeyHashes:
    hashes: list[int] = []
    owners: list[int] = []
    starts = rows.properties_position.tolist()
    sizes = rows.properties_size.tolist()
    flags = rows.sys_flag.tolist()
    for topic, _, start, stop in rows.runs:
        for number in range(start, stop):
            if flags[number] & TRANSACTION_BITS == TRANSACTION_ROLLBACK:
                continue
            for value in _hashes_of(data, topic, starts[number], starts[number] + sizes[number]):
                hashes.append(value)
                owners.append(number)
    return KeyHashes(np.array(hashes, dtype=np.int64), np.array(owners, dtype=np.int64))


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


# -- as tables ---------------------------------------------------------------------------------------------------


def _hash_tables(data: bytes, rows: DispatchRows) -> KeyHashes | None:
    """Hash rows whose properties form regular tables; None if too many of them do not."""
    sizes = rows.properties_size
    flags = rows.sys_flag
    if bool(((flags & TRANSACTION_BITS) == TRANSACTION_ROLLBACK).any()):
        return None
    prefixes = np.empty(len(rows), dtype=np.uint32)
    for topic, _, start, stop in rows.runs:
        prefixes[start:stop] = _prefix_hash(topic)
    source = np.frombuffer(data, np.uint8)
    hashes: list[IntArray] = []
    owners: list[IntArray] = []
    positions = rows.properties_position
    for size in _distinct(sizes):
        members = np.flatnonzero(sizes == size)
        if size == 0:
            continue
        if len(members) < _TABLE_ROWS_MIN:
            return None
        table = _table(source, positions[members], size)
        columns = _key_columns(table)
        if columns is None:
            return None
        for start, stop in columns:
            hashes.append(_hash_columns(table, start, stop, prefixes[members]))
            owners.append(members)
    if not hashes:
        empty = np.empty(0, dtype=np.int64)
        return KeyHashes(empty, empty)
    values, of_rows = np.concatenate(hashes), np.concatenate(owners)
    order = np.argsort(of_rows, kind="stable")  # by record; within a record as they were appended
    return KeyHashes(values[order], of_rows[order])


def _distinct(sizes: IntArray) -> list[int]:
    first = int(sizes[0])
    if (sizes == first).all():
        return [first]
    return [int(size) for size in np.unique(sizes)]


def _table(source: NDArray[np.uint8], starts: IntArray, size: int) -> NDArray[np.uint8]:
    """Lay the texts at `starts` beneath each other; without a copy where they are equally far apart."""
    step = int(starts[1] - starts[0])
    table: NDArray[np.uint8]
    if step >= size and (starts[1:] - starts[:-1] == step).all():
        first = int(starts[0])
        window = source[first : int(starts[-1]) + size]
        table = as_strided(window, (len(starts), size), (step, 1), writeable=False)
    else:
        table = source[starts[:, None] + np.arange(size)]
    return table


def _key_columns(table: NDArray[np.uint8]) -> list[tuple[int, int]] | None:
    """Return where the unique key and the keys lie in every row, in this order; None if the rows are not alike."""
    first = table[0].tobytes()
    fixed = np.zeros(len(first), dtype=bool)
    spans: dict[bytes, tuple[int, int]] = {}
    start = 0
    while start < len(first):
        name_end = first.find(_NAME_END, start)
        end = first.find(_VALUE_END, start)
        if end < 0 or not start < name_end < end - 1:
            return None
        name = first[start:name_end]
        if name in spans:
            return None
        spans[name] = (name_end + 1, end)
        fixed[start : name_end + 1] = True
        fixed[end] = True
        start = end + 1
    if (table[:, fixed] != table[0, fixed]).any():
        return None
    values = table[:, ~fixed]
    if (values <= _VALUE_END).any() or (values >= 0x80).any():
        return None  # a separator in a value (or a zero), or text that is not ASCII
    keys = spans.get(b"KEYS")
    if keys is not None and (table[:, keys[0] : keys[1]] == _SPACE).any():
        return None
    return [spans[name] for name in (b"UNIQ_KEY", b"KEYS") if name in spans]


def _hash_columns(table: NDArray[np.uint8], start: int, stop: int, prefixes: NDArray[np.uint32]) -> IntArray:
    powers = _powers(stop - start + 1)
    value = (table[:, start:stop] * powers[1:][None, :]).sum(axis=1, dtype=np.uint32) + prefixes * powers[0]
    signed = value.view(np.int32).astype(np.int64)
    hashes: IntArray = np.abs(signed)
    hashes[signed == -0x8000_0000] = 0
    return hashes


def _powers(count: int) -> NDArray[np.uint32]:
    """Return 31^(count-1) ... 31^0, modulo 2^32."""
    global _POWERS
    if count > len(_POWERS):
        size = min(max(2 * count, 256), 2 * _POWERS_MAX)
        powers = np.ones(size, dtype=np.uint32)
        powers[1:] = 31
        _POWERS = np.multiply.accumulate(powers, dtype=np.uint32)[::-1].copy()
    return _POWERS[len(_POWERS) - count :]
