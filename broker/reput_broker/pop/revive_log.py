"""Puts check points and acknowledgements into the log (`checkpoints`), delayed until their time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.pop.checkpoints import (
    REVIVE_QUEUES,
    Ack,
    CheckPoint,
    Passed,
    ack_record,
    check_point_record,
)
from reput_broker.pop.positions import Written
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tenure import Core
from reput_protocol.names import revive_topic
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.record import Record

_ROOM = 64


class ReviveLog:
    """What one broker writes for its revive topic: until it is due, a record is in the topic of the timer.

    Attributes:
        topic: its name.

    Args:
        delay_redirects: delays the records.
    """

    def __init__(self, core: Core, delay_redirects: DelayRedirects) -> None:
        self.topic = revive_topic(core.config.cluster)
        self._store = core.store
        self._delay_redirects = delay_redirects
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
        return self._delay_redirects.redirect(record, record.property_map()) or record

    def put(self, records: Sequence[Record]) -> tuple[PutResult, list[Written]]:
        """Put records in order under the put lock, those of one queue together.

        Records that were made at different times can be in different queues: those that are due already are in the
        revive topic, the others in that of the timer.

        Returns:
            The last result, after which nothing more was put if it is not PUT_OK; where each record is.
        """
        result, places = PutResult(PutStatus.PUT_OK), list[Written]()
        for (topic, queue_id), some in groupby(records, lambda record: (record.topic, record.queue_id)):
            result = self._store.put_records(together := list(some))
            if result.status is not PutStatus.PUT_OK:
                break
            places += [Written(topic, queue_id, result.queue_offset + n) for n in range(len(together))]
        return result, places


def size_of(records: Sequence[Record]) -> int:
    """Return an upper bound of the bytes of records in the log."""
    return sum(
        record_bytes(len(record.body), record.topic, len(record.properties)) + _ROOM for record in records
    )
