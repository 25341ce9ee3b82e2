"""What every blocking client has: a runtime, opening and closing."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from reput_client.blocking.runtime import BlockingRuntime


class _AsyncClient(Protocol):
    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def aclose(self) -> None: ...

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
        try:
            self._runtime.run(self._client.__aexit__(kind, error, trace))
        finally:
            self._runtime.close()

    def close(self) -> None:
        """Close the connections; any thread may. Calls in progress in other threads end with `ClientClosed`."""
        try:
            self._runtime.run(self._client.aclose())
        finally:
            self._runtime.close()
