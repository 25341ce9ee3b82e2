"""How far each group has popped each queue (RocketMQ: PopBufferMergeService's offsets, QueueLockManager).

A pop takes messages from the position on and moves it. The group's offset follows once the check point of the pop can
be read: under `flush = "sync"` it is then on disk, in an elected group also with its members. So after a crash a group
pops again what it popped without a check point, and nothing is passed over. An acknowledgement is in the log behind its
check point, so once it is answered the offset has moved, and the message is not popped again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from reput_broker.groups.offset_updates import PendingResets
from reput_broker.pop.checkpoints import Passed
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offset_journal import JournalWriteFailed
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_protocol.names import RETRY_PREFIX

log = structlog.get_logger(__name__)

INIT_MAX = 1
"""A group without an offset begins at the last message (RocketMQ: ConsumeInitMode)."""


class PoppedQueue(NamedTuple):
    """A queue as one group pops it."""

    group: str
    topic: str
    queue_id: int


class Written(NamedTuple):
    """Where a check point was put, in the timer's topic or in the revive topic: it can be read once this queue is
    longer than `queue_offset`.
    """

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class _Position:
    next_offset: int
    uncommitted: deque[tuple[Written | None, int]] = field(default_factory=deque)
    """Check points that cannot be read yet, in order, with the offset after each pop; None: there was none."""


class PopPositions:
    """The positions of one broker. One owner.

    Args:
        resets: offsets that an administrator has set; a pop takes them, as a pull does.
        on_commit: called after each commit.
        on_reset: called with a place whose position an administrator has set.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsetManager,
        resets: PendingResets,
        *,
        on_commit: Callable[[], None],
        on_reset: Callable[[PoppedQueue], None],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._resets = resets
        self._on_commit = on_commit
        self._on_reset = on_reset
        self._positions: dict[PoppedQueue, _Position] = {}
        self._waiting: dict[tuple[str, int], deque[tuple[Written, PoppedQueue]]] = {}
        self._locked: set[PoppedQueue] = set()
        self._unmatched_from: dict[PoppedQueue, int] = {}
        """Where the messages begin that were passed after the last check point, because they do not fit the filter."""

    # -- locks ---------------------------------------------------------------------------------------------

    def lock(self, place: PoppedQueue) -> bool:
        """Lock a place for one pop; False if another has it."""
        if place in self._locked:
            return False
        self._locked.add(place)
        return True

    def unlock(self, place: PoppedQueue) -> None:
        """Release a place."""
        self._locked.discard(place)

    # -- offsets -------------------------------------------------------------------------------------------

    def begin(self, place: PoppedQueue, init_mode: int) -> int:
        """Return the offset at which a pop begins. A group without one gets its first (RocketMQ: getPopOffset).

        Raises:
            JournalWriteFailed: the first offset could not be saved.
        """
        reset = self._resets.take(*place)
        if reset is not None:  # the reset has committed it
            self.forget_place(place)
            self._on_reset(place)
            return reset
        offset = self._offsets.query(*place)
        if offset is None:
            offset = self.first_offset(place, init_mode)
            self._offsets.commit(*place, offset)
            self._on_commit()
        return self._furthest(place, offset)

    def committed(self, place: PoppedQueue) -> int | None:
        """Return the group's offset."""
        return self._offsets.query(*place)

    def look(self, place: PoppedQueue) -> int:
        """Return where the next pop would begin, at the latest; changes nothing."""
        offset = self._offsets.query(*place)
        if offset is None:
            offset = self._store.min_offset_in_queue(place.topic, place.queue_id)
        return self._furthest(place, offset)

    def _furthest(self, place: PoppedQueue, committed: int) -> int:
        position = self._positions.get(place)
        return committed if position is None else max(committed, position.next_offset)

    def first_offset(self, place: PoppedQueue, init_mode: int) -> int:
        """Return the first offset of a group (RocketMQ: getInitOffset)."""
        _, topic, queue_id = place
        low = self._store.min_offset_in_queue(topic, queue_id)
        if init_mode != INIT_MAX or topic.startswith(RETRY_PREFIX):
            return low
        if low <= 0 and self._store.is_in_memory(topic, queue_id, 0):
            return 0
        return max(0, self._store.max_offset_in_queue(topic, queue_id) - 1)

    def commit(self, place: PoppedQueue, offset: int) -> None:
        """Commit an offset of ordered messages, or one found to be wrong; it may be lower than before.

        Raises:
            JournalWriteFailed: it is not committed.
        """
        if not self._resets.is_pending(*place):
            self._offsets.commit(*place, offset)
            self._on_commit()

    def passing(self, place: PoppedQueue, offset: int, next_offset: int) -> Passed:
        """Return over what a pop from `offset` moves the group, counted from its last check point."""
        return Passed(self._unmatched_from.get(place, offset), next_offset)

    def passed(self, place: PoppedQueue, offset: int, next_offset: int, written: Written | None) -> None:
        """Move a position after a pop, and commit that once it is safe.

        Args:
            offset: where the pop began.
            written: the check point of what was popped; None if nothing was, because no message fits the filter.
        """
        if written is None:
            self._unmatched_from.setdefault(place, offset)
        else:
            self._unmatched_from.pop(place, None)
        position = self._positions.get(place)
        if position is None:
            position = self._positions[place] = _Position(next_offset)
        position.next_offset = next_offset
        position.uncommitted.append((written, next_offset))
        if written is not None:
            self._waiting.setdefault((written.topic, written.queue_id), deque()).append((written, place))
            if self._store.max_offset_in_queue(written.topic, written.queue_id) > written.queue_offset:
                self._readable(written.topic, written.queue_id, written.queue_offset + 1)
        else:
            self._commit_safe(place, position)

    def dispatched(self, batch: DispatchBatch) -> None:
        """Commit what pops have passed whose check points are in the batch."""
        if not self._waiting:
            return
        for rows in batch.queues:
            if (rows.topic, rows.queue_id) in self._waiting:
                self._readable(rows.topic, rows.queue_id, rows.end_queue_offset)

    def _readable(self, topic: str, queue_id: int, end: int) -> None:
        waiting = self._waiting[topic, queue_id]
        while waiting and waiting[0][0].queue_offset < end:
            written, place = waiting.popleft()
            position = self._positions.get(place)
            if position is None:
                continue  # it was reset
            for index, (one, offset) in enumerate(position.uncommitted):
                if one is written:
                    position.uncommitted[index] = (None, offset)
                    break
            self._commit_safe(place, position)
        if not waiting:
            del self._waiting[topic, queue_id]

    def _commit_safe(self, place: PoppedQueue, position: _Position) -> None:
        offset = None
        while position.uncommitted and position.uncommitted[0][0] is None:
            offset = position.uncommitted.popleft()[1]
        if offset is None:
            return
        try:
            if not self._resets.is_pending(*place):
                self._offsets.commit(*place, offset, increase_only=True)
                self._on_commit()
        except JournalWriteFailed as error:
            log.warning("offset_not_committed", group=place.group, detail=str(error))
            position.uncommitted.appendleft((None, offset))  # with the next pop
            return
        if not position.uncommitted:
            del self._positions[place]

    # -- forgetting ----------------------------------------------------------------------------------------

    def forget_place(self, place: PoppedQueue) -> None:
        """Forget the position in a queue: the next pop begins at the group's offset."""
        for table in (self._positions, self._unmatched_from):
            table.pop(place, None)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget a deleted group or topic."""
        for table in (self._positions, self._unmatched_from):
            for place in [place for place in table if group == place.group or topic == place.topic]:
                table.pop(place)
