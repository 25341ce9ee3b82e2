"""Metrics and health of a proxy, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from reput_protocol.errors import ReputError
from reput_proxy.proxy import Proxy
from reput_proxy.rejections import code_name

_HEAD_BYTES_MAX: Final = 8192
_REQUEST_S: Final = 10.0
_PHRASES: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


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
        (
            "acknowledged_messages_total",
            "counter",
            "Messages that clients acknowledged.",
            counters.acknowledged,
        ),
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
