"""A proxy that runs: its ports and certificates, metrics and health over HTTP, signals, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from reput_client import Credentials
from reput_client.transport.address import Address
from reput_protocol.errors import ReputError
from reput_proxy import log
from reput_proxy.proxy import Proxy
from reput_proxy.rejections import code_name
from reput_proxy.routes import endpoints_of
from reput_proxy.service import Service
from reput_proxy.spans import Spans
from reput_proxy.upstream import BrokerOptions
from reput_proxy.users import Users, UsersUnreadable

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
CALLS_MAX: Final = 30_000
"""Calls at a time, streams included; further ones are rejected with RESOURCE_EXHAUSTED."""
DRAIN_S: Final = 10.0
_SETTLE_S: Final = 2.0
"""How long a proxy that is going to end takes requests of clients, which settle the messages that they have."""
_KEEPALIVE_MS: Final = 30_000
"""After so long without data a connection is pinged."""
_PING_TIMEOUT_MS: Final = 10_000
_WATCH_S: Final = 1.0
_Stamps: TypeAlias = list[tuple[int, int, int]]
_HEAD_BYTES_MAX: Final = 8192
_REQUEST_S: Final = 10.0
_PHRASES: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """What `reput proxy` is given.

    Attributes:
        brokers: how the brokers are reached.
        host, port: where gRPC clients connect; port 0 takes a free one.
        advertise: `host:port` that routes name; None: the address that the client has dialled.
        tls_cert, tls_key: PEM files, which are read again when they change; without the first, connections are not
            encrypted; without the second, the key is in the first.
        tls_client_ca: file with the authorities of clients' certificates, which every client must show then.
        http_port: for metrics and health; None: none.
        users: file with the users whose signatures are checked; None: requests need no signature.
        configured_users: secrets by user, of users that are not in that file.
        credentials: the user of all requests to brokers, if there is no such file.
        spans: makes spans of calls; None: there are none.
    """

    brokers: BrokerOptions
    host: str = "127.0.0.1"
    port: int = 8081
    advertise: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    http_port: int | None = None
    users: Path | None = None
    configured_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    spans: Spans | None = None


@dataclass(eq=False, repr=False)
class RunningProxy:
    """A proxy that serves.

    Attributes:
        address, http_address: where, as `host:port`; the latter is None without one.
    """

    proxy: Proxy
    address: str
    http_address: str | None


@asynccontextmanager
async def serving(options: ProxyOptions, *, drain_s: float = DRAIN_S) -> AsyncIterator[RunningProxy]:
    """Serve until the block ends.

    Then streams and receives end. While clients settle what they have, other requests are still taken. All has ended
    after `drain_s` seconds.

    Raises:
        OSError, ValueError: a port or a file cannot be used.
        UsersUnreadable: nor the file with the users.
    """
    advertised = None
    if options.advertise is not None:
        advertised = endpoints_of(*_host_and_port(options.advertise))
    users = None if options.users is None else Users(options.users, options.configured_users)
    proxy = Proxy(
        options.brokers, advertised=advertised, users=users, credentials=options.credentials, spans=options.spans
    )
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a second proxy on the port fails
            # It measures connections for large windows, with a ping for most requests.
            ("grpc.http2.bdp_probe", 0),
            # The messages of a client whose machine has vanished are otherwise renewed until TCP gives up, which may
            # take hours. Clients answer pings in gRPC itself.
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            # grpc.keepalive_timeout_ms has no effect in gRPC 1.85.
            ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),  # by default an idle connection is pinged twice
            # Clients of several languages ping idle connections.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # By default calls are cancelled at random while 1,000 wait to be accepted: all clients that connect again.
            ("grpc.server.max_pending_requests", CALLS_MAX),
            ("grpc.server.max_pending_requests_hard_limit", CALLS_MAX),
        ),
        maximum_concurrent_rpcs=CALLS_MAX,
    )
    server.add_generic_rpc_handlers((Service(proxy).handlers(),))
    port = _listen(server, options)
    await server.start()
    proxy.start()
    watching = None if users is None else asyncio.ensure_future(_watch(users, proxy.follow_users))
    try:
        async with serve_http(proxy, options.host, options.http_port) as http_address:
            yield RunningProxy(proxy, str(Address(options.host, port)), http_address)
            proxy.drain()
            settle_s = min(_SETTLE_S, drain_s) if proxy.clients or proxy.renewals else 0.0
            await asyncio.sleep(settle_s)
            await server.stop(drain_s - settle_s)
    finally:
        if watching is not None:
            watching.cancel()
        await server.stop(0)
        await proxy.aclose()


@asynccontextmanager
async def serve_http(proxy: Proxy, host: str, port: int | None) -> AsyncIterator[str | None]:
    """Serve /metrics, /healthz and /readyz while the block runs; yields the address, None without a port.

    Raises:
        OSError: the port cannot be used.
    """
    if port is None:
        yield None
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                code, text = await _page(proxy, head.split(b"\r\n", 1)[0].decode("latin-1").split(" "))
                body = text.encode()
                writer.write(
                    f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_HEAD_BYTES_MAX)
    async with server:
        yield f"{host}:{server.sockets[0].getsockname()[1]}"


async def _page(proxy: Proxy, request: list[str]) -> tuple[int, str]:
    """Return the status and text for the words of a request line."""
    if len(request) < 2 or request[0] not in ("GET", "HEAD"):
        return 405, ""
    match request[1].partition("?")[0]:
        case "/metrics":
            return 200, metrics(proxy)
        case "/healthz":
            return 200, "ok\n"
        case "/readyz":
            try:
                is_ready = await proxy.is_ready()
            except ReputError as error:
                return 503, f"{error}\n"
            return (200, "ready\n") if is_ready else (503, "draining\n")
    return 404, ""


def metrics(proxy: Proxy) -> str:
    """Return the metrics in Prometheus' format."""
    counters = proxy.counters
    lines = [
        "# HELP reput_proxy_requests_total Requests with a response, by method and code.",
        "# TYPE reput_proxy_requests_total counter",
    ]
    for (method, code), count in sorted(counters.requests.items()):
        lines.append(f'reput_proxy_requests_total{{method="{method}",code="{code_name(code)}"}} {count}')
    for name, kind, text, value in (
        ("sent_messages_total", "counter", "Messages that brokers have stored.", counters.sent),
        ("received_messages_total", "counter", "Messages that clients have received.", counters.received),
        ("acknowledged_messages_total", "counter", "Messages that clients acknowledged.", counters.acknowledged),
        ("clients", "gauge", "Telemetry streams that are open.", len(proxy.clients)),
        ("waiting_receives", "gauge", "Receives and pulls that wait for messages.", proxy.receives),
        ("held_messages", "gauge", "Messages of push consumers that are renewed.", len(proxy.renewals)),
    ):
        lines += [
            f"# HELP reput_proxy_{name} {text}",
            f"# TYPE reput_proxy_{name} {kind}",
            f"reput_proxy_{name} {value}",
        ]
    return "\n".join(lines) + "\n"


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not the address of a proxy: write HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _listen(server: Any, options: ProxyOptions) -> int:
    """Open the port and return it."""
    place = str(Address(options.host, options.port))
    try:
        if options.tls_cert is None:
            port = server.add_insecure_port(place)
        else:
            credentials = tls_credentials(options.tls_cert, options.tls_key, options.tls_client_ca)
            port = server.add_secure_port(place, credentials)
    except RuntimeError as error:  # as grpc reports a port in use, or a certificate
        raise OSError(f"cannot listen on {place}: {error}") from None
    if not port:
        raise OSError(f"cannot listen on {place}")
    return int(port)


def tls_credentials(cert: Path, key: Path | None, client_ca: Path | None) -> Any:
    """Return what a gRPC server encrypts with, in the files' state at the time of each connection.

    Args:
        cert, key: PEM files; None: the key is in `cert`.
        client_ca: the authorities of clients' certificates; None: clients show none.

    Raises:
        OSError, ValueError: a file cannot be used.
    """
    files = [path for path in (cert, key, client_ca) if path is not None]
    seen = _stamps(files)
    reload = log.WarningOnChange("tls_reload_failed", hint="the certificate in use stays")

    def changed() -> Any:
        """Return the new configuration, None if the files are as before; runs in a thread of gRPC."""
        nonlocal seen
        try:
            now = _stamps(files)
            if now == seen:
                reload.succeeded()
                return None
            found = _configuration(cert, key, client_ca)
        except (OSError, ValueError) as error:
            reload.failed(error)  # each connection tries again
            return None
        seen = now
        reload.succeeded()
        log.info("tls_reloaded")
        return found

    return grpc.dynamic_ssl_server_credentials(
        _configuration(cert, key, client_ca), changed, require_client_authentication=client_ca is not None
    )


def _stamps(files: list[Path]) -> _Stamps:
    return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in (path.stat() for path in files)]


def _configuration(cert: Path, key: Path | None, client_ca: Path | None) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")  # gRPC would not say what is wrong
    except ssl.SSLError as error:
        raise ValueError(f"{cert} and its key cannot be used: {error.reason}") from error
    pair = (key or cert).read_bytes(), cert.read_bytes()
    return grpc.ssl_server_certificate_configuration(
        [pair], root_certificates=None if client_ca is None else client_ca.read_bytes()
    )


async def _watch(users: Users, on_read: Callable[[], None]) -> None:
    """Notice changes of the users."""
    reading = log.WarningOnChange("users_unreadable", hint="the users stay as they were")
    while True:
        await asyncio.sleep(_WATCH_S)
        try:
            users.refresh()
            on_read()
            reading.succeeded()
        except UsersUnreadable as error:
            reading.failed(error)


def run_proxy(options: ProxyOptions, on_ready: Callable[[RunningProxy], None]) -> None:
    """Run a proxy until SIGTERM or Ctrl-C; a second signal ends it at once. Raises like `serving`."""
    asyncio.run(_run(options, on_ready))


async def _run(options: ProxyOptions, on_ready: Callable[[RunningProxy], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if stopping.is_set():
            task.cancel()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        async with serving(options) as running:
            on_ready(running)
            gc.freeze()  # what the start made stays, and need not be searched
            await stopping.wait()
            log.info("proxy_draining")
