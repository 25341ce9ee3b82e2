"""Decisions and the op messages that record them (RocketMQ: TransactionalOpBatchService).

An op message is stored in RMQ_SYS_TRANS_OP_HALF_TOPIC; its tag is `d` and its body a list like `17,18,25,`. Decisions
are collected in memory for `transactions.op_interval`, or until they fill a message. A killed process loses them:
rollbacks are then checked once more, and commits are found in the log. To limit that search, the last message of a
batch carries in PREPARED_TRANSACTION_OFFSET the log offset up to which every decision is in an op message; RocketMQ
neither writes nor reads that.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.config.sections import TransactionsConfig
from reput_broker.put.put_lock import OwnPuts
from reput_broker.store.base.results import PutStatus
from reput_protocol import properties as names
from reput_protocol.names import TRANS_OP_HALF_TOPIC
from reput_protocol.properties import encode_properties
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0
OP_QUEUE_ID: Final = 0
OP_TAG: Final = "d"
_SEPARATOR: Final = ","
_OFFSET: Final = re.compile(r"[0-9]{1,18}")


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

    def __init__(
        self, ops: OpQueue, puts: OwnPuts, *, log_end: Callable[[], int], clock_ms: Callable[[], int]
    ) -> None:
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
