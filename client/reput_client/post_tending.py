"""Doing what is due for what is posted: blocks leave, are answered, fail, leave again, and are told of.

Under trio and asyncio a task does that while anything is under way, and those who wait only sleep; whoever waits starts
it again, should somebody have cancelled it. Without an event loop whoever posts or waits does it.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from reput_client.address import Address
from reput_client.backoff import Backoff
from reput_client.core import Waiter
from reput_client.post_block import Block
from reput_client.post_gathering import Gathering
from reput_client.post_link import Link
from reput_client.posted import Posted
from reput_client.puts import Putter, outcome_unknown
from reput_client.runtime import CallerRuns, Event
from reput_client.session import Session, wall_clock_ms
from reput_protocol.errors import ReputError
from reput_protocol.message_id import UniqueIdGenerator

log = logging.getLogger("reput_client")

_AWAY_S: Final = 1.0
_STOP_S: Final = 5.0


class PostTending:
    """The blocks of one producer, from when they are open until they are done.

    Invariant: a block that is not done is in `unfinished`, and either open in `gathering` or sealed in one of the links.
    """

    def __init__(
        self,
        session: Session,
        putter: Putter,
        gathering: Gathering,
        ids: UniqueIdGenerator | None,
        *,
        retries: int,
        new_backoff: Callable[[], Backoff],
        on_failed: Callable[[Block], None],
    ) -> None:
        """`on_failed` is told of every block that has failed."""
        self._session = session
        self._putter = putter
        self._gathering = gathering
        self._ids = ids
        self._retries = retries
        self._new_backoff = new_backoff
        self._on_failed = on_failed
        self._caller = session.runtime if isinstance(session.runtime, CallerRuns) else None
        self._links: dict[Address, Link] = {}
        self.unfinished: dict[int, Block] = {}
        """By serial, in that order."""
        self._to_call: deque[Block] = deque()
        """Done, with callbacks that have not been called."""
        self._calling = False
        self._arrivals = _Arrivals(self.wake)
        self._tenders: dict[Waiter, float] = {}
        """Those who do what is due, and until when they sleep."""
        self._due_at = math.inf
        self._left_at = -math.inf
        """When somebody last did what is due."""
        self._changed: Event | None = None
        """Set when a block is done, if somebody waits for that."""
        self._ended: Event | None = None
        """Set when the task has ended, while there is one."""

    def is_due(self) -> bool:
        """Whether the caller should `attend` before anything else; never where a task does."""
        return self._caller is not None and self._session.runtime.now() >= self._due_at

    def begun(self, block: Block) -> None:
        """A block has been opened: see to it that it leaves in time."""
        self.unfinished[block.serial] = block
        self._due_at = min(self._due_at, block.due_at)
        self._see_to_task()
        if any(until > block.due_at for until in self._tenders.values()):
            self.wake()

    def is_held_up(self, address: Address) -> bool:
        """Whether blocks for this broker have to wait for their turn, or for a connection."""
        link = self._links.get(address)
        return link is not None and bool(link.waiting)

    def leave_all(self) -> None:
        """Seal every open block."""
        for block in list(self._gathering.open.values()):
            self.leave(block)

    def leave(self, block: Block) -> None:
        """Seal an open block and have it wait for its turn."""
        self._gathering.close(block)
        link = self._links.get(block.address)
        if link is None:
            link = self._links[block.address] = Link(
                self._session, self._putter, block.address, self._arrivals, self._new_backoff(), self._retries
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
        """Do what can be done without waiting; return whether all that was sent has been written. Never raises."""
        session, links = self._session, self._links.values()
        while True:
            self._arrivals.ready = False
            now = session.runtime.now()
            for link in links:
                self._finished(link.answered(now))
            if any(link.is_late(now) for link in links):
                session.poll(to_the_end=True)
                spares = self._caller is not None and not self._tenders and now - self._left_at > _AWAY_S
                for link in links:
                    self._finished(link.answered(now))
                    self._finished(link.expire(now, spares=spares))
            for block in list(self._gathering.open.values()):
                if block.due_at > now:
                    break
                self.leave(block)
            unwritten = [link for link in links if not link.send(now)]
            if not self._arrivals.ready:
                break
        if self._caller is None:
            for link in links:
                if link.needs_connection(now):
                    link.connecting = True
                    session.runtime.spawn(link.connect)
        self._due_at = min((link.next_due(now) for link in links), default=math.inf)
        for block in self._gathering.open.values():
            self._due_at = min(self._due_at, block.due_at)
            break
        self._left_at = now
        return not unwritten

    async def _connect(self) -> bool:
        """Where there are no tasks: try to connect where it is time; return whether that was so."""
        tried = False
        if self._caller is not None:
            for link in list(self._links.values()):
                if link.needs_connection(self._session.runtime.now()):
                    await link.connect()
                    tried = True
        return tried

    async def attend(self) -> None:
        """Do what is due, without waiting for answers."""
        self._session.poll()
        written = self.step()
        if await self._connect():
            written = self.step()
        if not written:
            self.wake()
        await self.call_back()

    async def _tend(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Do what is due until `condition` holds; False when `deadline` came first."""
        session = self._session
        waiter = Waiter()
        self._session.poll()
        try:
            while True:
                waiter.ready = False
                self.step()
                await self.call_back()
                if condition():
                    return True
                now = session.runtime.now()
                if now >= deadline:
                    return False
                if await self._connect():
                    continue
                self._tenders[waiter] = until = min(deadline, self._due_at)
                await session.pump.wait(waiter, until)
        finally:
            self._tenders.pop(waiter, None)

    def wake(self) -> None:
        """Have those who do what is due look again."""
        for waiter in self._tenders:
            self._session.pump.wake(waiter)

    def _finished(self, blocks: Sequence[Block]) -> None:
        """Blocks are done."""
        routes = self._session.routes
        for block in blocks:
            del self.unfinished[block.serial]
            self._gathering.held -= block.size
            route = routes.get(block.queue.topic)
            if route is not None and route.template:
                routes.forget(block.queue.topic)  # there is a topic now
            if block.callbacks:
                self._to_call.append(block)
            if block.error is not None:
                self._on_failed(block)
        if blocks:
            self._signal()
            self.wake()

    def _signal(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def call_back(self) -> None:
        """Call the callbacks of what is done, unless one of them, or another thread's, is just being called."""
        while self._to_call and not self._calling:
            block = self._to_call[0]
            self._calling = True
            try:
                await self._session.runtime.outside(partial(_call_each, block))
            finally:
                self._calling = False
                if not block.callbacks and self._to_call and self._to_call[0] is block:
                    self._to_call.popleft()

    # -- the task ------------------------------------------------------------------------------------------------------

    def _see_to_task(self) -> None:
        if self._caller is None and self._ended is None and (self.unfinished or self._to_call):
            self._ended = self._session.runtime.event()
            self._session.runtime.spawn(self._run)

    async def _run(self) -> None:
        ended = self._ended
        assert ended is not None, "it was started"
        try:
            await self._tend(self._is_idle, math.inf)
        except Exception as error:
            log.exception("what was posted cannot be sent any more")
            self.give_up(ReputError(f"posting has failed: {error!r}"))
        finally:
            self._ended = None
            ended.set()
            # Should it have been cancelled, those who wait start another.
            self._signal()
            for block in self.unfinished.values():
                block.signal()

    def _is_idle(self) -> bool:
        return not (self.unfinished or self._to_call or any(link.connecting for link in self._links.values()))

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until `condition`, which changes when a block is done; False when `deadline` came first."""
        if self._caller is not None:
            return await self._tend(condition, deadline)
        runtime = self._session.runtime
        while not condition():
            remaining = deadline - runtime.now()
            if remaining <= 0:
                return False
            self._see_to_task()
            if self._changed is None:
                self._changed = runtime.event()
            await self._changed.wait(remaining)
        return True

    async def wait_for(self, block: Block) -> None:
        """Return when the block is done."""
        if self._caller is not None:
            await self._tend(lambda: block.done, math.inf)
            return
        while not block.done:
            self._see_to_task()
            if block.changed is None:
                block.changed = self._session.runtime.event()
            await block.changed.wait(math.inf)

    def block_for(self, block: Block) -> None:
        """As `wait_for`, where the caller may block."""
        if self._caller is None:
            raise RuntimeError("the message is not acknowledged yet; await it, or flush the producer first")
        self._caller.run(self.wait_for(block))

    # -- ending --------------------------------------------------------------------------------------------------------

    def give_up(self, error: ReputError) -> None:
        """End everything: with `error`, or as unknown what may have left. Never waits."""
        now = self._session.runtime.now()
        for link in self._links.values():
            self._finished(link.answered(now))
            self._finished(link.give_up(error))
        for block in list(self._gathering.open.values()):
            self._gathering.close(block)
            block.finish(None, error)
            self._finished([block])

    async def ended(self) -> None:
        """After everything was given up: return when callbacks have been called and the task has ended."""
        await self.call_back()
        if self._ended is not None:
            self.wake()
            await self._ended.wait(_STOP_S)

    def forget(self, ids: UniqueIdGenerator | None) -> None:
        """In a forked child: what is under way is the parent's; go on with other ids."""
        self._tenders.clear()
        self._ended = self._changed = None
        self._calling = False
        self._ids = ids
        for block in list(self._gathering.open.values()):
            self._gathering.close(block)
        for block in self.unfinished.values():
            reason = "it was posted before the fork, and the parent process sends it"
            block.changed = None
            block.finish(None, outcome_unknown(block.queue, (), reason))
        self._gathering.held = 0
        self._links.clear()
        self.unfinished.clear()
        self._to_call.clear()


class _Arrivals(Waiter):
    """Told of every call of a posted block that has finished."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def notify(self) -> None:
        """The step that follows takes what has come."""
        self.ready = True
        self._wake()


def _call_each(block: Block) -> None:
    while block.callbacks:
        number, on_done = block.callbacks.popleft()
        try:
            on_done(Posted(block, number))
        except Exception:
            log.exception("the callback of a posted message has raised")
