"""Committing an offset that a member sent, with 15 or with a pull."""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.groups.offset_setting import PendingResets
from reput_broker.groups.progress import GroupProgress
from reput_broker.tables.offsets import ConsumerOffsetManager


class OffsetCommits:
    """The way of members' offsets into the table.

    Args:
        offsets: the table.
        resets: offsets that an administrator has set and the members do not know of yet.
        progress: told of the commit.
        on_commit: called after each.
        clock_ms: the time of day.
    """

    def __init__(
        self,
        offsets: ConsumerOffsetManager,
        resets: PendingResets,
        progress: GroupProgress,
        on_commit: Callable[[], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._offsets = offsets
        self._resets = resets
        self._progress = progress
        self._on_commit = on_commit
        self._clock_ms = clock_ms

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, increase_only: bool = False
    ) -> None:
        """Commit an offset of a group, topic and queue that exist; it survives `kill -9` then.

        Negative ones mean "nothing yet", and are ignored. So are those of members that have not heard yet of a reset,
        and lower ones than the committed offset of members that only go on, `increase_only`.

        Raises:
            JournalWriteFailed: it is not committed.
        """
        if offset < 0 or self._resets.is_pending(group, topic, queue_id):
            return
        self._offsets.commit(group, topic, queue_id, offset, increase_only=increase_only)
        self._progress.committed(group, topic, queue_id, self._clock_ms())
        self._on_commit()
