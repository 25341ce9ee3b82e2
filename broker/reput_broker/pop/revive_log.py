"""Puts check points and acknowledgements into the log (`checkpoints`), delayed until their time."""

from __future__ import annotations

from collections.abc import Sequence

from reput_broker.core import Core
from reput_broker.delay.delay_hook import DelayHook
from reput_broker.pop.checkpoints import (
    REVIVE_QUEUES,
    Ack,
    CheckPoint,
    Passed,
    ack_record,
    check_point_record,
)
from reput_broker.store.results import PutResult, PutStatus
from reput_protocol.names import revive_topic
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.record import Record

_ROOM = 64


class ReviveLog:
    """The revive topic of one broker, as its writer sees it.

    Attributes:
        topic: its name.

    Args:
        hook: delays the records.
    """

    def __init__(self, core: Core, hook: DelayHook) -> None:
        self.topic = revive_topic(core.config.cluster)
        self._store = core.store
        self._hook = hook
        self._tables = core.tables
        self._clock_ms = core.clock_ms
        self._pops = 0

    @property
    def is_ready(self) -> bool:
        """Whether the topic exists."""
        return self._tables.topics.get(self.topic) is not None

    async def make_topic(self) -> None:
        """Create the topic, and save the table."""
        self._tables.topics.create_system(self.topic, REVIVE_QUEUES)
        await self._tables.topic_saver.save()

    def next_queue_id(self) -> int:
        """Return the revive queue for the next pop: one after the other."""
        self._pops += 1
        return self._pops % REVIVE_QUEUES

    def check_point(self, point: CheckPoint, revive_queue_id: int, passed: Passed | None = None) -> Record:
        """Return the record to put for a check point; `passed` as of `check_point_record`.

        Raises:
            Refusal: its time is too far ahead, or messages with a deliver time are disabled.
        """
        return self._delayed(
            check_point_record(
                point,
                self.topic,
                revive_queue_id,
                self._clock_ms(),
                self._store.options.host,
                passed=passed,
            )
        )

    def ack(self, ack: Ack, deliver_ms: int, revive_queue_id: int, *, is_batch: bool = False) -> Record:
        """Return the record to put for an acknowledgement; raises as `check_point`."""
        return self._delayed(
            ack_record(
                ack,
                deliver_ms,
                self.topic,
                revive_queue_id,
                self._clock_ms(),
                self._store.options.host,
                is_batch=is_batch,
            )
        )

    def _delayed(self, record: Record) -> Record:
        return self._hook.redirect(record, record.property_map()) or record

    def put(self, records: Sequence[Record]) -> PutResult:
        """Put records in order under the put lock, those of one queue together; return the last result.

        After one that is not PUT_OK nothing more is put.
        """
        result = PutResult(PutStatus.PUT_OK)
        start = 0
        while start < len(records):
            stop = start + 1
            place = records[start].topic, records[start].queue_id
            while stop < len(records) and (records[stop].topic, records[stop].queue_id) == place:
                stop += 1
            result = self._store.put_records(records[start:stop])
            if result.status is not PutStatus.PUT_OK:
                return result
            start = stop
        return result


def size_of(records: Sequence[Record]) -> int:
    """Return an upper bound of the bytes of records in the log."""
    return sum(
        record_bytes(len(record.body), record.topic, len(record.properties)) + _ROOM for record in records
    )
