"""Values that repeat, as the distinct ones and a number for each row, without an object per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORT_BYTES_MAX = 8
"""Values up to so many bytes are told apart as numbers."""


class CodedValues(NamedTuple):
    """A column of texts: row i has `values[codes[i]]`."""

    values: list[str | None]
    """Each once, in no particular order; None for rows that have none."""
    codes: NDArray[np.int64]


def coded_texts(texts: Sequence[str | None]) -> CodedValues:
    """Return the texts of all rows, coded."""
    numbers: dict[str | None, int] = {}
    codes = [numbers.setdefault(text, len(numbers)) for text in texts]
    return CodedValues(list(numbers), np.array(codes, np.int64))


def coded_parts(
    data: NDArray[np.uint8],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    count: int,
) -> CodedValues | None:
    """Return values that lie in `data`, coded; None where that takes looking at each.

    Args:
        data: where they lie.
        rows: which rows have a value, ascending; None is the value of all others.
        starts, ends: of the value of each of these.
        count: of all rows.
    """
    sizes = ends - starts
    longest = int(sizes.max(initial=0))
    if longest > SHORT_BYTES_MAX or (len(rows) > 1 and (np.diff(rows) <= 0).any()):
        return None
    padded = np.zeros((len(rows), SHORT_BYTES_MAX), np.uint8)
    for at in range(longest):
        has_it = sizes > at
        padded[has_it, at] = data[starts[has_it] + at]
    used = (padded != 0).sum(axis=1)
    if (used != sizes).any():
        return None  # a value has a zero byte, which does not differ from padding
    distinct, own = np.unique(padded.view(np.uint64)[:, 0], return_inverse=True)
    values: list[str | None] = [
        number.tobytes().rstrip(b"\0").decode(errors="replace") for number in distinct
    ]
    codes: Any = own.astype(np.int64, copy=False)
    if len(rows) < count:
        everywhere = np.full(count, len(values), np.int64)
        everywhere[rows] = codes
        codes = everywhere
        values.append(None)
    return CodedValues(values, codes)
