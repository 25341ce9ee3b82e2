"""Delete what is derived from log files that are gone: queue files, index files (RocketMQ: CleanConsumeQueueService).

These files have no age of their own. Once the log begins later than before, every queue's minimum moves to its first
message that is still there, and files whose messages have all left the log go, except each queue's last one, and any
that nothing durable follows: it says which queue offset comes next. Then everything else that follows the log has its
turn.

A log file that is being deleted while somebody still holds it counts no longer for readers, but is on the disk: after a
kill it would be part of the log again. So what is derived from it stays until it is gone. (RocketMQ does not wait.)

Nothing has to be remembered over a restart: opening a store corrects every queue's minimum, and the first round goes
over all files again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable

QUEUES_PER_STEP = 64
"""So many queues are looked at before whoever drives the steps gets a word in."""


class ExpiringFiles(Protocol):
    """Files whose contents are derived from the log, like the index's."""

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete the oldest files that speak only of records before a log offset; return how many. May block."""


class Follower(NamedTuple):
    """Files beside the queues that have their turn after them."""

    part: str
    """What they are called in metrics and logs: `index`."""
    files: ExpiringFiles
    file_size: int
    """Bytes of one file."""


class CleanedFiles(NamedTuple):
    """What one step deleted."""

    part: str
    """`consumequeue`, or a follower's."""
    deleted: int
    size: int
    """Bytes of the files as they are long; queue files are sparse and may have taken less."""


class CleanConsumeQueue:
    """The rounds over everything that follows the log. Runs in a worker thread, one call at a time.

    Args:
        queues: the queues.
        min_physical_offset: where the log begins for readers.
        kept_offset: where its oldest file on the disk begins.
        durable_offset: records before this log offset are on the disk, and so are their queue entries.
        queue_file_size: bytes of one queue file.
        followers: whose turn is after the queues'.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        *,
        min_physical_offset: Callable[[], int],
        kept_offset: Callable[[], int],
        durable_offset: Callable[[], int],
        queue_file_size: int,
        followers: Sequence[Follower] = (),
    ) -> None:
        self._queues = queues
        self._min_physical_offset = min_physical_offset
        self._kept_offset = kept_offset
        self._durable_offset = durable_offset
        self._queue_file_size = queue_file_size
        self._followers = tuple(followers)
        self._cleaned = (0, 0)
        self._begin = (0, 0)
        self._waiting: list[ConsumeQueue | Follower] = []

    def look(self) -> bool:
        """Whether the log begins later than at the end of the last round; True begins a round, or goes on with one."""
        self._begin = (self._min_physical_offset(), self._kept_offset())
        if self._begin <= self._cleaned:
            return False
        self._waiting = [*reversed(self._followers), *reversed(self._queues.queues())]
        return True

    def step(self) -> CleanedFiles | None:
        """Do the next piece of the round; None ends it. Blocks. A pause is due after a step that deleted something.

        Raises:
            FlushFailed: a file is gone, but the disk did not confirm it.
            OSError: a file could not be read or removed; the next round begins from the front.
        """
        min_offset, kept_offset = self._begin
        for _ in range(QUEUES_PER_STEP):
            if not self._waiting:
                self._cleaned = self._begin
                return None
            following = self._waiting.pop()
            if isinstance(following, Follower):
                part, files, file_size = following
                count = files.delete_expired(kept_offset)
            else:
                part, file_size = "consumequeue", self._queue_file_size
                following.correct_min_offset(min_offset)
                count = following.delete_expired(kept_offset, self._durable_offset())
            if count:
                return CleanedFiles(part, count, count * file_size)
        return CleanedFiles("consumequeue", 0, 0)
