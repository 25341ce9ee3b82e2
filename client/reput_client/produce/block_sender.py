"""Sends the blocks of one producer, in steps that waiting callers do.

A *step* seals and sends what can leave and handles the answers; it never waits. One of the callers that wait is the
*driver*: between two steps it waits in the pump, where it may or may not have the read turn (`transport/pump.py`). The
others sleep until their blocks are done. One rule keeps this going: **a driver that leaves, for any reason, wakes one
sleeper**, the *heir*, which drives next; while an heir is awake and does not drive yet, no other is woken.

A caller that does not wait, such as `post`, does a step itself (`do_due`, `go_on`), and wakes a driver that would sleep
too long after it. Under trio and asyncio a task waits like a caller while posted messages are unfinished
(`Gathering`), and connections are made in tasks. Without tasks, in the synchronous API, the driver leaves to connect.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from reput_client.errors import ClientClosed
from reput_client.produce.accumulator import Accumulator
from reput_client.produce.block import GatheredBlock, OutgoingBlock
from reput_client.produce.link import Link
from reput_client.produce.presence import Presence
from reput_client.produce.puts import Putter, outcome_unknown
from reput_client.produce.queue_selector import FaultIsolation, FreeChoice, QueueChoice, RoundRobin
from reput_client.transport.backoff import Backoff
from reput_client.transport.routing import Route
from reput_client.transport.runtime import CallerRuns, Event, Sleeper
from reput_client.transport.session import Session, wall_clock_ms
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.wire.channel import Waiter

log = logging.getLogger("reput_client")

_AWAY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.005


class BlockSender:
    """The links of one producer, one for each broker. Invariant: a sealed block that is not done is in a link."""

    def __init__(
        self,
        session: Session,
        putter: Putter,
        accumulator: Accumulator,
        selector: RoundRobin,
        faults: FaultIsolation,
        ids: UniqueIdGenerator | None,
        new_backoff: Callable[[], Backoff],
        presence: Presence,
    ) -> None:
        self._session = session
        self._putter = putter
        self._accumulator = accumulator
        self._selector = selector
        self._faults = faults
        self._ids = ids
        self._new_backoff = new_backoff
        self._presence = presence
        self.blocking_runtime = session.runtime if isinstance(session.runtime, CallerRuns) else None
        """The runtime of the synchronous API, which has no tasks, so that callers do all work; else None."""
        self._links: dict[str, Link] = {}
        """By broker name."""
        self._news = Waiter()
        """What the driver waits with. It is ready while links may have news that no step has handled."""
        self.is_driven = False
        """Whether a caller does the steps."""
        self._sleeps_until = -math.inf
        """When the driver does the next step even if nothing happens."""
        self._asleep: dict[OutgoingBlock, None] = {}
        """Blocks with callers that sleep until they are done."""
        self._conditions: dict[Event, Callable[[], bool]] = {}
        """What other callers that sleep wait for."""
        self._have_woken = False
        """Whether sleepers were woken that have not run since, as far as is known."""
        self._heir: Sleeper | Event | None = None
        """Of the heir."""
        self.due_at = math.inf
        """When `step` must be called again even without an answer."""
        self._stepped_at = -math.inf

    # -- steps: nothing here waits -------------------------------------------------------------------------------------

    def require_step(self, due_at: float) -> None:
        """Make sure that `step` is called by this time, if any caller waits."""
        self.due_at = min(self.due_at, due_at)
        if due_at < self._sleeps_until:
            self._sleeps_until = due_at
            self.wake()

    def wake(self) -> None:
        """Make the driver do a step, or look at its condition again; it does so itself while it does not sleep."""
        if self.is_driven and self._sleeps_until > -math.inf:
            self._session.pump.wake(self._news)

    def link(self, broker_name: str) -> Link:
        """Return the link to a broker."""
        link = self._links.get(broker_name)
        if link is None:
            link = self._links[broker_name] = Link(
                self._session, self._putter, self._faults, broker_name, self._news, self._new_backoff(), self._presence
            )
        return link

    def choose(self, route: Route, choice: QueueChoice) -> MessageQueue:
        """Return the queue for a new block; if any broker will do, past those that lag or are away.

        Raises `InvalidMessage` or `NoQueue`.
        """
        if len(route.brokers) == 1 or not isinstance(choice, FreeChoice):
            return self._selector.choose(route, choice)
        held_up = {name for name in route.brokers if self._is_held_up(name)}
        queue = self._selector.choose(route, choice, left_out=held_up)
        self._faults.chosen(queue.broker_name)
        return queue

    def _is_held_up(self, broker_name: str) -> bool:
        """Whether blocks for this broker wait for others or for a connection."""
        link = self._links.get(broker_name)
        return (link is not None and (bool(link.waiting) or link.is_full)) or self._is_away(broker_name)

    def _is_away(self, broker_name: str) -> bool:
        return self._session.brokers.masters.get(broker_name) is None or self._faults.is_left_out(broker_name)

    @property
    def is_connecting(self) -> bool:
        """Whether any link is connecting."""
        return any(link.connecting for link in self._links.values())

    def is_busy(self, queue: MessageQueue) -> bool:
        """Whether a block waits with advantage, because messages that come meanwhile share it."""
        link = self._links.get(queue.broker_name)
        return link is not None and bool(link.flying) and link.is_busy(queue)

    def seal_all(self) -> None:
        """Seal every open block."""
        for block in list(self._accumulator.open.values()):
            self.seal(block)

    def seal(self, block: GatheredBlock, now: float | None = None) -> None:
        """Seal an open block and queue it."""
        self._accumulator.close(block)
        self.add(block, now)

    def add(self, block: OutgoingBlock, now: float | None = None) -> None:
        """Seal a block and queue it on its link."""
        link = self.link(block.queue.broker_name)
        if self._session.closed:
            block.finish(None, ClientClosed("the producer was closed before the message was sent"))
            self._finished([block])
            return
        try:
            block.seal(wall_clock_ms(), self._ids)
        except Exception as error:  # messages were validated when they were added
            log.exception("a block of %d messages cannot be encoded", len(block.bodies))
            block.finish(None, ReputError(f"the block cannot be encoded: {error!r}"))
            self._finished([block])
            return
        if block.terms.is_bulk or not block.since:
            block.since = self._session.runtime.now() if now is None else now
        link.add(block)

    def step(self) -> bool:
        """Do everything that is due and possible now; return whether everything sent is written."""
        now_of, accumulator, links = self._session.runtime.now, self._accumulator, self._links.values()
        had_news = False
        while True:
            now = now_of()
            if self._news.ready:
                had_news = True
                self._take_news(now)
            for block in self._leaving(now) if accumulator.open else ():
                self.seal(block, now)
            written = True
            for link in links:
                if now >= link.expires_at:
                    self._expire(now)
                if (link.waiting or (link.flying and link.has_unwritten)) and not link.send(now):
                    written = False
            if not self._news.ready:
                break
        self._stepped_at = now
        if had_news and self._sleeps_until > -math.inf:  # this step is not the driver's, which slept on the news
            self.wake()
        return written

    def _leaving(self, now: float) -> list[GatheredBlock]:
        """Return the open blocks to be sealed: with the first that is due, all that need not wait for an answer.

        So they leave in one write, and the broker reads, syncs and answers once for all.
        """
        accumulator = self._accumulator
        is_due = is_stuck = bool(accumulator.wanting) and accumulator.is_stuck
        leaving = []
        for block in accumulator.open.values():
            if is_stuck or now >= block.grows_until or not self.is_busy(block.queue):
                leaving.append(block)
                is_due = is_due or block.due_at <= now
        return leaving if is_due else []

    def go_on(self) -> None:
        """Do a step, in place of the caller that drives, which may sleep; it goes on with the rest."""
        if not self.step():
            self.wake()
        self.look_ahead()

    def look_ahead(self) -> None:
        """After a step: compute when the next one is due, and wake a driver that would sleep longer."""
        now, due_at = self._stepped_at, math.inf
        for link in self._links.values():
            due_at = min(due_at, link.next_due(now) if link.waiting else link.expires_at)
        for block in self._accumulator.open.values():
            if block.due_at > now:
                due_at = min(due_at, block.due_at)
            else:
                # It leaves after an answer, for which callers that only post must check.
                again_at = math.inf if self.blocking_runtime is None else now + _LOOK_AGAIN_S
                due_at = min(due_at, block.grows_until, again_at)
        self.due_at = math.inf
        self.require_step(due_at)

    def _take_news(self, now: float) -> None:
        self._news.ready = False
        self.due_at = now  # outdated
        for link in list(self._links.values()):
            done = link.answered(now)
            if done:
                self._finished(done)
            if link.refused or link.is_away:
                self._send_elsewhere(link, now)

    def _send_elsewhere(self, link: Link, now: float) -> None:
        """Move blocks that this broker has not taken to other brokers, if there are any for them."""
        refused, link.refused = link.refused, []
        for block, error in refused:
            self._faults.failed(block.queue.broker_name)
            block.refused_by.add(block.queue.broker_name)
            others = self._brokers_besides(block)
            good = {name for name in others if not self._is_away(name)}
            if not self._move(block, good or others):
                self._finished(link.not_taken(block, error, now))
        if link.is_away:
            for block in link.free_blocks():
                others = self._brokers_besides(block)
                if not self._move(block, {name for name in others if not self._is_away(name)}):
                    break
                link.waiting.remove(block)

    def _brokers_besides(self, block: OutgoingBlock) -> set[str]:
        """Return the brokers that may still take a block."""
        route = self._session.routes.get(block.queue.topic)
        names = () if route is None else route.brokers
        masters = {name for name in names if self._session.brokers.masters.get(name) is not None}
        return masters - block.refused_by - {block.queue.broker_name}

    def _move(self, block: OutgoingBlock, names: set[str]) -> bool:
        """Queue a block for one of these brokers, in the time that it has left; False if there is none."""
        route = self._session.routes.get(block.queue.topic)
        if route is None or not names:
            return False
        queue = self._selector.choose(route, block.number, left_out=set(route.brokers) - names)
        self._faults.chosen(queue.broker_name)
        block.move(queue)
        self.link(block.queue.broker_name).add(block)
        return True

    def _expire(self, now: float) -> None:
        links = self._links.values()
        if now < min(link.next_expiry() for link in links):
            return
        self._session.poll(to_the_end=True)  # their answers may have arrived
        spares = not self.is_driven and now - self._stepped_at > _AWAY_S
        self._take_news(now)
        self._news.ready = True  # given-up blocks make room for others
        for link in links:
            self._finished(link.expire(now, spares=spares))

    def _finished(self, blocks: Sequence[OutgoingBlock]) -> None:
        for part in blocks:
            for block in (part, part.whole):
                if block is None or not block.done:
                    continue  # other parts of it are not done
                if block.on_done is not None:
                    block.on_done(block)
                if block.sleepers:
                    self._asleep.pop(block, None)
                    self._session.runtime.wake(block.sleepers)
                    block.sleepers = []
                    self._have_woken = True
        if self._sleeps_until > -math.inf:
            self.wake()
        for event, condition in self._conditions.items():
            if condition():
                event.set()

    def take_answers(self) -> None:
        """Handle the answers received."""
        self._take_news(self._session.runtime.now())

    def withdraw(self, blocks: Iterable[OutgoingBlock]) -> None:
        """Stop waiting for unfinished blocks; those not sent never will be."""
        for block in blocks:
            for part in (block, *block.parts):
                self._links[part.queue.broker_name].withdraw(part)
        self.wake()  # there may be room for others now

    def give_up(self, opened: Iterable[OutgoingBlock], error: ReputError) -> None:
        """End everything including open blocks: with `error`, or as unknown if a block may have left."""
        blocks: dict[OutgoingBlock, None] = dict.fromkeys(opened)
        for link in self._links.values():
            blocks.update(dict.fromkeys((*link.flying, *link.waiting)))
            link.flying.clear()
            link.waiting.clear()
        for block in list(self._accumulator.open.values()):
            self._accumulator.close(block)
        ended = [each for each in blocks if not each.parts]  # a divided block ends with its parts
        for each in ended:
            if not each.done:
                each.give_up(error)
        self._finished(ended)

    def forget(self, ids: UniqueIdGenerator | None) -> None:
        """In a forked child: drop what the parent sends, and use other ids."""
        self.is_driven, self._heir = False, None
        self._news = Waiter()
        self._asleep.clear()
        self._conditions.clear()
        self._links.clear()
        self._ids = ids
        for block in list(self._accumulator.open.values()):
            self._accumulator.close(block)

    # -- callers that wait ---------------------------------------------------------------------------------------------

    async def do_due(self) -> None:
        """Do what is due, without waiting for answers."""
        self._session.poll()
        written = self.step()
        while (link := self._start_connecting(self._stepped_at)) is not None:
            await link.connect()
            written = self.step()
        self.look_ahead()
        if not written:
            self.wake()  # a waiting caller writes the rest

    async def until(self, condition: Callable[[], bool], deadline: float = math.inf) -> bool:
        """Return True once `condition` holds, False if `deadline` came first; it changes only when a block is done.

        One of the callers that wait does the steps for all, and the next one when it leaves.
        """
        runtime, goal = self._session.runtime, _Goal(condition)
        try:
            while not goal.done:
                if runtime.now() >= deadline:
                    return False
                if not self.is_driven:
                    await self._drive(goal, deadline)
                else:
                    event = runtime.event()
                    self._conditions[event] = condition
                    try:
                        await event.wait(deadline - runtime.now())
                    finally:
                        del self._conditions[event]
                        if self._heir is event:
                            self._heir = None
        finally:
            self._hand_over()
        return True

    async def wait_for(self, block: OutgoingBlock) -> None:
        """Return when a block is done; like `until`."""
        while not block.done:
            if not self.is_driven:
                try:
                    await self._drive(block, math.inf)
                finally:
                    if self._conditions or self._asleep:
                        self._hand_over()
                continue
            sleeper = self._session.runtime.sleeper()
            if not block.sleepers:
                self._asleep[block] = None
            block.sleepers.append(sleeper)
            try:
                await sleeper
            except BaseException:
                self._give_up_sleep(block, sleeper)
                raise
            if self._heir is sleeper:
                self._heir = None
                if block.done:
                    self._hand_over()

    def _give_up_sleep(self, block: OutgoingBlock, sleeper: Sleeper) -> None:
        """Forget a sleeper whose caller was cancelled."""
        if sleeper in block.sleepers:
            block.sleepers.remove(sleeper)
            if not block.sleepers:
                self._asleep.pop(block, None)
        elif self._heir is sleeper:
            self._heir = None
            self._hand_over()

    async def _drive(self, goal: OutgoingBlock | _Goal, deadline: float) -> None:
        session = self._session
        self.is_driven = True
        try:
            if self._have_woken:
                await session.runtime.pause()  # those whose messages are done send the next ones
            while True:
                self._have_woken = False
                self.step()
                if goal.done or self._stepped_at >= deadline:
                    return
                connecting = self._start_connecting(self._stepped_at)
                if connecting is not None:
                    break
                self.look_ahead()
                self._sleeps_until = min(deadline, self.due_at)
                await session.pump.wait(self._news, self._sleeps_until)
                self._sleeps_until = -math.inf
        finally:
            self.is_driven = False
            self._sleeps_until = -math.inf
        self._hand_over()  # another caller drives meanwhile
        await connecting.connect()

    def _hand_over(self) -> None:
        """Wake a caller that will drive, unless one was woken already."""
        if self.is_driven or self._heir is not None:
            return
        if self._conditions:
            self._heir = event = next(iter(self._conditions))
            event.set()
        elif self._asleep:
            block = next(iter(self._asleep))
            self._heir = sleeper = block.sleepers.pop(0)
            if not block.sleepers:
                self._asleep.pop(block, None)
            self._session.runtime.wake((sleeper,))

    def _start_connecting(self, now: float) -> Link | None:
        """Connect links that need it, in tasks; without tasks, return the first: the caller connects it."""
        for link in self._links.values():
            if link.waiting and link.needs_connection(now):
                if self.blocking_runtime is not None:
                    return link
                link.connecting = True
                self._session.runtime.spawn(link.connect, link.attempt_ended)
        return None

    async def deliver(self, block: OutgoingBlock) -> None:
        """Send a block, and return when it is stored, or the system has taken a oneway one; or raise its error."""
        self.add(block)
        if self.is_driven:
            self.go_on()
        try:
            await self.wait_for(block)
        except ClientClosed as closed:  # from an interrupt
            raise outcome_unknown(block.queue, block.unique_ids, str(closed)) from closed
        finally:
            if not block.done:
                self.withdraw([block])
        if block.error is not None:
            raise block.error

    @property
    def interruption(self) -> str | None:
        """Why an interrupt closed the client, or None."""
        return None if self.blocking_runtime is None else self.blocking_runtime.interruption


@dataclass(eq=False, repr=False, slots=True)
class _Goal:
    """A condition that a caller waits for, in the place of a block."""

    _condition: Callable[[], bool]

    @property
    def done(self) -> bool:
        """Whether the condition holds."""
        return self._condition()
