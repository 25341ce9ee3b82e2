"""Calls what a program gave to `post` to be called when a message is done."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import repeat
from threading import get_ident
from typing import Final

from reput_client.produce.block import PostedBlock
from reput_client.transport.runtime import CallerRuns, Event, Runtime

log = logging.getLogger("reput_client")

_ENDS_CALLER: Final = (KeyboardInterrupt, SystemExit)


class Callbacks:
    """The callbacks of one producer's blocks. They are called in the order in which blocks were done, one at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # What a task must not be ended by, a caller may.
        self._let_through = _ENDS_CALLER if isinstance(runtime, CallerRuns) else ()
        self._to_call: deque[PostedBlock] = deque()
        """Done, with callbacks that have not been called."""
        self._calling: int | None = None
        """The thread that calls callbacks just now."""
        self._called: Event | None = None
        """Set when it has called those of a block, if anything waits for that."""

    def __bool__(self) -> bool:
        """Whether there are any to be called."""
        return bool(self._to_call)

    def add(self, block: PostedBlock) -> None:
        """A block is done: those that it has, if any, are to be called."""
        if block.callbacks:
            self._to_call.append(block)

    async def call(self) -> None:
        """Call those of what is done, unless one of them, or another thread's, is just being called."""
        while self._to_call and self._calling is None:
            block = self._to_call[0]
            self._calling = get_ident()
            try:
                await self._runtime.outside(partial(self._call_each, block))
            finally:
                self._calling = None
                if not block.callbacks and self._to_call and self._to_call[0] is block:
                    self._to_call.popleft()
                if self._called is not None:
                    self._called.set()
                    self._called = None

    def call_interrupted(self, unfinished: Iterable[PostedBlock]) -> None:
        """As `call`, after an interrupt has closed the client, also those of blocks that are not done.

        Another thread may still be in one of them.
        """
        for block in (*self._to_call, *unfinished):
            self._call_each(block)

    async def called(self, last: int) -> None:
        """Return when those of blocks up to this serial have been called, by whichever thread.

        Not from such a callback: there the caller would wait for itself.
        """
        await self.call()
        while self._calling not in (None, get_ident()) and any(
            block.serial <= last for block in self._to_call
        ):
            if self._called is None:
                self._called = self._runtime.event()
            await self._called.wait(math.inf)
            await self.call()

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        self._to_call.clear()
        self._calling = self._called = None

    def _call_each(self, block: PostedBlock) -> None:
        with suppress(IndexError):  # of `popleft`: that were all
            # CPython calls signal handlers nowhere between a step of this `map` and the first instruction of `on_done`,
            # so each callback is called once, whatever interrupts this.
            for posted, on_done in map(deque.popleft, repeat(block.callbacks)):
                try:
                    on_done(posted)
                except self._let_through:
                    raise
                except BaseException:
                    log.exception("the callback of a posted message has raised")
