"""The pages of the HTTP port: /metrics, /metrics/rocketmq, /livez, /readyz and /status, for GET and HEAD only. No
request for them changes anything.

The port opens before the store recovers and answers until the end, since a broker that recovers or drains is alive.
Starlette is imported when the port opens, so that an embedded broker without HTTP does not load it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from prometheus_client import GC_COLLECTOR
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from reput_broker.config.description import digest
from reput_broker.observe.catalogue import METRICS
from reput_broker.observe.exposition import EOF, OPENMETRICS, MetricSpec, accepted_format, write_family, write_standard
from reput_broker.observe.metrics import MetricsSources, Scrape, broker_version
from reput_broker.observe.rocketmq_catalogue import ROCKETMQ_METRICS, common_labels
from reput_protocol import kernel

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

IS_OPEN: Final = "reput.is_open"
"""Set in the scope of a request that needs no user although there is access control."""


def make_app(
    sources: MetricsSources, status: Callable[[], Mapping[str, Any]] | None = None, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """Build the pages.

    Args:
        sources: of the metrics; they also have health.
        status: returns more members of /status, at each request.
        routes: more pages, such as the console.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    metrics_pages = MetricsPages(METRICS, sources, standard=_STANDARD)
    rocketmq_pages = MetricsPages(ROCKETMQ_METRICS, sources, common_labels(sources.config))

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        health = sources.health
        code = 200 if health.ready else 503
        if "verbose" in request.query_params or not health.ready:
            has_details = IS_OPEN not in request.scope  # paths of files can be among them
            return JSONResponse(health.report(has_details=has_details), status_code=code)
        return PlainTextResponse("ok\n")

    async def metrics(pages: MetricsPages, request: Request) -> ASGIApp:
        async def send_page(scope: Scope, receive: Receive, send: Send) -> None:
            async with pages.page_for(request.headers.get("accept", "")) as (page, content_type):
                await Response(page, headers={"content-type": content_type})(scope, receive, send)

        return send_page

    async def status_page(_request: Request) -> Response:
        return JSONResponse({**status_of(sources), **(status() if status is not None else {})})

    async def failed(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("internal error; see the broker's log\n", status_code=500)

    pages: dict[str, Callable[[Request], Awaitable[ASGIApp]]] = {
        "/livez": livez,
        "/readyz": readyz,
        "/metrics": partial(metrics, metrics_pages),
        "/metrics/rocketmq": partial(metrics, rocketmq_pages),
        "/status": status_page,
    }
    return Starlette(
        routes=[*(Route(path, page, methods=["GET"]) for path, page in pages.items()), *routes],
        exception_handlers={Exception: failed},
    )


_PAGES_MAX = 2
_STANDARD = (ProcessCollector(registry=None), GC_COLLECTOR)


@dataclass(slots=True)
class _Page:
    content_type: str
    body: bytes
    readers: int = 0


class MetricsPages:
    """The metrics pages that are being sent: at most two of each format, however many clients there are.

    A request gets a new page unless two are being sent; then it shares the newer of them.

    Args:
        catalogue: the metrics by name.
        common: the value of each label that all series with it share.
        standard: collectors of prometheus_client, whose series come first.
    """

    def __init__(
        self,
        catalogue: Mapping[str, MetricSpec],
        sources: MetricsSources,
        common: Mapping[str, str] | None = None,
        standard: Sequence[Collector] = (),
    ) -> None:
        self._catalogue = catalogue
        self._new_scrape = partial(Scrape, sources, common or {})
        self._standard = standard
        self._rendering = trio.Lock()
        self._pages: list[_Page] = []

    @asynccontextmanager
    async def page_for(self, accept: str) -> AsyncIterator[tuple[bytes, str]]:
        """Yield a page in the format of `accept`, and its content type, while it is sent."""
        content_type = accepted_format(accept)
        async with self._rendering:
            sent = [page for page in self._pages if page.content_type == content_type]
            if len(sent) < _PAGES_MAX:
                page = _Page(content_type, await self.render(content_type))
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

    async def render(self, content_type: str) -> bytes:
        """Return a new page in a format: TEXT or OPENMETRICS.

        Other tasks run between its pieces; their changes may or may not be included.
        """
        scrape = self._new_scrape()
        page = [write_standard(collector, content_type) for collector in self._standard]
        for spec in self._catalogue.values():
            for piece in write_family(spec, scrape, content_type):
                page.append(piece)
                await trio.lowlevel.checkpoint()
        if content_type == OPENMETRICS:
            page.append(EOF)
        return b"".join(page)


def status_of(sources: MetricsSources) -> dict[str, Any]:
    """Return version, state, time of the start, configuration, store and disk as a JSON object."""
    disk = sources.disk
    return {
        "version": broker_version(),
        "kernel": kernel.FORM,
        "state": str(sources.health.state),
        "ready": sources.health.ready,
        "started_at": sources.health.started_at_s,
        "clock_ms": sources.clock_ms(),
        "config_digest": digest(sources.config),
        "config_reload_ok": sources.config_reload_ok,
        "store": _store_status(sources),
        "disk": None
        if not disk.looked_up_at_s
        else {
            "free_bytes": disk.free_bytes,
            "used_ratio": round(disk.used_ratio, 4),
            "log_used_ratio": round(max(disk.used_ratio, disk.log_used_ratio), 4),
            "log_free_bytes": disk.free_bytes if disk.log_free_bytes is None else disk.log_free_bytes,
            "log_file_bytes": sources.config.store.commit_log_file_size,
            "level": str(disk.level),
            "looked_up_at": disk.looked_up_at_s,
            "size_bytes": dict(disk.size_bytes),
            "oldest_ms": disk.oldest_store_timestamp_ms,
        },
    }


def _store_status(sources: MetricsSources) -> dict[str, Any] | None:
    store, topics, groups = sources.store, sources.topics, sources.groups
    if store is None:
        return None
    deleted = sources.counters.segments_deleted.items()
    return {
        "read_only_reason": store.read_only_reason,
        "recovery_s": round(sources.recovery_duration_s, 3),
        "recovery_truncated_bytes": sources.recovery_truncated_bytes,
        "deleted_files": {f"{part} ({reason})": count for (part, reason), count in deleted if count},
        "start_offset": store.min_physical_offset,
        "end_offset": store.max_physical_offset,
        "flushed_offset": store.flushed_offset,
        "flush_behind_bytes": store.flush_behind_bytes,
        "dispatch_behind_bytes": store.dispatch_behind_bytes,
        "queues": len(store.queues()),
        "topics": 0 if topics is None else topics.user_topic_count(),
        "groups": 0 if groups is None else groups.settings.user_group_count(),
        "groups_online": 0 if groups is None else len(groups.online),
        "connections": sum(listener.open for listener in sources.counters.listeners.values()),
    }
