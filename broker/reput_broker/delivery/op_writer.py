"""Writes down what was decided about half messages (RocketMQ: TransactionalOpBatchService)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import structlog
import trio

from reput_broker.delivery.op_queue import Batch, OpQueue
from reput_broker.delivery.own_puts import OwnPuts
from reput_broker.store.results import PutStatus
from reput_protocol.record import Record

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0


class OpWriter:
    """Puts the op messages of one op queue.

    Args:
        log_end: where the log ends and the next record goes, in a pool's buffer or not. An op message that names this
            names no record before it (`origin.py`).
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
        """Let a decision be written down soon."""
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
        """Write down everything that waits; False if the store does not take it now, and it goes on waiting."""
        while self._ops.waiting:
            batch: Batch | None = None

            def compose() -> Record | None:
                nonlocal batch
                batch = self._ops.compose(self._clock_ms(), self._log_end())
                return None if batch is None else batch.record

            result = await self._puts.put(self._ops.record_bytes_max, compose)
            if result is None or batch is None:
                break
            if result.status is not PutStatus.PUT_OK:
                log.warning(
                    "decisions_not_written_down",
                    count=self._ops.waiting,
                    detail=str(result.status),
                    hint="free disk space; it is tried again, and what is lost until then is asked about once more",
                )
                return False
            self._ops.written(batch, result.queue_offset)
        return True
