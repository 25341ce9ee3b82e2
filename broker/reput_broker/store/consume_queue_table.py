"""Every queue of the store: `consumequeue/TOPIC/QUEUEID/` (RocketMQ: ConsumeQueueStore)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from .consume_queue import ConsumeQueue
from .consume_queue_unit import ConsumeQueueUnit
from .file_io import sync_directory
from .options import StoreOptions
from .queue_files import QueueFileCache


class ConsumeQueueTable:
    """The queues by topic and queue id, sharing one bounded cache of open files.

    One thread owns the table; `flush` may run in another.
    """

    def __init__(self, root: Path, options: StoreOptions) -> None:
        self.root = root
        self._entries_per_file = options.consume_queue_entries
        self._on_event = options.on_event
        self._cache = QueueFileCache(options.queue_files_open_max)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def load(self, *, after_crash: bool = False) -> None:
        """Find every queue on the disk: a directory is a topic, a numeric directory in it a queue.

        After a crash files behind a gap do not count; `recover` removes them.

        Raises:
            ForeignFile, StoreDamaged: a queue's files do not fit the configured size or have a gap.
        """
        if not self.root.is_dir():
            return
        for topic in sorted(path for path in self.root.iterdir() if path.is_dir()):
            for queue in sorted(topic.iterdir()):
                if queue.is_dir() and queue.name.isascii() and queue.name.isdecimal():
                    self.find_or_create(topic.name, int(queue.name)).load(after_crash=after_crash)

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, new and without files if there is none. Nothing is written for it yet."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            assert topic not in ("", ".", "..")
            assert "/" not in topic
            directory = self.root / topic / str(queue_id)
            queue = ConsumeQueue(
                topic, queue_id, directory, self._entries_per_file, self._cache, self._on_event
            )
            # A new dict each time would cost too much; the flush thread takes its own list of the values.
            self._queues[topic, queue_id] = queue
        return queue

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue if it exists."""
        return self._queues.get((topic, queue_id))

    def queues(self) -> list[ConsumeQueue]:
        """Return all queues, in the order in which they appeared."""
        return list(self._queues.values())

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.queues())

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of one topic."""
        return [queue for queue in self._queues.values() if queue.topic == topic]

    # -- over all queues -----------------------------------------------------------------------------------

    def recover(self, *, check_last: Callable[[ConsumeQueue, ConsumeQueueUnit], bool] | None = None) -> None:
        """Recover every queue.

        Args:
            check_last: asked after a crash whether a queue's last unit, if it may be torn, is what the log says.
        """
        for queue in self.queues():
            if check_last is None:
                queue.recover()
            else:
                queue.recover(check_last=_for_queue(check_last, queue))

    def truncate_dirty(self, physical_offset: int) -> None:
        """Remove the units of records at or after a physical offset from every queue; nobody is told."""
        for queue in self.queues():
            queue.truncate_dirty(physical_offset, quiet=True)

    def max_physical_offset(self) -> int:
        """Return the furthest end of an indexed record, -1 if no queue knows one."""
        return max((queue.max_physical_offset for queue in self._queues.values()), default=-1)

    def entries(self) -> int:
        """Return the sum of all maximum queue offsets: how many entries were ever made for the queues there are."""
        return sum(queue.max_queue_offset for queue in self.queues())

    def entries_before(self, physical_offset: int) -> int:
        """Return what `entries` was when the log had been dispatched up to an offset."""
        return sum(queue.queue_offset_of(physical_offset) for queue in self.queues())

    def correct_min_offsets(self, min_physical_offset: int) -> None:
        """Move every queue's minimum to the first message that is still in the log."""
        for queue in self.queues():
            queue.correct_min_offset(min_physical_offset)

    @property
    def bytes_to_flush(self) -> int:
        """Bytes put and not yet known to be on the disk, over all queues."""
        return sum(queue.bytes_to_flush for queue in self.queues())

    def flush(self) -> int:
        """Bring every queue's units to the disk; return how many queues had any. Blocks.

        Raises:
            FlushFailed: a sync failed, now or earlier; the queues after it were not flushed.
        """
        flushed = 0
        for queue in self.queues():
            if queue.bytes_to_flush:
                queue.flush()
                flushed += 1
        return flushed

    # -- removing ------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete a topic's queues with their files and directories; return how many queues there were."""
        queues = self.of_topic(topic)
        for queue in queues:
            queue.destroy()
            del self._queues[queue.topic, queue.queue_id]
        directory = self.root / topic
        if queues and directory.is_dir() and not any(directory.iterdir()):
            shutil.rmtree(directory)
            sync_directory(self.root)
        return len(queues)

    def destroy(self) -> None:
        """Empty every queue: what a store does whose log is gone. The queues stay in the table."""
        for queue in self.queues():
            queue.destroy()

    def close(self) -> None:
        """Close all files. Flushes nothing."""
        self._cache.close()


def _for_queue(
    check: Callable[[ConsumeQueue, ConsumeQueueUnit], bool], queue: ConsumeQueue
) -> Callable[[ConsumeQueueUnit], bool]:
    return lambda unit: check(queue, unit)
