"""Every queue of the store: `consumequeue/TOPIC/QUEUEID/` (RocketMQ: ConsumeQueueStore); where each begins and ends,
and which offset belongs to a store time.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from reput_broker.store.base.file_io import sync_directory
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.extension import ConsumeQueueExt
from reput_broker.store.queue.files import QueueFileCache
from reput_protocol.codes import BoundaryType
from reput_protocol.kernel.records import crc32
from reput_protocol.store.unit import ConsumeQueueUnit, unpack_units

_FLUSHED_ALONE_MAX = 32
_FLUSH_THREADS = 8  # 10,000 syncs take half a minute in one thread, two seconds in eight


DELETED_DIR: Final = ".deleted"
"""In `consumequeue` and `consumequeue_ext`: has the directories of deleted topics until their files are removed.
Readers do not take it for a topic: names of topics have no dot, and what is in it is not the number of a queue."""


class DeletedQueues(NamedTuple):
    """What a deletion of topics took out of the table."""

    queues: int
    entries: int


class ConsumeQueueTable:
    """The queues by topic and queue id, with one bounded cache of open files.

    One thread owns the table; `flush` and `remove_deleted` may each run in another.
    """

    def __init__(self, root: Path, options: StoreOptions) -> None:
        self.root = root
        self._options = options
        self._entries_per_file = options.consume_queue_entries
        self._on_event = options.on_event
        self._cache = QueueFileCache(options.queue_files_open_max)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.get = self._queues.get
        """Returns the queue of a (topic, queue id) if it exists."""
        self._of_topic: dict[str, list[ConsumeQueue]] = {}
        self._orphans: list[ConsumeQueueExt] = []
        self._set_aside_lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._queues)

    def load(self, *, after_crash: bool = False) -> None:
        """Find every queue on disk: a directory is a topic, a numeric directory in it a queue.

        Changes nothing. After a crash, files after a gap do not count; `apply_recovery` removes them.

        Raises:
            ForeignFile, StoreDamaged: a queue's files do not fit the configured size or have a gap.
        """
        for topic, queue_id in _queues_below(self.root):
            self.find_or_create(topic, queue_id).load(after_crash=after_crash)
        if self._options.consume_queue_ext:
            for topic, queue_id in _queues_below(self._options.consume_queue_ext_dir):
                if (topic, queue_id) not in self._queues:
                    self._orphans.append(self._make_ext(topic, queue_id))
                    self._orphans[-1].load(after_crash=after_crash)

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, creating it without files if necessary. Nothing is written yet."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            assert topic not in ("", ".", "..")
            assert "/" not in topic
            directory = self.root / topic / str(queue_id)
            ext = self._make_ext(topic, queue_id) if self._options.consume_queue_ext else None
            queue = ConsumeQueue(topic, queue_id, directory, self._entries_per_file, self._cache, self._on_event, ext)
            # Copying the dict each time would be expensive; the flush thread copies the list of values.
            self._queues[topic, queue_id] = queue
            self._of_topic.setdefault(topic, []).append(queue)
        return queue

    def _make_ext(self, topic: str, queue_id: int) -> ConsumeQueueExt:
        options = self._options
        return ConsumeQueueExt(
            options.consume_queue_ext_dir / topic / str(queue_id),
            options.consume_queue_ext_file_size,
            options.filter_bit_map_bits // 8,
            self._cache,
        )

    def queues(self) -> list[ConsumeQueue]:
        """Return all queues, in the order in which they appeared."""
        return list(self._queues.values())

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.queues())

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of one topic."""
        return list(self._of_topic.get(topic, ()))

    # -- over all queues -----------------------------------------------------------------------------------

    def recover(self, min_physical_offset: int = 0) -> None:
        """Find where every queue ends, in a log that begins at `min_physical_offset`; changes nothing.

        See `ConsumeQueue.recover` for what must follow.
        """
        for queue in self.queues():
            queue.recover(min_physical_offset=min_physical_offset)

    def apply_recovery(self) -> None:
        """Truncate what follows the end of every queue, and the extended entries that belong to none."""
        for queue in self.queues():
            queue.apply_recovery()
        self.apply_ext_recovery()

    @property
    def ext_is_lost(self) -> bool:
        """Whether a queue must be rebuilt because extended entries of it are gone."""
        return any(queue.ext_is_lost for queue in self._queues.values())

    def apply_ext_recovery(self) -> None:
        """Truncate every queue's extended entries after its last one, and delete those that no queue has."""
        for queue in self.queues():
            queue.apply_ext_recovery()
        orphans, self._orphans = self._orphans, []
        for ext in orphans:
            ext.drop_strays()
            ext.destroy()

    def truncate_dirty(self, physical_offset: int, min_physical_offset: int = 0) -> None:
        """Remove the units of records at or after a physical offset from every queue, without an event."""
        for queue in self.queues():
            queue.truncate_dirty(physical_offset, quiet=True, min_physical_offset=min_physical_offset)

    def max_physical_offset(self) -> int:
        """Return the furthest end of an indexed record, -1 if unknown."""
        return max((queue.max_physical_offset for queue in self._queues.values()), default=-1)

    def entries(self) -> int:
        """Return the number of entries ever written to the present queues."""
        return sum(queue.max_queue_offset for queue in self.queues())

    def correct_min_offsets(self, min_physical_offset: int) -> None:
        """Advance every queue's minimum to the first message that is still in the log."""
        for queue in self.queues():
            queue.correct_min_offset(min_physical_offset)

    @property
    def bytes_to_flush(self) -> int:
        """Bytes put and not yet known to be on disk, over all queues."""
        return sum(queue.bytes_to_flush for queue in self.queues())

    def flush(self, least_pages: int = 0) -> bool:
        """Sync the units of every queue that has enough of them. Blocks.

        Several threads sync many queues at once: a sync is mostly waiting, and the file system combines concurrent
        ones.

        Args:
            least_pages: skip queues with fewer unsynced pages than this and no full file; 0 skips none.

        Returns:
            Whether none was skipped: everything put before the call is on disk.

        Raises:
            FlushFailed: a sync failed, now or earlier; some of the other queues were not flushed.
        """
        due: list[ConsumeQueue] = []
        is_complete = True
        for queue in self.queues():
            if queue.is_able_to_flush(least_pages):
                due.append(queue)
            elif queue.bytes_to_flush:
                is_complete = False
        if len(due) <= _FLUSHED_ALONE_MAX:
            for queue in due:
                queue.flush()
        else:
            with ThreadPoolExecutor(_FLUSH_THREADS, "flush-queues") as threads:
                for _ in threads.map(ConsumeQueue.flush, due):
                    pass
        return is_complete

    # -- removing ------------------------------------------------------------------------------------------

    def delete_topics(self, topics: Iterable[str]) -> DeletedQueues:
        """Take the queues of topics out of the table, durably.

        Their directories are moved away, which takes the same time for any number of files; `remove_deleted` removes
        the files.
        """
        queues = entries = 0
        changed: set[Path] = set()
        for topic in topics:
            found = self._of_topic.pop(topic, [])
            queues += len(found)
            for queue in found:
                entries += queue.max_queue_offset
                # First, so that a flush that runs meanwhile does not miss the files.
                queue.forget()
                del self._queues[queue.topic, queue.queue_id]
            for root in (self.root, self._options.consume_queue_ext_dir):
                directory = root / topic
                if found and directory.is_dir():
                    self._set_aside(directory)
                    self._cache.forget_topic(directory)
                    changed.add(root)
        for directory in changed:
            sync_directory(directory)
        return DeletedQueues(queues, entries)

    def _set_aside(self, directory: Path) -> None:
        aside = directory.parent / DELETED_DIR
        try:
            with self._set_aside_lock:
                aside.mkdir(exist_ok=True)
                names = (aside / f"{directory.name}.{number}" for number in count(1))
                directory.rename(next(path for path in names if not path.exists()))
        except OSError:  # such as a full disk, which a deletion is to help
            shutil.rmtree(directory)

    def remove_deleted(self) -> bool:
        """Remove the files of one queue of a deleted topic; return whether there was one.

        Blocks; for a worker thread. Also of topics that an earlier process deleted.

        Raises:
            OSError: it is left for the next call.
        """
        for root in (self.root, self._options.consume_queue_ext_dir):
            aside = root / DELETED_DIR
            topic = _any_in(aside)
            if topic is None:
                continue
            queue = _any_in(topic)
            if queue is not None and queue.is_dir():
                shutil.rmtree(queue)
            elif queue is not None:
                queue.unlink()
            else:
                topic.rmdir()
                with self._set_aside_lock, suppress(OSError):  # there is another topic
                    aside.rmdir()
            return True
        return False

    def close(self) -> None:
        """Close all files. Flushes nothing."""
        self._cache.close()


def _any_in(directory: Path) -> Path | None:
    """Return something in a directory; None if it is empty or does not exist."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            return directory / entry.name
    return None


def _queues_below(root: Path) -> list[tuple[str, int]]:
    if not root.is_dir():
        return []
    return [
        (topic.name, int(queue.name))
        for topic in sorted(path for path in root.iterdir() if path.is_dir())
        for queue in sorted(topic.iterdir())
        if queue.is_dir() and queue.name.isascii() and queue.name.isdecimal()
    ]


def queues_digest(queues: ConsumeQueueTable) -> int:
    """A checksum of where every queue's files begin and its entries end."""
    return digest_of_ends(
        (queue.topic, queue.queue_id, queue.first_queue_offset, queue.max_queue_offset, queue.max_physical_offset)
        for queue in queues
        if queue.has_files
    )


def digest_of_ends(ends: Iterable[tuple[str, int, int, int, int]]) -> int:
    """Return the checksum of (topic, queue id, first and next queue offset, end of the last record) tuples."""
    return crc32(repr(sorted(ends)).encode())


_NEAR_END_UNITS = 1024
_SAMPLED_UNITS = 16


@dataclass(eq=False, repr=False)
class QueueOffsets:
    """Looks up queue offsets, for the owner of the store."""

    _log: CommitLog
    _queues: ConsumeQueueTable
    _memory_bytes: int

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset of the first message that is still in the log, 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_queue_offset

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next readable message, 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.max_queue_offset

    def durable_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last message that is on disk, 0 for an unknown queue.

        Under SYNC_FLUSH readers see nothing else; otherwise a power failure may take back the end of a queue.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_queue_offset, queue.max_queue_offset
        flushed = self._log.flushed_offset
        if flushed >= self._log.max_offset:
            return high
        # The boundary is near the end; reading units far before it may need the disk.
        step = _NEAR_END_UNITS
        while high - step > low:
            unit = queue.get_unit(high - step)
            if unit is None or unit.end_offset <= flushed:
                low = high - step
                break
            high, step = high - step, 2 * step
        while low < high:
            middle = (low + high) // 2
            unit = queue.get_unit(middle)
            if unit is not None and unit.end_offset > flushed:
                high = middle
            else:
                low = middle + 1
        return high

    def offset_by_timestamp(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """The queue offset for a store time (RocketMQ: getOffsetInQueueByTime).

        LOWER: the first message stored at or after the time, the end of the queue if there is none.
        UPPER: the last one stored at or before it. 0 for an unknown queue.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        return queue.offset_by_timestamp(
            timestamp_ms,
            "lower" if boundary is BoundaryType.LOWER else "upper",
            self._store_time_of,
            self._log.min_offset,
        )

    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """The store time of the first message still in the log, in milliseconds; -1 if there is none."""
        return self.store_timestamp(topic, queue_id, self.min_offset_in_queue(topic, queue_id))

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of one message in milliseconds, -1 if there is no such message."""
        physical_offset = self._physical_offset_of(topic, queue_id, offset)
        return -1 if physical_offset is None else self._log.store_timestamp_at(physical_offset)

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is within 40 % of the machine's memory of the log's end (RocketMQ's estimate)."""
        physical_offset = self._physical_offset_of(topic, queue_id, offset)
        return physical_offset is not None and self._log.max_offset - physical_offset <= self._memory_bytes

    def estimated_bytes(self, topic: str, queue_id: int) -> int:
        """Return what the messages of a queue take in the log, estimated from the sizes of the last ones."""
        queue = self._queues.get((topic, queue_id))
        count = 0 if queue is None else queue.max_queue_offset - queue.min_queue_offset
        if queue is None or count <= 0:
            return 0
        start = max(queue.min_queue_offset, queue.max_queue_offset - _SAMPLED_UNITS)
        units = unpack_units(queue.read_units(start, _SAMPLED_UNITS))
        return count * sum(unit.size for unit in units) // len(units) if units else 0

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[ConsumeQueueUnit]:
        """Return at most `count` entries of a queue from a queue offset on, with their tags codes.

        Fewer if a file of the queue ends; none below the queue's minimum.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset < queue.min_queue_offset:
            return []
        return unpack_units(queue.with_tags_codes(queue.read_units(offset, count)))

    def _physical_offset_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queues.get((topic, queue_id))
        unit = None if queue is None else queue.get_unit(offset)
        return None if unit is None else unit.physical_offset

    def _store_time_of(self, physical_offset: int, size: int) -> int:
        del size
        return self._log.store_timestamp_at(physical_offset)
