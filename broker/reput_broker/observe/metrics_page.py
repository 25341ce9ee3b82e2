"""Write the metrics page piece by piece, letting the event loop do other work in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from reput_broker.observe.metrics import MetricsCollector

_EOF = b"# EOF\n"
_OPENMETRICS = "application/openmetrics-text"
_PAGES_MAX = 2


class _OnePiece(Collector):
    """What an encoder takes for a registry: one family, or a piece of one."""

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
    """The pages that clients are receiving: of each format at most two, however many clients there are.

    A request gets a new page unless two are being sent; then it shares the newer of them.
    """

    def __init__(self, collector: MetricsCollector) -> None:
        self._collector = collector
        self._rendering = trio.Lock()
        self._pages: list[_Page] = []

    @asynccontextmanager
    async def page_for(self, accept: str) -> AsyncIterator[tuple[bytes, str]]:
        """Lend a page in the format that `accept` asks for, and its content type, while it is sent."""
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
            # A further piece of the family before: its head has been written.
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"# "))
        name = family.name
        page.append(text)
        await trio.lowlevel.checkpoint()
    if content_type.startswith(_OPENMETRICS):
        page.append(_EOF)
    return b"".join(page), content_type


def _encoder_for(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Choose between the two formats. The library has many, by version and escaping, and fails with some versions."""
    for accepted in accept.split(","):
        media_type, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [value for value in parameters if value.startswith("version=")]
        if media_type == _OPENMETRICS and versions in ([], ["version=1.0.0"]):
            return choose_encoder(_OPENMETRICS)
    return choose_encoder("")
