"""What a measurement found: totals over all clients, percentiles, and the facts that make the figures comparable."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class ClientResult:
    """What one client process did."""

    messages: int = 0
    message_bytes: int = 0
    duration_s: float = 0.0
    errors: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.duration_s if self.duration_s else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the ordered values lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def summarize(name: str, results: Sequence[ClientResult], facts: dict[str, Any]) -> dict[str, Any]:
    """Return one flat object: the measurement, its figures, the host."""
    messages = sum(result.messages for result in results)
    duration_s = max(result.duration_s for result in results)
    rates = sorted(result.rate for result in results)
    row: dict[str, Any] = {
        "bench": name,
        "messages": messages,
        "messages_per_s": round(messages / duration_s) if duration_s else 0,
        "mb_per_s": round(sum(r.message_bytes for r in results) / duration_s / 1e6, 1) if duration_s else 0.0,
        "duration_s": round(duration_s, 3),
        "errors": sum(result.errors for result in results),
    }
    latencies = sorted(latency for result in results for latency in result.latencies_s)
    if latencies:
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999)):
            row[f"{label}_us"] = round(percentile(latencies, share) * 1e6, 1)
        row["max_us"] = round(latencies[-1] * 1e6, 1)
    if len(rates) > 1:
        row["client_min_per_s"] = round(rates[0])
        row["client_mean_per_s"] = round(sum(rates) / len(rates))
        row["client_max_per_s"] = round(rates[-1])
    return {**row, **facts, **host_facts()}


def host_facts() -> dict[str, Any]:
    """Return what must stand beside any figure: cores, memory, Python, our version."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / (1 << 30), 1),
        "python": platform.python_version(),
        "reput": version("reput"),
        "kernel": platform.release(),
    }


def write_csv(path: Path, row: dict[str, Any]) -> None:
    """Append a row to a CSV file; its header is written when the file is new."""
    import csv

    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if fresh:
            writer.writeheader()
        writer.writerow(row)
