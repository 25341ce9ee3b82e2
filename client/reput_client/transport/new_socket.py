"""A new socket to an address: resolving its host, connecting, and the TLS handshake."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from reput_client.errors import TlsRefused
from reput_client.transport.address import Address
from reput_client.transport.runtime import Runtime
from reput_protocol.errors import TlsFailed

if TYPE_CHECKING:
    from reput_client.security import TLS
    from reput_client.transport.tls_socket import TlsSocket

CONNECT_WITH_TLS: Final = "connect with TLS: tls=TLS(ca=...), or reput --tls-ca FILE"
CORRECT_TLS: Final = "correct the options of TLS"
_TRY_S: Final = 1.0
"""How long one of several addresses may take to connect, and then to answer."""


def try_until(now: float, deadline: float, left: int = 1) -> float:
    """Return until when to try one broker or address, of `left` that remain until `deadline`."""
    return now + min(_TRY_S, max(0.0, deadline - now) / left)


async def connect(runtime: Runtime, place: Address, deadline: float) -> socket.socket:
    """Connect to one address. A name may have several; each is tried for a part of the time.

    Raises:
        OSError: none of them takes the connection before `deadline`.
    """
    failure: OSError = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    found = await _resolve(runtime, place)
    for left, (family, where) in zip(range(len(found), 0, -1), found, strict=True):
        until = deadline if left == 1 else try_until(runtime.now(), deadline, left)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            code = sock.connect_ex(where)
            if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):  # EWOULDBLOCK: Windows
                await runtime.wait_writable(sock, until - runtime.now())
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0 and not _is_connected(sock):
                    code = errno.ETIMEDOUT
            if code == 0 and sock.getsockname() == sock.getpeername():
                # If the port is unused on this machine, the socket may get that very port and connect to itself.
                code = errno.ECONNREFUSED
        except BaseException:
            sock.close()
            raise
        if code == 0:
            return sock
        sock.close()
        failure = OSError(code, os.strerror(code))
    raise failure


async def secure(runtime: Runtime, sock: socket.socket, tls: TLS, place: Address, until: float) -> TlsSocket:
    """Make the TLS handshake on a connected socket; close the socket if that fails.

    Raises:
        TlsRefused: one side does not accept the other.
        OSError: the connection has ended, or `until` has passed.
    """
    from reput_client.transport.tls_socket import TlsSocket  # not at the top: it loads OpenSSL

    try:
        context = await runtime.in_thread(tls.context)
        wire = TlsSocket(sock, context, tls.server_name or place.host, str(place))
        while not wire.handshake():
            left_s = until - runtime.now()
            if left_s <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "it has not completed the TLS handshake in time")
            if wire.has_unsent:
                await runtime.wait_writable(sock, left_s)
            else:
                await runtime.wait_arrival(sock, left_s)
    except BaseException as error:
        sock.close()
        if isinstance(error, TlsFailed):
            raise TlsRefused(str(place), f"TLS: {error.cause}", error.remedy) from error
        if isinstance(error, ValueError):  # of a file, or of a name that no certificate has
            raise TlsRefused(str(place), f"TLS: {error}", CORRECT_TLS) from error
        if isinstance(error, EOFError):
            reason = "it has closed the connection during the TLS handshake"
            raise ConnectionResetError(errno.ECONNRESET, reason) from None
        raise
    return wire


async def _resolve(runtime: Runtime, place: Address) -> list[tuple[int, Any]]:
    host, port = place.host, place.port
    try:
        # A numeric host needs no name server, so this does not block.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await runtime.in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [(int(family), where) for family, _, _, _, where in found]


def _is_connected(sock: socket.socket) -> bool:
    with suppress(OSError):
        sock.getpeername()
        return True
    return False
