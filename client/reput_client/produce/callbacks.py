"""Calling the `on_done` callbacks of posted messages."""

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

from reput_client.produce.posted import GatheredBlock
from reput_client.transport.runtime import CallerRuns, Event, Runtime

log = logging.getLogger("reput_client")

_ENDS_CALLER: Final = (KeyboardInterrupt, SystemExit)


class Callbacks:
    """Calls one producer's callbacks, one at a time, in the order in which their blocks were done."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # A producer's task must survive these; a caller need not.
        self._let_through = _ENDS_CALLER if isinstance(runtime, CallerRuns) else ()
        self._to_call: deque[GatheredBlock] = deque()
        """Done blocks with callbacks to call."""
        self._calling: int | None = None
        """The thread that is calling one."""
        self._called: Event | None = None
        """Set when a block's callbacks were called, if a caller waits."""

    def __bool__(self) -> bool:
        return bool(self._to_call)

    @property
    def are_due(self) -> bool:
        """Whether `call` would call any."""
        return bool(self._to_call) and self._calling is None

    def add(self, block: GatheredBlock) -> None:
        """Schedule the callbacks of a done block that has some."""
        self._to_call.append(block)

    async def call(self) -> None:
        """Call the callbacks of done blocks; does nothing while any thread is calling one."""
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

    def call_interrupted(self, unfinished: Iterable[GatheredBlock]) -> None:
        """Like `call`, after an interrupt has closed the client; includes unfinished blocks.

        Another thread may still be in a callback.
        """
        for block in (*self._to_call, *unfinished):
            self._call_each(block)

    async def called(self, last: int) -> None:
        """Return when the callbacks of blocks up to serial `last` were called, by any thread.

        Returns early when called from a callback, which would wait for itself.
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
        """In a forked child: drop the parent's callbacks."""
        self._to_call.clear()
        self._calling = self._called = None

    def _call_each(self, block: GatheredBlock) -> None:
        with suppress(IndexError):  # from `popleft`: none is left
            # CPython runs no signal handler between a step of this `map` and the first instruction of `on_done`, so
            # each callback is called once.
            for posted, on_done in map(deque.popleft, repeat(block.callbacks)):
                try:
                    on_done(posted)
                except self._let_through:
                    raise
                except BaseException:
                    log.exception("the callback of a posted message has raised")
