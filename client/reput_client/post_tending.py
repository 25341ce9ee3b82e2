"""Who does what is due for posted messages, and who waits for them.

Under trio and asyncio a task does it while anything is under way, and those who wait only sleep; whoever waits starts
it again, should somebody have cancelled it. Without an event loop whoever posts or waits does it.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat
from threading import get_ident
from typing import Final

from reput_client.core import Waiter
from reput_client.errors import ClientClosed
from reput_client.post_block import Block
from reput_client.post_steps import PostSteps
from reput_client.runtime import CallerRuns, Event
from reput_client.session import Session
from reput_protocol.errors import ReputError

log = logging.getLogger("reput_client")

_STOP_S: Final = 5.0


class PostTending:
    """Takes the steps of one producer's posts at their times, calls callbacks, connects."""

    def __init__(self, session: Session, steps: PostSteps) -> None:
        self._session = session
        self._steps = steps
        self.caller = session.runtime if isinstance(session.runtime, CallerRuns) else None
        self._calling: int | None = None
        """The thread that calls callbacks just now."""
        self._called: Event | None = None
        """Set when it has called those of a block, if somebody waits for that."""
        self._ended: Event | None = None
        """Set when the task has ended, while there is one."""

    def is_due(self) -> bool:
        """Whether the caller should `attend` before anything else; never where a task does."""
        return self.caller is not None and self._session.runtime.now() >= self._steps.due_at

    async def attend(self) -> None:
        """Do what is due, without waiting for answers."""
        self._session.poll()
        written = self._steps.step()
        if await self._connect():
            written = self._steps.step()
        if not written:
            self._steps.wake()  # who waits writes the rest
        await self.call_back()

    async def _tend(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Do what is due until `condition` holds; False when `deadline` came first."""
        session, steps = self._session, self._steps
        waiter = Waiter()
        self._session.poll()
        try:
            while True:
                waiter.ready = False
                steps.step()
                steps.tenders[waiter] = -math.inf
                await self.call_back()
                if condition():
                    return True
                if session.runtime.now() >= deadline:
                    return False
                if await self._connect():
                    continue
                steps.tenders[waiter] = until = min(deadline, steps.due_at)
                await session.pump.wait(waiter, until)
                steps.tenders[waiter] = -math.inf
        finally:
            steps.tenders.pop(waiter, None)

    async def _connect(self) -> bool:
        """Connect where it is time, in tasks if there are such; return whether the caller has done so instead."""
        links = self._steps.to_connect()
        for link in links:
            if self.caller is None:
                link.connecting = True
                self._session.runtime.spawn(link.connect, link.connected)
            else:
                await link.connect()
        return bool(links) and self.caller is not None

    async def call_back(self) -> None:
        """Call the callbacks of what is done, unless one of them, or another thread's, is just being called."""
        while self._steps.to_call and self._calling is None:
            block = self._steps.to_call[0]
            self._calling = get_ident()
            try:
                await self._session.runtime.outside(partial(self._call_each, block))
            finally:
                self._calling = None
                if not block.callbacks and self._steps.to_call and self._steps.to_call[0] is block:
                    self._steps.to_call.popleft()
                if self._called is not None:
                    self._called.set()
                    self._called = None

    def call_back_interrupted(self) -> None:
        """As `call_back`, after an interrupt has closed the client. Another thread may still be in one of them."""
        for block in (*self._steps.to_call, *self._steps.unfinished.values()):
            self._call_each(block)

    def _call_each(self, block: Block) -> None:
        # What a task must not be ended by, a caller may.
        let_through = () if self.caller is None else (KeyboardInterrupt, SystemExit)
        with suppress(IndexError):  # of `popleft`: that were all
            # CPython calls signal handlers nowhere between a step of this `map` and the first instruction of `on_done`,
            # so each callback is called once, whatever interrupts this.
            for posted, on_done in map(deque.popleft, repeat(block.callbacks)):
                try:
                    on_done(posted)
                except let_through:
                    raise
                except BaseException:
                    log.exception("the callback of a posted message has raised")

    async def called_back(self, last: int) -> None:
        """Return when the callbacks of blocks up to this serial have been called, by whichever thread.

        Not from such a callback: there the caller would wait for itself.
        """
        await self.call_back()
        while self._calling not in (None, get_ident()) and any(
            block.serial <= last for block in self._steps.to_call
        ):
            if self._called is None:
                self._called = self._session.runtime.event()
            await self._called.wait(math.inf)
            await self.call_back()

    # -- the task ------------------------------------------------------------------------------------------------------

    def see_to_task(self) -> None:
        """Where tasks are: have one while there is something to do."""
        if self.caller is not None:
            return
        self._session.runtime.end_dead()
        if self._ended is None and (self._steps.unfinished or self._steps.to_call):
            self._ended = ended = self._session.runtime.event()
            self._session.runtime.spawn(partial(self._run, ended), partial(self._has_ended, ended))

    async def _run(self, ended: Event) -> None:
        try:
            await self._tend(self._is_idle, math.inf)
        except Exception as error:
            log.exception("what was posted cannot be sent any more")
            self._steps.give_up(ReputError(f"posting has failed: {error!r}"))
        finally:
            # At once, not when the loop comes to it: whoever posts next must see that there is no task.
            self._has_ended(ended)

    def _has_ended(self, ended: Event) -> None:
        """The task has ended; should it have been cancelled, even before it began, those who wait start another."""
        ended.set()
        if self._ended is ended:
            self._ended = None
            self._steps.signal()
            for block in self._steps.unfinished.values():
                block.signal()

    def _is_idle(self) -> bool:
        return not (
            self._steps.unfinished
            or self._steps.to_call
            or any(link.connecting for link in self._steps.links.values())
        )

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until `condition`, which changes when a block is done; False when `deadline` came first."""
        if self.caller is not None:
            return await self._tend(condition, deadline)
        runtime = self._session.runtime
        while not condition():
            remaining = deadline - runtime.now()
            if remaining <= 0:
                return False
            self.see_to_task()
            if self._steps.changed is None:
                self._steps.changed = runtime.event()
            await self._steps.changed.wait(remaining)
        return True

    async def wait_for(self, block: Block) -> None:
        """Return when the block is done."""
        if self.caller is not None:
            await self._tend(lambda: block.done, math.inf)
            return
        while not block.done:
            self.see_to_task()
            if block.changed is None:
                block.changed = self._session.runtime.event()
            await block.changed.wait(math.inf)

    def block_for(self, block: Block) -> None:
        """As `wait_for`, where the caller may block; also returns when the client was interrupted."""
        if self.caller is None:
            raise RuntimeError("the message is not acknowledged yet; await it, or flush the producer first")
        try:
            self.caller.run(self.wait_for(block))
        except ClientClosed:
            if self.interruption is None:
                raise

    @property
    def interruption(self) -> str | None:
        """Why the client was closed in the middle of an operation; None if it was not."""
        return None if self.caller is None else self.caller.interruption

    # -- ending --------------------------------------------------------------------------------------------------------

    async def ended(self) -> None:
        """After everything was given up: return when callbacks have been called and the task has ended."""
        await self.call_back()
        if self._ended is not None:
            self._steps.wake()
            await self._ended.wait(_STOP_S)

    def forget(self) -> None:
        """In a forked child: nobody does anything yet."""
        self._ended = self._calling = self._called = None
