"""How far each group has popped each queue (RocketMQ: PopBufferMergeService's offsets, QueueLockManager).

A pop takes messages from the position on and moves it. The group's offset follows once the check point of the pop can
be read: under `flush = "sync"` it is then on disk, in an elected group also with its members. So after a crash a group
pops again what it popped without a check point, and nothing is passed over. An acknowledgement is in the log behind its
check point, so once it is answered the offset has moved, and the message is not popped again.

When a broker's role changes, the offsets are kept in step with the check points in the log. A slave has the groups'
offsets as they were up to a second ago, but the check points of all pops since that its master had replicated. Each
names from where to where its pop has moved its group. Without this the group would pop the same messages again, under
new check points: what was acknowledged before would be delivered once more, and what was not would be redelivered for
the old check point too. RocketMQ has no counterpart, and delivers twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from reput_broker.pop.checkpoints import CheckPoint, Passed, read_entry, read_passed
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offset_journal import JournalWriteFailed
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.tables import Tables
from reput_broker.tenure.core import Core
from reput_protocol import properties as names
from reput_protocol.errors import InvalidName, ReputError
from reput_protocol.names import POP_PASSED_GROUP, RETRY_PREFIX, TIMER_TOPIC
from reput_protocol.record.record import RecordView

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
        on_reset: called with a place whose position an administrator has set.
    """

    def __init__(self, core: Core, on_reset: Callable[[PoppedQueue], None]) -> None:
        self._store = core.store
        self._offsets = core.tables.offsets
        self._resets = core.groups.resets
        self._on_commit = core.tables.offsets_soon.committed
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


def expect_positions(store: MessageStore, tables: Tables, revive_topic: str) -> None:
    """Note, as a slave begins, that its offsets have no check point that its log does not have yet.

    An earlier note stays, unless the log was truncated since. After a power cut the note and the offsets are of one
    moment. Blocks.

    Raises:
        JournalWriteFailed, OSError: they cannot be written.
    """
    end = store.max_physical_offset
    known_until = tables.offsets.query(POP_PASSED_GROUP, revive_topic, 0)
    if known_until is None or known_until > end:
        tables.offsets.commit(POP_PASSED_GROUP, revive_topic, 0, end)
    save_now(tables.offsets)  # also if an earlier start had no room for it


def recover_positions(store: MessageStore, tables: Tables, revive_topic: str) -> None:
    """Commit what the check points say that the offsets, taken over from a master, do not have yet. Blocks.

    Does nothing if the offsets are this broker's own, which are never behind. Failures are logged: then messages are
    popped again.
    """
    known_until = tables.offsets.query(POP_PASSED_GROUP, revive_topic, 0)
    if known_until is None:
        return
    moved: Counter[tuple[str, str, int]] = Counter()

    def move(passed: PassedByPop) -> None:
        """Move a group over what a pop has passed, unless it is elsewhere because its offset was reset."""
        group, topic, queue_id = place = passed.place
        with suppress(InvalidName):
            # A group of the last second; what it popped is not redelivered while it does not exist.
            tables.groups.find_or_create(group)
        offset = tables.offsets.query(group, topic, queue_id)
        if offset is None:
            offset = passed.start
        if passed.start <= offset < passed.end <= store.max_offset_in_queue(topic, queue_id):
            tables.offsets.commit(group, topic, queue_id, passed.end)
            moved[place] += 1

    try:
        store.replay(known_until, _CheckPoints(revive_topic, move))
        tables.offsets.remove_group(POP_PASSED_GROUP)
    except (ReputError, StoreDamaged) as error:
        log.warning("popped_messages_uncertain", detail=str(error), hint="groups may pop the last messages again")
    if moved:
        log.info("pop_positions_recovered", queues=len(moved), pops=moved.total())


class PassedByPop(NamedTuple):
    """How a pop has moved its group."""

    place: tuple[str, str, int]
    """Group, topic and queue."""
    start: int
    end: int


def pops_since(store: MessageStore, revive_topic: str, physical_offset: int) -> list[PassedByPop]:
    """Return the pops whose check points are in the log from an offset on, in its order. Blocks.

    Raises:
        StoreDamaged: a record cannot be read.
    """
    found: list[PassedByPop] = []
    store.replay(physical_offset, _CheckPoints(revive_topic, found.append), until=store.max_physical_offset)
    return found


def take_back_positions(tables: Tables, pops: Sequence[PassedByPop]) -> None:
    """Move groups back to where they were before pops, whose check points are to be cut off: else nothing would
    redeliver what is not acknowledged.

    Raises:
        JournalWriteFailed: there is no room.
    """
    for (group, topic, queue_id), start, end in reversed(pops):
        offset = tables.offsets.query(group, topic, queue_id)
        if offset is not None and start < offset <= end:
            tables.offsets.commit(group, topic, queue_id, start)


class _CheckPoints:
    """A dispatcher that reads the check points of pops in the order of the log."""

    def __init__(self, revive_topic: str, take: Callable[[PassedByPop], None]) -> None:
        self._revive_topic = revive_topic
        self._pass = take

    def dispatch(self, batch: DispatchBatch) -> None:
        """Apply the check points of a batch."""
        found = [
            physical_offset - batch.start_offset
            for rows in batch.queues
            if rows.topic in (TIMER_TOPIC, self._revive_topic)
            for physical_offset in rows.physical_offsets
        ]
        for position in sorted(found):
            self._take(RecordView(batch.data, position))

    def _take(self, record: RecordView) -> None:
        if record.prepared_transaction_offset:
            return  # the timer's copy of one that was applied before
        properties = record.property_map()
        if properties.get(names.REAL_TOPIC, record.topic) != self._revive_topic:
            return
        passed = read_passed(properties)
        point = read_entry(record, "")
        if passed is not None and isinstance(point, CheckPoint):
            place = point.key.group, point.key.topic, point.key.queue_id
            self._pass(PassedByPop(place, passed.start, passed.end))
