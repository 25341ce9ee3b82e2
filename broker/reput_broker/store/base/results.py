"""What is put, results of a put, of a get and of opening a directory, and counters of all of them.

Counters are plain integers, read by the metrics page at scrape time. An integer add costs a twentieth of a labelled
metric call, so the hot paths do nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, NamedTuple

from msgspec import Struct

from reput_protocol.buffers import Buffer
from reput_protocol.record.put_block import BlockCheck


class Block(Struct, gc=False):
    """What one put appends, completely or not at all, into one file of the log.

    A writable buffer is changed in place, and belongs to the store from then on.
    """

    data: Buffer
    topic: str
    queue_id: int
    """Topic and queue of every record."""
    count: int
    born_host: bytes | None
    """Producer: 4 address bytes and a 4-byte port. None for records of the broker itself, which name both hosts
    already and are not checked."""
    check: BlockCheck | None = None
    """Result of `check_put_block`; None if they have not been checked."""
    gets_queue_offset: bool = True
    """Whether the records get queue offsets; prepared and rolled back transaction records do not."""


@dataclass(slots=True)
class StoreStats:
    """Totals since the store was opened; bytes and messages unless the name says otherwise.

    Written by the owner of the store and, for the `flush*` fields, by the flush thread; a reader in
    another thread may see values of slightly different moments.
    """

    put_blocks: int = 0
    put_messages: int = 0
    put_bytes: int = 0
    put_refused: int = 0
    """Puts with any status but PUT_OK, and blocks refused as malformed."""

    get_calls: int = 0
    get_found: int = 0
    get_messages: int = 0
    get_bytes: int = 0
    get_cold: int = 0
    """Gets whose records are presumed not to be in the page cache."""

    get_longest_s: float = 0.0
    """The longest look-up of messages that were not filtered by properties."""

    dispatched_messages: int = 0
    dispatch_behind_max: int = 0
    """The most bytes of the log that a step has found not dispatched."""
    dispatch_damage: int = 0
    """Records that dispatch could not read; dispatch stops once this is not 0."""

    flushes: int = 0
    flushed_bytes: int = 0
    flush_failures: int = 0

    commit_failures: int = 0
    """Commits that failed for good: at most one, because the store is read-only then."""

    files_prepared: int = 0


class PutStatus(Enum):
    """The outcome of a put. Only after `PUT_OK` is anything stored."""

    PUT_OK = auto()
    """Stored in the page cache; durable once the log is flushed past the result's `end_offset`."""

    MESSAGE_ILLEGAL = auto()
    """A message exceeds a limit (topic, body or record size) or the size of a log file."""

    PROPERTIES_SIZE_EXCEEDED = auto()
    """The properties text is longer than a record can hold."""

    DISK_FULL = auto()
    """No file could be created for the message. Puts are accepted again when there is space."""

    CREATE_MAPPED_FILE_FAILED = auto()
    """No file could be created, for another reason (`MessageStore.file_refusal`). Puts are accepted again when one can
    be."""

    OS_PAGE_CACHE_BUSY = auto()
    """The page cache takes messages too slowly: no buffer of the pool is free. May be retried at once."""

    READ_ONLY = auto()
    """The store no longer writes: a flush failed or damage was found (`MessageStore.read_only_reason`)."""

    SERVICE_NOT_AVAILABLE = auto()


class GetStatus(Enum):
    """The outcome of a get; the result's `next_begin_offset` says where to continue."""

    FOUND = auto()

    NO_MATCHED_MESSAGE = auto()
    """Entries were scanned and the filter accepted none."""

    MESSAGE_WAS_REMOVING = auto()
    """The scanned entries point to records that have been deleted from the log."""

    OFFSET_FOUND_NULL = auto()
    """The queue has no readable file at the offset; continue at the next file."""

    OFFSET_OVERFLOW_BADLY = auto()
    """The offset is beyond the end of the queue."""

    OFFSET_OVERFLOW_ONE = auto()
    """The offset is the end of the queue: the next message gets it."""

    OFFSET_TOO_SMALL = auto()
    """The offset is before the first message that is still kept."""

    NO_MATCHED_LOGIC_QUEUE = auto()

    NO_MESSAGE_IN_QUEUE = auto()
    """The queue exists and has never held a message."""


class PutResult(Struct, gc=False):
    """The outcome of one put (RocketMQ: AppendMessageResult). Offsets are -1 unless the status is PUT_OK.

    The messages are durable once `MessageStore.flush_commit_log` has returned an offset of at least `end_offset`.
    """

    status: PutStatus
    queue_offset: int = -1
    """Queue offset of the first message; the others follow without a gap."""
    physical_offset: int = -1
    """Log offset of the first record in bytes; the others follow without a gap."""
    end_offset: int = -1
    """Log offset after the last record."""
    store_timestamp_ms: int = 0
    count: int = 0


class Extent(NamedTuple):
    """Consecutive whole records in the log, all in one file."""

    physical_offset: int
    size: int


@dataclass(slots=True)
class GetMessageResult:
    """The outcome of one get (RocketMQ: GetMessageResult): extents, which `read_extents` reads."""

    status: GetStatus
    next_begin_offset: int
    """The queue offset to continue with, whatever the status is."""
    min_offset: int
    max_offset: int
    count: int = 0
    size: int = 0
    """Bytes of all found records."""
    extents: tuple[Extent, ...] = ()
    """The found records in queue order; adjacent ones are merged into one extent."""
    cold: bool = False
    """Whether the records are presumed not in the page cache: read them in a worker thread."""


class TransferLimits(NamedTuple):
    """Limits of one get, in addition to those of its caller (RocketMQ: maxTransfer...OnMessageIn...).

    "Memory" applies to records within 40 % of the machine's memory of the end of the log, "disk" to
    older ones. The first message is returned whatever its size.
    """

    memory_bytes: int
    memory_messages: int
    disk_bytes: int
    disk_messages: int
    scan_bytes: int
    """Queue entries (20 bytes each) that a filter may scan, at least as many as messages are requested."""


ROCKETMQ_LIMITS = TransferLimits(
    memory_bytes=262_144, memory_messages=32, disk_bytes=65_536, disk_messages=8, scan_bytes=16_000
)
"""The limits that RocketMQ's clients expect."""


class RecoveryReport(NamedTuple):
    """What opening a directory found and did."""

    kind: Literal["empty", "clean", "abnormal"]
    """No log; a log that was closed in order; a log whose broker was killed."""
    records: int
    checked_from: int
    """Log offset from which records were checked."""
    end_offset: int
    """End of the log; the next record goes there, or into the next file."""
    last_record_offset: int
    """Start of the last record that was checked, -1 if there was none."""
    truncated_bytes: int
    """Bytes of unfinished writes that were removed from the end of the log."""
    dispatched: int
    """Number of missing queue entries that were created."""
    duration_s: float
