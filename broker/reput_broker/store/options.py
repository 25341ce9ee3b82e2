"""Everything about a store that its owner decides, in one frozen value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from reput_protocol.record.host import Host

if TYPE_CHECKING:
    from reput_broker.store.dispatch import DispatchBatch, QueueRows

QUEUE_UNIT_BYTES = 20

# Apache's default levels, "1s 5s 10s 30s 1m ... 2h", in milliseconds; a level is an index from 1.
DELAY_LEVELS_MS: tuple[int, ...] = (
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000,
    360_000, 420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
)  # fmt: skip

FilterBitMaps = Callable[["DispatchBatch", "QueueRows"], "Sequence[bytes | None] | None"]
"""For each message of the rows the bit map of the consumers whose filters let it through; None where there is none."""

EventHandler = Callable[[str, Mapping[str, object]], None]
"""Called with a fixed phrase and its facts; from whatever thread noticed, so it must be quick and thread-safe."""


def ignore_event(event: str, facts: Mapping[str, object]) -> None:
    """Take an event and do nothing: the default for stores that nobody watches."""


def physical_memory_bytes() -> int:
    """Return the machine's memory, or 1 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 30


def _default_host() -> Host:
    return Host("127.0.0.1", 10911)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Geometry, durability and limits of one store directory.

    The file sizes are part of the format: a directory opened with other sizes is refused (docs/formats.md).
    """

    data_dir: Path
    """Root of the store directory; created if it is missing."""
    commit_log_file_size: int = 1 << 30
    """Bytes per CommitLog file."""
    commit_log_dirs: tuple[Path, ...] = ()
    """Where CommitLog files are made (RocketMQ: storePathCommitLog); empty for `commitlog` below `data_dir`."""
    read_only_commit_log_dirs: tuple[Path, ...] = ()
    """Where CommitLog files lie and no new ones are made (RocketMQ: readOnlyCommitLogStorePaths)."""
    warm_mapped_file: bool = False
    """Fetch and lock the pages of a CommitLog file before it is used (RocketMQ: warmMapedFileEnable)."""
    transient_store_pool: bool = False
    """Append to buffers, which are committed to the files (RocketMQ: transientStorePoolEnable)."""
    transient_store_pool_size: int = 5
    """How many buffers of `commit_log_file_size` bytes there are (RocketMQ: transientStorePoolSize)."""
    fast_fail_if_no_buffer: bool = False
    """Refuse puts while all buffers are lent, instead of appending to the file itself (RocketMQ:
    fastFailIfNoBufferInStorePool)."""
    consume_queue_entries: int = 300_000
    """Units (20 bytes each) per ConsumeQueue file."""
    index_enabled: bool = True
    """Keep an index of message keys (RocketMQ: messageIndexEnable)."""
    index_slots: int = 5_000_000
    """Hash slots per index file (RocketMQ: maxHashSlotNum)."""
    index_entries: int = 20_000_000
    """Entries per index file, counting the first, which is never used (RocketMQ: maxIndexNum)."""
    flush_sync: bool = True
    """Serve readers only what is flushed (SYNC_FLUSH); otherwise whatever was appended (ASYNC_FLUSH)."""
    message_bytes_max: int = 4 << 20
    """Largest message body that is taken, in bytes."""
    record_crc: bool = False
    """End every record with Apache's whole-record checksum property."""
    host: Host = field(default_factory=_default_host)
    """The IPv4 address that records and offset message ids name as their store."""
    memory_bytes: int = field(default_factory=physical_memory_bytes)
    """Memory by which "still in memory" is judged."""
    consume_queue_ext: bool = False
    """Keep extended entries beside the queues (RocketMQ: enableConsumeQueueExt)."""
    consume_queue_ext_file_size: int = 48 << 20
    """Bytes per file of extended entries (RocketMQ: mappedFileSizeConsumeQueueExt)."""
    filter_bit_maps: FilterBitMaps | None = None
    """Makes the bit maps of extended entries (RocketMQ: CommitLogDispatcherCalcBitMap); None leaves them out."""
    filter_bit_map_bits: int = 112
    """Length of such a bit map, a multiple of 8 (RocketMQ: bitMapLengthConsumeQueueExt, set by its bloom filter)."""
    queue_files_open_max: int = 512
    """How many files of queues stay open at once, over all queues."""
    log_files_open_max: int = 256
    """How many files of the log stay mapped, besides those that are written. Each takes two descriptors."""
    index_files_open_max: int = 256
    """The same of the index."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """Delay of each level, from level 1."""
    check_crc: bool = True
    """Verify body checksums during recovery."""
    on_event: EventHandler = ignore_event
    """Told about what an operator should know of; the store itself writes no log."""

    @property
    def consume_queue_file_size(self) -> int:
        """Bytes per ConsumeQueue file."""
        return self.consume_queue_entries * QUEUE_UNIT_BYTES

    @property
    def index_dir(self) -> Path:
        """Where the index files lie."""
        return self.data_dir / "index"

    @property
    def commit_log_dir(self) -> Path:
        """Where the CommitLog files lie unless `commit_log_dirs` says otherwise."""
        return self.data_dir / "commitlog"

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        """Where CommitLog files lie, without those directories that are read-only alone; at least one."""
        return self.commit_log_dirs or (self.commit_log_dir,)

    @property
    def consume_queue_dir(self) -> Path:
        """Where the ConsumeQueue directories lie."""
        return self.data_dir / "consumequeue"

    @property
    def consume_queue_ext_dir(self) -> Path:
        """Where the directories of extended entries lie."""
        return self.data_dir / "consumequeue_ext"

    @property
    def writable_log_dirs(self) -> tuple[Path, ...]:
        """Where new CommitLog files are made."""
        return tuple(path for path in self.log_dirs if path not in self.read_only_commit_log_dirs)

    def validate(self) -> None:
        """Check every option against the format's limits.

        Raises:
            ValueError: naming all the options that are wrong, with what they must be.
        """
        problems: list[str] = []
        if self.commit_log_file_size < 4096 or self.commit_log_file_size > 0x7FFFFFFF:
            problems.append(
                f"commit_log_file_size is {self.commit_log_file_size}; it must be 4096 to 2147483647 bytes"
            )
        if not self.writable_log_dirs:
            problems.append("commit_log_dirs names only read-only directories; new files must go somewhere")
        pool_bytes = self.transient_store_pool_size * self.commit_log_file_size
        if self.transient_store_pool_size < 1:
            problems.append("transient_store_pool_size must be at least 1")
        elif self.transient_store_pool and pool_bytes > self.memory_bytes:
            problems.append(
                f"transient_store_pool_size is {self.transient_store_pool_size}: buffers of {pool_bytes} bytes do not "
                f"fit into {self.memory_bytes} bytes of memory; make them fewer, or commit_log_file_size smaller"
            )
        if self.consume_queue_entries < 1 or self.consume_queue_file_size > 0x7FFFFFFF:
            problems.append(
                f"consume_queue_entries is {self.consume_queue_entries}; it must be 1 to 107374182"
            )
        if self.index_slots < 1 or self.index_entries < 2:
            problems.append(
                f"index_slots is {self.index_slots} and index_entries is {self.index_entries}; they must be at least 1 "
                "and 2"
            )
        elif 40 + 4 * self.index_slots + 20 * self.index_entries > 0x7FFFFFFF:
            problems.append(
                f"index_slots ({self.index_slots}) and index_entries ({self.index_entries}) make a file of more than "
                "2147483647 bytes"
            )
        if self.filter_bit_map_bits % 8 or not 8 <= self.filter_bit_map_bits <= 8 * 32_747:
            problems.append(
                f"filter_bit_map_bits is {self.filter_bit_map_bits}; it must be a multiple of 8, 8 to 261976"
            )
        ext_file_min = 24 + self.filter_bit_map_bits // 8
        if not ext_file_min <= self.consume_queue_ext_file_size <= 0x7FFFFFFF:
            problems.append(
                f"consume_queue_ext_file_size is {self.consume_queue_ext_file_size}; "
                f"it must be {ext_file_min} to 2147483647 bytes"
            )
        if not 1 <= self.message_bytes_max <= 8 << 20:
            problems.append(f"message_bytes_max is {self.message_bytes_max}; it must be 1 to 8388608 bytes")
        if self.queue_files_open_max < 1:
            problems.append(f"queue_files_open_max is {self.queue_files_open_max}; it must be at least 1")
        if self.memory_bytes < 1:
            problems.append(f"memory_bytes is {self.memory_bytes}; it must be positive")
        if len(self.host.packed()) != 8:
            problems.append(f"host is {self.host}; records name their store by an IPv4 address")
        if any(level <= 0 for level in self.delay_levels_ms):
            problems.append("delay_levels_ms holds a level that is not positive")
        if problems:
            raise ValueError("; ".join(problems))
