"""Handlers of the API for trio and asyncio: what they return is awaited."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

R = TypeVar("R")


class NotAwaitable(TypeError):
    """A handler returned something that cannot be awaited; ends `run`, whatever `on_failure` says."""


def awaited(handler: Callable[[R], Awaitable[object]]) -> Callable[[R], Awaitable[object]]:
    """Return a handler that raises `NotAwaitable` when `handler` turns out to be a plain function.

    Otherwise awaiting its result would fail after the work is done, and each message would be handled again until it is
    a dead letter. A plain function that returns a coroutine is as good as a coroutine function.
    """
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
