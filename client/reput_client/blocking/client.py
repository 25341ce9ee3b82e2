"""The base class of synchronous clients, and how their methods are derived from the async ones.

A synchronous client holds an async client with a `BlockingRuntime`. `send = blocking(Producer.send)` has the signature
and docstring of `Producer.send`. Only methods that differ are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import WRAPPER_ASSIGNMENTS, update_wrapper
from inspect import cleandoc
from types import FunctionType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from reput_client.blocking.runtime import BlockingRuntime
from reput_client.errors import ClientClosed
from reput_client.transport.client import Client

P = ParamSpec("P")
T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=Client)

_CARRIED_OVER = tuple(name for name in WRAPPER_ASSIGNMENTS if name != "__module__")


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs the coroutine function `method` and blocks until it is done."""

    def call(self: _Driven, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runtime.run(method(self._client, *args, **kwargs))

    return _described_by(method, call)


def locked(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls `method`, which never waits, under the client's lock."""

    def call(self: _Driven, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runtime.call(lambda: method(self._client, *args, **kwargs))

    return _described_by(method, call)


def signature_of(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a written-out method the parameters and result of `method`.

    Its docstring, which describes the differences, is appended to that of `method`.
    """

    def decorate(function: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        notes = cleandoc(function.__doc__ or "")
        described = _described_by(method, function)
        described.__doc__ = f"{cleandoc(method.__doc__ or '')}\n\n{notes}"
        return described

    return decorate


def constructor(
    kind: Callable[P, ClientT],
) -> Callable[[Callable[[Any, ClientT], None]], Callable[Concatenate[Any, P], None]]:
    """Make an `__init__` that takes the parameters of the async client `kind` out of one that takes such a client."""
    new_client = cast("Callable[P, ClientT]", on_blocking_runtime(cast("type[Client]", kind)))

    def decorate(init: Callable[[Any, ClientT], None]) -> Callable[Concatenate[Any, P], None]:
        def __init__(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: N807
            init(self, new_client(*args, **kwargs))

        return _described_by(cast("type[Client]", kind).__init__, __init__)

    return decorate


def on_blocking_runtime(kind: type[ClientT]) -> type[ClientT]:
    """Return a subclass of the async client `kind` whose waits block the calling thread."""
    return type(kind.__name__, (kind,), {"_new_runtime": BlockingRuntime, "__module__": kind.__module__})


def _described_by(method: Callable[..., Any], function: Callable[P, T]) -> Callable[P, T]:
    """Give `function` the name, docstring and signature of `method`, in tracebacks too."""
    assert isinstance(function, FunctionType), "methods are made from functions"
    name, qualified = method.__name__, method.__qualname__
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=qualified)
    return update_wrapper(function, method, assigned=_CARRIED_OVER)


class _Driven:
    """The attributes that derived methods use."""

    _client: Any
    _runtime: BlockingRuntime


class BlockingClient(Generic[ClientT]):
    """An async client and the runtime of its coroutines; a context manager."""

    def __init__(self, client: ClientT) -> None:
        runtime = client._session.runtime
        assert isinstance(runtime, BlockingRuntime), "the client was made by `constructor`"
        self._client = client
        self._runtime = runtime
        runtime.on_fork(client._after_fork)

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            ConnectFailed: no broker responds at the given addresses.
        """
        try:
            self._runtime.run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(self._client.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Close the connections; any thread may call it. Calls in progress raise `ClientClosed`."""
        self._close(self._client.aclose())

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        try:
            self._runtime.run(closing)
        except ClientClosed:
            if self._runtime.interruption is None:
                raise  # otherwise an interrupt has closed it before
        finally:
            self._runtime.close()
