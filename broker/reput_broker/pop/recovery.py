"""Keeps the offsets of groups that pop in step with the check points in the log, when a broker's role changes.

A slave has the groups' offsets as they were up to a second ago, but the check points of all pops since that its master
had replicated. Each names from where to where its pop has moved its group. Without this the group would pop the same
messages again, under new check points: what was acknowledged before would be delivered once more, and what was not
would be redelivered for the old check point too. RocketMQ has no counterpart, and delivers twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from reput_broker.pop.checkpoints import CheckPoint, read_entry, read_passed
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.tables import Tables
from reput_protocol import properties as names
from reput_protocol.errors import InvalidName, ReputError
from reput_protocol.names import POP_PASSED_GROUP, TIMER_TOPIC
from reput_protocol.record.record import RecordView

log = structlog.get_logger(__name__)


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
        log.warning(
            "popped_messages_uncertain", detail=str(error), hint="groups may pop the last messages again"
        )
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
