"""Decisions and the op messages that record them (RocketMQ: TransactionalOpBatchService).

An op message is stored in RMQ_SYS_TRANS_OP_HALF_TOPIC; its tag is `d` and its body a list like `17,18,25,`. Decisions
are collected in memory for `transactions.op_interval`, or until they fill a message. A killed process loses them:
rollbacks are then checked once more, and commits are found in the log. To limit that search, the last message of a
batch carries in PREPARED_TRANSACTION_OFFSET the log offset up to which every decision is in an op message; RocketMQ
neither writes nor reads that.

At a start the states of half messages are restored:

1. Op messages name the finished half messages; the rest of the queue from the saved progress on is open.
2. Of several copies of one transaction only the latest is open.
3. The last decisions may not have been written: the log behind the last complete op message holds the committed and the
  discarded records, each with the place of its half message.

So nothing is committed twice. A power loss can remove both the committed message and its op message; then the half
message is open again (with `flush = "sync"`, no consumer had seen the committed one).
"""

from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.config.sections import TransactionsConfig
from reput_broker.put.put_lock import OwnPuts
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.results import PutStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.transactions.half_messages import (
    HALF_QUEUE_ID,
    HalfCopy,
    HalfState,
    TransactionTable,
    half_message_of,
)
from reput_broker.transactions.queue_reader import read_entry, record_at
from reput_protocol import properties as names
from reput_protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_CHECK_GROUP,
)
from reput_protocol.properties import encode_properties
from reput_protocol.record.layout import TRANSACTION_COMMIT
from reput_protocol.record.message_id import Host, UniqueIdGenerator
from reput_protocol.record.record import Record, RecordView

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0
OP_QUEUE_ID: Final = 0
OP_TAG: Final = "d"
_SEPARATOR: Final = ","
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_OP_ID_CLASS = 0x4F504D51


class OpMessage(NamedTuple):
    """An op message that is still needed: its offset in the op queue, and the highest half offset
    that it names."""

    queue_offset: int
    last_half_offset: int


class OpBatch(NamedTuple):
    """An op message to write, and how many of the waiting decisions it holds."""

    record: Record
    decisions: int


class OpQueue:
    """The unwritten decisions, and the op messages that are still needed. One owner.

    Attributes:
        messages: still needed, oldest first.
        marked_until: all decisions before this log offset are in op messages.

    Args:
        options: read at every decision.
        host: the store's address, the born host of op messages.
        new_id: makes their unique ids.
    """

    def __init__(self, options: TransactionsConfig, host: Host, new_id: Callable[[], str]) -> None:
        self.messages: deque[OpMessage] = deque()
        self.marked_until = 0
        self._options = options
        self._host = host
        self._new_id = new_id
        self._waiting: deque[int] = deque()
        self._size = 0
        self._first_at = 0.0

    # Decisions

    def add(self, half_offset: int, now: float) -> None:
        """Queue a decision to be written; `now` in seconds of the clock of `due_at`."""
        if not self._waiting:
            self._first_at = now
        self._waiting.append(half_offset)
        self._size += len(str(half_offset)) + 1

    @property
    def due_at(self) -> float | None:
        """When the decisions must be written; None if there are none."""
        if not self._waiting:
            return None
        return self._first_at + (0.0 if self.is_full else self._options.op_interval)

    @property
    def is_full(self) -> bool:
        """Whether the decisions fill a message."""
        return self._size >= self._options.op_message_size

    @property
    def waiting(self) -> int:
        """Number of unwritten decisions."""
        return len(self._waiting)

    def first_unwritten(self, end: int) -> int:
        """Return the lowest half offset among the unwritten decisions; `end` if there are none."""
        return min(self._waiting, default=end)

    # Messages

    @property
    def record_bytes_max(self) -> int:
        """Upper bound for the next message's size in the log."""
        return self._options.op_message_size + 512

    def compose(self, now_ms: int, log_end: int) -> OpBatch | None:
        """Return the next message, oldest decisions first; None if there are none. `written` removes them.

        `log_end` is where the log ends and the message will be.
        """
        if not self._waiting:
            return None
        body, count = "", 0
        for half_offset in self._waiting:
            if len(body) >= self._options.op_message_size:
                break
            body += f"{half_offset}{_SEPARATOR}"
            count += 1
        record = Record(
            TRANS_OP_HALF_TOPIC,
            body.encode(),
            queue_id=OP_QUEUE_ID,
            born_timestamp_ms=now_ms,
            born_host=self._host,
            prepared_transaction_offset=log_end if count == len(self._waiting) else 0,
            properties=encode_properties({names.TAGS: OP_TAG, names.UNIQ_KEY: self._new_id()}),
        )
        return OpBatch(record, count)

    def written(self, batch: OpBatch, queue_offset: int) -> None:
        """Record that a message is in the log, at an offset of the op queue."""
        offsets = [self._waiting.popleft() for _ in range(batch.decisions)]
        self._size -= len(batch.record.body)
        self.messages.append(OpMessage(queue_offset, max(offsets)))
        self.marked_until = max(self.marked_until, batch.record.prepared_transaction_offset)

    # Progress

    def passed(self, position: int, end: int) -> int:
        """Forget messages that name only half offsets before `position`; return the first op offset still needed.

        That is `end`, the end of the op queue, if none is.
        """
        messages = self.messages
        while messages and messages[0].last_half_offset < position:
            messages.popleft()
        return messages[0].queue_offset if messages else end


def half_offsets_of(record: Record) -> list[int]:
    """Return the half offsets that an op message names; none if it is malformed."""
    if record.tag != OP_TAG:
        return []
    parts = record.body.decode("latin-1").split(_SEPARATOR)
    return [int(part) for part in parts if _OFFSET.fullmatch(part)]


class OpWriter:
    """Puts the op messages of one op queue.

    Args:
        log_end: returns where the log ends, a pool's buffer included. An op message that carries
            this offset names no earlier record (`delayed_record.py`).
        clock_ms: wall clock.
    """

    def __init__(self, ops: OpQueue, puts: OwnPuts, *, log_end: Callable[[], int], clock_ms: Callable[[], int]) -> None:
        self._ops = ops
        self._puts = puts
        self._log_end = log_end
        self._clock_ms = clock_ms
        self._look = trio.Event()

    def closed(self, half_offset: int) -> None:
        """Have a decision written soon."""
        is_first = not self._ops.waiting
        self._ops.add(half_offset, trio.current_time())
        if is_first or self._ops.is_full:
            self._look.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            due_at = self._ops.due_at
            if due_at is None or due_at > trio.current_time():
                with trio.move_on_at(inf if due_at is None else due_at):
                    await self._look.wait()
                self._look = trio.Event()
            elif not await self.write():
                await trio.sleep(_RETRY_INTERVAL_S)

    async def write(self) -> bool:
        """Write all decisions; False if the store refuses them now."""
        while self._ops.waiting:
            batch: OpBatch | None = None

            def compose() -> Record | None:
                nonlocal batch
                batch = self._ops.compose(self._clock_ms(), self._log_end())
                return None if batch is None else batch.record

            result = await self._puts.put(self._ops.record_bytes_max, compose)
            if result is None or batch is None:
                break
            if result.status is not PutStatus.PUT_OK:
                log.warning(
                    "decisions_not_written",
                    count=self._ops.waiting,
                    detail=str(result.status),
                    hint="free disk space; the broker retries, and checks lost decisions once more",
                )
                return False
            self._ops.written(batch, result.queue_offset)
        return True


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
    config: TransactionsConfig, store: MessageStore, offsets: ConsumerOffsetManager, clock_ms: Callable[[], int]
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


def _bounds(store: MessageStore, offsets: ConsumerOffsetManager, topic: str, queue_id: int) -> tuple[int, int]:
    low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
    saved = offsets.query(TRANSACTION_CHECK_GROUP, topic, queue_id)
    return (low if saved is None else min(max(saved, low), high)), high


def _read_op_messages(
    store: MessageStore, offsets: ConsumerOffsetManager, ops: OpQueue, transactions: TransactionTable, half_end: int
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


def _find_decided(store: MessageStore, latest: Mapping[int, _OpenHalf], marked_until: int) -> dict[int, HalfState]:
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
        return half if named is not None and named.topic == TRANS_HALF_TOPIC and named.unique_key == key else None


def _committed(batch: DispatchBatch) -> list[int]:
    position = batch.rows.column("position")
    return [
        start
        for run in batch.rows.runs
        if run.transaction == TRANSACTION_COMMIT
        for start in position[run.start : run.stop]
    ]
