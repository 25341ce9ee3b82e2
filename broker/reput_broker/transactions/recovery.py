"""Restore the states of half messages at a start.

1. Op messages name the finished half messages; the rest of the queue from the saved progress on is open.
2. Of several copies of one transaction only the latest is open.
3. The last decisions may not have been written: the log behind the last complete op message holds the committed and the
  discarded records, each with the place of its half message.

So nothing is committed twice. A power loss can remove both the committed message and its op message; then the half
message is open again (with `flush = "sync"`, no consumer had seen the committed one).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog

from reput_broker.config.sections import TransactionsConfig
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.transactions.half_messages import HALF_QUEUE_ID, half_message_of
from reput_broker.transactions.op_queue import OP_QUEUE_ID, OpMessage, OpQueue, half_offsets_of
from reput_broker.transactions.queue_reader import read_entry, record_at
from reput_broker.transactions.transaction_table import HalfCopy, HalfState, TransactionTable
from reput_protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_CHECK_GROUP,
)
from reput_protocol.record.layout import TRANSACTION_COMMIT
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.record.record import RecordView

log = structlog.get_logger(__name__)

_OP_ID_CLASS = 0x4F504D51


class HalfQueue(NamedTuple):
    """The half queue of one store: the states of its messages and the decisions to be written."""

    store: MessageStore
    transactions: TransactionTable
    ops: OpQueue


class _OpenHalf(NamedTuple):
    """A half message that no op message names."""

    queue_offset: int
    physical_offset: int
    first_offset: int
    topic: str
    unique_key: str | None


def recover_transactions(
    config: TransactionsConfig,
    store: MessageStore,
    offsets: ConsumerOffsetManager,
    clock_ms: Callable[[], int],
) -> HalfQueue:
    """Restore the states of half messages, with the op messages that are still needed. Blocks."""
    ids = UniqueIdGenerator(socket.inet_aton("127.0.0.1"), os.getpid() & 0xFFFF, _OP_ID_CLASS, clock_ms)
    ops = OpQueue(config, store.options.host, ids.next)
    position, end = _bounds(store, offsets, TRANS_HALF_TOPIC, HALF_QUEUE_ID)
    transactions = TransactionTable(position, lambda half_offset: ops.add(half_offset, now=0.0))
    _read_op_messages(store, offsets, ops, transactions, end)
    latest = _read_open(store, transactions, end)
    found = _find_decided(store, latest, ops.marked_until)
    for half in latest.values():
        copy = HalfCopy(half.queue_offset, half.physical_offset)
        transactions.opened(half.topic)
        state = found.get(half.queue_offset)
        if state is not None:
            transactions.decided(half, copy, state)
        elif half.first_offset != half.queue_offset:
            transactions.keep_latest(half.first_offset, copy)
    if latest:
        log.info("transactions_recovered", open=len(latest) - len(found), decided_before=len(found))
    return HalfQueue(store, transactions, ops)


def _bounds(
    store: MessageStore, offsets: ConsumerOffsetManager, topic: str, queue_id: int
) -> tuple[int, int]:
    low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
    saved = offsets.query(TRANSACTION_CHECK_GROUP, topic, queue_id)
    return (low if saved is None else min(max(saved, low), high)), high


def _read_op_messages(
    store: MessageStore,
    offsets: ConsumerOffsetManager,
    ops: OpQueue,
    transactions: TransactionTable,
    half_end: int,
) -> None:
    offset, end = _bounds(store, offsets, TRANS_OP_HALF_TOPIC, OP_QUEUE_ID)
    while offset < end:
        entry = read_entry(store, TRANS_OP_HALF_TOPIC, OP_QUEUE_ID, offset)
        if entry.record is not None:
            named = [half for half in half_offsets_of(entry.record) if half < half_end]
            for half_offset in named:
                transactions.mark(half_offset, HalfState.DONE)
            ops.messages.append(OpMessage(offset, max(named, default=-1)))
            ops.marked_until = max(ops.marked_until, entry.record.prepared_transaction_offset)
        offset = max(entry.next_offset, offset + 1)


def _read_open(store: MessageStore, transactions: TransactionTable, end: int) -> dict[int, _OpenHalf]:
    """Return the latest copy of each open transaction by its first offset; close the others, and unreadable ones as
    discarded.

    Closed copies are written as op messages: with the latest copy done and an earlier one not, the next start would
    take the earlier one for open.
    """
    latest: dict[int, _OpenHalf] = {}
    offset = transactions.next_open(transactions.position)
    while offset < end:
        entry = read_entry(store, TRANS_HALF_TOPIC, HALF_QUEUE_ID, offset)
        half = None if entry.record is None else half_message_of(entry.record)
        if half is None:
            for lost in range(offset, max(entry.next_offset, offset + 1)):
                transactions.close(lost, HalfState.DISCARDED)
        else:
            before = latest.get(half.first_offset)
            if before is not None:
                transactions.close(before.queue_offset, HalfState.COPIED)
            latest[half.first_offset] = _OpenHalf(
                offset, half.record.physical_offset, half.first_offset, half.topic, half.unique_key
            )
        offset = transactions.next_open(max(entry.next_offset, offset + 1))
    return latest


def _find_decided(
    store: MessageStore, latest: Mapping[int, _OpenHalf], marked_until: int
) -> dict[int, HalfState]:
    """Return the outcomes that the log holds for open half messages, by their offsets."""
    if not latest:
        return {}
    decided = _DecidedRecords(store, latest)
    start = max(marked_until, min(half.physical_offset for half in latest.values()))
    try:
        store.replay(start, decided)
    except StoreDamaged as damage:
        log.error(
            "committed_messages_uncertain",
            detail=str(damage),
            hint="messages committed shortly before the last stop may be committed again",
        )
    return decided.found


class _DecidedRecords:
    """A dispatcher that collects the records derived from open half messages."""

    def __init__(self, store: MessageStore, latest: Mapping[int, _OpenHalf]) -> None:
        self.found: dict[int, HalfState] = {}
        self._store = store
        self._by_place = {half.physical_offset: half for half in latest.values()}
        self._by_key = {half.unique_key: half for half in latest.values() if half.unique_key}

    def dispatch(self, batch: DispatchBatch) -> None:
        for position in _committed(batch):
            self._note(RecordView(batch.data, position), HalfState.COMMITTED)
        for run in batch.rows.runs:
            if run.topic == TRANS_CHECK_MAX_TIME_TOPIC:
                for position in batch.rows.column("position")[run.start : run.stop]:
                    self._note(RecordView(batch.data, position), HalfState.DISCARDED)

    def _note(self, record: RecordView, state: HalfState) -> None:
        half = self._half_of(record)
        if half is not None:
            self.found[half.queue_offset] = state

    def _half_of(self, record: RecordView) -> _OpenHalf | None:
        """Return the open half message that a record is derived from.

        The place alone is not enough: a committed message that was sent back names place 0, and
        RocketMQ's name any copy.
        """
        place, key = record.prepared_transaction_offset, record.unique_key
        half = self._by_place.get(place)
        if half is not None:
            return half if half.unique_key == key else None
        half = None if key is None else self._by_key.get(key)
        if half is None:
            return None
        named = record_at(self._store, place)
        return (
            half
            if named is not None and named.topic == TRANS_HALF_TOPIC and named.unique_key == key
            else None
        )


def _committed(batch: DispatchBatch) -> list[int]:
    position = batch.rows.column("position")
    return [
        start
        for run in batch.rows.runs
        if run.transaction == TRANSACTION_COMMIT
        for start in position[run.start : run.stop]
    ]
