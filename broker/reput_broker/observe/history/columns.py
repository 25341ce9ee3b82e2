"""The figures of a row: how those of shorter steps make one of a longer step, and those of brokers one of a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from reput_broker.observe.counters import REQUEST_SECONDS

Fold = Callable[[Sequence[float]], float]

NOTHING: Final = math.nan
"""A figure that was not measured."""


def mean(values: Sequence[float]) -> float:
    """Return the mean of one value or more."""
    return math.fsum(values) / len(values)


class Column(NamedTuple):
    """One figure.

    Attributes:
        in_time: makes one value of those of shorter steps, which follow each other.
        over_brokers: makes one value of those of several brokers at the same time.
    """

    name: str
    in_time: Fold
    over_brokers: Fold


PUT_COUNTS: Final = tuple(f"puts_le_{bound:g}" for bound in (*REQUEST_SECONDS, math.inf))
"""The columns that count puts by how long they took, from which quantiles of any step and any brokers follow."""

COLUMNS: Final = (
    Column("messages_in_per_s", mean, sum),
    Column("messages_out_per_s", mean, sum),
    Column("bytes_in_per_s", mean, sum),
    Column("bytes_out_per_s", mean, sum),
    Column("cpu_ratio", mean, sum),
    Column("loop_delay_s", max, max),
    Column("connections", max, sum),
    Column("flush_behind_bytes", max, sum),
    Column("dispatch_behind_bytes", max, sum),
    Column("memory_bytes", max, sum),
    Column("disk_used_ratio", max, max),
    Column("disk_free_bytes", min, min),
    Column("store_bytes", max, sum),
    Column("delayed", max, sum),
    Column("lag", max, sum),
    Column("lag_age_s", max, max),
    Column("replica_lag_bytes", max, max),
    Column("is_master", max, sum),
    *(Column(name, sum, sum) for name in PUT_COUNTS),
)
"""Figures of the broker. Lag, its age and `delayed` are those of a master."""

LAG_COLUMNS: Final = (Column("lag", max, sum), Column("lag_age_s", max, max))
"""Of a group: messages that are not committed, and the age of the oldest."""
RATE_COLUMNS: Final = (Column("in_per_s", mean, sum), Column("out_per_s", mean, sum))
"""Of a topic: messages per second."""


def folded(columns: Sequence[Fold], rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return one row that stands for several; a value that none of them has is NOTHING."""
    if len(rows) == 1:
        return tuple(rows[0])
    found = []
    for fold, values in zip(columns, zip(*rows, strict=True), strict=True):
        there = [value for value in values if value == value]
        found.append(fold(there) if there else NOTHING)
    return tuple(found)
