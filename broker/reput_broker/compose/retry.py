"""Retries, dead letters and transactions of one broker: their services and request processors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from reput_broker.compose.storage import Storage
from reput_broker.config.model import BrokerConfig
from reput_broker.delay.delay_hook import DelayHook
from reput_broker.groups.group_access import GroupAccess
from reput_broker.groups.group_state import GroupState
from reput_broker.observe.counters import RetryCounts
from reput_broker.processors.put_once import PutBackOnce
from reput_broker.processors.send_back import SendBackProcessor
from reput_broker.processors.send_redirects import SendRedirects
from reput_broker.processors.transaction import TransactionProcessor
from reput_broker.put.own_puts import OwnPuts
from reput_broker.put.put_path import PutPath
from reput_broker.request import Handler
from reput_broker.retry.claimed_origins import ClaimedOrigins
from reput_broker.retry.send_back_deduplication import SendBackDeduplication
from reput_broker.tables.topic_access import TopicAccess
from reput_broker.transactions.check_requests import CheckRequests
from reput_broker.transactions.check_service import TransactionCheckService
from reput_broker.transactions.op_queue import OpWriter


class RetryParts:
    """Retries, dead letters and transactions, over an open storage.

    Attributes:
        redirects: decides which messages are not stored as they are sent.
        back_once: stores messages that consumers send back, once each.
        claims: checks what they say about messages that they send to a retry topic themselves.
    """

    def __init__(
        self,
        config: BrokerConfig,
        storage: Storage,
        puts: PutPath,
        delay_hook: DelayHook,
        groups: GroupState,
        topic_access: TopicAccess,
        group_access: GroupAccess,
        counts: RetryCounts,
    ) -> None:
        store, clock_ms, flush = storage.store, storage.clock_ms, puts.flush.flush_now
        self._half_queue = storage.half_queue
        transactions = self._half_queue.transactions
        self.redirects = SendRedirects(
            delay_hook, group_access, groups.locks, topic_access, transactions, config.transactions, counts
        )
        sent_back = SendBackDeduplication(store, dispatch=puts.reput.catch_up, clock_ms=clock_ms)
        self.back_once = PutBackOnce(sent_back, puts.appender)
        self.claims = ClaimedOrigins(store, sent_back.complete_index)

        own_puts = OwnPuts(store, puts.lock, puts.fence, puts.wrote)
        self._writer = OpWriter(
            self._half_queue.ops, own_puts, log_end=lambda: store.wrote_offset, clock_ms=clock_ms
        )
        transactions.on_closed = self._writer.closed
        requests = CheckRequests(
            store, groups.membership.producers, counts, flush=flush, broker_name=config.broker_name
        )
        self._check = TransactionCheckService(
            self._half_queue,
            own_puts,
            storage.tables,
            requests,
            config,
            counts,
            flush=flush,
            clock_ms=clock_ms,
        )
        self._send_back = SendBackProcessor(
            store, topic_access, group_access, delay_hook, self.back_once, counts, ack=puts.default_ack
        )
        self._transaction = TransactionProcessor(
            store,
            topic_access,
            delay_hook,
            transactions,
            config.transactions,
            counts,
            ack=puts.default_ack,
            clock_ms=clock_ms,
        )

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
