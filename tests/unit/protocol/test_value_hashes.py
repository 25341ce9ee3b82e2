"""Hashes of many parts of a buffer at once are Java's hashes of each part."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from reput_protocol.hashing import java_hash
from reput_protocol.value_hashes import SpanHashes, ValueHashes, power_of_31


def ascii_bytes(random: Random, size: int) -> bytes:
    return bytes(byte & 0x7F for byte in random.randbytes(size))


# The last ones are longer than what powers are kept for.
@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 18, (1 << 18) + 1, 700_000])
def test_parts_of_a_buffer(size: int) -> None:
    random = Random(size)
    data = ascii_bytes(random, size)
    starts = sorted(random.randrange(size + 1) for _ in range(200))
    ends = [
        min(size, start + random.randrange(32_768 if number % 40 == 0 else 50))
        for number, start in enumerate(starts)
    ]
    hashing = SpanHashes(np.frombuffer(data, np.uint8))
    columns = np.array(starts, np.int64), np.array(ends, np.int64)
    hashes, powers = hashing.of(*columns)
    parts = [data[start:end].decode() for start, end in zip(starts, ends, strict=True)]
    found = ValueHashes(slice(0, 200), hashes, powers)
    assert found.signed().tolist() == [java_hash(part) for part in parts]
    assert found.after(java_hash("orders#") & 0xFFFF_FFFF).tolist() == [
        java_hash("orders#" + part) for part in parts
    ]
    assert hashing.of(*columns)[0].tolist() == hashes.tolist(), "a second time, of the sums that were kept"


def test_prefixes_of_each_row_and_one_length_for_all() -> None:
    values, prefixes = ["red", "sea"], ["T#", "größer#"]
    hashes = np.array([java_hash(value) & 0xFFFF_FFFF for value in values], np.uint32)
    starts = np.array([java_hash(prefix) & 0xFFFF_FFFF for prefix in prefixes], np.uint32)
    found = ValueHashes(slice(0, 2), hashes, power_of_31(3))
    assert found.after(starts).tolist() == [java_hash(p + v) for p, v in zip(prefixes, values, strict=True)]
    assert found.after(int(starts[1])).tolist() == [java_hash(prefixes[1] + value) for value in values]
