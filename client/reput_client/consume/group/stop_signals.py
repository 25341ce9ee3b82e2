"""Ending `run` when the process receives SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from reput_client.transport.runtime import Runtime

_BY_EVENT_LOOPS: Final = ("asyncio.runners", "trio._core._ki")
"""The modules with the handlers by which event loops turn SIGINT into `KeyboardInterrupt`."""


_active: Final[list[StopSignals]] = []
_restore: Final[list[Callable[[], None]]] = []
"""What restores the program's handlers; empty without ours. Both belong to the main thread."""


class StopSignals:
    """A context in which the first SIGTERM or SIGINT calls `stop`; a second one does what it did before.

    A program may run several consumers at a time: a signal stops all of them. Without effect outside the main thread,
    and for a signal for which the program has set a handler, or ignores it.

    Attributes:
        received: whether one came.
    """

    def __init__(self, runtime: Runtime, stop: Callable[[], None], *, enabled: bool) -> None:
        """`stop` is called as `Runtime.on_signal` says."""
        self.received = False
        self.stop = stop
        self._runtime = runtime
        self._enabled = enabled and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._enabled:
            if not _restore:
                for number in (signal.SIGTERM, signal.SIGINT):
                    if _is_default(number):
                        _restore.append(self._runtime.on_signal(number, _receive))
            _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            _active.remove(self)
            if not _active:
                _restore_all()


def _receive() -> None:
    _restore_all()
    for stopped in _active:
        stopped.received = True
        stopped.stop()


def _restore_all() -> None:
    while _restore:
        _restore.pop()()


def _is_default(number: int) -> bool:
    handler = signal.getsignal(number)
    if handler is (signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL):
        return True
    function = getattr(handler, "func", handler)  # asyncio's is a partial
    return getattr(function, "__module__", None) in _BY_EVENT_LOOPS
