"""Retries, dead letters and transactions of one broker: their services and request processors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from reput_broker.core import Core
from reput_broker.delay.delay_hook import DelayHook
from reput_broker.processors.put_once import PutBackOnce
from reput_broker.processors.send_back import SendBackProcessor
from reput_broker.processors.send_redirects import SendRedirects
from reput_broker.processors.transaction import TransactionProcessor
from reput_broker.request import Handler
from reput_broker.retry.claimed_origins import ClaimedOrigins
from reput_broker.retry.send_back_deduplication import SendBackDeduplication
from reput_broker.transactions.check_requests import CheckRequests
from reput_broker.transactions.check_service import TransactionCheckService
from reput_broker.transactions.op_queue import OpWriter
from reput_broker.transactions.recovery import HalfQueue


class RetryFeature:
    """Retries, dead letters and transactions, over an open storage.

    Attributes:
        redirects: decides which messages are not stored as they are sent.
        back_once: stores messages that consumers send back, once each.
        claims: checks what they say about messages that they send to a retry topic themselves.
    """

    def __init__(self, core: Core, half_queue: HalfQueue, delay_hook: DelayHook) -> None:
        config, store, puts, clock_ms = core.config, core.store, core.puts, core.clock_ms
        counts, flush = core.counters.retry, puts.flush.flush_now
        self._half_queue = half_queue
        transactions = half_queue.transactions
        self.redirects = SendRedirects(
            delay_hook,
            core.group_access,
            core.groups.locks,
            core.topic_access,
            transactions,
            config.transactions,
            counts,
        )
        sent_back = SendBackDeduplication(store, dispatch=puts.reput.catch_up, clock_ms=clock_ms)
        self.back_once = PutBackOnce(sent_back, puts.appender)
        self.claims = ClaimedOrigins(store, sent_back.complete_index)
        self._writer = OpWriter(
            half_queue.ops, puts.own, log_end=lambda: store.wrote_offset, clock_ms=clock_ms
        )
        transactions.on_closed = self._writer.closed
        requests = CheckRequests(
            store, core.groups.membership.producers, counts, flush=flush, broker_name=config.broker_name
        )
        self._check = TransactionCheckService(
            half_queue, puts.own, core.tables, requests, config, counts, flush=flush, clock_ms=clock_ms
        )
        self._send_back = SendBackProcessor(
            store,
            core.topic_access,
            core.group_access,
            delay_hook,
            self.back_once,
            counts,
            ack=puts.default_ack,
        )
        self._transaction = TransactionProcessor(
            store,
            core.topic_access,
            delay_hook,
            transactions,
            config.transactions,
            counts,
            ack=puts.default_ack,
            clock_ms=clock_ms,
        )
        core.sources.open_transactions = lambda: transactions.open_by_topic

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {**self._send_back.handlers(), **self._transaction.handlers()}

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
