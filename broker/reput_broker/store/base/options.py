"""Everything that the owner of a store decides, in one frozen value."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from reput_protocol.record.message_id import Host

if TYPE_CHECKING:
    from reput_broker.store.base.dispatch import DispatchBatch, QueueRows

# Beyond memory.high the system takes the page cache back, as it does at memory.max.
_LIMITS = {"cgroup2": ("memory.max", "memory.high"), "cgroup": ("memory.limit_in_bytes",)}


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory or the lowest limit of this process's control groups (v1 and v2), if that is less.

    1 GiB if the system says neither.

    Args:
        root: where `/proc` and `/sys` are.
    """
    limits = list(_group_limits(root))
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits, default=1 << 30)


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's groups and of the groups that contain them."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except (OSError, ValueError):
        return
    # A line is "number:controllers:path"; version 2 has no controllers.
    paths = {kind: path for _, kind, path in (line.split(":", 2) for line in groups)}
    v1 = next((path for kinds, path in paths.items() if "memory" in kinds.split(",")), None)
    for line in mounts:
        fields = line.split()
        end = fields.index("-")
        kind, options = fields[end + 1], fields[-1].split(",")
        path = paths.get("") if kind == "cgroup2" else v1 if "memory" in options else None
        if kind in _LIMITS and path is not None:
            yield from _limits_below(root / fields[4].lstrip("/"), fields[3], path, _LIMITS[kind])


def _limits_below(mount: Path, mounted: str, path: str, names: tuple[str, ...]) -> Iterator[int]:
    """Yield the limits of the group at `path` and of its parents.

    A container's mount begins at its own group, `mounted`; a path outside of that is the host's name for it.
    """
    inside = PurePosixPath(path)
    relative = inside.relative_to(mounted) if inside.is_relative_to(mounted) else PurePosixPath()
    for group in (relative, *relative.parents):
        for name in names:
            try:
                yield int((mount / group / name).read_text())
            except (OSError, ValueError):  # no such file: the group at the top; "max": no limit
                continue


# Apache's default levels, "1s 5s 10s 30s 1m ... 2h", in milliseconds; a level is an index from 1.
DELAY_LEVELS_MS: tuple[int, ...] = (
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000,
    360_000, 420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
)  # fmt: skip

FilterBitMaps = Callable[["DispatchBatch", "QueueRows"], "Sequence[bytes | None] | None"]
"""For each message, the bit map of the consumers whose filters accept it; None: no bit maps."""

EventHandler = Callable[[str, Mapping[str, object]], None]
"""Called with the event's name and its facts, in any thread: it must be quick and thread-safe."""


def ignore_event(event: str, facts: Mapping[str, object]) -> None:
    """Ignore an event."""


def _always() -> bool:
    return True


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
    commit_log_dirs: tuple[Path, ...] = ()
    """Where CommitLog files are created (RocketMQ: storePathCommitLog); by default `data_dir/commitlog`."""
    read_only_commit_log_dirs: tuple[Path, ...] = ()
    """Where CommitLog files are and no new ones are created (RocketMQ: readOnlyCommitLogStorePaths)."""
    warm_mapped_file: bool = False
    """Fault in and lock the pages of a CommitLog file before it is used (RocketMQ: warmMapedFileEnable)."""
    transient_store_pool: bool = False
    """Append to buffers, which are then committed to the files (RocketMQ: transientStorePoolEnable)."""
    transient_store_pool_size: int = 5
    """Number of buffers of `commit_log_file_size` bytes (RocketMQ: transientStorePoolSize)."""
    fast_fail_if_no_buffer: bool = False
    """Refuse puts while no buffer is free (RocketMQ: fastFailIfNoBufferInStorePool); else use the file."""
    consume_queue_entries: int = 300_000
    """Entries (20 bytes each) per ConsumeQueue file."""
    index_enabled: bool = True
    """Keep an index of message keys (RocketMQ: messageIndexEnable)."""
    index_slots: int = 5_000_000
    """Hash slots per index file (RocketMQ: maxHashSlotNum)."""
    index_entries: int = 20_000_000
    """Entries per index file, counting the first, which is never used (RocketMQ: maxIndexNum)."""
    flush_sync: bool = True
    """Serve readers only what is flushed (SYNC_FLUSH); otherwise everything appended (ASYNC_FLUSH)."""
    message_bytes_max: int = 4 << 20
    """Largest message body accepted, in bytes."""
    record_crc: bool = False
    """End every record with Apache's whole-record checksum property."""
    host: Host = field(default_factory=_default_host)
    """The IPv4 address of the store in records and offset message ids."""
    memory_bytes: int = field(default_factory=memory_limit_bytes)
    """Memory by which "still in memory" is estimated."""
    consume_queue_ext: bool = False
    """Keep extended queue entries (RocketMQ: enableConsumeQueueExt)."""
    consume_queue_ext_file_size: int = 48 << 20
    """Bytes per file of extended entries (RocketMQ: mappedFileSizeConsumeQueueExt)."""
    filter_bit_maps: FilterBitMaps | None = None
    """Computes bit maps for extended entries (RocketMQ: CommitLogDispatcherCalcBitMap)."""
    filter_bit_map_bits: int = 112
    """Length of a bit map, a multiple of 8 (RocketMQ: bitMapLengthConsumeQueueExt)."""
    reads_ahead: Callable[[], bool] = _always
    """Whether the system reads ahead in the log where a reader goes to the disk (RocketMQ: dataReadAheadEnable)."""
    queue_files_open_max: int = 512
    """How many queue files stay open, over all queues."""
    log_files_open_max: int = 256
    """How many log files stay mapped, besides those that are written. Each takes two descriptors."""
    index_files_open_max: int = 256
    """The same for index files."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """Delay of each level, from level 1."""
    is_replica: bool = False
    """The records come from a master (`append_replicated`); puts are refused."""
    check_crc: bool = True
    """Verify body checksums during recovery."""
    on_event: EventHandler = ignore_event
    """Receives events that an operator should know of; the store itself writes no log."""

    @property
    def index_dir(self) -> Path:
        """Directory of the index files."""
        return self.data_dir / "index"

    @property
    def commit_log_dir(self) -> Path:
        """Directory of the CommitLog files unless `commit_log_dirs` is set."""
        return self.data_dir / "commitlog"

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        """Directories of CommitLog files that are not read-only alone; at least one."""
        return self.commit_log_dirs or (self.commit_log_dir,)

    @property
    def consume_queue_dir(self) -> Path:
        """Directory of the ConsumeQueues."""
        return self.data_dir / "consumequeue"

    @property
    def consume_queue_ext_dir(self) -> Path:
        """Directory of the extended queue entries."""
        return self.data_dir / "consumequeue_ext"

    @property
    def writable_log_dirs(self) -> tuple[Path, ...]:
        """Where new CommitLog files are created."""
        return tuple(path for path in self.log_dirs if path not in self.read_only_commit_log_dirs)
