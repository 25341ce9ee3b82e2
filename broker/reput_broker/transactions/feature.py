"""Transactions of a master: decisions of producers, checks of open half messages, op messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.request import Handler
from reput_broker.tenure.core import Core
from reput_broker.transactions.check_service import TransactionCheckService
from reput_broker.transactions.op_queue import OpWriter
from reput_broker.transactions.processor import TransactionProcessor
from reput_broker.transactions.recovery import HalfQueue


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
        self._processor = TransactionProcessor(core, transactions, delay_redirects)
        core.sources.open_transactions = lambda: transactions.open_by_topic

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return self._processor.handlers()

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
