"""Plots of the table as SVG: bars of rates, and of latencies, drawn by hand so that nothing need be installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from peers.measure import Measured
from peers.sample import figures_of
from peers.systems import System
from peers.table import rows_of
from peers.workloads import Workload

_BAR = 22
_LEFT = 210
_WIDE = 520
_RIGHT = 110
_INK = "#1d2733"
_OURS = "#0b6e75"
_OTHERS = "#a9b4bd"


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
        text = _plot(f"{title} ({workload.durability}): {unit}", bars)
        (directory / f"peers-{name.replace(' ', '-')}.svg").write_text(text)


def _plot(title: str, bars: Sequence[tuple[str, float]]) -> str:
    height = 44 + len(bars) * (_BAR + 8)
    most = max(value for _, value in bars) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDE + _RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold" fill="{_INK}">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(bars):
        top = 36 + number * (_BAR + 8)
        width = max(1.0, value / most * _WIDE)
        colour = _OURS if label == "Reput" else _OTHERS
        parts += [
            f'<text x="{_LEFT - 10}" y="{top + 16}" text-anchor="end" fill="{_INK}">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{colour}"/>',
            f'<text x="{_LEFT + width + 8:.1f}" y="{top + 16}" fill="{_INK}">{value:,.0f}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
