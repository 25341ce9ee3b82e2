"""The one face of the store: put, get and the steps that services drive (RocketMQ: DefaultMessageStore).

Promise. A message is appended to the log in the page cache; it survives the process from then on and the machine once
`flush_commit_log` has passed it. The queues are derived from the log by `reput_step` and can be rebuilt from it at any
time, so nothing but the log decides what exists. Assumed of the disk: what `fdatasync` confirmed stays, and anything
written after the last sync may survive or not, page by page, in any order.

Ownership. One thread owns the store and calls everything, with four exceptions that may run in worker threads, each
in one thread at a time: `flush_commit_log`, `flush_consume_queues`, `write_checkpoint`, `prepare_next_file`; and
`read_extents(cold=True)`, which may run in any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from reput_broker.store.dispatch import MessageArrivingListener
from reput_broker.store.options import StoreOptions
from reput_broker.store.results import (
    ROCKETMQ_LIMITS,
    Extent,
    GetMessageResult,
    PutResult,
    RecoveryReport,
    TransferLimits,
)
from reput_broker.store.stats import StoreStats
from reput_protocol.codes import BoundaryType
from reput_protocol.filters import TagFilter
from reput_protocol.record import Record


class MessageStore:
    """The messages of one directory."""

    stats: StoreStats
    options: StoreOptions

    def __init__(
        self,
        options: StoreOptions,
        *,
        clock_ms: Callable[[], int],
        listener: MessageArrivingListener | None = None,
    ) -> None: ...

    # Opening and closing

    def open(self) -> RecoveryReport:
        """Lock the directory, recover what is there and accept messages. Blocks for as long as recovery takes.

        Raises:
            StoreLocked: another broker, in this process or another, has the directory.
            ForeignFile: something in it is not ours to understand and would be damaged.
            StoreDamaged: records that had been flushed do not pass their checks.

        After an error nothing in the directory has been changed and the lock is free again.
        """

    def close(self) -> None:
        """Flush, dispatch and sync everything and release the directory. Blocks. Safe to call twice.

        The directory counts as closed in order only if all of that succeeded; otherwise the next start recovers it.
        """

    @property
    def is_open(self) -> bool: ...

    @property
    def is_writable(self) -> bool: ...

    @property
    def read_only_reason(self) -> str | None:
        """Why puts are refused as READ_ONLY: a failed flush or damage, with file and position; None while writable."""

    @property
    def disk_full_reason(self) -> str | None:
        """What could not be written for want of space; None while there is space. Clears by itself."""

    # Putting

    def put_block(
        self, block: bytearray, *, topic: str, queue_id: int, count: int, born_host: bytes
    ) -> PutResult:
        """Store a block of `count` encoded records of one queue as a whole. Never waits for the disk unless a file must be made.

        Args:
            block: the records back to back as a producer encodes them; the broker's fields are filled in in place.
            born_host: the peer as 4 address bytes and a 4-byte port.

        Raises:
            RecordMalformed: the block breaks a rule; it names the first bad record. Nothing was stored.
        """

    def put_record(self, record: Record) -> PutResult:
        """Store one message whose record the broker composed; offsets and store timestamp are set here."""

    def put_records(self, records: Sequence[Record]) -> PutResult:
        """Store the messages of one RocketMQ batch: one topic, one queue, contiguous, in one file, all or none."""

    def needs_new_file(self, size: int) -> bool:
        """Whether a put of `size` bytes would have to make a log file, which blocks: call `prepare_next_file` first, in a thread."""

    def should_prepare_next_file(self) -> bool:
        """Whether the log file in use is at least half full and the next one has not been made."""

    def prepare_next_file(self) -> None:
        """Make the next log file ahead of need. Blocks; callable from a worker thread. Raises DiskFull."""

    # Getting

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_filter: TagFilter | None = None,
        *,
        limits: TransferLimits = ROCKETMQ_LIMITS,
    ) -> GetMessageResult:
        """Find the messages of a queue from `offset` on (RocketMQ: DefaultMessageStore.getMessage)."""

    def read_extents(self, extents: Sequence[Extent], *, cold: bool = False) -> bytes:
        """The bytes of the extents, joined. With `cold` by positional reads, which other threads do not wait for."""

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int: ...

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int: ...

    def offset_by_timestamp(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int: ...

    def earliest_message_time(self, topic: str, queue_id: int) -> int: ...

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int: ...

    def message_at(self, physical_offset: int) -> bytes | None: ...

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool: ...

    # Steps driven by services

    def reput_step(self, max_bytes: int = 1 << 20) -> int:
        """Dispatch what the log holds beyond the last step, up to `max_bytes`; return how many records that were."""

    @property
    def dispatch_behind_bytes(self) -> int: ...

    @property
    def dispatch_idle(self) -> bool:
        """Whether a reput step now would find nothing to do."""

    def flush_commit_log(self) -> int:
        """Sync the log and return the offset up to which it is durable. Blocks; one thread at a time.

        Raises:
            StoreReadOnly: the sync failed, now or earlier. What was not durable may be lost; the store takes no more puts.
        """

    @property
    def flushed_offset(self) -> int: ...

    @property
    def max_physical_offset(self) -> int: ...

    @property
    def min_physical_offset(self) -> int: ...

    @property
    def flush_behind_bytes(self) -> int: ...

    def flush_consume_queues(self) -> None: ...

    def write_checkpoint(self) -> None: ...

    # Topics

    def delete_topic(self, topic: str) -> None: ...

    def queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue id) that has a queue."""

    @property
    def data_dir(self) -> Path: ...
