"""Whether there is a whole record at a position; for recovery, dispatch and all readers.

(RocketMQ: CommitLog.checkMessageAndReturnSize.) The answer is a value, not an exception: the end of a log is normal.

The names of numbers are their positions in a row of the kernel's table (`COLUMNS`). A part's size is the number after
its position. `DispatchRows` are the rows from which ConsumeQueue and index are built: the bytes come from the broker's
own log, so checksums are not verified; lengths are, so damage stops the scan.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.kernel.records import BLANK, COLUMNS, INVALID, RECORD, TRUNCATED, read_record, scan_records
from reput_protocol.kernel.tables import java_hash, key_hashes, runs, tags_codes
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.properties import find_property
from reput_protocol.record.dead_letter import ReplayOf
from reput_protocol.record.delays import DELAY_LEVELS_MS, deliver_time
from reput_protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, index_hash


class ScanStatus(Enum):
    """What is at a position."""

    RECORD = "record"
    BLANK = "blank"
    """The end of a file: continue at the start of the next one."""
    INVALID = "invalid"
    TRUNCATED = "truncated"
    """The beginning of a record, or too few bytes to tell."""


STATUSES: Final = {
    RECORD: ScanStatus.RECORD,
    BLANK: ScanStatus.BLANK,
    INVALID: ScanStatus.INVALID,
    TRUNCATED: ScanStatus.TRUNCATED,
}
"""The kernel's result as a status."""


class RecordScan(NamedTuple):
    """The result for one position.

    `size` is that of the record, or the rest of the file by a blank record. An invalid record with consistent outer
    lengths, which a reader may skip, and a truncated one with a readable size have one too; else it is 0.
    """

    status: ScanStatus
    size: int
    reason: str = ""


class Extent(NamedTuple):
    """Positions of a valid record's variable parts in its buffer."""

    body: int
    body_size: int
    topic: int
    topic_size: int
    properties: int
    properties_size: int
    store_timestamp: int


def scan_record(
    buffer: Buffer, position: int, end: int, *, check_crc: bool, check_properties_crc: bool = False
) -> RecordScan:
    """Examine what is at `[position, end)` of `buffer`. Never raises, whatever the bytes are.

    `check_crc` verifies the body's CRC, and the whole-record one if there is one. `check_properties_crc` makes a record
    without one invalid, for a store that always writes it.
    """
    return locate(buffer, position, end, check_crc=check_crc, check_properties_crc=check_properties_crc)[0]


def locate(
    buffer: Buffer, position: int, end: int, *, check_crc: bool, check_properties_crc: bool = False
) -> tuple[RecordScan, Extent | None]:
    """Like `scan_record`, and return where a valid record's parts are."""
    status, size, reason, parts = read_record(buffer, position, end, check_crc, check_properties_crc)
    return RecordScan(STATUSES[status], size, reason), None if parts is None else Extent._make(parts)


WIDTH: Final = len(COLUMNS)
POSITION: Final = COLUMNS.index("position")
SIZE: Final = COLUMNS.index("size")
QUEUE_ID: Final = COLUMNS.index("queue_id")
QUEUE_OFFSET: Final = COLUMNS.index("queue_offset")
PHYSICAL_OFFSET: Final = COLUMNS.index("physical_offset")
STORE_TIMESTAMP_MS: Final = COLUMNS.index("store_timestamp_ms")
SYS_FLAG: Final = COLUMNS.index("sys_flag")
FLAG: Final = COLUMNS.index("flag")
BORN_TIMESTAMP_MS: Final = COLUMNS.index("born_timestamp_ms")
RECONSUME_TIMES: Final = COLUMNS.index("reconsume_times")
PREPARED_TRANSACTION_OFFSET: Final = COLUMNS.index("prepared_transaction_offset")
BODY_CRC: Final = COLUMNS.index("body_crc")
BODY: Final = COLUMNS.index("body_position")
BODY_SIZE: Final = COLUMNS.index("body_size")
TOPIC: Final = COLUMNS.index("topic_position")
PROPERTIES: Final = COLUMNS.index("properties_position")
TAG: Final = COLUMNS.index("tag_position")
TAG_SIZE: Final = COLUMNS.index("tag_size")
UNIQUE_ID: Final = COLUMNS.index("unique_id_position")
KEYS: Final = COLUMNS.index("keys_position")


_NUMBER: Final = {name: number for number, name in enumerate(COLUMNS)}


SEEN: Final = (0, TRANSACTION_COMMIT)
"""Transaction bits of records that consumers see; others have no place in their queue."""


class DispatchRun(NamedTuple):
    """Rows `[start, stop)` of one queue, with consecutive queue offsets."""

    topic: str
    queue_id: int
    start: int
    stop: int
    transaction: int
    """The system flag's transaction bits, the same in all of them."""


_run: Final = partial(tuple.__new__, DispatchRun)  # no Python-level constructor


class DispatchRows:
    """One row per whole record from the start of the scanned bytes on.

    Attributes:
        data: the scanned bytes; positions count from their start.
        table: `len(COLUMNS)` numbers for each record.
        runs: which rows belong to which queue.
        tags_codes: of each ConsumeQueue unit; for records of the schedule topic, when they are due.
        consumed: where the rows end.
        stopped_by: what is there: None at the end of the buffer, otherwise a blank record, an incomplete record, or
            bytes that are not a record, with the reason.
    """

    __slots__ = ("consumed", "data", "runs", "stopped_by", "table", "tags_codes")

    def __init__(
        self,
        data: Buffer,
        table: array[int],
        levels_ms: Sequence[int] = DELAY_LEVELS_MS,
        consumed: int = 0,
        stopped_by: RecordScan | None = None,
    ) -> None:
        self.data = data
        self.table = table
        self.consumed = consumed
        self.stopped_by = stopped_by
        self.runs = [
            _run((topic_text(topic), queue_id, start, stop, transaction))
            for topic, queue_id, start, stop, transaction in runs(data, table)
        ]
        self.tags_codes: array[int] = tags_codes(data, table)
        for run in self.runs:
            if run.topic == SCHEDULE_TOPIC:
                self._note_due_times(run, levels_ms)

    def __len__(self) -> int:
        return len(self.table) // WIDTH

    def column(self, name: str) -> array[int]:
        """Return one number of every record, by its name in `COLUMNS`."""
        return self.table[_NUMBER[name] :: WIDTH]

    @property
    def last_store_timestamp_ms(self) -> int:
        """The store time of the last row; requires one."""
        return self.table[STORE_TIMESTAMP_MS - WIDTH]

    def properties(self, row: int) -> bytes:
        """Return the encoded properties of a record."""
        at = WIDTH * row + PROPERTIES
        start, size = self.table[at : at + 2]
        return bytes(memoryview(self.data)[start : start + size])

    def keys(self) -> array[int]:
        """Return the index entries of the records: for each key its hash, physical offset and store time.

        A key is indexed as `TOPIC#KEY` under Java's string hash (RocketMQ: IndexService.buildIndex). Rolled-back
        transaction records have none. A message that replays a dead letter has one more (`replays_key`).
        """
        found: array[int] = array("q")
        merged: list[tuple[str, int, int]] = []  # a topic's runs are hashed together
        for topic, _, start, stop, transaction in self.runs:
            if transaction == TRANSACTION_ROLLBACK:
                continue
            if merged and merged[-1][0] == topic and merged[-1][2] == start:
                start = merged.pop()[1]
            merged.append((topic, start, stop))
        for topic, start, stop in merged:
            found += key_hashes(self.data, self.table, start, stop, _prefix_hash(topic))
        return self._with_replays(found)

    def _with_replays(self, keys: array[int]) -> array[int]:
        """Return the entries `keys` with those of the messages that replay dead letters, in the order of the log."""
        named = self.column("prepared_transaction_offset")
        if named.tobytes() == bytes(8 * len(named)):
            return keys  # as nearly always: only copies that the broker makes name a record there
        physical_offset, stored_ms = self.column("physical_offset"), self.column("store_timestamp_ms")
        more = []
        for row, prepared_offset in enumerate(named):
            if prepared_offset:
                replay = ReplayOf.of_properties(self.properties(row), prepared_offset)
                if replay is not None:
                    more.append((index_hash(replay.key), physical_offset[row], stored_ms[row]))
        if not more:
            return keys
        entries = [*zip(keys[::3], keys[1::3], keys[2::3], strict=True), *more]
        entries.sort(key=itemgetter(1))
        return array("q", chain.from_iterable(entries))

    def _note_due_times(self, run: DispatchRun, levels_ms: Sequence[int]) -> None:
        """Replace the tags code of each record with a delay level by its due time."""
        stored_at = self.column("store_timestamp_ms")
        for row in range(run.start, run.stop):
            level = find_property(self.properties(row), b"DELAY")
            due = deliver_time(level, stored_at[row], levels_ms)
            if due is not None:
                self.tags_codes[row] = due


def scan_dispatch(
    buffer: Buffer, *, base_physical_offset: int | None = None, levels_ms: Sequence[int] = DELAY_LEVELS_MS
) -> DispatchRows:
    """Return the rows of all whole records from the buffer's start on.

    With `base_physical_offset`, the log offset of the buffer's start, a record that states another place ends the rows.
    `levels_ms` are the delay levels.
    """
    offset = -1 if base_physical_offset is None else base_physical_offset
    table, end, status, size, reason = scan_records(buffer, 0, len(buffer), offset)
    stopped_by = None if status == RECORD else RecordScan(STATUSES[status], size, reason)
    return DispatchRows(buffer, table, levels_ms, end, stopped_by)


@lru_cache(maxsize=4096)
def topic_text(topic: bytes) -> str:
    """Return a topic as text, whatever its bytes."""
    return topic.decode("utf-8", "replace")


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str) -> int:
    return java_hash(f"{topic}#") & 0xFFFF_FFFF
