"""How connections are accepted, despite errors of single ones and of the machine, and what a new one does before its
first request: the header of a proxy, and the TLS handshake.

A client that has begun with TLS, or must, has a limited time for it, and a limited number of clients are at it at once.
In the permissive mode the first byte decides, and a client that says nothing is an idle connection.

The header of a proxy comes before the first byte of a connection (PROXY protocol, versions 1 and 2;
https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

import structlog
import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import ListenerTraffic
from reput_broker.remoting.tls import ServerTls
from reput_broker.server.connection_limits import ConnectionRefusals, Crowd
from reput_broker.server.transport import SocketTransport, TlsTransport
from reput_protocol.codes import ROCKETMQ_VERSION
from reput_protocol.errors import ErrorCode, ReputError, TlsFailed, refusal_remark
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType
from reput_protocol.wire.tls import FIRST_BYTE, tls_failure

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


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V2_BYTES: Final = 16
_V2_MORE_MAX: Final = 4096
_V1_BYTES_MAX: Final = 107
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}  # by family and protocol: TCP over IPv4 and over IPv6


class ProxyHeaderWrong(ReputError):
    """A trusted proxy has sent no valid header."""


def is_trusted(host: str, networks: Collection[Network]) -> bool:
    """Whether connections from this address begin with a header."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in networks)


async def read_header(accepted: socket.socket) -> tuple[str, int] | None:
    """Read the header and nothing after it; return the client's address and port, None if the proxy does not say.

    The caller limits the time.

    Raises:
        ProxyHeaderWrong: there is no valid one.
        OSError, EOFError: the connection has ended.
    """
    first = await _take(accepted, 1)
    if first == _SIGNATURE[:1]:
        head = first + await _take(accepted, _V2_BYTES - 1)
        size = int.from_bytes(head[14:])
        if not head.startswith(_SIGNATURE) or head[12] not in (_LOCAL, _PROXY) or size > _V2_MORE_MAX:
            raise ProxyHeaderWrong(f"it begins with {head!r}")
        more = await _take(accepted, size)
        return None if head[12] == _LOCAL else _source_of_v2(head[13], more)
    line = bytearray(first)
    while not line.endswith(b"\r\n"):
        if len(line) == _V1_BYTES_MAX or not b"PROXY ".startswith(line[:6]):
            raise ProxyHeaderWrong(f"it begins with {bytes(line)!r}")
        line += await _take(accepted, 1)
    return _source_of_v1(bytes(line))


def _source_of_v2(family: int, more: bytes) -> tuple[str, int] | None:
    size = _ADDRESS_BYTES.get(family)
    if size is None:
        return None
    if len(more) < 2 * size + 4:
        raise ProxyHeaderWrong(f"its addresses have {len(more)} bytes")
    address = ipaddress.ip_address(more[:size])
    return _plain(address), int.from_bytes(more[2 * size : 2 * size + 2])


def _source_of_v1(line: bytes) -> tuple[str, int] | None:
    try:
        _, family, *rest = line.decode("ascii").removesuffix("\r\n").split(" ")
        if family == "UNKNOWN":
            return None
        source, _, port, _ = rest
        if family not in ("TCP4", "TCP6") or not port.isdigit() or int(port) > 65535:
            raise ValueError
        return _plain(ipaddress.ip_address(source)), int(port)
    except ValueError:
        raise ProxyHeaderWrong(f"it begins with {line!r}") from None


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the text; an IPv4 address that is mapped into IPv6 is that IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


async def _take(accepted: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes; what follows stays to be read."""
    data = b""
    while len(data) < size:
        try:
            piece = accepted.recv(size - len(data))
        except BlockingIOError:
            await trio.lowlevel.wait_readable(accepted)
            continue
        if not piece:
            raise EOFError
        data += piece
    return data


HANDSHAKES_MAX: Final = 256
"""Clients that may be at the handshake at once; beyond it, one of the network with most of them is closed."""

_NEEDS_TLS: Final = "it does not use TLS, and this port needs TLS"
_NEEDS_TLS_HINT: Final = "connect the client with TLS; in the mode permissive it would be served without"
_CROWDED: Final = "connections run out, and most of those without a first request are of its address"
_CROWDED_HINT: Final = "find out what connects from there, or raise limits.connections"
_HANDSHAKE_HINT: Final = "no request of this client was read"
_HTTP_NEEDS_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 31\r\nConnection: close\r\n\r\n"
    b"this port needs TLS: use https\n"
)
_UNREAD_BYTES: Final = 1 << 16


class _NotAdmitted(ReputError):
    """A connection does not come to its first request."""

    def __init__(self, detail: str, hint: str, reason: str = "tls") -> None:
        super().__init__(detail)
        self.hint = hint
        self.reason = reason


class Admitted(NamedTuple):
    """A connection that may send requests."""

    transport: SocketTransport
    source: tuple[str, int] | None = None
    """The client's address and port, if a proxy has told them."""


class Gate:
    """Admits connections.

    Args:
        tls: None if no port has TLS.
    """

    def __init__(self, config: BrokerConfig, tls: ServerTls | None) -> None:
        self._config = config
        self._tls = tls
        self._waiting: Crowd[trio.CancelScope] = Crowd()
        self._at_handshake: Crowd[trio.CancelScope] = Crowd()
        self._refusals = ConnectionRefusals()
        self._proxies = [ipaddress.ip_network(text) for text in config.proxy_protocol_from]

    @property
    def is_open(self) -> bool:
        """Whether connections of the broker's protocol send their first request at once."""
        return self._config.tls.mode == "off" and not self._proxies

    @property
    def waiting(self) -> int:
        """How many connections of the broker's protocol are not admitted yet."""
        return len(self._waiting)

    def make_room(self) -> None:
        """Close the oldest of them that is from the network with most of them, if there are any."""
        _end_greediest(self._waiting)

    def is_proxy(self, host: str) -> bool:
        """Whether connections from an address are those of clients elsewhere."""
        return is_trusted(host, self._proxies)

    async def admit(self, accepted: socket.socket, peer: str, traffic: ListenerTraffic) -> Admitted | None:
        """Return a connection of the broker's protocol once it may send requests; None if it was closed.

        Args:
            peer: its `ip:port`.
            traffic: counters of its listener.
        """
        accepted.setblocking(False)
        scope, host = trio.CancelScope(), peer.rpartition(":")[0]
        self._waiting.add(scope, host)
        reason = "limit"
        try:
            with scope:
                return await self._admit(accepted, host, traffic)
            self._log_refused(peer, _NotAdmitted(_CROWDED, _CROWDED_HINT, reason))
        except _NotAdmitted as refused:
            self._log_refused(peer, refused)
            reason = "tls" if refused.reason == "tls" else "malformed"
        except (OSError, EOFError):
            reason = "peer"
        except trio.Cancelled:
            traffic.connection_closed("shutdown")
            accepted.close()
            raise
        finally:
            self._waiting.discard(scope)
        traffic.connection_closed(reason)
        accepted.close()
        return None

    async def _admit(self, accepted: socket.socket, host: str, traffic: ListenerTraffic) -> Admitted | None:
        source = None
        if is_trusted(host, self._proxies):
            source = await self._proxy_header(accepted, host)
        if self._config.tls.mode == "off":
            return Admitted(SocketTransport(accepted), source)
        is_required = self._config.tls.mode == "required"
        if not is_required:
            with trio.move_on_after(self._silence_s) as silence:
                await _first_byte(accepted)
            if silence.cancelled_caught:
                raise EOFError
        with self._bounded(host):
            if await _first_byte(accepted) == FIRST_BYTE:
                try:
                    transport = await self._with_tls(accepted)
                except (_NotAdmitted, OSError, EOFError):
                    traffic.handshakes["failed"] += 1
                    raise
                traffic.handshakes["ok"] += 1
                return Admitted(transport, source)
            traffic.handshakes["plain"] += 1
            if is_required:
                _say_needs_tls(accepted)
                raise _NotAdmitted(_NEEDS_TLS, _NEEDS_TLS_HINT)
            return Admitted(SocketTransport(accepted), source)

    @property
    def _silence_s(self) -> float:
        """How long a client may say nothing."""
        access, idle_s = self._config.access, self._config.limits.idle_timeout
        return min(idle_s, access.first_signature_timeout) if access.enabled else idle_s

    async def _proxy_header(self, accepted: socket.socket, host: str) -> tuple[str, int] | None:
        with self._bounded(host, "the PROXY header", "proxy"):
            try:
                return await read_header(accepted)
            except ProxyHeaderWrong as error:
                detail = f"it is in proxy_protocol_from and has sent no PROXY header: {error}"
                hint = "have the proxy send one (HAProxy: send-proxy-v2), or remove its address there"
                raise _NotAdmitted(detail, hint, "proxy") from error

    async def admit_stream(
        self, stream: trio.SocketStream, peer: tuple[str, int], *, http: bool = False
    ) -> trio.abc.Stream | None:
        """Return a stream of a slave, or of HTTP, once it may be read; None if it was closed."""
        tls = self._config.tls
        mode = tls.effective_http_mode if http else tls.mode
        if mode == "off" or self._tls is None:
            return stream
        try:
            with self._bounded(peer[0]):
                if await stream.socket.recv(1, socket.MSG_PEEK) == bytes([FIRST_BYTE]):
                    context = self._tls.http_context if http else self._tls.context
                    secured = trio.SSLStream(stream, context, server_side=True, https_compatible=http)
                    await _handshake(secured)
                    return secured
                if mode == "required":
                    if http:
                        await stream.send_all(_HTTP_NEEDS_TLS)
                    raise _NotAdmitted(_NEEDS_TLS, _NEEDS_TLS_HINT)
                return stream
        except _NotAdmitted as refused:
            self._log_refused(f"{peer[0]}:{peer[1]}", refused)
        except (OSError, EOFError, trio.BrokenResourceError):
            pass  # the client has gone
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
        return None

    def _log_refused(self, peer: str, refused: _NotAdmitted) -> None:
        self._refusals.refused(peer, refused.reason, detail=str(refused), hint=refused.hint)

    async def _with_tls(self, accepted: socket.socket) -> TlsTransport:
        assert self._tls is not None, "this port has TLS"
        transport = TlsTransport(accepted, self._tls.context)
        try:
            await transport.handshake()
        except TlsFailed as error:
            raise _NotAdmitted(str(error), _HANDSHAKE_HINT) from error
        return transport

    @contextmanager
    def _bounded(self, host: str, what: str = "the TLS handshake", reason: str = "tls") -> Iterator[None]:
        """Limit the time and the number of handshakes.

        Raises:
            _NotAdmitted: it took too long, or too many others came meanwhile.
        """
        if len(self._at_handshake) >= HANDSHAKES_MAX:
            _end_greediest(self._at_handshake)
        timeout_s = self._config.tls.handshake_timeout
        detail, hint = f"it did not end {what} within {timeout_s:g} s", "see tls.handshake_timeout"
        with trio.move_on_after(timeout_s) as scope:
            self._at_handshake.add(scope, host)
            try:
                yield
            finally:
                if not self._at_handshake.discard(scope):
                    detail = f"more than {HANDSHAKES_MAX} clients were in the handshake at the same time: {what}"
                    hint = "find out what connects and does not end it"
        if scope.cancelled_caught:
            raise _NotAdmitted(detail, hint, reason)


def _end_greediest(scopes: Crowd[trio.CancelScope]) -> None:
    """Cancel and remove the oldest scope of the network that has most of them, if there are any."""
    found = scopes.pop_greediest()
    if found is not None:
        found[0].cancel()


async def _first_byte(accepted: socket.socket) -> int:
    """Return the first byte that the client sends; it stays to be read. Raises EOFError or OSError."""
    while True:
        await trio.lowlevel.wait_readable(accepted)
        try:
            data = accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not data:
            raise EOFError
        return data[0]


async def _handshake(secured: trio.SSLStream[trio.SocketStream]) -> None:
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLError):
            failure = tls_failure(error.__cause__, "the client")
            raise _NotAdmitted(str(failure), _HANDSHAKE_HINT) from error
        raise


def _say_needs_tls(accepted: socket.socket) -> None:
    """Send the reason to a client that can read it: the bundled one shows it."""
    code = ErrorCode.TLS_REQUIRED
    remark = refusal_remark(code, "this port takes encrypted connections only; connect with TLS")
    header = Header(int(code.response_code), 0, RESPONSE_FLAG, remark, version=ROCKETMQ_VERSION)
    with suppress(OSError):
        accepted.send(encode_frame(header, HeaderType.JSON))
        accepted.recv(_UNREAD_BYTES)  # closing with unread bytes would discard the answer
