"""The pages of the HTTP port: /metrics, /livez, /readyz and /status, for GET and HEAD only. No request changes
anything.

The port opens before the store recovers and answers until the end, since a broker that recovers or drains is alive.
Starlette is imported when the port opens, so that an embedded broker without HTTP does not load it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from reput_broker.config.description import digest
from reput_broker.observe.metrics import MetricsCollector
from reput_protocol import kernel

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send


def make_app(collector: MetricsCollector, status: Callable[[], Mapping[str, Any]] | None = None) -> Starlette:
    """Build the pages.

    Args:
        collector: for /metrics; its sources also have health and configuration.
        status: returns more members of /status, at each request.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    sources = collector.sources
    metrics_pages = MetricsPages(collector)

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        health = sources.health
        code = 200 if health.ready else 503
        if "verbose" in request.query_params or not health.ready:
            return JSONResponse(health.report(), status_code=code)
        return PlainTextResponse("ok\n")

    async def metrics(request: Request) -> ASGIApp:
        async def send_page(scope: Scope, receive: Receive, send: Send) -> None:
            async with metrics_pages.page_for(request.headers.get("accept", "")) as (page, content_type):
                await Response(page, headers={"content-type": content_type})(scope, receive, send)

        return send_page

    async def status_page(_request: Request) -> Response:
        members = {
            "version": collector.version,
            "kernel": kernel.FORM,
            "state": str(sources.health.state),
            "ready": sources.health.ready,
            "started_at": sources.health.started_at_s,
            "config_digest": digest(sources.config),
            "store": _store_status(collector),
            **(status() if status is not None else {}),
        }
        return JSONResponse(members)

    async def failed(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("internal error; see the broker's log\n", status_code=500)

    pages = {"/livez": livez, "/readyz": readyz, "/metrics": metrics, "/status": status_page}
    return Starlette(
        routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()],
        exception_handlers={Exception: failed},
    )


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


_EOF = b"# EOF\n"
_OPENMETRICS = "application/openmetrics-text"
_PAGES_MAX = 2


class _OnePiece(Collector):
    """A registry with one family, or a piece of one, for an encoder."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


@dataclass(slots=True)
class _Page:
    content_type: str
    body: bytes
    readers: int = 0


class MetricsPages:
    """The pages that are being sent: at most two of each format, however many clients there are.

    A request gets a new page unless two are being sent; then it shares the newer of them.
    """

    def __init__(self, collector: MetricsCollector) -> None:
        self._collector = collector
        self._rendering = trio.Lock()
        self._pages: list[_Page] = []

    @asynccontextmanager
    async def page_for(self, accept: str) -> AsyncIterator[tuple[bytes, str]]:
        """Yield a page in the format of `accept`, and its content type, while it is sent."""
        content_type = _encoder_for(accept)[1]
        async with self._rendering:
            sent = [page for page in self._pages if page.content_type == content_type]
            if len(sent) < _PAGES_MAX:
                body, _ = await render_page(self._collector, accept)
                page = _Page(content_type, body)
                self._pages.append(page)
            else:
                page = sent[-1]
            page.readers += 1
        try:
            yield page.body, content_type
        finally:
            page.readers -= 1
            if not page.readers:
                self._pages.remove(page)


async def render_page(collector: MetricsCollector, accept: str) -> tuple[bytes, str]:
    """Return the page and its content type: OpenMetrics if `accept` asks for it, else Prometheus' text format."""
    encode, content_type = _encoder_for(accept)
    page: list[bytes] = []
    name = None
    for family in collector.families():
        text: bytes = encode(_OnePiece(family)).removesuffix(_EOF)
        if family.name == name:
            # Another piece of the previous family, whose head is written already.
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"# "))
        name = family.name
        page.append(text)
        await trio.lowlevel.checkpoint()
    if content_type.startswith(_OPENMETRICS):
        page.append(_EOF)
    return b"".join(page), content_type


def _encoder_for(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Choose one of the two formats. The library has more, and fails for some versions."""
    for accepted in accept.split(","):
        media_type, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [value for value in parameters if value.startswith("version=")]
        if media_type == _OPENMETRICS and versions in ([], ["version=1.0.0"]):
            return choose_encoder(_OPENMETRICS)
    return choose_encoder("")
