"""Moves the offsets of groups that pop, when a slave becomes the master, to where the last master had them.

A slave has the groups' offsets as they were up to a second ago, but the check points of all pops since that its master
had replicated. Each names from where to where its pop has moved its group. Without this the group would pop the same
messages again, under new check points: what was acknowledged before would be delivered once more, and what was not
would be redelivered for the old check point too. RocketMQ has no counterpart, and delivers twice.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import structlog

from reput_broker.pop.checkpoints import CheckPoint, read_entry, read_passed
from reput_broker.store.dispatch import DispatchBatch
from reput_broker.store.errors import StoreDamaged
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.tables import Tables
from reput_protocol import properties as names
from reput_protocol.errors import InvalidName, ReputError
from reput_protocol.names import POP_PASSED_GROUP, TIMER_TOPIC
from reput_protocol.record.view import RecordView

log = structlog.get_logger(__name__)


def expect_positions(store: MessageStore, tables: Tables, revive_topic: str) -> None:
    """Note, as a slave begins, that its offsets have no check point that its log does not have yet.

    An earlier note stays, unless the log was truncated since. After a power cut the note and the offsets are of one
    moment. Blocks.

    Raises:
        JournalWriteFailed, OSError: there is no room.
    """
    end = store.max_physical_offset
    known_until = tables.offsets.query(POP_PASSED_GROUP, revive_topic, 0)
    if known_until is None or known_until > end:
        tables.offsets.commit(POP_PASSED_GROUP, revive_topic, 0, end)
        save_now(tables.offsets)


def recover_positions(store: MessageStore, tables: Tables, revive_topic: str) -> None:
    """Commit what the check points say that the offsets, taken over from a master, do not have yet. Blocks.

    Does nothing if the offsets are this broker's own, which are never behind. Failures are logged: then messages are
    popped again.
    """
    known_until = tables.offsets.query(POP_PASSED_GROUP, revive_topic, 0)
    if known_until is None:
        return
    positions = _Positions(store, tables, revive_topic)
    try:
        store.replay(known_until, positions)
        tables.offsets.remove_group(POP_PASSED_GROUP)
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
