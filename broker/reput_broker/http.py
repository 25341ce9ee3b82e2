"""The HTTP listener: /metrics, /livez, /readyz and /status, for GET and HEAD only.

It opens before the store recovers and answers until the end, since a broker that recovers or drains is alive.
It changes nothing: there is no request that has an effect.

Starlette and hypercorn are imported when the listener starts, so that an embedded broker without one does not
pay for them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog
import trio

from reput_broker.config_describe import digest
from reput_broker.metrics import MetricsCollector
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = structlog.get_logger(__name__)

_HEADER_BYTES_MAX = 16 * 1024
_IDLE_TIMEOUT_S = 20.0
"""How long a connection may take to send a request's head, and how long it may stay silent between two."""
_UNREAD_ANSWER_TIMEOUT_S = 30.0
_PAGES_AT_ONCE = 2
_BACKLOG = 64


class HttpListenFailed(ReputError):
    """The HTTP port cannot be opened. Nothing listens on it."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port} for HTTP: {reason}; choose another http_host or http_port"
        )
        self.host = host
        self.port = port


def make_app(collector: MetricsCollector, status: Callable[[], Mapping[str, Any]] | None = None) -> Starlette:
    """Build the pages.

    Args:
        collector: what /metrics shows; its sources also know health and configuration.
        status: further members of /status, looked up at each request.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    from reput_broker.metrics_page import render_page

    sources = collector.sources
    pages_at_once = trio.CapacityLimiter(_PAGES_AT_ONCE)

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        health = sources.health
        code = 200 if health.ready else 503
        if "verbose" in request.query_params or not health.ready:
            return JSONResponse(health.report(), status_code=code)
        return PlainTextResponse("ok\n")

    async def metrics(request: Request) -> Response:
        async with pages_at_once:
            page, content_type = await render_page(collector, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def status_page(_request: Request) -> Response:
        members = {
            "version": collector.version,
            "state": str(sources.health.state),
            "ready": sources.health.ready,
            "started_at": sources.health.started_at_s,
            "config_digest": digest(sources.config),
            "store": _store_status(collector),
            **(status() if status is not None else {}),
        }
        return JSONResponse(members)

    async def failed(request: Request, error: Exception) -> Response:
        log.error("http_page_failed", path=request.url.path, exc_info=error)
        return PlainTextResponse("internal error; the broker's log tells more\n", status_code=500)

    pages = {"/livez": livez, "/readyz": readyz, "/metrics": metrics, "/status": status_page}
    return Starlette(
        routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()],
        exception_handlers={Exception: failed},
    )


async def serve_http(
    app: Starlette,
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the address that is listened on (of port 0: the real one) once it is open.

    Raises:
        HttpListenFailed: the port is taken, or the host is not one of this machine's.
    """
    from hypercorn.config import Config
    from hypercorn.trio import serve

    listener = await _listen(host, port)
    address = listener.getsockname()[:2]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = _HEADER_BYTES_MAX
    config.keep_alive_timeout = _IDLE_TIMEOUT_S
    config.graceful_timeout = 0.0
    async with trio.open_nursery() as nursery:
        await nursery.start(_serving, serve, app, config)
        task_status.started((address[0], address[1]))


async def _serving(
    serve: Any, app: Starlette, config: Any, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
) -> None:
    await serve(app, config, mode="asgi", task_status=task_status)


async def _listen(host: str, port: int) -> socket.socket:
    try:
        places = await trio.socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = places[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit this. A client that takes none of its answer would otherwise hold it, and
            # the shutdown, for ever: hypercorn does not let a write be cancelled.
            user_timeout_ms = int(_UNREAD_ANSWER_TIMEOUT_S * 1000)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
            listener.bind(address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise HttpListenFailed(host, port, error.strerror or str(error)) from error
    return listener


def _store_status(collector: MetricsCollector) -> dict[str, int] | None:
    store, topics, groups = collector.sources.store, collector.sources.topics, collector.sources.groups
    if store is None:
        return None
    return {
        "start_offset_b": store.min_physical_offset,
        "end_offset_b": store.max_physical_offset,
        "flush_behind_b": store.flush_behind_bytes,
        "dispatch_behind_b": store.dispatch_behind_bytes,
        "queues": len(store.queues()),
        "topics": 0 if topics is None else topics.user_topic_count(),
        "groups": 0 if groups is None else groups.settings.user_group_count(),
        "groups_online": 0 if groups is None else len(groups.online),
        "connections": sum(listener.open for listener in collector.sources.counters.listeners.values()),
    }
