"""Figures of one run, and medians of several."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from tables import NOISY_SPREAD, spread_of


@dataclass(slots=True)
class Sample:
    """The figures of one run."""

    rate: float = 0.0
    """Messages a second."""
    latencies_us: list[int] = field(default_factory=list)
    server_cpu: float = 0.0
    """Processor seconds for a million messages."""
    client_cpu: float = 0.0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of several runs; latencies are in microseconds, 0 if none were measured."""

    rate: float
    p50: float
    p99: float
    p999: float
    server_cpu: float
    client_cpu: float
    spread: float
    runs: int
    fault: str

    @property
    def is_noisy(self) -> bool:
        """Whether the rates differ too much to be compared closely."""
        return self.spread > NOISY_SPREAD


def percentile(sorted_values: Sequence[int], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the sorted values are; 0 without values."""
    if not sorted_values:
        return 0.0
    return float(sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))])


def figures_of(samples: Sequence[Sample]) -> Figures:
    """Return the medians of all runs; if one does not count, only the reason."""
    fault = next((sample.fault for sample in samples if sample.fault), "")
    if fault or not samples:
        return Figures(0, 0, 0, 0, 0, 0, 0, 0, fault or "not run")
    rates = [sample.rate for sample in samples]
    sorted_latencies = [sorted(sample.latencies_us) for sample in samples]

    def median_of(share: float) -> float:
        return statistics.median(percentile(values, share) for values in sorted_latencies)

    middle = statistics.median(rates)
    return Figures(
        middle,
        median_of(0.5),
        median_of(0.99),
        median_of(0.999),
        statistics.median(sample.server_cpu for sample in samples),
        statistics.median(sample.client_cpu for sample in samples),
        spread_of(rates),
        len(samples),
        "",
    )
