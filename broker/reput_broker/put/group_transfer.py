"""Answer the puts that wait for copies of the log on other machines (RocketMQ: GroupTransferService).

A put with `ack = replicated` is answered once enough copies have it. How many are needed, and which of them count,
`Replicas` decides; it is asked after every report of a slave and after every sync.

If the copies cannot be had now, a request that names the level is refused before anything is stored. A request that
does not name it, as of RocketMQ's clients, is stored, and its answer says that no slave has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from reput_broker.config.sections import HAConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.pending_puts import PendingPut, PendingPutQueue, flush_clients
from reput_broker.request import Refusal
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ErrorCode

_LOOK_S = 0.25


class Replicas(Protocol):
    """The copies of this master's log."""

    @property
    def position(self) -> int:
        """Everything before this log offset is on as many machines as are needed."""

    def refusal(self) -> str | None:
        """Return why a put would not get there now: the facts and the remedy; None if it would."""


class NoReplicas:
    """A broker that serves its log to no other."""

    position = 0

    def refusal(self) -> str | None:
        """See `Replicas`."""
        return "there is no replica: this broker serves no slaves (ha_port is off); ask for flushed or page_cache"


class GroupTransfer:
    """Holds puts until they are replicated. `serve` says by whom."""

    def __init__(self, store: MessageStore, config: HAConfig, counters: Counters) -> None:
        self._store = store
        self._config = config
        self._replicas: Replicas = NoReplicas()
        self._on_committed: Callable[[], None] = lambda: None
        self._waiters = PendingPutQueue(
            counters.produce_seconds["replicated"], ErrorCode.REPLICA_TIMEOUT, lambda: store.flushed_offset
        )
        self._waiting = trio.Event()
        self._advanced: trio.Event | None = None

    def serve(self, replicas: Replicas, appended: Callable[[], None], committed: Callable[[], None]) -> None:
        """Begin to count copies.

        Args:
            appended: called after each append.
            committed: called after each commit of a pool: there is more to send.
        """
        self._replicas = replicas
        self._on_committed = committed
        self._store.when_appended(appended)

    def committed(self) -> None:
        """Note a commit of the pool's buffers: only what is committed is sent."""
        self._on_committed()

    def check(self) -> None:
        """Check that a put would be replicated now.

        Raises:
            Refusal: it would not.
        """
        reason = self._replicas.refusal()
        if reason is not None:
            raise Refusal(ErrorCode.NO_REPLICA, reason)

    def answer_when_replicated(self, end_offset: int, put: PendingPut) -> None:
        """Answer a stored put once the log is replicated up to `end_offset`, or that it is not."""
        reason = self._replicas.refusal()
        if reason is not None and self._replicas.position < end_offset:
            is_flushed = end_offset <= self._store.flushed_offset
            put.admit(reason, ErrorCode.REPLICA_MISSING, is_flushed=is_flushed)
            flush_clients([put])
            return
        self._waiters.add(end_offset, put, self._config.slave_timeout)
        self._waiting.set()
        self.advance()

    @property
    def position(self) -> int:
        """Everything before this log offset is replicated."""
        return self._replicas.position

    def advance(self) -> None:
        """Answer the puts that are replicated now."""
        if self._waiters:
            self._waiters.release(self._replicas.position)
        if self._advanced is not None:
            self._advanced.set()
            self._advanced = None

    async def confirmed_to(self, end_offset: int) -> None:
        """Wait until all of the in-sync set have the log up to `end_offset`, `ha.slave_timeout` at most.

        Without an election, only this broker decides what consumers see.

        Raises:
            Refusal: it takes longer.
        """
        with trio.move_on_after(self._config.slave_timeout):
            while not self._is_confirmed(end_offset):
                if self._advanced is None:
                    self._advanced = trio.Event()
                await self._advanced.wait()
            return
        why = self._replicas.refusal()
        raise Refusal(
            ErrorCode.TIMEOUT,
            f"the in-sync set took longer than ha.slave_timeout ({self._config.slave_timeout} s) to copy it"
            f"{f'; {why}' if why else ''}; ask again",
        )

    def _is_confirmed(self, end_offset: int) -> bool:
        confirmed = self._store.confirm_offset
        return confirmed is None or confirmed >= end_offset

    async def expire(self) -> None:
        """Answer puts whose timeout is over: stored, but not known to be replicated."""
        while True:
            await self._waiting.wait()
            await trio.sleep(min(_LOOK_S, self._config.slave_timeout / 4))
            reason = f"the copies took longer than ha.slave_timeout ({self._config.slave_timeout} s)"
            why = self._replicas.refusal()
            self._waiters.admit_late(self._store.committed_offset, f"{reason}; {why}" if why else reason)
            if not self._waiters:
                self._waiting = trio.Event()
