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
from reput_broker.retry.repeated_send_back import SentBack
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.tables import Tables
from reput_broker.transactions.check import TransactionCheckService
from reput_broker.transactions.op_queue import OpQueue, OpWriter
from reput_broker.transactions.questions import TransactionQuestions
from reput_broker.transactions.recovery import recover_transactions
from reput_broker.transactions.transactions import Transactions
from reput_protocol.names import TRANS_CHECK_MAX_TIME_TOPIC
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
        self._transactions: Transactions | None = None
        self._ops: OpQueue | None = None
        self._writer: OpWriter | None = None

    def status(self) -> dict[str, int]:
        """Return what /status shows of transactions."""
        transactions, ops = self._transactions, self._ops
        if transactions is None or ops is None:
            return {}
        return {
            "open": sum(transactions.open_by_topic.values()),
            "decisions_to_write": ops.waiting,
            "op_messages": len(ops.messages),
        }

    @property
    def transactions(self) -> Transactions:
        """How the half messages stand; after `open`."""
        assert self._transactions is not None, "it is opened first"
        return self._transactions

    def open(self, store: MessageStore, offsets: ConsumerOffsetManager) -> None:
        """Find out how the half messages stand. Blocks. Raises StoreDamaged if the half queue cannot be read."""
        ids = UniqueIdGenerator(
            socket.inet_aton("127.0.0.1"), os.getpid() & 0xFFFF, _ID_CLASS, self._clock_ms
        )
        self._ops = OpQueue(self._config.transactions, store.options.host, ids.next)
        self._transactions = recover_transactions(store, offsets, self._ops)

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
        topics, flush = tables.topics, puts.flush.flush_now
        config, clock_ms, transactions = self._config, self._clock_ms, self.transactions
        assert self._ops is not None, "it is opened first"

        async def make_discard_topic() -> None:
            if topics.get(TRANS_CHECK_MAX_TIME_TOPIC) is None:
                topics.create_system(TRANS_CHECK_MAX_TIME_TOPIC, 1)
                await tables.topic_saver.save()

        own_puts = OwnPuts(store, puts.lock, puts.wrote)
        self.back_once = PutBackOnce(
            SentBack(store, dispatch=puts.reput.catch_up, clock_ms=clock_ms), puts.appender
        )

        def log_end() -> int:
            return store.flushed_offset + store.flush_behind_bytes

        self._writer = OpWriter(self._ops, own_puts, log_end=log_end, clock_ms=clock_ms)
        transactions.on_closed = self._writer.closed
        questions = TransactionQuestions(
            store,
            producers,
            self.counts,
            flush=flush,
            broker_name=config.broker_name,
        )
        self._check = TransactionCheckService(
            transactions,
            self._ops,
            store,
            own_puts,
            tables.offsets,
            questions,
            config.transactions,
            self.counts,
            make_discard_topic=make_discard_topic,
            flush=flush,
            reserved_s=lambda: config.store.file_reserved_time,
            host=store.options.host,
            clock_ms=clock_ms,
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
