"""Puts together what brings messages back and what ends transactions: what is opened, run and finished of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable

from reput_broker.compose.puts import PutParts
from reput_broker.config.model import BrokerConfig
from reput_broker.delay.delay_hook import DelayHook
from reput_broker.groups.producer_groups import ProducerGroups
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.observe.counters import RetryCounts
from reput_broker.processors.group_access import GroupAccess
from reput_broker.processors.put_once import PutBackOnce
from reput_broker.processors.send_back import SendBackProcessor
from reput_broker.processors.send_redirects import SendRedirects
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.processors.transaction import TransactionProcessor
from reput_broker.put.own_puts import OwnPuts
from reput_broker.request import Handler
from reput_broker.retry.send_back_deduplication import SendBackDeduplication
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.tables import Tables
from reput_broker.transactions.check_requests import CheckRequests
from reput_broker.transactions.check_service import TransactionCheckService
from reput_broker.transactions.op_queue import OpQueue, OpWriter
from reput_broker.transactions.recovery import HalfQueue, recover_transactions
from reput_broker.transactions.transaction_table import TransactionTable
from reput_protocol.record.message_id import UniqueIdGenerator

_ID_CLASS = 0x4F504D51


class RetryParts:
    """Retries, dead letters and transactions of one broker. `open` blocks, after the store has been opened."""

    def __init__(
        self, config: BrokerConfig, counts: RetryCounts, delay_hook: DelayHook, clock_ms: Callable[[], int]
    ) -> None:
        self.counts = counts
        self._config = config
        self._delay_hook = delay_hook
        self._clock_ms = clock_ms
        self._half_queue: HalfQueue | None = None
        self._writer: OpWriter | None = None

    def status(self) -> dict[str, int]:
        """Return what /status shows of transactions."""
        if self._half_queue is None:
            return {}
        _, transactions, ops = self._half_queue
        return {
            "open": sum(transactions.open_by_topic.values()),
            "decisions_to_write": ops.waiting,
            "op_messages": len(ops.messages),
        }

    @property
    def transactions(self) -> TransactionTable:
        """How the half messages stand; after `open`."""
        assert self._half_queue is not None, "`open` is called first"
        return self._half_queue.transactions

    def open(self, store: MessageStore, offsets: ConsumerOffsetManager) -> None:
        """Find out how the half messages stand. Blocks. Raises StoreDamaged if the half queue cannot be read."""
        ids = UniqueIdGenerator(
            socket.inet_aton("127.0.0.1"), os.getpid() & 0xFFFF, _ID_CLASS, self._clock_ms
        )
        ops = OpQueue(self._config.transactions, store.options.host, ids.next)
        self._half_queue = recover_transactions(store, offsets, ops)

    def redirects(self, groups: GroupAccess, locks: QueueLocks, access: TopicAccess) -> SendRedirects:
        """Return what decides about messages that are not stored as they are sent."""
        return SendRedirects(
            self._delay_hook,
            groups,
            locks,
            access,
            self.transactions,
            self._config.transactions,
            self.counts,
        )

    def compose(
        self,
        store: MessageStore,
        tables: Tables,
        puts: PutParts,
        producers: ProducerGroups,
        access: TopicAccess,
        groups: GroupAccess,
    ) -> None:
        """Put the parts together."""
        config, clock_ms, flush = self._config, self._clock_ms, puts.flush.flush_now
        half_queue, transactions = self._half_queue, self.transactions
        assert half_queue is not None, "`open` is called first"
        own_puts = OwnPuts(store, puts.lock, puts.wrote)
        self.back_once = PutBackOnce(
            SendBackDeduplication(store, dispatch=puts.reput.catch_up, clock_ms=clock_ms), puts.appender
        )

        def log_end() -> int:
            return store.flushed_offset + store.flush_behind_bytes

        self._writer = OpWriter(half_queue.ops, own_puts, log_end=log_end, clock_ms=clock_ms)
        transactions.on_closed = self._writer.closed
        requests = CheckRequests(
            store,
            producers,
            self.counts,
            flush=flush,
            broker_name=config.broker_name,
        )
        self._check = TransactionCheckService(
            half_queue, own_puts, tables, requests, config, self.counts, flush=flush, clock_ms=clock_ms
        )
        self._processors = (
            SendBackProcessor(
                store, access, groups, self._delay_hook, self.back_once, self.counts, ack=puts.default_ack
            ),
            TransactionProcessor(
                store,
                access,
                self._delay_hook,
                transactions,
                config.transactions,
                self.counts,
                ack=puts.default_ack,
                clock_ms=clock_ms,
            ),
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the processors by request code."""
        return {code: handle for part in self._processors for code, handle in part.handlers().items()}

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker does."""
        assert self._writer is not None, "it is composed first"
        return (self._writer.run, self._check.run)

    async def finish(self) -> None:
        """Write down what was decided; to be called once no request can decide anything more."""
        if self._writer is not None:
            await self._writer.write()
