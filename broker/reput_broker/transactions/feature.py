"""Transactions of a master: the requests that end one (37, RocketMQ: EndTransactionProcessor) and that list the open
ones, and what serves them: checks of open half messages, op messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Final

import structlog
import trio

from reput_broker.delay.delayed_record import DelayRedirects
from reput_broker.groups.client_table import ClientChannel
from reput_broker.remoting.request import Processor, Put, Refusal, Request, Response, Result, serves
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tables.topic_access import no_topic
from reput_broker.tenure.core import Core
from reput_broker.transactions.half_messages import (
    HALF_QUEUE_ID,
    HalfCopy,
    HalfMessage,
    HalfState,
    TransactionTable,
    check_body,
    committed_record,
    discarded_record,
    half_message_of,
    renewed_record,
)
from reput_broker.transactions.op_queue import OP_QUEUE_ID, HalfQueue, OpWriter
from reput_broker.transactions.queue_reader import read_entry, record_at
from reput_protocol.codes import RequestCode, ResponseCode, TransactionState
from reput_protocol.commands.transaction import (
    CheckTransactionHeader,
    EndTransactionHeader,
    ListTransactionsHeader,
    OpenTransaction,
    OpenTransactions,
)
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_CHECK_GROUP,
)
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.record import Record, encode_record

_LISTED_MAX: Final = 1000
_LOOKED_AT_MAX: Final = 5000
_FAILED = int(ResponseCode.SYSTEM_ERROR)
_TOO_LATE = int(ResponseCode.ILLEGAL_OPERATION)
_RESULTS = {TransactionState.COMMIT: "commit", TransactionState.ROLLBACK: "rollback"}
_STANDINGS = {TransactionState.COMMIT: HalfState.COMMITTED, TransactionState.ROLLBACK: HalfState.ROLLED_BACK}
_ENDED = {
    HalfState.COMMITTED: "has been committed",
    HalfState.ROLLED_BACK: "has been rolled back",
    HalfState.DISCARDED: "was checked too often, or is too old, and has been put aside",
}
log = structlog.get_logger(__name__)

_ROUND_S_MAX: Final = 60.0
_SPAN_MAX: Final = 1_000_000
_SEARCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much of the log a start may have to search for unwritten decisions, plus a few rounds' worth."""
_TOGETHER_MAX: Final = 64
"""How many half messages share a sync before their producers are asked."""
_ADDED_BYTES: Final = 512


class TransactionProcessor(Processor):
    """Commits and rolls back half messages."""

    def __init__(self, core: Core, transactions: TransactionTable, delay_redirects: DelayRedirects) -> None:
        self._core = core
        self._transactions = transactions
        self._delay_redirects = delay_redirects
        self._counts = core.counters.retry

    @serves(RequestCode.END_TRANSACTION)
    def end(self, request: Request) -> Result:
        """Commit or roll back; nothing happens if the transaction has ended in this way before.

        As in RocketMQ, a producer that does not know the outcome gets no answer, except the bundled client.
        """
        header = EndTransactionHeader.from_ext(request.ext)
        state = header.commit_or_rollback
        if state not in _RESULTS:
            self._count_unknown(header)
            if not request.is_native:
                request.wants_no_answer()
            return Response() if request.is_native else None
        state = TransactionState(state)
        half = self._half(header, request)
        if header.from_transaction_check:
            self._counts.checks[half.topic, _RESULTS[state]] += 1
        copy = self._transactions.open_copy(half)
        if copy is None:
            outcome = self._transactions.outcome(half)
            if outcome is _STANDINGS[state]:
                return Response()
            raise _ended(half, outcome)
        if state is TransactionState.COMMIT:
            return self._commit(request, half)
        self._transactions.decided(half, copy, HalfState.ROLLED_BACK)
        self._counts.transactions[half.topic, "rollback"] += 1
        return Response()

    @serves(RequestCode.LIST_TRANSACTIONS)
    async def list_open(self, request: Request) -> Response:
        """Answer with open transactions, the oldest first, after a bounded number of half messages."""
        header = ListTransactionsHeader.from_ext(request.ext)
        wanted, store, transactions = (min(max(1, header.max_num), _LISTED_MAX), self._core.store, self._transactions)
        counts = transactions.open_by_topic
        found = OpenTransactions(open=sum(counts.values()) if header.topic is None else counts[header.topic])
        end = store.max_offset_in_queue(TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        low = store.min_offset_in_queue(TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        offset = transactions.next_open(max(transactions.position, low, header.cursor or 0))
        for _ in range(_LOOKED_AT_MAX):
            if offset >= end:
                return Response(0, body=found.to_json())
            if len(found.transactions) >= wanted:
                break
            await trio.lowlevel.checkpoint()
            entry = read_entry(store, TRANS_HALF_TOPIC, HALF_QUEUE_ID, offset)
            half = None if entry.record is None else half_message_of(entry.record)
            if half is not None and _is_wanted(half, header) and transactions.open_copy(half) is not None:
                found.transactions.append(self._described(half))
            offset = transactions.next_open(offset + 1)
        found.cursor = offset
        return Response(0, body=found.to_json())

    def _described(self, half: HalfMessage) -> OpenTransaction:
        record = half.record
        return OpenTransaction(
            half.topic,
            half.queue_id,
            half.producer_group,
            half.queue_offset,
            record.physical_offset,
            half.first_stored_ms,
            half.check_times or 0,
            len(record.body),
            half.unique_key,
            record.tag,
            [*record.keys],
            self._core.config.broker_name,
        )

    def _half(self, header: EndTransactionHeader, request: Request) -> HalfMessage:
        record = record_at(self._core.store, header.commit_log_offset)
        half = None if record is None else half_message_of(record)
        if half is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"no half message is at log offset {header.commit_log_offset}; it may have expired",
                response_code=_FAILED,
            )
        request.check_topic_of_message("write", half.topic)
        if self._is_too_late(header, half):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "the time in which the half message may be ended without a check has passed; the broker will check",
                response_code=_TOO_LATE,
            )
        if half.producer_group != header.producer_group:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"the half message is of producer group {half.producer_group!r}, not {header.producer_group!r}",
                response_code=_FAILED,
            )
        if half.queue_offset != header.tran_state_table_offset:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"the half message has offset {half.queue_offset} in the half queue, not "
                f"{header.tran_state_table_offset}",
                response_code=_FAILED,
            )
        return half

    def _is_too_late(self, header: EndTransactionHeader, half: HalfMessage) -> bool:
        """Tell whether only the answer to a check counts any more (RocketMQ: rejectCommitOrRollback)."""
        immunity_ms = half.immunity_ms(int(self._core.config.transactions.timeout * 1000))
        if header.from_transaction_check or immunity_ms is None:
            return False
        return self._core.clock_ms() - half.first_stored_ms > immunity_ms

    def _commit(self, request: Request, half: HalfMessage) -> Result:
        config = self._core.topic_access.of_accepted(half.topic, half.queue_id, half.first_stored_ms)
        if config is None:
            raise no_topic(half.topic)
        record, properties = committed_record(half)
        if record.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            record.queue_id %= max(1, config.read_queue_nums)  # the topic has been altered
        record = self._delay_redirects.redirect(record, properties) or record

        def put() -> PutResult:
            copy = self._transactions.open_copy(half)
            if copy is None:  # it ended while this waited for a new log file
                raise _ended(half, self._transactions.outcome(half))
            record.prepared_transaction_offset = copy.physical_offset
            result = self._core.store.put_record(record)
            if result.status is PutStatus.PUT_OK:
                self._transactions.decided(half, copy, HalfState.COMMITTED)
                self._counts.committed(half.topic, (self._core.clock_ms() - half.first_stored_ms) / 1000)
            return result

        size = len(encode_record(record)) + 20
        return Put(request, size, put, lambda _: Response(), half.topic, self._core.puts.default_ack(), "transactional")

    def _count_unknown(self, header: EndTransactionHeader) -> None:
        if header.from_transaction_check:
            record = record_at(self._core.store, header.commit_log_offset)
            half = None if record is None else half_message_of(record)
            if half is not None:
                self._counts.checks[half.topic, "unknown"] += 1


def _is_wanted(half: HalfMessage, header: ListTransactionsHeader) -> bool:
    if header.topic not in (None, half.topic):
        return False
    return header.key is None or header.key == half.unique_key or header.key in half.record.keys


def _ended(half: HalfMessage, outcome: HalfState) -> Refusal:
    how = _ENDED.get(outcome)
    if how is None:
        return Refusal(
            ErrorCode.NOT_FOUND,
            f"the transaction of message {half.unique_key} has ended before; how it ended is no longer known",
            response_code=_FAILED,
        )
    return Refusal(
        ErrorCode.TRANSACTION_ENDED,
        f"the transaction of message {half.unique_key} {how}; what ends it first counts",
        response_code=_FAILED,
    )


class TransactionFeature:
    """Transactions, over the half queue as it was recovered."""

    def __init__(self, core: Core, half_queue: HalfQueue, delay_redirects: DelayRedirects) -> None:
        self._half_queue = half_queue
        transactions = half_queue.transactions
        self._writer = OpWriter(
            half_queue.ops, core.puts.own, log_end=lambda: core.store.wrote_offset, clock_ms=core.clock_ms
        )
        transactions.on_closed = self._writer.closed
        self._check = TransactionCheckService(core, half_queue)
        self.processors = (TransactionProcessor(core, transactions, delay_redirects),)
        core.sources.open_transactions = lambda: transactions.open_by_topic

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return (self._writer.run, self._check.run)

    def status(self) -> dict[str, int]:
        """Return what /status shows of transactions."""
        _, transactions, ops = self._half_queue
        return {
            "open": sum(transactions.open_by_topic.values()),
            "decisions_to_write": ops.waiting,
            "op_messages": len(ops.messages),
        }

    async def finish(self) -> None:
        """Write the decisions that are not in the op queue yet. Call it once no request can add one."""
        await self._writer.write()


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
    """Checks open transactions, in rounds: asks producers for a decision (RocketMQ:
    TransactionalMessageServiceImpl.check).

    docs/transactions.md has the rules. A round goes over the open half messages, oldest first. One that is due is
    copied to the end of the half queue with its check count increased, and a producer is asked about the copy once it
    can be read. So a round meets no message twice, and the offset of the group CID_RMQ_SYS_TRANS advances. A message
    that is not due stays in place, unless the queue behind it grows too long for memory, or for the search of a start.

    Progress is saved only after the copies and committed messages that it relies on have been flushed: a power loss
    could otherwise lose them alone, and their half messages would never be checked again.

    Args:
        core: the progress is in the offsets; TRANS_CHECK_MAX_TIME_TOPIC is created at first use.
        half_queue: the states of its messages, and the op messages that are still needed.
    """

    def __init__(self, core: Core, half_queue: HalfQueue) -> None:
        self._store, self._transactions, self._ops = half_queue
        self._core = core
        self._requests = CheckRequests(core)

    async def run(self) -> None:
        """Make rounds until cancelled."""
        while True:
            await trio.sleep(self._core.config.transactions.check_interval)
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
        started_ms, give_up_at = self._core.clock_ms(), trio.current_time() + _ROUND_S_MAX
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
            self._core.tables.offsets.commit(TRANSACTION_CHECK_GROUP, topic, queue_id, reached[topic, queue_id])

    def _saved(self, topic: str, queue_id: int) -> int:
        saved = self._core.tables.offsets.query(TRANSACTION_CHECK_GROUP, topic, queue_id)
        return -1 if saved is None else saved

    async def _all_is_flushed(self) -> bool:
        store = self._store
        end = store.flushed_offset + store.flush_behind_bytes
        if store.flushed_offset < end:
            await self._core.puts.flush.flush_now()
        return store.flushed_offset >= end

    # -- one half message ----------------------------------------------------------------------------------

    async def _check_one(self, offset: int, end: int, started_ms: int) -> _CheckResult:
        entry = read_entry(self._store, TRANS_HALF_TOPIC, HALF_QUEUE_ID, offset)
        half = None if entry.record is None else half_message_of(entry.record)
        if half is None:
            if entry.is_end:
                return _CheckResult.TOO_YOUNG
            log.error("half_message_unreadable", queue_offset=offset, hint="it is skipped: run reput store verify")
            self._transactions.close(offset, HalfState.DISCARDED)
            return _CheckResult.CLOSED
        if self._is_expired(half):
            return await self._discard(half)
        # One from the future was stored before the clock was set back, and must not hold up those behind it.
        if started_ms <= half.record.store_timestamp_ms <= self._core.clock_ms():
            return _CheckResult.TOO_YOUNG
        timeout_ms = int(self._core.config.transactions.timeout * 1000)
        age_ms = self._core.clock_ms() - half.first_stored_ms
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
        if half.check_times is not None and half.check_times >= self._core.config.transactions.check_max:
            return True
        return self._core.clock_ms() - half.first_stored_ms > self._core.config.store.file_reserved_time * 1000

    async def _discard(self, half: HalfMessage) -> _CheckResult:
        await self._make_discard_topic()
        record = discarded_record(half)
        result = await self._core.puts.own.put(_size(record), lambda: record if self._is_open(half) else None)
        if result is None:
            return _CheckResult.CLOSED
        if result.status is not PutStatus.PUT_OK:
            return self._stuck(half, result.status)
        copy = HalfCopy(half.queue_offset, half.record.physical_offset)
        self._transactions.decided(half, copy, HalfState.DISCARDED)
        self._core.counters.retry.transactions[half.topic, "timeout"] += 1
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
        if self._core.tables.topics.get(TRANS_CHECK_MAX_TIME_TOPIC) is None:
            self._core.tables.topics.create_system(TRANS_CHECK_MAX_TIME_TOPIC, 1)
            await self._core.tables.topic_saver.save()

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
        result = await self._core.puts.own.put(_size(record), lambda: record if self._is_open(half) else None)
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
        log.warning("half_message_not_copied", topic=half.topic, queue_offset=half.queue_offset, detail=str(status))
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
        self._core = core
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
        if waiting and self._core.store.message_at(waiting[-1].record.physical_offset) is None:
            await self._core.puts.flush.flush_now()
        for half in waiting:
            if is_open(half) and not self._ask(half):
                self._core.counters.retry.checks[half.topic, "no_producer"] += 1

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
            broker_name=self._core.config.broker_name,
        )
        body = check_body(half)
        tried: list[ClientChannel] = []
        is_refused = False
        while (
            channel := self._core.groups.membership.producers.pick(half.producer_group)
        ) is not None and channel not in tried:
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
