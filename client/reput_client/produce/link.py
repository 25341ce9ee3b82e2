"""The blocks that go to one broker: waiting for their turn, in flight, answered, failed, sent again."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from reput_client.errors import BrokerNotFound, ClientClosed, ConnectionLost, RequestTimeout
from reput_client.produce.block import Block
from reput_client.produce.puts import Putter, outcome_unknown
from reput_client.produce.retries import RETRY_PAUSE_S, after
from reput_client.transport.address import Address
from reput_client.transport.backoff import Backoff
from reput_client.transport.session import Session
from reput_protocol.errors import MessageRefused, ReputError
from reput_protocol.record.message import MessageQueue

log = logging.getLogger("reput_client")

_IN_FLIGHT: Final = 64
"""Blocks that may be unanswered at a time."""
_IN_FLIGHT_BYTES: Final = 4 << 20
"""While so many bytes are unanswered no more blocks leave."""
_LOOK_AHEAD: Final = 64
"""So many of the blocks that wait are looked at for one that may leave."""


class Link:
    """What goes to one broker. Nothing here waits but `connect`, and nothing raises.

    Blocks of one queue leave in their order. Where one may have to be sent again, a queue has one block in flight at a
    time, so that none is overtaken; otherwise none is sent again but what cannot have left, and that comes before what
    is behind it.

    Invariant: a sealed block that is not done is in `waiting` or in `flying`.
    """

    def __init__(
        self,
        session: Session,
        putter: Putter,
        address: Address,
        on_news: Callable[[Block | None], None],
        backoff: Backoff,
    ) -> None:
        """`on_news` is called when the call of a block has finished; with None when a connection is there or is not."""
        self._session = session
        self._putter = putter
        self._connection = session.connection_to(address)
        self._on_news = on_news
        self._backoff = backoff
        self.waiting: deque[Block] = deque()
        self.flying: list[Block] = []
        self.connecting = False
        self._connect_at = -math.inf
        self._failure: ReputError | None = None
        self._heard_at = -math.inf
        self.expires_at = math.inf
        """There is nothing for `expire` before this; when that time has come, `next_expiry` looks it up anew."""

    def add(self, block: Block, now: float) -> None:
        """Take a block that was sealed."""
        if block.terms.is_patient or not block.since:
            block.since = now
        self.waiting.append(block)
        self.expires_at = min(self.expires_at, block.since + block.terms.timeout_s)

    @property
    def is_full(self) -> bool:
        """Whether a block would wait until others are answered."""
        return (
            len(self.flying) + len(self.waiting) >= _IN_FLIGHT
            or sum(len(block.data) for block in (*self.flying, *self.waiting)) >= _IN_FLIGHT_BYTES
        )

    def is_busy(self, queue: MessageQueue) -> bool:
        """Whether a block of this queue would wait until others are answered."""
        return bool(self.flying) and (
            self.is_full or any(block.queue == queue and block.is_serial for block in self.flying)
        )

    @property
    def has_unwritten(self) -> bool:
        """Whether the system has yet to take something that was sent."""
        return self._connection.has_unwritten

    def send(self, now: float) -> bool:
        """Send what can leave now; return whether the system has all that was sent."""
        if self.waiting and self._connection.usable():
            self._start(now)
        return self._connection.flush_now()

    def _start(self, now: float) -> None:
        held_up: set[MessageQueue] = set()
        flying_bytes = place = 0
        for block in self.flying:
            flying_bytes += len(block.data)
            if block.is_serial:
                held_up.add(block.queue)
        while place < _LOOK_AHEAD and place < len(self.waiting):
            if len(self.flying) >= _IN_FLIGHT or flying_bytes >= _IN_FLIGHT_BYTES:
                return
            block = self.waiting[place]
            if not self._connection.is_of(block.queue.broker_name):
                self._failure = BrokerNotFound(block.queue.broker_name, block.queue.topic)
                held_up.add(block.queue)
            if block.queue in held_up or block.not_before > now:
                held_up.add(block.queue)
                place += 1
                continue
            if block.is_serial:
                held_up.add(block.queue)
            template = block.template(self._putter)
            block.sent_at = now if block.terms.is_patient else block.since
            block.connection = self._connection
            block.on_arrival = self._on_news
            self.flying.append(block)
            del self.waiting[place]
            block.call = self._connection.start_template(template, block, block.data)
            flying_bytes += len(block.data)

    def answered(self, now: float) -> list[Block]:
        """Take the answers that have come; return the blocks that are done."""
        done: list[Block] = []
        again: list[Block] = []
        for block in list(self.flying):
            call = block.call
            assert call is not None, "what flies was called"
            if not call.done:
                continue
            place = self.flying.index(block)
            del self.flying[place]
            if call.error is None:
                self._heard_at = now
                for behind in self.flying[place:]:
                    if behind.terms.is_patient:
                        behind.sent_at = now  # now it is its turn to be answered
                self._connect_at = -math.inf
                self._failure = None
                self._backoff.reset()
                try:
                    block.answered(call)
                except ReputError as error:
                    if isinstance(error, MessageRefused) and block.terms.is_divisible and block.count > 1:
                        again += block.divide()
                    else:
                        self._failed(block, error, now, done, again)
                else:
                    done.append(block)
            elif call.sent:
                unknown = outcome_unknown(block.queue, block.unique_ids, str(call.error))
                unknown.__cause__ = call.error
                self._failed(block, unknown, now, done, again)
            elif isinstance(call.error, ConnectionLost):
                block.call = block.connection = None
                again.append(block)
            else:
                self._failed(block, call.error, now, done, again)
        if again:
            self._wait_again(again)
        return done

    def _wait_again(self, blocks: list[Block]) -> None:
        """Have blocks wait once more, before all others."""
        self.waiting.extendleft(reversed(blocks))
        for block in blocks:
            self.expires_at = min(self.expires_at, block.since + block.terms.timeout_s)

    def expire(self, now: float, *, spares: bool) -> list[Block]:
        """Give up what had no answer, or could not leave, in time; return the blocks that are done.

        `spares`: nobody has looked for a while, so what has not left gets its time once more; once for each block.
        """
        done: list[Block] = []
        again: list[Block] = []
        if spares:
            for block in (*self.flying, *self.waiting):
                if (
                    block.terms.is_patient
                    and not block.spared
                    and (block.call is None or not block.call.sent)
                ):
                    block.spared = True
                    block.since = max(block.since, now)
                    block.sent_at = now
        for block in [block for block in self.flying if now >= self._flies_until(block)]:
            assert block.call is not None, "what flies was called"
            assert block.connection is not None, "what flies has a connection"
            self.flying.remove(block)
            error: ReputError = _not_left(block)
            block.connection.doubt(block.sent_at)
            if not block.connection.abandon(block.call):
                reason = f"no answer within {block.terms.timeout_s:.2g} s"
                error = outcome_unknown(block.queue, block.unique_ids, reason)
            self._failed(block, error, now, done, again)
        # Those behind have time, too, or are looked at next; one that is sent again may hold them up.
        for block in [b for b in islice(self.waiting, _LOOK_AHEAD) if now >= self._waits_until(b)]:
            self.waiting.remove(block)
            self._failed(block, self._failure or _not_left(block), now, done, again)
        self._wait_again(again)
        return done

    def withdraw(self, block: Block) -> None:
        """Forget a block; its answer is not waited for."""
        if block in self.waiting:
            self.waiting.remove(block)
        elif block in self.flying:
            self.flying.remove(block)
            assert block.call is not None, "what flies was called"
            assert block.connection is not None, "what flies has a connection"
            block.connection.abandon(block.call)

    def _failed(
        self, block: Block, error: ReputError, now: float, done: list[Block], again: list[Block]
    ) -> None:
        """Put a block to those to be sent again, if it may be, or finish it and put it to those that are done."""
        block.attempt += 1
        try:
            block.unknown = after(error, block.unknown, is_last=block.attempt > block.terms.retries)
        except ReputError as last:
            block.finish(None, last)
            done.append(block)
            return
        block.call = block.connection = None
        block.since = block.not_before = now + RETRY_PAUSE_S * block.attempt
        again.append(block)

    # -- times -----------------------------------------------------------------------------------------------------

    def _waits_until(self, block: Block) -> float:
        """Return when a block that waits is given up: a patient one has time as long as the broker answers others."""
        terms = block.terms
        return (max(block.since, self._heard_at) if terms.is_patient else block.since) + terms.timeout_s

    def _flies_until(self, block: Block) -> float:
        return block.sent_at + block.terms.timeout_s

    def next_expiry(self) -> float:
        """Look up when there is something for `expire`."""
        flying = min(map(self._flies_until, self.flying), default=math.inf)
        waiting = min(map(self._waits_until, islice(self.waiting, _LOOK_AHEAD)), default=math.inf)
        self.expires_at = min(flying, waiting)
        return self.expires_at

    def next_due(self, now: float) -> float:
        """Return when there is something to do here even if nothing comes, or some time before."""
        due_at = self.expires_at
        if self.waiting:
            for block in islice(self.waiting, _LOOK_AHEAD):
                if now < block.not_before < due_at:
                    due_at = block.not_before
            if not self._connection.is_open and not self.connecting:
                due_at = min(due_at, self._connect_at)
        return due_at

    # -- connecting ------------------------------------------------------------------------------------------------

    def needs_connection(self, now: float) -> bool:
        """Whether to `connect` now."""
        return (
            bool(self.waiting)
            and not self.connecting
            and now >= self._connect_at
            and not self._connection.is_open
            and not self._session.closed
        )

    async def connect(self) -> None:
        """Try once to connect. Never raises: what waits is given up when its time is over."""
        runtime = self._session.runtime
        self.connecting = True
        try:
            now = runtime.now()
            expiry = min(map(self._waits_until, islice(self.waiting, _LOOK_AHEAD)), default=now)
            deadline = min(now + self._session.connect_timeout_s, max(now, expiry))
            await self._connection.open(deadline, patient=False)
            self._failure = None
        except ClientClosed:
            pass
        except ReputError as error:
            self._failure = error
            self._session.unreachable(self._connection.address)
        except Exception as error:
            log.exception("cannot connect to %s", self._connection.address)
            self._failure = ReputError(f"cannot connect to {self._connection.address}: {error!r}")
        finally:
            self.connecting = False  # first, whatever interrupts the rest
            self._connect_at = runtime.now() + self._backoff.next_delay_s()
            self.connected()

    def connected(self) -> None:
        """An attempt has ended, whichever way."""
        self.connecting = False
        self._on_news(None)


def _not_left(block: Block) -> RequestTimeout:
    return RequestTimeout(f"send to {block.queue.topic}/{block.queue.queue_id}", block.terms.timeout_s)
