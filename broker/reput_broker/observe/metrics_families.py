"""Making Prometheus' families out of numbers: from label values and integers, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import inf, isinf

from prometheus_client import Metric

from reput_broker.observe.counters import Histogram
from reput_broker.observe.metrics_table import METRICS

_PIECE_SAMPLES = 256

Labels = tuple[str, ...]
Value = int | float | Histogram


class Budget:
    """How many more series of topics, groups and queues the page may have."""

    def __init__(self, series_max: int) -> None:
        self.left = series_max
        self.dropped = 0

    def take(self, series: int) -> bool:
        """Take so many of them if they are left; otherwise they are left out, and counted."""
        if series > self.left:
            self.dropped += series
            return False
        self.left -= series
        return True


def by_one(values: Mapping[str, Value]) -> Iterator[tuple[Labels, Value]]:
    """Return the values of a family with one label, by that label."""
    return (((name,), value) for name, value in values.items())


def one(name: str, value: Value, labels: Labels = ()) -> Metric:
    """Make the family `name` with one series."""
    (family,) = pieces(name, [(labels, value)])
    return family


def pieces(name: str, values: Iterable[tuple[Labels, Value]]) -> Iterator[Metric]:
    """Make the family `name`, at least one piece of it, from label values and numbers."""
    spec = METRICS[name]
    rest = iter(values)
    size = _PIECE_SAMPLES // 16 if spec.type == "histogram" else _PIECE_SAMPLES
    piece = list(islice(rest, size))
    while True:
        # prometheus_client keeps a counter's name without `_total` and its samples with it.
        family = Metric(name.removesuffix("_total") if spec.type == "counter" else name, spec.help, spec.type)
        for label_values, value in piece:
            labels = dict(zip(spec.labels, label_values, strict=True))
            if isinstance(value, Histogram):
                _add_histogram(family, name, labels, value)
            else:
                family.add_sample(name, labels, value)
        yield family
        piece = list(islice(rest, size))
        if not piece:
            return


def _add_histogram(family: Metric, name: str, labels: dict[str, str], histogram: Histogram) -> None:
    cumulated = 0
    for bound, count in zip((*histogram.bounds, inf), histogram.buckets, strict=True):
        cumulated += count
        family.add_sample(
            f"{name}_bucket", {**labels, "le": "+Inf" if isinf(bound) else str(bound)}, cumulated
        )
    family.add_sample(f"{name}_count", labels, cumulated)
    family.add_sample(f"{name}_sum", labels, histogram.total)
