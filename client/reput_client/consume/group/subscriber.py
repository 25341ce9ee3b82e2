"""What `Consumer` and `PopConsumer` have in common: their state, the handlers of `run`, and the signals that end it.

What `run` accepts as a handler is checked: a wrong one would make every message a dead letter.
"""

from __future__ import annotations

import inspect
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from reput_client.consume.group.subscriptions import Subscriptions
from reput_client.received import R
from reput_client.transport.client import Client
from reput_client.transport.runtime import Runtime


class Subscriber(Client, ABC):
    """A client that gets the messages of some topics for a group."""

    group: str
    _subscriptions: Subscriptions

    @property
    def topics(self) -> tuple[str, ...]:
        """The consumed topics; with a pattern, those found so far."""
        return self._subscriptions.topics

    @property
    def topic(self) -> str:
        """The topic, or the first of several; "" while a pattern has found none."""
        return next(iter(self.topics), "")

    @property
    def connected(self) -> bool:
        """Whether any connection is open."""
        return self._session.connected

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._session.closed

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether no more messages are delivered, because the consumer was stopped or closed."""


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


class NotAwaitable(TypeError):
    """A handler returned something that cannot be awaited; ends `run`, whatever `on_failure` says."""


def check_takes_a_message(handler: Callable[[R], object]) -> None:
    """Raise TypeError if `handler` cannot be called with a message alone, as far as that can be known."""
    if not callable(handler):
        raise TypeError(f"a handler is a function, not {type(handler).__name__}; pass it without calling it")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # of some that are written in C
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"{handler!r} cannot be called with the message as its only argument: {error}; pass a function of one "
            "argument"
        ) from None


def awaited(handler: Callable[[R], Awaitable[object]]) -> Callable[[R], Awaitable[object]]:
    """Return a handler that raises `NotAwaitable` when `handler` turns out to be a plain function.

    Raises TypeError like `check_takes_a_message`.

    Otherwise awaiting its result would fail after the work is done, and each message would be handled again until it is
    a dead letter. A plain function that returns a coroutine is as good as a coroutine function.
    """
    check_takes_a_message(handler)
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return handler

    async def checked(message: R) -> object:
        result = handler(message)
        if not inspect.isawaitable(result):
            raise NotAwaitable(
                f"{handler!r} is a plain function, and its result cannot be awaited; pass a coroutine function "
                "(async def), or import the consumer from reput_client.blocking instead of reput_client"
            )
        return await result

    return checked
