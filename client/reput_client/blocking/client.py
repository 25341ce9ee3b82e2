"""What every blocking client has: a runtime, opening and closing."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

from reput_client.blocking.runtime import BlockingRuntime
from reput_client.errors import ClientClosed


class _AsyncClient(Protocol):
    def __aenter__(self) -> Coroutine[Any, Any, object]: ...

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...

    def aclose(self) -> Coroutine[Any, Any, None]: ...

    def after_fork(self) -> None: ...


class BlockingClient:
    """A client of the async face and the runtime that its coroutines are run on."""

    def __init__(self, client: _AsyncClient, runtime: BlockingRuntime) -> None:
        self._client = client
        self._runtime = runtime
        runtime.on_fork(client.after_fork)

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            ConnectFailed: no broker answers at the given address.
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
        """Close the connections; any thread may. Calls in progress in other threads end with `ClientClosed`."""
        self._close(self._client.aclose())

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        try:
            self._runtime.run(closing)
        except ClientClosed:
            if self._runtime.interruption is None:
                raise  # else an interrupt has closed it before
        finally:
            self._runtime.close()
