"""Accepting connections from a listening socket, despite errors of single connections and of the machine; why a port
cannot be opened.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from types import TracebackType
from typing import Final

import structlog
import trio

log = structlog.get_logger(__name__)

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOT_LISTENING = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_PAUSE_S = 0.1
PRIVILEGED_BELOW: Final = 1024
"""The default of Linux (net.ipv4.ip_unprivileged_port_start)."""


class Acceptor:
    """Accepts from one listening socket. A context manager, which closes its spare descriptor."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._spare = _SpareDescriptor()

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spare.close()

    async def accept(self) -> socket.socket:
        """Return the next connection. Raises OSError only if the socket does not listen."""
        while True:
            await trio.lowlevel.wait_readable(self._listening)
            try:
                return self._listening.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno in _NOT_LISTENING:
                    raise
                if not self._send_away(error):
                    await trio.sleep(_PAUSE_S)

    async def accept_stream(self) -> tuple[trio.SocketStream, tuple[str, int]]:
        """Return the next connection whose peer has not gone already, and the peer's address and port."""
        while True:
            accepted = await self.accept()
            try:
                host, port = accepted.getpeername()[:2]
            except OSError:
                accepted.close()
                continue
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
            return stream, (host.removeprefix("::ffff:"), port)

    def _send_away(self, error: OSError) -> bool:
        """Log that a connection could not be accepted; return False if the listener has to pause.

        The error concerns the new connection alone, or the machine for the moment. If there is no descriptor for the
        connection, the spare one is closed so that it can be accepted and closed: its client need not wait.
        """
        hint = "check the firewall and the network; other connections are served"
        if error.errno in _OUT_OF_DESCRIPTORS:
            hint = "raise the limit of open files (ulimit -n, LimitNOFILE)"
        log.warning("accept_failed", detail=str(error), hint=hint)
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._spare.is_open:
            self._spare.open()
            return False
        self._spare.close()
        with suppress(OSError):
            self._listening.accept()[0].close()
        self._spare.open()
        return True


class _SpareDescriptor:
    """A descriptor that is closed when there are no others."""

    def __init__(self) -> None:
        self._fd = -1
        self.open()

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def open(self) -> None:
        """Open it if the system has a descriptor."""
        if self._fd < 0:
            with suppress(OSError):
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def port_refusal(error: OSError, port: int, other: str) -> str:
    """Return the system's reason and a remedy.

    Args:
        other: what to choose another one of: `port`, or the names of options.
    """
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return f"{reason}; stop what uses it or choose another {other}"
    if error.errno == errno.EACCES and port < PRIVILEGED_BELOW:
        return f"{reason}; ports below {PRIVILEGED_BELOW} need CAP_NET_BIND_SERVICE; choose another {other}"
    return f"{reason}; choose another {other}"
