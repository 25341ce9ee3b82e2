"""A metric's row, and writing metrics in the text formats of Prometheus and OpenMetrics.

prometheus_client's encoder takes seven times as long a series, and writes the whole page at once; this one writes it in
pieces, so that other tasks run in between (docs/decisions/0010-the-metrics-page-is-ours.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from reput_broker.observe.counters import Histogram
from reput_broker.observe.metrics import Labels, Scrape, Value

LabelValues: TypeAlias = tuple[str, ...]
ANY: LabelValues = ()
"""The values are names, or too many to list."""
Found: TypeAlias = Value | Mapping[str, Value] | Mapping[Labels, Value] | Iterable[tuple[Labels, Value]] | None
"""The value of a metric without labels, those by its one label or by its labels; None: it has none now."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
EOF = b"# EOF\n"
"""Ends a page of OpenMetrics."""

_PIECE_LINES = 256
_text_of: Callable[[Any], str] = floatToGoString


class MetricSpec(NamedTuple):
    """One metric family. `labels` has each label's values, `buckets` the upper bounds of a histogram's."""

    section: str
    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: Mapping[str, LabelValues]
    help: str
    read: Callable[[Scrape], Found]
    """Returns its values at a scrape."""
    buckets: tuple[float, ...] = ()


class Section:
    """Collects the metrics of a section of a catalogue."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.specs: list[MetricSpec] = []

    def gauge(self, name: str, text: str, read: Callable[[Scrape], Found], **labels: LabelValues) -> None:
        """Add a gauge."""
        self.specs.append(MetricSpec(self._name, name, "gauge", labels, text, read))

    def counter(self, name: str, text: str, read: Callable[[Scrape], Found], **labels: LabelValues) -> None:
        """Add a counter."""
        self.specs.append(MetricSpec(self._name, name, "counter", labels, text, read))

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], read: Callable[[Scrape], Found], **labels: LabelValues
    ) -> None:
        """Add a histogram."""
        self.specs.append(MetricSpec(self._name, name, "histogram", labels, text, read, buckets))


def by_name(sections: Iterable[Section]) -> dict[str, MetricSpec]:
    """Return the metrics of the sections by name."""
    return {spec.name: spec for section in sections for spec in section.specs}


def accepted_format(accept: str) -> str:
    """Return the content type that suits an Accept header: OPENMETRICS if asked for, else TEXT."""
    for accepted in accept.split(","):
        media_type, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [value for value in parameters if value.startswith("version=")]
        if media_type == OPENMETRICS.partition(";")[0] and versions in ([], ["version=1.0.0"]):
            return OPENMETRICS
    return TEXT


def write_family(spec: MetricSpec, scrape: Scrape, content_type: str) -> Iterator[bytes]:
    """Yield the text of a family in pieces; none if it has no values now."""
    values = _rows(spec.read(scrape))
    if values is None:
        return
    shared = tuple(name for name in spec.labels if name in scrape.common)
    own = tuple(name for name in spec.labels if name not in scrape.common)
    prefix = _pairs(shared, tuple(scrape.common[name] for name in shared))
    write = _histograms if spec.type == "histogram" else _numbers
    pieces = write(spec, prefix, own, iter(values))
    yield (_head(spec, content_type) + next(pieces, "")).encode()
    for piece in pieces:
        yield piece.encode()


def _rows(found: Found) -> Iterable[tuple[Labels, Value]] | None:
    if isinstance(found, (int, float, Histogram)):
        return (((), found),)
    if isinstance(found, Mapping):
        return ((key if isinstance(key, tuple) else (key,), value) for key, value in found.items())
    return found


def write_standard(collector: Collector, content_type: str) -> bytes:
    """Return the text of a collector of prometheus_client."""
    encode, _ = choose_encoder(content_type if content_type == OPENMETRICS else "")
    text: bytes = encode(collector)
    return text.removesuffix(EOF)


def _head(spec: MetricSpec, content_type: str) -> str:
    name = spec.name.removesuffix("_total") if content_type == OPENMETRICS else spec.name
    return f"# HELP {name} {spec.help}\n# TYPE {name} {spec.type}\n"


def _numbers(spec: MetricSpec, prefix: str, own: Labels, values: Iterator[tuple[Labels, Value]]) -> Iterator[str]:
    pairs = _joined(prefix.replace("%", "%%"), ",".join(f'{name}="%s"' for name in own))
    line = f"{spec.name}{{{pairs}}} %s\n" if pairs else f"{spec.name} %s\n"
    while piece := list(islice(values, _PIECE_LINES)):
        yield "".join(
            [
                line % (*map(_escaped, labels), value if isinstance(value, int) else _text_of(value))
                for labels, value in piece
            ]
        )


def _histograms(spec: MetricSpec, prefix: str, own: Labels, values: Iterator[tuple[Labels, Value]]) -> Iterator[str]:
    while piece := list(islice(values, _PIECE_LINES // len(spec.buckets))):
        yield "".join(
            [line for labels, value in piece for line in _histogram(spec, _joined(prefix, _pairs(own, labels)), value)]
        )


def _histogram(spec: MetricSpec, pairs: str, histogram: Value) -> Iterator[str]:
    assert isinstance(histogram, Histogram)
    separated = f"{pairs}," if pairs else ""
    for bound, count in histogram.cumulated(spec.buckets):
        yield f'{spec.name}_bucket{{{separated}le="{_text_of(bound)}"}} {count}\n'
    labels = f"{{{pairs}}}" if pairs else ""
    yield f"{spec.name}_count{labels} {histogram.count}\n"
    yield f"{spec.name}_sum{labels} {_text_of(histogram.total)}\n"


def _pairs(names: Labels, values: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _joined(*pairs: str) -> str:
    return ",".join(filter(None, pairs))


@lru_cache(maxsize=4096)  # names come several times on a page, and again on the next
def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value
