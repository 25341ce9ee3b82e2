"""Plots of the table as SVG: bars of rates, and of latencies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drawing import write_bars
from peers.measure import Measured
from peers.sample import figures_of
from peers.systems import System
from peers.table import rows_of
from peers.workloads import Workload


def draw(
    measured: Measured, workloads: Sequence[Workload], systems: Sequence[System], directory: Path
) -> None:
    """Write a plot for every row: `peers-ROW.svg`."""
    for name, title, workload in rows_of(workloads):
        figures = [
            (system.label, figures_of(measured.samples[name, system.label]))
            for system in systems
            if (name, system.label) in measured.samples
        ]
        is_time = workload.kind == "paced" or (workload.kind == "windowed" and workload.in_flight == 1)
        share = "p99" if workload.kind == "paced" else "p50"
        bars = [
            (label, getattr(one, share) if is_time else one.rate) for label, one in figures if not one.fault
        ]
        if len(bars) < 2:
            continue
        unit = f"us, {share}, less is better" if is_time else "messages a second"
        path = directory / f"peers-{name.replace(' ', '-')}.svg"
        write_bars(path, f"{title} ({workload.durability}): {unit}", bars, "Reput")
