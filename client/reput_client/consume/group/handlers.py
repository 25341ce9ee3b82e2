"""What `run` accepts as a handler: a wrong one would make every message a dead letter."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

R = TypeVar("R")


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
