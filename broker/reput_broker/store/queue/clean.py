"""Delete queue and index files of deleted log files (RocketMQ: CleanConsumeQueueService).

When the log begins later than before, every queue's minimum advances to its first message that is still in the log.
Files whose messages have all left the log are deleted, except each queue's last one, and any that is not followed by
durable entries: it determines the next queue offset. Then follow the other files that are derived from the log.

A log file that is being deleted while it is held no longer counts for readers, but would be part of the log again after
a kill. So what is derived from it stays until it is gone. (RocketMQ does not wait.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable

QUEUES_PER_STEP = 64
"""Number of queues examined per step."""


class ExpiringFiles(Protocol):
    """Files whose contents are derived from the log, such as the index."""

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete the oldest files that only refer to records before a log offset; return how many. May block."""


class DerivedFiles(NamedTuple):
    """Files that are cleaned after the queues."""

    part: str
    """Their name in metrics and logs: `index`."""
    files: ExpiringFiles
    file_size: int


class CleanedFiles(NamedTuple):
    """What one step deleted."""

    part: str
    """`consumequeue`, or the part of a follower."""
    deleted: int
    size: int
    """Nominal bytes of the files; queue files are sparse and may have taken less."""


class CleanConsumeQueue:
    """Deletes files that follow the log, in rounds. Runs in a worker thread, one call at a time.

    Args:
        min_physical_offset: where the log begins for readers.
        kept_offset: where its oldest file on disk begins.
        durable_offset: records before this log offset and their queue entries are on disk.
        followers: cleaned after the queues.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        *,
        min_physical_offset: Callable[[], int],
        kept_offset: Callable[[], int],
        durable_offset: Callable[[], int],
        queue_file_size: int,
        followers: Sequence[DerivedFiles] = (),
    ) -> None:
        self._queues = queues
        self._min_physical_offset = min_physical_offset
        self._kept_offset = kept_offset
        self._durable_offset = durable_offset
        self._queue_file_size = queue_file_size
        self._followers = tuple(followers)
        self._cleaned = (0, 0)
        self._begin = (0, 0)
        self._waiting: list[ConsumeQueue | DerivedFiles] = []

    def look(self) -> bool:
        """Whether the log begins later than in the last round; True begins a round, or continues one."""
        self._begin = (self._min_physical_offset(), self._kept_offset())
        if self._begin <= self._cleaned:
            return False
        self._waiting = [*reversed(self._followers), *reversed(self._queues.queues())]
        return True

    def step(self) -> CleanedFiles | None:
        """Execute the next part of the round; None ends it. Blocks. Pause after a deletion.

        Raises:
            FlushFailed: a file is deleted, but the sync of the directory failed.
            OSError: a file could not be read or removed; the next round starts over.
        """
        min_offset, kept_offset = self._begin
        for _ in range(QUEUES_PER_STEP):
            if not self._waiting:
                self._cleaned = self._begin
                return None
            following = self._waiting.pop()
            if isinstance(following, DerivedFiles):
                part, files, file_size = following
                count = files.delete_expired(kept_offset)
            else:
                part, file_size = "consumequeue", self._queue_file_size
                following.correct_min_offset(min_offset)
                count = following.delete_expired(kept_offset, self._durable_offset())
            if count:
                return CleanedFiles(part, count, count * file_size)
        return CleanedFiles("consumequeue", 0, 0)
