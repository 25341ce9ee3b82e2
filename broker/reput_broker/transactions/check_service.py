"""Check open transactions: ask producers for a decision (RocketMQ: TransactionalMessageServiceImpl.check).

docs/transactions.md has the rules. A round goes over the open half messages, oldest first. One that is due is copied to
the end of the half queue with its check count increased, and a producer is asked about the copy once it can be read. So
a round meets no message twice, and the offset of the group CID_RMQ_SYS_TRANS advances. A message that is not due stays
in place, unless the queue behind it grows too long for memory, or for the search of a start.

Progress is saved only after the copies and committed messages that it relies on have been flushed: a power loss could
otherwise lose them alone, and their half messages would never be checked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Final

import structlog
import trio

from reput_broker.groups.client_table import ClientChannel
from reput_broker.store.base.results import PutStatus
from reput_broker.tenure import Core
from reput_broker.transactions.half_messages import (
    HALF_QUEUE_ID,
    HalfMessage,
    check_body,
    discarded_record,
    half_message_of,
    renewed_record,
)
from reput_broker.transactions.op_queue import OP_QUEUE_ID
from reput_broker.transactions.queue_reader import read_entry
from reput_broker.transactions.recovery import HalfQueue
from reput_broker.transactions.transaction_table import HalfCopy, HalfState
from reput_protocol.codes import RequestCode
from reput_protocol.commands.transaction import CheckTransactionHeader
from reput_protocol.errors import ReputError
from reput_protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_CHECK_GROUP,
)
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.record import Record

log = structlog.get_logger(__name__)

_ROUND_S_MAX: Final = 60.0
_SPAN_MAX: Final = 1_000_000
_SEARCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much of the log a start may have to search for unwritten decisions, plus a few rounds' worth."""
_TOGETHER_MAX: Final = 64
"""How many half messages share a sync before their producers are asked."""
_ADDED_BYTES: Final = 512


class _CheckResult(Enum):
    """The result of checking an open half message."""

    TOO_YOUNG = auto()
    """It and all that follow are too young; the round ends."""
    STAYS = auto()
    """It is skipped and the round continues."""
    CLOSED = auto()
    """It is no longer open at its place in the queue."""
    STUCK = auto()
    """The store refuses writes now."""


class TransactionCheckService:
    """The rounds over one half queue.

    Args:
        core: the progress is in the offsets; TRANS_CHECK_MAX_TIME_TOPIC is created at first use.
        half_queue: the states of its messages, and the op messages that are still needed.
    """

    def __init__(self, core: Core, half_queue: HalfQueue) -> None:
        self._store, self._transactions, self._ops = half_queue
        self._puts = core.puts.own
        self._tables = core.tables
        self._offsets = core.tables.offsets
        self._requests = CheckRequests(core)
        self._config = core.config
        self._options = core.config.transactions
        self._counts = core.counters.retry
        self._flush = core.puts.flush.flush_now
        self._clock_ms = core.clock_ms

    async def run(self) -> None:
        """Make rounds until cancelled."""
        while True:
            await trio.sleep(self._options.check_interval)
            try:
                await self.check()
            except (ReputError, OSError) as error:
                log.error(
                    "transactions_not_checked",
                    detail=str(error),
                    hint="the broker retries; if the store is damaged, stop the broker and run reput store verify",
                )

    async def check(self) -> None:
        """Make one round, of a minute at most, and save its progress.

        Raises:
            StoreError, OSError: the queue could not be read, or the progress not saved.
        """
        transactions, store = self._transactions, self._store
        started_ms, give_up_at = self._clock_ms(), trio.current_time() + _ROUND_S_MAX
        low, end = (
            store.min_offset_in_queue(TRANS_HALF_TOPIC, HALF_QUEUE_ID),
            store.max_offset_in_queue(TRANS_HALF_TOPIC, HALF_QUEUE_ID),
        )
        self._requests.begin_round()
        offset = transactions.next_open(max(transactions.position, low))
        while offset < end and trio.current_time() < give_up_at:
            await trio.lowlevel.checkpoint()
            if transactions.state(offset) is HalfState.OPEN:  # not decided meanwhile
                result = await self._check_one(offset, end, started_ms)
                if result in (_CheckResult.TOO_YOUNG, _CheckResult.STUCK):
                    break
            if self._requests.is_full:
                await self._requests.ask(self._is_open)
            offset = transactions.next_open(offset + 1)
        await self._requests.ask(self._is_open)
        await self._advance(low)

    async def _advance(self, low: int) -> None:
        """Move past what is no longer open in both queues and named in op messages, and save that.

        A slave that takes over may have an older position: to it, a copy that no op message names is open.
        """
        transactions, store = self._transactions, self._store
        end = store.max_offset_in_queue(TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        unwritten = self._ops.first_unwritten(end)
        position = min(transactions.next_open(max(transactions.position, low)), end, unwritten)
        if position > transactions.position:
            transactions.advance(position)
        op_end = store.max_offset_in_queue(TRANS_OP_HALF_TOPIC, OP_QUEUE_ID)
        op_position = self._ops.passed(transactions.position, op_end)
        reached = {
            (TRANS_HALF_TOPIC, HALF_QUEUE_ID): transactions.position,
            (TRANS_OP_HALF_TOPIC, OP_QUEUE_ID): op_position,
        }
        moved = [place for place, offset in reached.items() if self._saved(*place) < offset]
        if not moved or not await self._all_is_flushed():
            return
        for topic, queue_id in moved:
            self._offsets.commit(TRANSACTION_CHECK_GROUP, topic, queue_id, reached[topic, queue_id])

    def _saved(self, topic: str, queue_id: int) -> int:
        saved = self._offsets.query(TRANSACTION_CHECK_GROUP, topic, queue_id)
        return -1 if saved is None else saved

    async def _all_is_flushed(self) -> bool:
        store = self._store
        end = store.flushed_offset + store.flush_behind_bytes
        if store.flushed_offset < end:
            await self._flush()
        return store.flushed_offset >= end

    # -- one half message ----------------------------------------------------------------------------------

    async def _check_one(self, offset: int, end: int, started_ms: int) -> _CheckResult:
        entry = read_entry(self._store, TRANS_HALF_TOPIC, HALF_QUEUE_ID, offset)
        half = None if entry.record is None else half_message_of(entry.record)
        if half is None:
            if entry.is_end:
                return _CheckResult.TOO_YOUNG
            log.error(
                "half_message_unreadable", queue_offset=offset, hint="it is skipped: run reput store verify"
            )
            self._transactions.close(offset, HalfState.DISCARDED)
            return _CheckResult.CLOSED
        if self._is_expired(half):
            return await self._discard(half)
        # One from the future was stored before the clock was set back, and must not hold up those behind it.
        if started_ms <= half.record.store_timestamp_ms <= self._clock_ms():
            return _CheckResult.TOO_YOUNG
        timeout_ms = int(self._options.timeout * 1000)
        age_ms = self._clock_ms() - half.first_stored_ms
        immunity_ms = half.immunity_ms(timeout_ms)
        if immunity_ms is None:
            if 0 <= age_ms < timeout_ms:
                return _CheckResult.TOO_YOUNG
        elif 0 <= age_ms < immunity_ms:
            return await self._skip(half, end)
        if self._requests.skips(half.producer_group):
            return await self._skip(half, end)
        return await self._ask_about(half)

    async def _skip(self, half: HalfMessage, end: int) -> _CheckResult:
        unsearched = self._store.max_physical_offset - self._ops.marked_until
        if end - half.queue_offset < _SPAN_MAX and unsearched < _SEARCH_BYTES_MAX:
            return _CheckResult.STAYS
        copy = await self._copy(half, None)
        return self._stuck(half, copy) if isinstance(copy, PutStatus) else _CheckResult.CLOSED

    def _is_expired(self, half: HalfMessage) -> bool:
        """Whether it must not be checked any more (RocketMQ: needDiscard, needSkip)."""
        if half.check_times is not None and half.check_times >= self._options.check_max:
            return True
        return self._clock_ms() - half.first_stored_ms > self._config.store.file_reserved_time * 1000

    async def _discard(self, half: HalfMessage) -> _CheckResult:
        await self._make_discard_topic()
        record = discarded_record(half)
        result = await self._puts.put(_size(record), lambda: record if self._is_open(half) else None)
        if result is None:
            return _CheckResult.CLOSED
        if result.status is not PutStatus.PUT_OK:
            return self._stuck(half, result.status)
        copy = HalfCopy(half.queue_offset, half.record.physical_offset)
        self._transactions.decided(half, copy, HalfState.DISCARDED)
        self._counts.transactions[half.topic, "timeout"] += 1
        log.warning(
            "transaction_put_aside",
            topic=half.topic,
            producer_group=half.producer_group,
            message_id=half.unique_key,
            checked=half.check_times or 0,
            hint="no producer has ended it; it is kept in TRANS_CHECK_MAX_TIME_TOPIC",
        )
        return _CheckResult.CLOSED

    async def _make_discard_topic(self) -> None:
        if self._tables.topics.get(TRANS_CHECK_MAX_TIME_TOPIC) is None:
            self._tables.topics.create_system(TRANS_CHECK_MAX_TIME_TOPIC, 1)
            await self._tables.topic_saver.save()

    async def _ask_about(self, half: HalfMessage) -> _CheckResult:
        copy = await self._copy(half, (half.check_times or 0) + 1)
        if isinstance(copy, PutStatus):
            return self._stuck(half, copy)
        if copy is not None:
            self._requests.add(copy)
        return _CheckResult.CLOSED

    async def _copy(self, half: HalfMessage, check_times: int | None) -> HalfMessage | PutStatus | None:
        """Replace a half message by a copy at the end of the queue; None if it was decided meanwhile, a status if the
        store refuses the copy."""
        record = renewed_record(half, check_times)
        result = await self._puts.put(_size(record), lambda: record if self._is_open(half) else None)
        if result is None:
            return None
        if result.status is not PutStatus.PUT_OK:
            return result.status
        self._transactions.copied(half, HalfCopy(result.queue_offset, result.physical_offset))
        return half_message_of(
            replace(
                record,
                queue_offset=result.queue_offset,
                physical_offset=result.physical_offset,
                store_timestamp_ms=result.store_timestamp_ms,
                store_host=self._store.options.host,
            )
        )

    def _is_open(self, half: HalfMessage) -> bool:
        copy = self._transactions.open_copy(half)
        return copy is not None and copy.queue_offset == half.queue_offset

    def _stuck(self, half: HalfMessage, status: PutStatus) -> _CheckResult:
        """Continue with the others if the store refuses only this message; else retry in a later round."""
        log.warning(
            "half_message_not_copied", topic=half.topic, queue_offset=half.queue_offset, detail=str(status)
        )
        is_illegal = status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
        return _CheckResult.STAYS if is_illegal else _CheckResult.STUCK


def _size(record: Record) -> int:
    return record_bytes(len(record.body), record.topic, len(record.properties)) + _ADDED_BYTES


class CheckRequests:
    """Half messages whose producers are to be asked: request 39 (RocketMQ: AbstractTransactionalMessageCheckListener).

    The live producers of the group are asked alternately. One that is disconnecting, or has too much to read, is
    skipped; if all are, so is the group until the next round. The answer arrives as the end of the transaction, or
    not at all.
    """

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._producers = core.groups.membership.producers
        self._counts = core.counters.retry
        self._flush = core.puts.flush.flush_now
        self._broker_name = core.config.broker_name
        self._waiting: list[HalfMessage] = []
        self._skipped: set[str] = set()

    def begin_round(self) -> None:
        """Try skipped groups again."""
        self._skipped.clear()

    def skips(self, group: str) -> bool:
        """Whether every producer of a group refused a request in this round."""
        return group in self._skipped

    def add(self, half: HalfMessage) -> None:
        """Queue a half message, which has just been stored, for the next `ask`."""
        self._waiting.append(half)

    @property
    def is_full(self) -> bool:
        """Whether `ask` should be called."""
        return len(self._waiting) >= _TOGETHER_MAX

    async def ask(self, is_open: Callable[[HalfMessage], bool]) -> None:
        """Ask about all queued messages that are still open.

        The producer's answer names the half message, so that must be readable first.
        """
        waiting, self._waiting = self._waiting, []
        if waiting and self._store.message_at(waiting[-1].record.physical_offset) is None:
            await self._flush()
        for half in waiting:
            if is_open(half) and not self._ask(half):
                self._counts.checks[half.topic, "no_producer"] += 1

    def _ask(self, half: HalfMessage) -> bool:
        """Try each producer of the group once; return whether one takes the request."""
        if half.producer_group in self._skipped:
            return False
        record = half.record
        header = CheckTransactionHeader(
            record.queue_offset,
            record.physical_offset,
            topic=TRANS_HALF_TOPIC,
            msg_id=half.unique_key,
            transaction_id=half.unique_key,
            offset_msg_id=record.offset_message_id,
            broker_name=self._broker_name,
        )
        body = check_body(half)
        tried: list[ClientChannel] = []
        is_refused = False
        while (channel := self._producers.pick(half.producer_group)) is not None and channel not in tried:
            client = channel.client
            user = client.principal
            # The request has the message, and any user can name any producer group.
            may_see = user is None or user.permits("write", "topic", half.topic)
            is_refused |= may_see
            if may_see and client.send_request(
                RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(client.header_type), body
            ):
                return True
            tried.append(channel)
        if is_refused:
            self._skipped.add(half.producer_group)
        return False
