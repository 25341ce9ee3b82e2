"""Up to which log offset the check points of pops are part of the groups' offsets; at a start, what those behind say.

The offsets of groups may be older than the log: those that a slave took over before it became the master, and those
that are left after a power cut. The log has the check points of all pops since, and each names from where to where its
pop has moved its group. Without them the group would pop the same messages again, under new check points: what was
acknowledged before would be delivered once more, and what was not would be redelivered for the old check point too.
RocketMQ has no counterpart, and delivers twice.

The log offset is kept with the offsets, as that of the group CID_RMQ_SYS_REPUT_POP.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import structlog

from reput_broker.pop.checkpoints import CheckPoint, read_entry, read_passed
from reput_broker.store.dispatch import DispatchBatch
from reput_broker.store.errors import StoreDamaged
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.tables import Tables
from reput_protocol import properties as names
from reput_protocol.errors import InvalidName, ReputError
from reput_protocol.names import POP_PASSED_GROUP, TIMER_TOPIC
from reput_protocol.record.view import RecordView

log = structlog.get_logger(__name__)

_UNUSED_STEP = 8 << 20


class PopProgress:
    """That log offset, of one broker as master."""

    def __init__(self, store: MessageStore, tables: Tables, revive_topic: str) -> None:
        self._store = store
        self._tables = tables
        self._revive_topic = revive_topic

    def until(self) -> int:
        """Return it as of now: the positions of pops whose check points are before it are committed."""
        end = self._store.dispatched_offset
        if self._tables.topics.get(self._revive_topic) is None:
            end -= end % _UNUSED_STEP  # there is no check point yet, and each change is written down
        return max(end, self._tables.offsets.query(POP_PASSED_GROUP, self._revive_topic, 0) or 0)

    def save(self) -> None:
        """Commit it. Raises JournalWriteFailed: it is not committed."""
        self._commit(self.until())

    def skip(self) -> None:
        """Leave out every check point until now, because offsets are set, or a group or topic is deleted.

        Raises:
            JournalWriteFailed: they are not left out.
        """
        self._commit(self._store.max_physical_offset)

    def _commit(self, until: int) -> None:
        self._tables.offsets.commit(POP_PASSED_GROUP, self._revive_topic, 0, until)
        self._tables.offsets_soon.committed()


def begin_progress(tables: Tables, revive_topic: str) -> None:
    """Note that there is no check point yet, in an empty log. Raises JournalWriteFailed."""
    tables.offsets.commit(POP_PASSED_GROUP, revive_topic, 0, 0)


def recover_positions(store: MessageStore, tables: Tables, revive_topic: str) -> None:
    """Commit what check points say that are not part of the offsets. Blocks.

    Failures are logged: then messages are popped again.
    """
    known_until = tables.offsets.query(POP_PASSED_GROUP, revive_topic, 0)
    if known_until is None:
        return  # the last version of Reput did not write it, or the broker was another's
    positions = _Positions(store, tables, revive_topic)
    try:
        store.replay(known_until, positions)
        tables.offsets.commit(POP_PASSED_GROUP, revive_topic, 0, store.dispatched_offset)
    except (ReputError, StoreDamaged) as error:
        log.warning(
            "popped_messages_uncertain", detail=str(error), hint="groups may pop the last messages again"
        )
    if positions.moved:
        log.info("pop_positions_recovered", queues=len(positions.moved), pops=positions.moved.total())


class _Positions:
    """A dispatcher that follows check points in the order of the log."""

    def __init__(self, store: MessageStore, tables: Tables, revive_topic: str) -> None:
        self._store = store
        self._tables = tables
        self._revive_topic = revive_topic
        self.moved: Counter[tuple[str, str, int]] = Counter()
        """How many pops have moved it, by group, topic and queue."""

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
            self._pass(point, *passed)

    def _pass(self, point: CheckPoint, start: int, end: int) -> None:
        """Move a group over what a pop has passed, unless it is elsewhere because its offset was reset."""
        group, topic, queue_id = point.key.group, point.key.topic, point.key.queue_id
        with suppress(InvalidName):
            # A group of the last second; what it popped is not redelivered while it does not exist.
            self._tables.groups.find_or_create(group)
        offsets = self._tables.offsets
        offset = offsets.query(group, topic, queue_id)
        if offset is None:
            offset = start
        if start <= offset < end <= self._store.max_offset_in_queue(topic, queue_id):
            offsets.commit(group, topic, queue_id, end)
            self.moved[group, topic, queue_id] += 1
