"""The table: a block for each row of figures, a line for each system."""

from __future__ import annotations

from collections.abc import Sequence

from peers.measure import COLUMNS, CONSUME, Measured
from peers.sample import Figures, figures_of
from peers.systems import System
from peers.workloads import Workload
from tables import NOISY_SPREAD, aligned

_HEAD = ("", "msg/s", "MB/s", "Reput is", "p50 us", "p99 us", "p99.9 us", "server CPU", "client CPU")


def rows_of(workloads: Sequence[Workload]) -> list[tuple[str, str, Workload]]:
    """Return the name, the title and the workload of every row."""
    rows: list[tuple[str, str, Workload]] = []
    for workload in workloads:
        rows.append((workload.name, workload.title, workload))
        if workload.consume:
            size = workload.title.rsplit(", ", 1)[1]
            rows.append((f"{workload.name} {CONSUME}", f"consume, {size}, message objects", workload))
            rows.append((f"{workload.name} {COLUMNS}", f"consume, {size}, columns", workload))
    return rows


def table(measured: Measured, workloads: Sequence[Workload], systems: Sequence[System]) -> str:
    """Return the whole table as Markdown."""
    parts: list[str] = []
    for name, title, workload in rows_of(workloads):
        lines = _block(measured, name, workload, systems)
        if lines:
            parts.append(f"### {title} ({workload.durability})\n\n" + "\n".join(lines))
    memory = [("", "RSS MiB", "private (RssAnon) MiB")]
    memory += [(name, f"{rss:.0f}", f"{anon:.0f}") for name, (rss, anon) in measured.memory_mib.items()]
    if measured.memory_mib:
        parts.append("### Servers' memory at the end (page_cache)\n\n" + "\n".join(aligned(memory)))
    return "\n\n".join(parts)


def _block(measured: Measured, name: str, workload: Workload, systems: Sequence[System]) -> list[str]:
    ours = figures_of(measured.samples.get((name, "Reput"), []))
    lines: list[Sequence[str]] = []
    notes: list[str] = []
    for system in systems:
        samples = measured.samples.get((name, system.label))
        if samples is None:
            reason = measured.missing.get((system.label, workload.durability))
            if reason is not None and not name.endswith(COLUMNS):
                notes.append(f"{system.label}: missing: {reason}")
            continue
        figures = figures_of(samples)
        if figures.fault:
            notes.append(f"{system.label}: no figure: {figures.fault}")
            continue
        lines.append(_line(system.label, figures, ours, workload))
        if figures.is_noisy:
            notes.append(
                f"{system.label}: noisy: rates differ by {figures.spread:.0%} of their median "
                f"(more than {NOISY_SPREAD:.0%})"
            )
    if not lines and not notes:
        return []
    return [*aligned([_HEAD, *lines]), *([""] if notes else []), *(f"- {note}" for note in notes)]


def _line(label: str, figures: Figures, ours: Figures, workload: Workload) -> Sequence[str]:
    waits = workload.kind in {"windowed", "paced"} and figures.p50 > 0
    if label == "Reput" or not ours.rate:
        ratio = ""
    elif workload.kind == "paced" or (waits and workload.in_flight == 1):
        ratio = f"{figures.p50 / ours.p50:.2f}x as quick" if ours.p50 else ""
    else:
        ratio = f"{ours.rate / figures.rate:.2f}x as fast"
    latencies = (figures.p50, figures.p99, figures.p999)
    return (
        label,
        f"{figures.rate:,.0f}",
        f"{figures.rate * workload.size / 1e6:,.1f}",
        ratio,
        *(f"{value:,.0f}" if waits else "" for value in latencies),
        f"{figures.server_cpu:.1f}",
        f"{figures.client_cpu:.1f}",
    )
