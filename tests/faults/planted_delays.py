"""Bugs to plant in the schedule of delayed messages; see planted.py."""

from __future__ import annotations

import pytest

from reput_broker.delay import delayed_record, deliverer
from reput_broker.delay.delayed_record import DelayedRecord
from reput_broker.delay.timer_checkpoint import TimerProgress
from reput_broker.delay.timer_log import TimerLog
from reput_broker.delay.timer_message_store import TimerMessageStore
from reput_broker.delay.waiting_messages import Canceller
from reput_broker.store.base.results import PutResult, PutStatus
from reput_protocol.record.record import Record


def copies_name_nobody(patch: pytest.MonkeyPatch) -> None:
    """A delivered copy does not say which delayed record it was made of."""
    patch.setattr(delayed_record, "origin_field", lambda _: 0)


def progress_ahead(patch: pytest.MonkeyPatch) -> None:
    """The saved progress says that a message has its unit which has none yet."""
    real = TimerMessageStore.progress

    def ahead(timers: TimerMessageStore, log_end: int) -> TimerProgress:
        progress = real(timers, log_end)
        return progress._replace(queue_offset=progress.queue_offset + 1)

    patch.setattr(TimerMessageStore, "progress", ahead)


def slots_passed_too_soon(patch: pytest.MonkeyPatch) -> None:
    """A slot counts as done with while messages of it wait."""
    real = TimerMessageStore.progress

    def ahead(timers: TimerMessageStore, log_end: int) -> TimerProgress:
        progress = real(timers, log_end)
        return progress._replace(read_ms=progress.read_ms + 2000)

    patch.setattr(TimerMessageStore, "progress", ahead)


def units_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Units that are not on disk count as synced, and are not compared."""
    patch.setattr(TimerLog, "flush", lambda log: log.end)
    patch.setattr(TimerLog, "holds", lambda *_: True)
    real = TimerLog.cut
    patch.setattr(TimerLog, "cut", lambda log, end: real(log, min(end, log.end)))


def cancelled_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Cancelling is answered and no record is written."""
    real = Canceller._put

    def put(cancelling: Canceller, delayed: DelayedRecord, record: Record) -> PutResult:
        with pytest.MonkeyPatch.context() as inner:
            store = cancelling._core.store
            done = PutResult(PutStatus.PUT_OK, 0, 0, store.max_physical_offset)
            inner.setattr(store, "put_record", lambda _: done)
            return real(cancelling, delayed, record)

    patch.setattr(Canceller, "_put", put)


def fired_with_the_slot(patch: pytest.MonkeyPatch) -> None:
    """All messages of a second are delivered with it, at any millisecond."""
    patch.setattr(deliverer, "_due_ms", lambda _, slot_ms: slot_ms)
