"""The base class of all clients; new client ids."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Self

from reput_client.credentials import Credentials, from_environment
from reput_client.transport.backoff import Backoff
from reput_client.transport.runtime import Runtime
from reput_client.transport.session import Session

if TYPE_CHECKING:
    from reput_client.otel import Tracing
    from reput_client.tls import TLS


class Client:
    """A client of a broker or cluster; an async context manager.

    Args:
        address: `host:port` of a broker or a name server, several of them, or another client's session, whose
            connections it then shares; the other arguments are then without effect.
    """

    tracing: ClassVar[Tracing | None] = None
    """Set for all clients by `reput_client.otel.instrument`."""

    @staticmethod
    def new_runtime() -> Runtime:
        """Return a new client's runtime: the running event loop, unless a subclass overrides this."""
        from reput_client.transport.aio import (
            AnyioRuntime,  # not at the top: the synchronous API imports no event loop
        )

        return AnyioRuntime()

    def __init__(
        self,
        address: str | Iterable[str] | Session,
        *,
        timeout_s: float,
        connect_timeout_s: float,
        new_backoff: Callable[[], Backoff],
        tls: TLS | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        _check_kinds(tls, credentials)
        self._session = (
            address
            if isinstance(address, Session)
            else Session(
                address,
                self.new_runtime(),
                timeout_s=timeout_s,
                connect_timeout_s=connect_timeout_s,
                new_backoff=new_backoff,
                tls=tls,
                credentials=from_environment() if credentials is None else credentials,
            )
        )

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ConnectFailed: no broker answers at the given addresses.
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

    def after_fork(self) -> None:
        """In a forked child: abandon the parent's connections without closing them for the parent."""
        self._session.after_fork()

    @property
    def runtime(self) -> Runtime:
        """The runtime that this client waits with."""
        return self._session.runtime


_FIRST: Final = -1
_last_ns = _FIRST


def new_client_id(local_ip: str) -> str:
    """Return a unique client id, `address@process#number`, as RocketMQ's clients write it.

    A group assigns queues by these ids, sorted, so an id must not change while its client is a member.
    """
    global _last_ns
    _last_ns = max(time.time_ns(), _last_ns + 1)  # unique within a tick of the clock
    return f"{local_ip}@{os.getpid()}#{_last_ns}"


def _check_kinds(tls: object, credentials: object) -> None:
    """Refuse a path or a pair, as other libraries take them; no error shows a secret."""
    if credentials is not None and not isinstance(credentials, Credentials):
        raise TypeError(f"credentials must be Credentials(user, secret), not a {type(credentials).__name__}")
    if tls is not None:
        from reput_client.tls import TLS

        if not isinstance(tls, TLS):
            raise TypeError(f'tls must be TLS(ca="ca.pem") or another TLS, not a {type(tls).__name__}')
