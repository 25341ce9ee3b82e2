"""Writing metrics in the text formats of Prometheus and OpenMetrics.

prometheus_client's encoder takes seven times as long a series, and writes the whole page at once; this one writes it in
pieces, so that other tasks run in between (docs/decisions/0010-the-metrics-page-is-ours.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from reput_broker.observe.catalogue import MetricSpec
from reput_broker.observe.counters import Histogram

Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = int | float | Histogram
Family: TypeAlias = tuple[str, Iterable[tuple[Labels, Value]]]
"""A name of the catalogue, and the values by their labels' values."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
EOF = b"# EOF\n"
"""Ends a page of OpenMetrics."""

_PIECE_LINES = 256
_text_of: Callable[[Any], str] = floatToGoString
_T = TypeVar("_T")


class Budget:
    """How many more series of topics, groups and queues the page may have."""

    def __init__(self, series_max: int) -> None:
        self.left = series_max
        self.dropped = 0

    def fit(self, items: Sequence[_T], series: int) -> Sequence[_T]:
        """Return the first items that fit, with `series` series each; the series of the others count as dropped."""
        fitting = min(len(items), self.left // series)
        self.left -= fitting * series
        self.dropped += (len(items) - fitting) * series
        return items[:fitting]


def one(name: str, value: Value, labels: Labels = ()) -> Family:
    """Return a family with one series."""
    return name, ((labels, value),)


def by_label(name: str, values: Mapping[str, Value]) -> Family:
    """Return a family with one label, from the values by that label."""
    return name, (((label,), value) for label, value in values.items())


def accepted_format(accept: str) -> str:
    """Return the content type that suits an Accept header: OPENMETRICS if asked for, else TEXT."""
    for accepted in accept.split(","):
        media_type, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [value for value in parameters if value.startswith("version=")]
        if media_type == OPENMETRICS.partition(";")[0] and versions in ([], ["version=1.0.0"]):
            return OPENMETRICS
    return TEXT


def write_family(
    spec: MetricSpec, values: Iterable[tuple[Labels, Value]], content_type: str
) -> Iterator[bytes]:
    """Yield the text of a family in pieces."""
    write = _histograms if spec.type == "histogram" else _numbers
    pieces = write(spec, iter(values))
    yield (_head(spec, content_type) + next(pieces, "")).encode()
    for piece in pieces:
        yield piece.encode()


def write_standard(collector: Collector, content_type: str) -> bytes:
    """Return the text of a collector of prometheus_client."""
    encode, _ = choose_encoder(content_type if content_type == OPENMETRICS else "")
    text: bytes = encode(collector)
    return text.removesuffix(EOF)


def _head(spec: MetricSpec, content_type: str) -> str:
    name = spec.name.removesuffix("_total") if content_type == OPENMETRICS else spec.name
    return f"# HELP {name} {spec.help}\n# TYPE {name} {spec.type}\n"


def _numbers(spec: MetricSpec, values: Iterator[tuple[Labels, Value]]) -> Iterator[str]:
    names = tuple(spec.labels)
    line = f"{spec.name}{{{_pairs(names, ('%s',) * len(names))}}} %s\n" if names else f"{spec.name} %s\n"
    while piece := list(islice(values, _PIECE_LINES)):
        yield "".join(
            [
                line % (*map(_escaped, labels), value if isinstance(value, int) else _text_of(value))
                for labels, value in piece
            ]
        )


def _histograms(spec: MetricSpec, values: Iterator[tuple[Labels, Value]]) -> Iterator[str]:
    names = tuple(spec.labels)
    while piece := list(islice(values, _PIECE_LINES // len(spec.buckets))):
        yield "".join(
            [line for labels, value in piece for line in _histogram(spec, _pairs(names, labels), value)]
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


@lru_cache(maxsize=4096)  # names come several times on a page, and again on the next
def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value
