"""Dispatch of the log into the queues (RocketMQ: ReputMessageService).

The task waits for an event while it is idle, because a loop of one-millisecond sleeps takes a tenth of a core.
"""

from __future__ import annotations

import structlog
import trio

from reput_broker.put.progress import Position
from reput_broker.remoting.request import Refusal
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ErrorCode, ReputError

log = structlog.get_logger(__name__)

_REPUT_INTERVAL_S = 0.001
_AT_ONCE_BYTES = 16 * 1024
_BUSY_BYTES = 64 * 1024
_WORTH_A_STEP_BYTES = 512 * 1024
_CATCH_UP_STEPS = 4
_STUCK_INTERVAL_S = 0.1


class ReputMessageService:
    """Dispatches immediately after a put, every millisecond under load.

    A step costs as much as some hundred messages in it, so under load a millisecond's messages are dispatched together.
    Readers do not notice: what was acknowledged before a request is dispatched before it is handled.

    Args:
        store: whose log is dispatched.
        dispatched: advanced after each step.
    """

    def __init__(self, store: MessageStore, dispatched: Position) -> None:
        self._store = store
        self._dispatched = dispatched
        self._woken = trio.Event()
        self._last_putter: object = None

    def wake(self) -> None:
        """Start dispatch."""
        self._woken.set()

    def dispatch_put_by(self, putter: object) -> None:
        """Dispatch what `putter` has put and been answered for.

        Done here if no other putter is active and little was put: waking a task costs more than a small step, which
        overlaps with the putter's next request. Otherwise `run` dispatches everything together.
        """
        store = self._store
        behind = store.dispatch_behind_bytes
        if putter is not self._last_putter or behind > _AT_ONCE_BYTES:
            self._last_putter = putter
            self.wake()
        elif behind:
            self._step()
            if not store.dispatch_is_idle():
                self.wake()

    def dispatch_acknowledged(self, *, can_wait: bool = False) -> None:
        """Dispatch what was acknowledged, before a request reads it.

        With `can_wait`, as for pulls that can be held, only a small backlog is dispatched: frequent pulls would
        otherwise force many small steps under load.
        """
        store = self._store
        if store.dispatch_is_idle() or (can_wait and store.dispatch_behind_bytes > _AT_ONCE_BYTES):
            return
        self.catch_up()

    def catch_up(self) -> None:
        """Dispatch what has just become readable; `run` does the rest if it is much or fails."""
        store = self._store
        for _ in range(_CATCH_UP_STEPS):
            if store.dispatch_is_idle() or not self._step():
                break
        if not store.dispatch_is_idle():
            self.wake()

    def complete_index(self, unknown: str) -> None:
        """Dispatch what is readable, and bring what is dispatched into the index, so that a look-up finds it.

        Args:
            unknown: what cannot be looked up if this fails.

        Raises:
            Refusal: there is no disk space for the index.
        """
        self.catch_up()
        try:
            self._store.complete_index()
        except DiskFull as error:
            raise Refusal(ErrorCode.DISK_FULL, f"{error}; {unknown} cannot be looked up") from error

    def _step(self) -> bool:
        """Run one dispatch step; False if it did nothing. `run` meets and logs the same error."""
        try:
            dispatched = self._store.reput_step() > 0
            if dispatched:
                self._dispatched.advance(self._store.dispatched_offset)
            return dispatched
        except ReputError:
            return False

    async def run(self) -> None:
        """Dispatch until cancelled."""
        store = self._store
        while True:
            if store.dispatch_is_idle():
                await self._woken.wait()
            self._woken = trio.Event()
            before = store.dispatched_offset
            try:
                dispatched = store.reput_step()
            except ReputError as error:
                log.error(
                    "dispatch_stopped",
                    detail=str(error),
                    hint="restore the missing file, or stop the broker and run `reput store verify`",
                )
                await trio.sleep(_STUCK_INTERVAL_S)
                continue
            if dispatched:
                now = store.dispatched_offset
                self._dispatched.advance(now)
                is_busy = now - before >= _BUSY_BYTES
                if is_busy and store.dispatch_behind_bytes < _WORTH_A_STEP_BYTES:
                    await trio.sleep(_REPUT_INTERVAL_S)
                else:
                    await trio.lowlevel.checkpoint()
            elif not store.dispatch_is_idle():
                await trio.sleep(_REPUT_INTERVAL_S if store.is_writable else _STUCK_INTERVAL_S)
