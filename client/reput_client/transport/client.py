"""The base class of all clients; new client ids."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Self

from reput_client.transport.options import ClientOptions
from reput_client.transport.runtime import Runtime
from reput_client.transport.session import Session

if TYPE_CHECKING:
    from reput_client.otel.tracing import Tracing


class Client:
    """A client of a broker or cluster; an async context manager."""

    _tracing: ClassVar[Tracing | None] = None
    """Set for all clients by `reput_client.otel.instrument`."""

    @staticmethod
    def _new_runtime() -> Runtime:
        """Return a new client's runtime: the running event loop, unless a subclass overrides this."""
        from reput_client.transport.aio import AnyioRuntime  # not at the top: the synchronous API imports no event loop

        return AnyioRuntime()

    def _new_session(self, options: ClientOptions) -> Session:
        """Return a new client's session, unless a subclass overrides this."""
        return Session(options, self._new_runtime())

    def __init__(self, options: ClientOptions) -> None:
        self._session = self._new_session(options)

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ConnectFailed: no broker responds at the given addresses.
            TlsRefused: with TLS: the broker cannot be trusted, or does not speak TLS.
        """
        await self._session.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Requests in progress raise `ClientClosed`."""
        self._session.close()

    def _after_fork(self) -> None:
        """In a forked child: abandon the parent's connections without closing them for the parent."""
        self._session.after_fork()


_FIRST: Final = -1
_last_ns = _FIRST


def new_client_id(local_ip: str) -> str:
    """Return a unique client id, `address@process#number`, as RocketMQ's clients write it.

    A group assigns queues by these ids, sorted, so an id must not change while its client is a member.
    """
    global _last_ns
    _last_ns = max(time.time_ns(), _last_ns + 1)  # unique within a tick of the clock
    return f"{local_ip}@{os.getpid()}#{_last_ns}"
