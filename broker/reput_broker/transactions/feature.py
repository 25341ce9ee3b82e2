"""Transactions of a master: the requests that end one (37, RocketMQ: EndTransactionProcessor) and that list the open
ones, and what serves them: checks of open half messages, op messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.remoting.request import Processor, Put, Refusal, Request, Response, Result, serves
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tables.topic_access import no_topic
from reput_broker.tenure import Core
from reput_broker.transactions.check_service import TransactionCheckService
from reput_broker.transactions.half_messages import (
    HALF_QUEUE_ID,
    HalfMessage,
    committed_record,
    half_message_of,
)
from reput_broker.transactions.op_queue import OpWriter
from reput_broker.transactions.queue_reader import read_entry, record_at
from reput_broker.transactions.recovery import HalfQueue
from reput_broker.transactions.transaction_table import HalfState, TransactionTable
from reput_protocol.codes import RequestCode, ResponseCode, TransactionState
from reput_protocol.commands.transaction import (
    EndTransactionHeader,
    ListTransactionsHeader,
    OpenTransaction,
    OpenTransactions,
)
from reput_protocol.errors import ErrorCode
from reput_protocol.names import TRANS_HALF_TOPIC
from reput_protocol.record.record import encode_record

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
        wanted, store, transactions = (
            min(max(1, header.max_num), _LISTED_MAX),
            self._core.store,
            self._transactions,
        )
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
        return Put(
            request,
            size,
            put,
            lambda _: Response(),
            half.topic,
            self._core.puts.default_ack(),
            "transactional",
        )

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
