"""The blocks for one broker: waiting to be sent, in flight, answered, failed, sent again."""

from __future__ import annotations

import logging
import math
from collections import deque
from itertools import islice
from typing import Final

from reput_client.errors import BrokerNotFound, ClientClosed, ConnectionLost, NotABroker, RequestTimeout, TlsRefused
from reput_client.produce.block import OutgoingBlock
from reput_client.produce.presence import Presence
from reput_client.produce.puts import Putter, is_away, is_not_taken, lacks_replica, outcome_unknown, unknown_after
from reput_client.produce.queue_selector import FaultIsolation
from reput_client.transport.backoff import Backoff
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.session import Session
from reput_protocol.errors import BrokerError, MessageRefused, NotMaster, ReputError
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Waiter

log = logging.getLogger("reput_client")

_IN_FLIGHT: Final = 64
"""Maximum unanswered blocks."""
_IN_FLIGHT_BYTES: Final = 4 << 20
"""No further block is sent while so many bytes are unanswered."""
_GATHER_FROM: Final = 2
"""With so many unanswered blocks, a further one takes messages until one of them is answered: the client encodes the
next block while the broker stores one and the other is under way."""
_RETRY_PAUSE_S: Final = 0.05
"""Delay before the first repetition; the n-th waits n times as long."""
_RETRY_PAUSE_MAX_S: Final = 1.0
_ANSWER_S: Final = 6.0
"""How long an attempt that is not the last waits for its answer at most: longer than a broker waits for its disk."""
_SLAVES_S: Final = 0.2
"""When to send again a block whose master waits for its slaves."""
_LOOK_AHEAD: Final = 64
"""How many waiting blocks are examined for one that may be sent, besides personal ones that may not."""


class Link:
    """The blocks for the master of one broker. Only `connect` waits, and nothing raises.

    Blocks of one queue are sent in order. A block that may have to be sent again is the only one of its queue in
    flight, so that none overtakes it. Others are sent again only if they cannot have left, before the blocks behind
    them. While there is no master, blocks wait for it, and personal ones until it knows this producer.

    Invariant: a sealed block that is not done is in `waiting`, in `flying` or in `refused`.

    Attributes:
        is_away: the master cannot be reached, or is not the master any more, and has to be looked for.
        refused: blocks that were certainly not stored and may go to another broker, each with the reason.
    """

    def __init__(
        self,
        session: Session,
        putter: Putter,
        faults: FaultIsolation,
        broker_name: str,
        news: Waiter,
        backoff: Backoff,
        presence: Presence,
    ) -> None:
        """`news` is notified when a block's call has finished, and woken after a connection attempt."""
        self._session = session
        self._putter = putter
        self._faults = faults
        self._broker_name = broker_name
        self._news = news
        self._backoff = backoff
        self._presence = presence
        self.waiting: deque[OutgoingBlock] = deque()
        self.flying: list[OutgoingBlock] = []
        self.refused: list[tuple[OutgoingBlock, ReputError]] = []
        self.is_away = False
        self.connecting = False
        self._connect_at = -math.inf
        self._failure: ReputError | None = None
        self._hopeless: ReputError | None = None
        """Why waiting for the broker does not help, such as a server of another protocol at its address."""
        self._not_welcome: ReputError | None = None
        """Why the broker has refused to know this producer; ends the personal blocks."""
        self._heard_at = -math.inf
        self.expires_at = math.inf
        """`expire` has nothing to do before; `next_expiry` updates it."""

    def add(self, block: OutgoingBlock) -> None:
        """Add a sealed block whose time runs already: a new one, or one that another broker has not taken."""
        self.waiting.append(block)
        self.expires_at = min(self.expires_at, block.since + block.terms.timeout_s)

    @property
    def is_full(self) -> bool:
        """Whether a further block would have to wait for answers."""
        return (
            len(self.flying) + len(self.waiting) >= _IN_FLIGHT
            or sum(len(block.data) for block in (*self.flying, *self.waiting)) >= _IN_FLIGHT_BYTES
        )

    def is_busy(self, queue: MessageQueue) -> bool:
        """Whether so much is in flight that a further block of this queue had better take more messages first."""
        return len(self.flying) + len(self.waiting) >= _GATHER_FROM or any(
            block.queue == queue and block.is_serial for block in self.flying
        )

    @property
    def _connection(self) -> BrokerConnection | None:
        """The connection to the master, open or not; None if its address is not known."""
        address = self._session.brokers.masters.get(self._broker_name)
        return None if address is None else self._session.connection_to(address)

    @property
    def _is_rocketmq(self) -> bool:
        """Whether a server of RocketMQ answers, which deduplicates nothing."""
        connection = self._connection
        return connection is not None and connection.is_rocketmq

    @property
    def has_unwritten(self) -> bool:
        """Whether sent frames are not completely written."""
        connection = self._connection
        return connection is not None and connection.has_unwritten

    def send(self, now: float) -> bool:
        """Send what can leave now; return whether everything sent is written."""
        connection = self._connection
        if connection is None:
            return True
        if self.waiting and not self.is_away and connection.usable():
            self._start(connection, now)
        return connection.flush_now()

    def _start(self, connection: BrokerConnection, now: float) -> None:
        if not connection.is_of(self._broker_name):
            self._failure = BrokerNotFound(self._broker_name, self.waiting[0].queue.topic)
            return
        held_up: set[MessageQueue] = set()
        flying_bytes = place = 0
        last = _LOOK_AHEAD
        for block in self.flying:
            flying_bytes += len(block.data)
            if block.is_serial or connection.is_rocketmq:  # which may handle a client's requests in any order
                held_up.add(block.queue)
        while place < last and place < len(self.waiting):
            if len(self.flying) >= _IN_FLIGHT or flying_bytes >= _IN_FLIGHT_BYTES:
                return
            block = self.waiting[place]
            if block.terms.is_personal and not self._presence.is_known_to(self._broker_name):
                place += 1
                last += 1  # it holds up no other
                continue
            if block.queue in held_up or block.not_before > now:
                held_up.add(block.queue)
                place += 1
                continue
            if block.is_serial or connection.is_rocketmq:
                held_up.add(block.queue)
            del self.waiting[place]
            template = block.template(self._putter)
            block.sent_at = now
            block.connection = connection
            self.flying.append(block)
            start = connection.start_oneway if block.terms.is_oneway else connection.start_template
            block.call = start(template, self._news, block.data)
            flying_bytes += len(block.data)

    def answered(self, now: float) -> list[OutgoingBlock]:
        """Handle the answers received; return the blocks that are done."""
        done: list[OutgoingBlock] = []
        again: list[OutgoingBlock] = []
        if self._not_welcome is not None:
            self._refuse_personal(self._not_welcome, now, done, again)
        for block in list(self.flying):
            call = block.call
            assert call is not None, "a block in flight has a call"
            if not call.done:
                continue
            place = self.flying.index(block)
            del self.flying[place]
            if call.error is None and block.terms.is_oneway:
                block.finish((), None)
                done.append(block)
            elif call.error is None:
                self._heard_at = now
                for behind in self.flying[place:]:
                    if behind.terms.is_bulk:
                        behind.sent_at = now  # its time for the answer starts now
                try:
                    block.answered(call)
                except NotMaster as error:
                    self._lost_master(error)
                    block.call = block.connection = None
                    again.append(block)
                except ReputError as error:
                    if lacks_replica(error, self._session, self._broker_name) and not block.is_free:
                        self._failure = error
                        self._wait_for_slaves(block, now)
                        again.append(block)
                    elif block.is_free and not block.unknown and is_not_taken(error):
                        self.refused.append((block, error))
                    elif isinstance(error, MessageRefused) and block.terms.is_divisible and block.count > 1:
                        again += block.divide()
                    else:
                        self._failed(block, error, now, done, again)
                else:
                    self._failure = None
                    if self._connect_at > -math.inf:
                        self._connect_at = -math.inf
                        self._backoff.reset()
                    # As in RocketMQ, a broker that is slow with a send is left out for a while.
                    self._faults.answered(self._broker_name, 0.0 if block.terms.is_bulk else now - block.since)
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

    def _refuse_personal(
        self, error: ReputError, now: float, done: list[OutgoingBlock], again: list[OutgoingBlock]
    ) -> None:
        self._not_welcome = None
        for block in [block for block in self.waiting if block.terms.is_personal]:
            self.waiting.remove(block)
            if block.is_free and is_not_taken(error):
                self.refused.append((block, error))
            else:
                self._failed(block, error, now, done, again)

    def _lost_master(self, error: ReputError) -> None:
        self.is_away = True
        self._failure = error
        self._faults.failed(self._broker_name)
        self._session.master_is_stale(self._broker_name)

    def free_blocks(self) -> list[OutgoingBlock]:
        """Return the waiting blocks that may go to another broker: those that are certainly not stored."""
        return [block for block in self.waiting if block.is_free and not block.unknown]

    def _wait_for_slaves(self, block: OutgoingBlock, now: float) -> None:
        block.call = block.connection = None
        block.not_before = now + _SLAVES_S

    def not_taken(self, block: OutgoingBlock, error: ReputError, now: float) -> list[OutgoingBlock]:
        """Handle a refused block that no other broker takes; return it if it is done."""
        done: list[OutgoingBlock] = []
        again: list[OutgoingBlock] = []
        if lacks_replica(error, self._session, self._broker_name):
            block.refused_by.clear()
            self._failure = error
            self._wait_for_slaves(block, now)
            again.append(block)
        else:
            self._failed(block, error, now, done, again)
        self._wait_again(again)
        return done

    def _wait_again(self, blocks: list[OutgoingBlock]) -> None:
        """Put blocks back before all waiting ones."""
        self.waiting.extendleft(reversed(blocks))
        for block in blocks:
            self.expires_at = min(self.expires_at, block.since + block.terms.timeout_s)

    def expire(self, now: float, *, spares: bool) -> list[OutgoingBlock]:
        """Give up blocks not answered or not sent in time; return those that are done.

        `spares`: no step was done for a while, so blocks that have not left get their time again, once each.
        """
        done: list[OutgoingBlock] = []
        again: list[OutgoingBlock] = []
        if spares:
            for block in (*self.flying, *self.waiting):
                if block.terms.is_bulk and not block.spared and (block.call is None or not block.call.sent):
                    block.spared = True
                    block.since = max(block.since, now)
                    block.sent_at = now
        for block in [block for block in self.flying if now >= self._flies_until(block)]:
            assert block.call is not None, "a block in flight has a call"
            assert block.connection is not None, "a block in flight has a connection"
            self.flying.remove(block)
            error: ReputError = _not_left(block)
            block.connection.doubt(block.sent_at)
            if not block.connection.abandon(block.call):
                reason = f"no response within {now - block.sent_at:.2g} s"
                error = outcome_unknown(block.queue, block.unique_ids, reason)
            self._failed(block, error, now, done, again)
        for block in [block for block in self.waiting if now >= self._waits_until(block)]:
            self.waiting.remove(block)
            self._failed(block, self._failure or _not_left(block), now, done, again)
        if done and not self.waiting:  # the next block knows nothing of this outage
            self._failure = self._hopeless = None
            self.is_away = False
            self._connect_at = -math.inf
        self._wait_again(again)
        return done

    def withdraw(self, block: OutgoingBlock) -> None:
        """Remove a block without waiting for its answer.

        An interrupt while it was started may have left it waiting and in flight, or in flight without a call.
        """
        if block in self.waiting:
            self.waiting.remove(block)
        if block in self.flying:
            self.flying.remove(block)
            if block.call is not None and block.connection is not None:
                block.connection.abandon(block.call)

    def _failed(
        self, block: OutgoingBlock, error: ReputError, now: float, done: list[OutgoingBlock], again: list[OutgoingBlock]
    ) -> None:
        """Add a failed block to `again` if it may be repeated; otherwise finish it and add it to `done`."""
        terms = block.terms
        block.attempt += 1
        if block.attempt == 1:
            block.repeated_until = (now if terms.is_bulk else block.since) + terms.timeout_s
        next_at = now + min(_RETRY_PAUSE_S * block.attempt, _RETRY_PAUSE_MAX_S)
        is_given_up = terms.retries is not None and block.attempt > terms.retries
        try:
            block.unknown = unknown_after(
                error,
                block.unknown,
                is_last=is_given_up or next_at >= block.repeated_until,
                retries=terms.retries,
                deduplicates=self._putter.deduplicate and not self._is_rocketmq,
            )
        except ReputError as last:
            block.finish(None, last)
            done.append(block)
            return
        block.call = block.connection = None
        block.not_before = next_at
        if terms.is_bulk:
            block.since = next_at
        again.append(block)

    # -- times -----------------------------------------------------------------------------------------------------

    def _waits_until(self, block: OutgoingBlock) -> float:
        """Return when a waiting block is given up: a bulk one has time while the broker answers others."""
        terms = block.terms
        if self._hopeless is not None and not terms.is_bulk:
            return -math.inf
        return (max(block.since, self._heard_at) if terms.is_bulk else block.since) + terms.timeout_s

    def _flies_until(self, block: OutgoingBlock) -> float:
        """Return when a block in flight is given up, or sent again."""
        terms = block.terms
        until = (block.sent_at if terms.is_bulk else block.since) + terms.timeout_s
        if terms.retries != 0 and (self._putter.deduplicate or terms.retries is not None):
            until = min(until, block.sent_at + min(_ANSWER_S, terms.timeout_s / 2))
        return until

    def next_expiry(self) -> float:
        """Compute when `expire` is needed next."""
        flying = min(map(self._flies_until, self.flying), default=math.inf)
        waiting = min(map(self._waits_until, self.waiting), default=math.inf)
        self.expires_at = min(flying, waiting)
        return self.expires_at

    def next_due(self, now: float) -> float:
        """Return a time, perhaps too early, at which there is work here even without an answer."""
        due_at = self.expires_at
        if self.waiting:
            knows = self._presence.is_known_to(self._broker_name)
            may_leave = (block for block in self.waiting if knows or not block.terms.is_personal)
            for block in islice(may_leave, _LOOK_AHEAD):
                if now < block.not_before < due_at:
                    due_at = block.not_before
            if not self.connecting and (self.is_closed or self._must_introduce):
                due_at = min(due_at, self._connect_at)
        return due_at

    # -- connecting ------------------------------------------------------------------------------------------------

    def needs_connection(self, now: float) -> bool:
        """Whether to call `connect` now for the waiting blocks."""
        return (
            not self.connecting
            and now >= self._connect_at
            and (self.is_closed or self._must_introduce)
            and not self._session.closed
        )

    @property
    def is_closed(self) -> bool:
        """Whether blocks have to wait for a connection to the master."""
        connection = self._connection
        return self.is_away or connection is None or not connection.is_open

    @property
    def _must_introduce(self) -> bool:
        """Whether personal blocks wait until the broker knows this producer."""
        are_there = any(block.terms.is_personal for block in islice(self.waiting, _LOOK_AHEAD))
        return are_there and not self._presence.is_known_to(self._broker_name)

    async def connect(self) -> None:
        """Try once to connect, and to be known where that is needed. Never raises; waiting blocks expire."""
        runtime = self._session.runtime
        self.connecting = True
        try:
            now = runtime.now()
            expiry = min(map(self._waits_until, islice(self.waiting, _LOOK_AHEAD)), default=now)
            deadline = min(now + self._session.connect_timeout_s, max(now, expiry))
            topic = self.waiting[0].queue.topic if self.waiting else ""
            if self.waiting and self.is_away:
                await self._session.look_for_master(topic, deadline)
            await self._session.open_for(MessageQueue(topic, self._broker_name, 0), deadline, patient=False)
            self.is_away = False
            self._hopeless = None
            if not isinstance(self._failure, NotMaster):
                self._failure = None
            if self._must_introduce:
                await self._introduce(deadline)
        except ClientClosed:
            pass
        except ReputError as error:
            if not isinstance(self._failure, NotMaster):
                self._failure = error
            if isinstance(error, NotABroker | TlsRefused) or (
                isinstance(error, BrokerNotFound) and not self._session.brokers.slaves.get(self._broker_name)
            ):
                self._hopeless = error
                self.expires_at = -math.inf
            self.is_away = True
            self._faults.failed(self._broker_name)
        except Exception as error:
            log.exception("cannot connect to broker %s", self._broker_name)
            self._failure = ReputError(f"cannot connect to broker {self._broker_name}: {error!r}")
        finally:
            self.connecting = False  # first: an interrupt may skip the rest
            self._connect_at = runtime.now() + self._backoff.next_delay_s()
            self.attempt_ended()

    async def _introduce(self, deadline: float) -> None:
        """Make the broker know this producer; raises if it has no master, and `ClientClosed`."""
        try:
            await self._presence.be_known_to(self._broker_name, deadline)
        except RequestTimeout as error:
            self._failure = error
        except BrokerError as error:
            if is_away(error):
                raise
            self._not_welcome = error

    def attempt_ended(self) -> None:
        """Report that a connection attempt has ended."""
        self.connecting = False
        self._session.pump.wake(self._news)


def _not_left(block: OutgoingBlock) -> RequestTimeout:
    return RequestTimeout(f"send to {block.queue.topic}/{block.queue.queue_id}", block.terms.timeout_s)
