"""What was dispatched is given once more, to one more dispatcher: for what is derived from the log and kept
elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dispatch import Dispatcher
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.options import StoreOptions
from reput_broker.store.reput import Reput
from reput_broker.store.stats import StoreStats


class LogReplay:
    """Replays one log, for the owner of the store.

    Args:
        log, deleted, options: as the running dispatch has them.
        dispatched_offset: how far that has come.
    """

    def __init__(
        self,
        log: CommitLog,
        deleted: DeletedTopics,
        options: StoreOptions,
        dispatched_offset: Callable[[], int],
    ) -> None:
        self._log = log
        self._deleted = deleted
        self._options = options
        self._dispatched_offset = dispatched_offset

    def replay(self, from_offset: int, dispatcher: Dispatcher) -> int:
        """Give a dispatcher every record from a log offset on that has been dispatched; return how many. Blocks.

        What lies before the log's beginning is left out. Together with the batches that the running dispatch brings
        from then on, the dispatcher has seen everything once.

        Raises:
            StoreDamaged: a record cannot be read; the dispatcher has had those before it.
        """
        end = self._dispatched_offset()
        reader = Reput(
            self._log,
            [dispatcher],
            self._deleted,
            StoreStats(),
            limit=lambda: end,
            position=max(from_offset, self._log.min_offset),
            levels_ms=self._options.delay_levels_ms,
        )
        records = 0
        while count := reader.step():
            records += count
        return records
