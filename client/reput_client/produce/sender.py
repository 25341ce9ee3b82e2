"""Sends the blocks of one producer: what is due is done by the callers that wait, one step after the other."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from reput_client.errors import ClientClosed
from reput_client.produce.accumulator import Accumulator
from reput_client.produce.block import Block, PostedBlock
from reput_client.produce.link import Link
from reput_client.produce.puts import Putter, outcome_unknown
from reput_client.produce.receipts import SendReceipt
from reput_client.transport.address import Address
from reput_client.transport.backoff import Backoff
from reput_client.transport.core import Waiter
from reput_client.transport.runtime import CallerRuns
from reput_client.transport.session import Session, wall_clock_ms
from reput_protocol.errors import ReputError
from reput_protocol.message_id import UniqueIdGenerator

log = logging.getLogger("reput_client")

_AWAY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.005


class Sender:
    """The links of one producer. Invariant: a sealed block that is not done is in one of them."""

    def __init__(
        self,
        session: Session,
        putter: Putter,
        accumulator: Accumulator,
        ids: UniqueIdGenerator | None,
        new_backoff: Callable[[], Backoff],
    ) -> None:
        self._session = session
        self._putter = putter
        self._accumulator = accumulator
        self._ids = ids
        self._new_backoff = new_backoff
        self.caller = session.runtime if isinstance(session.runtime, CallerRuns) else None
        """The runtime, if there are no tasks and callers do everything."""
        self._links: dict[Address, Link] = {}
        self._arrivals = _Arrivals(self.wake)
        self._tenders: dict[Waiter, float] = {}
        """Those who call `step` when something is due, and until when they sleep."""
        self.due_at = math.inf
        """When to call `step` again even if nothing comes."""
        self._stepped_at = -math.inf

    # -- steps: nothing here waits -------------------------------------------------------------------------------------

    def see_to(self, due_at: float) -> None:
        """Have `step` called at this time at the latest."""
        self.due_at = min(self.due_at, due_at)
        if any(until > due_at for until in self._tenders.values()):
            self.wake()

    def wake(self) -> None:
        """Have those who do what is due look again."""
        for waiter in self._tenders:
            self._session.pump.wake(waiter)

    def is_held_up(self, address: Address) -> bool:
        """Whether blocks for this broker have to wait for their turn, or for a connection."""
        link = self._links.get(address)
        return link is not None and (bool(link.waiting) or link.is_full)

    @property
    def is_connecting(self) -> bool:
        """Whether a task is connecting to a broker."""
        return any(link.connecting for link in self._links.values())

    def _is_busy(self, block: PostedBlock) -> bool:
        """Whether a block would wait for its turn, so that it may as well take more messages."""
        link = self._links.get(block.address)
        return link is not None and link.is_busy(block.queue)

    def leave_all(self) -> None:
        """Seal every open block."""
        for block in list(self._accumulator.open.values()):
            self.leave(block)

    def leave(self, block: PostedBlock) -> None:
        """Seal an open block and have it wait for its turn."""
        self._accumulator.close(block)
        self.add(block)

    def add(self, block: Block) -> None:
        """Seal a block that takes no more messages and have it wait for its turn."""
        link = self._links.get(block.address)
        if link is None:
            link = self._links[block.address] = Link(
                self._session, self._putter, block.address, self._arrivals, self._new_backoff()
            )
        try:
            block.seal(wall_clock_ms(), self._ids)
        except Exception as error:  # what can be wrong with a message was looked at when it came
            log.exception("a block of %d messages cannot be made", len(block.bodies))
            block.finish(None, ReputError(f"the block cannot be made: {error!r}"))
            self._finished([block])
            return
        link.add(block, self._session.runtime.now())

    def step(self) -> bool:
        """Do all that is due and can be done now; return whether the system has all that was sent."""
        session, accumulator, links = self._session, self._accumulator, self._links.values()
        while True:
            self._arrivals.ready = False
            now = session.runtime.now()
            for link in links:
                self._finished(link.answered(now))
            if any(now >= link.next_expiry() for link in links):
                session.poll(to_the_end=True)  # the answers may be here
                spares = not self._tenders and now - self._stepped_at > _AWAY_S
                for link in links:
                    self._finished(link.answered(now))
                    self._finished(link.expire(now, spares=spares))
            for block in accumulator.due(now):
                if now >= _grows_until(block) or not self._is_busy(block):
                    self.leave(block)
            unwritten = [link for link in links if not link.send(now)]
            if not self._arrivals.ready:
                break
        self._stepped_at = now
        self.due_at = min((link.next_due(now) for link in links), default=math.inf)
        for block in accumulator.open.values():
            if block.due_at > now:
                self.due_at = min(self.due_at, block.due_at)
                break
            # It leaves when an answer has come; callers that only post have to look for that.
            again_at = math.inf if self.caller is None else now + _LOOK_AGAIN_S
            self.due_at = min(self.due_at, _grows_until(block), again_at)
        self.see_to(self.due_at)
        return not unwritten

    def _finished(self, blocks: Sequence[Block]) -> None:
        """Blocks are done."""
        routes = self._session.routes
        for block in blocks:
            route = routes.get(block.queue.topic)
            if route is not None and route.template:
                routes.forget(block.queue.topic)  # there is a topic now
            block.on_done(block)
        if blocks:
            self.wake()

    def take_answers(self) -> None:
        """Take the answers that have come."""
        now = self._session.runtime.now()
        for link in self._links.values():
            self._finished(link.answered(now))

    def withdraw(self, blocks: Iterable[Block]) -> None:
        """Wait no more for blocks that are not done; those that have not left never will."""
        for block in blocks:
            for part in (block, *block.parts):
                self._links[block.address].withdraw(part)

    def give_up(self, opened: Iterable[Block], error: ReputError) -> None:
        """End everything, blocks that are open too: with `error`, or as unknown what may have left."""
        blocks: dict[Block, None] = dict.fromkeys(opened)
        for link in self._links.values():
            blocks.update(dict.fromkeys((*link.flying, *link.waiting)))
            link.flying.clear()
            link.waiting.clear()
        for block in list(self._accumulator.open.values()):
            self._accumulator.close(block)
        ended = [each for each in blocks if not each.parts]  # a divided one ends with its parts
        for each in ended:
            if not each.done:
                each.give_up(error)
        self._finished(ended)

    def forget(self, ids: UniqueIdGenerator | None) -> None:
        """In a forked child: what is under way is the parent's; continue with other ids."""
        self._tenders.clear()
        self._links.clear()
        self._ids = ids
        for block in list(self._accumulator.open.values()):
            self._accumulator.close(block)

    # -- callers that wait ---------------------------------------------------------------------------------------------

    async def attend(self) -> None:
        """Do what is due, without waiting for answers."""
        self._session.poll()
        written = self.step()
        if await self._connect(in_tasks=True):
            written = self.step()
        if not written:
            self.wake()  # who waits writes the rest

    async def tend(
        self,
        condition: Callable[[], bool],
        deadline: float,
        between: Callable[[], Awaitable[None]] | None = None,
    ) -> bool:
        """Do what is due until `condition` holds; False when `deadline` came first.

        `between` is awaited after each step. Without it the caller connects by itself, also where there are tasks.
        """
        session = self._session
        waiter = Waiter()
        session.poll()
        try:
            while True:
                waiter.ready = False
                self.step()
                self._tenders[waiter] = -math.inf
                if between is not None:
                    await between()
                if condition():
                    return True
                if session.runtime.now() >= deadline:
                    return False
                if await self._connect(in_tasks=between is not None):
                    continue
                self._tenders[waiter] = until = min(deadline, self.due_at)
                await session.pump.wait(waiter, until)
                self._tenders[waiter] = -math.inf
        finally:
            self._tenders.pop(waiter, None)

    async def _connect(self, *, in_tasks: bool) -> bool:
        """Connect where it is time, in tasks if there are such; return whether the caller has done so instead."""
        now = self._session.runtime.now()
        links = [link for link in self._links.values() if link.needs_connection(now)]
        in_tasks = in_tasks and self.caller is None
        for link in links:
            if in_tasks:
                link.connecting = True
                self._session.runtime.spawn(link.connect, link.connected)
            else:
                await link.connect()
        return bool(links) and not in_tasks

    async def deliver(self, block: Block) -> Sequence[SendReceipt]:
        """Send a block and return its receipts; raises what has happened to it."""
        self.add(block)
        try:
            await self.tend(lambda: block.done, math.inf)
        except ClientClosed as closed:  # by an interrupt
            raise outcome_unknown(block.queue, block.unique_ids, str(closed)) from closed
        finally:
            if not block.done:
                self.withdraw([block])
        if block.error is not None:
            raise block.error
        assert block.receipts is not None, "what is done without an error is stored"
        return block.receipts

    @property
    def interruption(self) -> str | None:
        """Why the client was closed in the middle of an operation; None if it was not."""
        return None if self.caller is None else self.caller.interruption


def _grows_until(block: PostedBlock) -> float:
    """Return until when a block takes messages at the latest, though it is due.

    Where the time of a message counts from its call on, none may join late.
    """
    return block.since + block.terms.timeout_s if block.terms.is_patient else block.due_at


class _Arrivals(Waiter):
    """Notified of every call of a block that has finished."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def notify(self) -> None:
        """The step that follows takes what has come."""
        self.ready = True
        self._wake()
