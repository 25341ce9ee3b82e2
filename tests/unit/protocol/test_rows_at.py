"""Parts of a buffer, laid beneath each other or end to end, are the parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.rows_at import FILLER, parts_at, rows_at, slices_at


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=30),
    st.sampled_from([0, 40, 400]),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_parts_are_what_lies_there_and_fillers_stand_between(
    gaps_and_sizes: list[tuple[int, int]], before: int, kind: type
) -> None:
    data = b"\x02" * before
    starts, ends = [], []
    for number, (gap, size) in enumerate(gaps_and_sizes):
        data += b"\x01" * gap
        starts.append(len(data))
        data += bytes([64 + number]) * size
        ends.append(len(data))
    expected = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    position, stop = np.array(starts, np.int64), np.array(ends, np.int64)
    parts = parts_at(kind(data), position, stop - position)
    found = parts.data.tobytes()
    assert [
        found[start:end] for start, end in zip(parts.starts.tolist(), parts.ends.tolist(), strict=True)
    ] == expected
    outside = np.ones(len(found), np.bool_)
    for start, end in zip(parts.starts.tolist(), parts.ends.tolist(), strict=True):
        outside[start:end] = False
    assert set(parts.data[outside].tolist()) <= {FILLER}
    assert list(map(bytes, slices_at(kind(data), position, stop))) == expected


def test_parts_come_in_the_order_they_are_asked_for() -> None:
    """A part at the beginning may be shorter than the longest one before it."""
    data = b"ab" + b"c" * 10 + b"defghi"
    parts = parts_at(data, np.array([12, 0, 2, 15], np.int64), np.array([3, 2, 4, 3], np.int64))
    found = parts.data.tobytes()
    places = zip(parts.starts.tolist(), parts.ends.tolist(), strict=True)
    assert [found[start:end] for start, end in places] == [b"def", b"ab", b"cccc", b"ghi"]


@pytest.mark.parametrize("position", [[3], [0, 2, 4], [0, 1, 5], []])
@pytest.mark.parametrize("size", [0, 1, 2])
def test_rows_are_equal_parts(position: list[int], size: int) -> None:
    data = b"abcdefgh"
    rows = rows_at(data, np.array(position, np.int64), size)
    assert [row.tobytes() for row in rows] == [data[at : at + size] for at in position]
