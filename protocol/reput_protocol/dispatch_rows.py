"""What follows the log: the rows that ConsumeQueue and index are built from. `dispatch_scan` finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from reput_protocol.properties_table import PropertiesTexts
from reput_protocol.record_columns import BoolArray, IntArray
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_COMMIT
from reput_protocol.record_scan import RecordScan


class DispatchRun(NamedTuple):
    """Rows `[start, stop)` follow each other in one queue of one topic."""

    topic: str
    queue_id: int
    start: int
    stop: int


class DispatchGroup(NamedTuple):
    """All rows of one queue, in their order: a slice where they follow each other, else their numbers."""

    topic: str
    queue_id: int
    rows: slice | IntArray


Row = tuple[int, int, int, int, int, int, int, int, int]
"""The fields of one record in the order of `COLUMNS`."""

COLUMNS: Final = (
    "position", "physical_offset", "size", "queue_offset", "tags_code", "store_timestamp_ms", "sys_flag",
    "properties_position", "properties_size",
)  # fmt: skip


class DispatchRows:
    """One row per whole record at the beginning of the scanned bytes, as columns of 64-bit integers.

    `position`, `properties_position` and `properties_size` are bytes from the start of the scanned buffer. `indexed`
    is False for prepared and rolled-back transaction records, which get no ConsumeQueue unit. `consumed` is where the
    rows end; `stopped_by` says what lies there: None is the end of the buffer, otherwise a blank record, the beginning
    of a record whose rest is missing, or something that is no record, with the reason.

    Where there are only a few rows, they were found one by one: `few` holds them, and columns are made when asked for.
    Otherwise `texts` holds the properties of all rows.
    """

    __slots__ = ("_columns", "consumed", "count", "few", "runs", "stopped_by", "texts")

    def __init__(
        self,
        columns: Sequence[IntArray] | None,
        few: list[Row] | None,
        runs: list[DispatchRun],
        consumed: int,
        stopped_by: RecordScan | None,
        texts: PropertiesTexts | None = None,
    ) -> None:
        assert (columns is None) == (texts is None) != (few is None)
        self._columns = columns
        self.count = len(columns[0]) if columns is not None else len(few or ())
        """How many rows there are."""
        self.few = few
        self.runs = runs
        self.consumed = consumed
        self.stopped_by = stopped_by
        self.texts = texts

    def _column(self, number: int) -> IntArray:
        if self._columns is None:
            few = self.few
            table = (
                np.array(few, dtype=np.int64).T.copy() if few else np.empty((len(COLUMNS), 0), dtype=np.int64)
            )
            self._columns = list(table)
        return self._columns[number]

    @property
    def position(self) -> IntArray:
        """Where each record starts."""
        return self._column(0)

    @property
    def physical_offset(self) -> IntArray:
        """Where each record says that it lies in the log."""
        return self._column(1)

    @property
    def size(self) -> IntArray:
        """Bytes of each whole record."""
        return self._column(2)

    @property
    def queue_offset(self) -> IntArray:
        """The number of each message in its queue."""
        return self._column(3)

    @property
    def tags_code(self) -> IntArray:
        """What a ConsumeQueue unit says of each tag."""
        return self._column(4)

    @property
    def store_timestamp_ms(self) -> IntArray:
        """The broker's clock when each record was put."""
        return self._column(5)

    @property
    def sys_flag(self) -> IntArray:
        """The system flag of each record."""
        return self._column(6)

    @property
    def properties_position(self) -> IntArray:
        """Where each properties text starts."""
        return self._column(7)

    @property
    def properties_size(self) -> IntArray:
        """Bytes of each properties text."""
        return self._column(8)

    @property
    def last_store_timestamp_ms(self) -> int:
        """The store time of the last row; there must be one."""
        return self.few[-1][5] if self.few is not None else int(self.store_timestamp_ms[-1])

    def __len__(self) -> int:
        return self.count

    @property
    def indexed(self) -> BoolArray:
        """Which rows belong into their ConsumeQueue."""
        transaction = self.sys_flag & TRANSACTION_BITS
        return np.isin(transaction, (0, TRANSACTION_COMMIT))

    @property
    def all_indexed(self) -> bool:
        """Whether every row belongs into its ConsumeQueue, as it does unless somebody uses transactions."""
        return not (self.sys_flag & TRANSACTION_BITS).any() or bool(self.indexed.all())

    def groups(self) -> list[DispatchGroup]:
        """Return the rows of every queue, queues in the order of their first row."""
        if len(self.runs) == 1:
            topic, queue_id, start, stop = self.runs[0]
            return [DispatchGroup(topic, queue_id, slice(start, stop))]
        ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for topic, queue_id, start, stop in self.runs:
            ranges.setdefault((topic, queue_id), []).append((start, stop))
        groups = []
        for (topic, queue_id), parts in ranges.items():
            if len(parts) == 1:
                rows: slice | IntArray = slice(*parts[0])
            else:
                rows = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in parts])
            groups.append(DispatchGroup(topic, queue_id, rows))
        return groups
