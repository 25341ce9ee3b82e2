"""The HTTP/1.1 server: its listener, its connections and their limits. The pages are an ASGI application.

h11 parses. A request to upgrade to HTTP/2 or WebSocket is answered like any other, and the preface of HTTP/2 is
refused. An error of a connection ends only that connection.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import unquote

import h11
import structlog
import trio

from reput_broker.server.connection_limits import ConnectionRefusals, Crowd
from reput_broker.server.gate import Acceptor, Gate, port_refusal
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

CONNECTIONS_MAX: Final = 64
_BACKLOG: Final = 64
_HEAD_BYTES_MAX: Final = 8 * 1024
_HEAD_LINES_MAX: Final = 100
_BODY_BYTES_MAX: Final = 64 * 1024
_READ_BYTES: Final = 8 * 1024
_REQUEST_TIMEOUT_S: Final = 20.0
"""For a whole request to arrive, and between two."""
_UNREAD_ANSWER_TIMEOUT_S: Final = 10.0
"""For a client to read one part of an answer; a page is one part."""
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1 << 20

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]*\]|[0-9a-z._~-]*)(?::[0-9]*)?", re.IGNORECASE)
# Header fields that browsers send. In some browsers a page can avoid all of them but Accept-Language, and choose its
# user agent.
_BROWSER_FIELDS: Final = frozenset((b"origin", b"referer", b"accept-language"))
# Zones in which no name can be registered in public DNS.
_PRIVATE_SUFFIXES: Final = (".localhost", ".internal", ".svc", ".cluster.local")


class HttpListenFailed(ReputError):
    """The HTTP port cannot be opened. The broker does not listen on it."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        reason = port_refusal(cause, port, "http_host or http_port")
        super().__init__(f"cannot listen on {host}:{port} for HTTP: {reason}")
        self.host = host
        self.port = port


async def serve_http(
    app: App,
    host: str,
    port: int,
    *,
    allowed_hosts: Collection[str] = (),
    connections_max: int = CONNECTIONS_MAX,
    gate: Gate | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. Reports the real address once the port is open.

    Args:
        allowed_hosts: names that browsers may send in Host, besides those of `is_own_host`.
        connections_max: beyond it, the oldest connection of the network with the most of them is closed.
        gate: what connections pass before their first request; None: nothing.

    Raises:
        HttpListenFailed: the port is taken, or the host is not one of this machine's.
    """
    listener = await _listen(host, port)
    with listener, Acceptor(listener) as acceptor:
        address = listener.getsockname()
        server = HttpServer(app, (*allowed_hosts, host), address[:2], connections_max, gate)
        async with trio.open_nursery() as nursery:
            task_status.started((address[0], address[1]))
            while True:
                nursery.start_soon(server.serve, *await acceptor.accept_stream())


async def _listen(host: str, port: int) -> socket.socket:
    try:
        places = await trio.socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = places[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.setblocking(False)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise HttpListenFailed(host, port, error) from error
    return listener


def may_come_from_browser(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a browser may have sent a request with these header fields, by lower-case name."""
    return (
        b"mozilla" in headers.get(b"user-agent", b"").lower()
        or not _BROWSER_FIELDS.isdisjoint(headers)
        or any(name.startswith(b"sec-fetch-") for name in headers)
    )


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Tell whether the Host header of a browser's request names this server.

    A web page that makes its own name resolve to this machine (DNS rebinding) sends a public name. Addresses, names
    without a dot (`localhost`, a container's name) and private zones pass.
    """
    matched = _AUTHORITY.fullmatch(host.lower())
    if matched is None:
        return False
    name = matched[1].rstrip(".")
    if name in names or name.endswith(_PRIVATE_SUFFIXES):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." not in name and not name.startswith("[")
    return True


class HttpServer:
    """The state that all connections share.

    Args:
        address: of the listener, for the application.
    """

    def __init__(
        self,
        app: App,
        allowed_hosts: Collection[str],
        address: tuple[str, int],
        connections_max: int = CONNECTIONS_MAX,
        gate: Gate | None = None,
    ) -> None:
        self._gate = gate
        self.app = app
        self.allowed_hosts = frozenset(host.lower().rstrip(".") for host in allowed_hosts)
        self.address = address
        self._connections_max = connections_max
        # One event of one connection is parsed per pass of the event loop: the broker's own work waits for one HTTP
        # client at most.
        self.turns = trio.Lock()
        self._open: Crowd[trio.CancelScope] = Crowd()
        self._refusals = ConnectionRefusals("http_connection_refused")

    async def serve(self, stream: trio.abc.Stream, peer: tuple[str, int]) -> None:
        """Serve one client until either side ends the connection. Raises only cancellation."""
        if len(self._open) >= self._connections_max:
            self._make_room()
        scope = trio.CancelScope()
        self._open.add(scope, peer[0])
        try:
            with scope:
                admitted: trio.abc.Stream | None = stream
                if self._gate is not None and isinstance(stream, trio.SocketStream):
                    admitted = await self._gate.admit_stream(stream, peer, http=True)
                if admitted is not None:
                    await _HttpConnection(self, admitted, peer).run()
        except* Exception as errors:
            log.error("http_connection_failed", peer=peer[0], exc_info=errors, hint="a defect; please report it")
        finally:
            self._open.discard(scope)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    def _make_room(self) -> None:
        found = self._open.pop_greediest()
        if found is not None:
            oldest, network, _ = found
            oldest.cancel()
            self._refusals.refused(network, "limit", limit=self._connections_max)


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _HttpConnection:
    """A client's connection: requests one after the other, each passed to the application."""

    def __init__(self, server: HttpServer, stream: trio.abc.Stream, peer: tuple[str, int]) -> None:
        self._server = server
        self._stream = stream
        self._peer = peer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES_MAX)
        self._is_at_end = False
        self._method = b""
        self._sends_body = True

    async def run(self) -> None:
        try:
            while await self._handle_one():
                self._http.start_next_cycle()
            await self._finish()
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or does not read

    async def _handle_one(self) -> bool:
        """Return whether another request may follow."""
        try:
            request = await self._read_request()
            if request is None:
                return False
            await _Exchange(self, *request).run(self._server.app)
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, f"not a valid HTTP request: {error}")
        except _Refused as refused:
            await self._refuse(refused.status, str(refused))
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _read_request(self) -> tuple[h11.Request, bytes] | None:
        """Return the next request and its body; None if there is none."""
        request: h11.Request | None = None
        body = bytearray()
        self._method = b""
        with trio.move_on_after(_REQUEST_TIMEOUT_S):
            while True:
                async with self._server.turns:
                    await trio.lowlevel.checkpoint()
                    if request is None:
                        self._check_lines()
                    event = self._http.next_event()
                if event is h11.NEED_DATA:
                    if self._http.they_are_waiting_for_100_continue:
                        await self.send(h11.InformationalResponse(status_code=100, headers=[]))
                    await self.receive()
                elif isinstance(event, h11.Request):
                    request = event
                    self._method = request.method
                    self._check(request)
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage) and request is not None:
                    return request, bytes(body)
                else:
                    return None
        if request is None and not self._http.trailing_data[0]:
            return None
        raise _Refused(408, f"the request has not arrived whole within {_REQUEST_TIMEOUT_S:g} s")

    def _check_lines(self) -> None:
        """Refuse a head of too many lines before it is parsed, which takes time for each line."""
        head = self._http.trailing_data[0].partition(b"\r\n\r\n")[0]
        if head.count(b"\n") > _HEAD_LINES_MAX:
            raise _Refused(431, f"the request has more than {_HEAD_LINES_MAX} header lines")

    def _check(self, request: h11.Request) -> None:
        """Refuse a request that is not for this server, before its body is read."""
        headers = dict(request.headers)
        if request.http_version not in (b"1.1", b"1.0"):
            raise _Refused(505, "this server supports HTTP/1.1")
        if not request.target.startswith(b"/"):
            raise _Refused(400, "the request's target is not a path")
        host = headers.get(b"host", b"").decode("latin-1")
        if _AUTHORITY.fullmatch(host) is None:
            raise _Refused(400, f"Host is {host!r}, which is not a valid name or address")
        if may_come_from_browser(headers) and not is_own_host(host, self._server.allowed_hosts):
            raise _Refused(
                421,
                f"Host is {host!r}, which is not a name of this broker; browsers reach it by its address, or by a "
                "name in http_allowed_hosts",
            )
        if b"transfer-encoding" in headers:
            raise _Refused(411, "a body needs a Content-Length")
        if int(headers.get(b"content-length", b"0")) > _BODY_BYTES_MAX:
            raise _Refused(413, f"the body has more than {_BODY_BYTES_MAX} bytes")

    async def _refuse(self, status: int, text: str) -> None:
        """Answer with an error if an answer can still be sent."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        await self.send(h11.Response(status_code=status, headers=headers))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def _finish(self) -> None:
        """End the connection so that the client receives the last answer; closing with unread bytes discards it."""
        if self._is_at_end or not isinstance(self._stream, trio.abc.HalfCloseableStream):
            return
        await self._stream.send_eof()
        left = _LINGER_BYTES
        with trio.move_on_after(_LINGER_S):
            while left > 0 and (data := await self._stream.receive_some(_READ_BYTES)):
                left -= len(data)

    # What an exchange uses

    @property
    def scope(self) -> dict[str, Any]:
        """The members of the ASGI scope that all requests of this connection share."""
        # 2.3: `receive` notifies the application that the client has gone, and it cancels itself.
        asgi = {"version": "3.0", "spec_version": "2.3"}
        return {
            "type": "http",
            "asgi": asgi,
            "scheme": "https" if isinstance(self._stream, trio.SSLStream) else "http",
            "root_path": "",
            "client": self._peer,
            "server": self._server.address,
        }

    @property
    def answer_has_begun(self) -> bool:
        return self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    async def send(self, event: Any) -> None:
        """Send a part of an answer; without a body where HTTP has none, as for HEAD.

        Raises:
            trio.BrokenResourceError: the client has gone.
            trio.TooSlowError: the client does not read.
        """
        if isinstance(event, h11.Response):
            self._sends_body = self._method != b"HEAD" and event.status_code not in (204, 304)
        elif isinstance(event, h11.Data) and not self._sends_body:
            return
        data = self._http.send(event)
        if data:
            with trio.fail_after(_UNREAD_ANSWER_TIMEOUT_S):
                await self._stream.send_all(data)

    async def receive(self) -> None:
        data = b""
        with suppress(trio.BrokenResourceError):
            data = bytes(await self._stream.receive_some(_READ_BYTES))
        self._http.receive_data(data)
        self._is_at_end = not data

    async def wait_for_end(self) -> None:
        """Wait until the client has gone. Requests that it sends meanwhile are kept, up to a limit."""
        while not self._is_at_end:
            if len(self._http.trailing_data[0]) > _BODY_BYTES_MAX:
                await trio.sleep_forever()  # a failing send ends the exchange
            await self.receive()


class _Exchange:
    """One request and its answer in ASGI."""

    def __init__(self, connection: _HttpConnection, request: h11.Request, body: bytes) -> None:
        self._connection = connection
        self._request = request
        self._body: bytes | None = body
        self._is_over = False
        self._failure: BaseException | None = None

    async def run(self, app: App) -> None:
        """Have the application answer.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the client has gone.
        """
        request = self._request
        path, _, query = request.target.partition(b"?")
        scope = self._connection.scope | {
            "http_version": request.http_version.decode(),
            "method": request.method.decode().upper(),
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": list(request.headers),
        }
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:
            if self._failure is not None:
                raise self._failure from None
            log.error("http_page_failed", path=scope["path"], exc_info=error)
        if self._failure is not None:
            raise self._failure
        if not self._connection.answer_has_begun:
            raise _Refused(500, "internal error; see the broker's log")

    async def _receive(self) -> MutableMapping[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._is_over:
            await self._connection.wait_for_end()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        try:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
                await self._connection.send(h11.Response(status_code=message["status"], headers=headers))
                return
            body = message.get("body", b"")
            if body:
                await self._connection.send(h11.Data(data=body))
            if not message.get("more_body", False):
                await self._connection.send(h11.EndOfMessage())
                self._is_over = True
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            self._failure = error
            raise
