"""What every client has: a session, opening and closing it, the runtime that its waits are made of, and an id."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from reput_client.transport.backoff import Backoff
from reput_client.transport.runtime import Runtime
from reput_client.transport.session import Session


class Client:
    """A client of a broker or a cluster; an async context manager."""

    @staticmethod
    def new_runtime() -> Runtime:
        """Return the runtime for a new client: the running event loop. Subclasses run elsewhere."""
        from reput_client.transport.aio import (
            AnyioRuntime,  # not at the top: the blocking API loads no event loop
        )

        return AnyioRuntime()

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        timeout_s: float,
        connect_timeout_s: float,
        new_backoff: Callable[[], Backoff],
    ) -> None:
        self._session = Session(
            address,
            self.new_runtime(),
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
        )

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ConnectFailed: no broker answers at the given address.
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
        """In a forked child: leave the parent's connections alone."""
        self._session.after_fork()

    @property
    def runtime(self) -> Runtime:
        """What this client's waits are made of."""
        return self._session.runtime


_FIRST: Final = -1
_last_ns = _FIRST


def new_client_id(local_ip: str) -> str:
    """Return an id that no other client has: address, process and a number, as RocketMQ's clients write it.

    Members sort these ids to share the queues out, so an id must stay the same for as long as its client is a member.
    """
    global _last_ns
    _last_ns = max(time.time_ns(), _last_ns + 1)  # two clients of one tick of the clock differ all the same
    return f"{local_ip}@{os.getpid()}#{_last_ns}"
