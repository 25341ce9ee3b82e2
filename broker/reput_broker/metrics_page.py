"""Write the metrics page piece by piece, letting the event loop do other work in between."""

from __future__ import annotations

from collections.abc import Iterable

import trio
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from reput_broker.metrics import MetricsCollector

_EOF = b"# EOF\n"


class _OnePiece(Collector):
    """What an encoder takes for a registry: one family, or a piece of one."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


async def render_page(collector: MetricsCollector, accept: str) -> tuple[bytes, str]:
    """Return the page and its content type: OpenMetrics if `accept` asks for it, else Prometheus' text format."""
    encode, content_type = choose_encoder(accept)
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
    if content_type.startswith("application/openmetrics-text"):
        page.append(_EOF)
    return b"".join(page), content_type
