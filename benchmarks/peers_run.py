"""`make bench KIND=peers`: compare Reput with other brokers on this machine.

Each system is used through its usual Python client. In each round all systems are measured one after the other; the
table has medians. All servers run throughout, and idle while another is measured. A run that loses, repeats or changes
a message gives no figure. RocketMQ's own Java benchmark follows, against RocketMQ and Reput.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from drawing import write_bars
from peers import fetch, java_benchmark
from peers.measure import Measured, measure
from peers.sample import figures_of
from peers.servers.base import Missing
from peers.systems import SYSTEMS, System
from peers.table import rows_of, table
from peers.workloads import WORKLOADS, Durability, Workload, chosen


def main() -> int:
    """Measure, print the table, and draw it if asked to."""
    arguments = _arguments()
    workloads = chosen(arguments.workloads)
    systems = _systems(arguments.systems)
    try:
        fetch.clients()
    except Missing as error:
        print(f"error: the clients cannot be installed: {error}", file=sys.stderr)
        return 1
    measured = measure(workloads, systems, rounds=arguments.rounds, seconds=arguments.seconds)
    head = _head(measured, systems, arguments)
    text = f"{head}\n\n{table(measured, workloads, systems)}\n"
    print(text, flush=True)
    if not (arguments.no_java or arguments.workloads or arguments.systems):
        theirs = java_benchmark.measure(rounds=arguments.rounds, seconds=max(3.0, arguments.seconds))
        last = java_benchmark.table(theirs)
        print(last)
        text += f"\n{last}\n"
    if arguments.write is not None:
        arguments.write.mkdir(parents=True, exist_ok=True)
        (arguments.write / "peers.md").write_text(f"# Reput and other brokers\n\n{text}")
        _draw(measured, workloads, systems, arguments.write)
    return 1 if any(sample.fault for samples in measured.samples.values() for sample in samples) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (5); one before warms up")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long a producer sends (1.5)")
    parser.add_argument(
        "--workloads", default="", help=f"only these: {','.join(workload.name for workload in WORKLOADS)}"
    )
    parser.add_argument("--systems", default="", help="only those whose label contains one of these words")
    parser.add_argument(
        "--no-java", action="store_true", help="skip RocketMQ's own benchmark, as with --workloads and --systems"
    )
    parser.add_argument("--write", type=Path, help="write peers.md and the plots to this directory")
    return parser.parse_args()


def _systems(words: str) -> Sequence[System]:
    wanted = [word.strip().lower() for word in words.split(",") if word.strip()]
    systems = [system for system in SYSTEMS if not wanted or any(word in system.label.lower() for word in wanted)]
    if not systems:
        raise SystemExit(f"error: no system has {words!r} in {', '.join(system.label for system in SYSTEMS)}")
    return systems


def _head(measured: Measured, systems: Sequence[System], arguments: argparse.Namespace) -> str:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    lines = [
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, "
        f"{pages * page / (1 << 30):.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}; "
        f"medians of {arguments.rounds} rounds of {arguments.seconds:g} s.",
        f"Command: `make bench KIND=peers ARGS={shlex.quote(shlex.join(sys.argv[1:]))}`",
        "CPU is processor seconds for a million messages. Latencies are those of each message acknowledged, end to end "
        "from when it was due to when its consumer held it.",
        "",
    ]
    for system in systems:
        version = measured.versions.get(system.server.name)
        if version is None:
            continue
        lines.append(f"- {system.label} {fetch.client_version(system.package)}, server {version}: {_settings(system)}")
    return "\n".join(lines)


def _settings(system: System) -> str:
    durabilities: tuple[Durability, ...] = ("page_cache", "flushed")
    told = []
    for durability in durabilities:
        try:
            told.append(f"{durability}: {system.server.settings(durability)}")
        except Missing as error:
            told.append(f"{durability}: missing: {error}")
    return "; ".join(told)


def _draw(measured: Measured, workloads: Sequence[Workload], systems: Sequence[System], directory: Path) -> None:
    """Write a plot for every row: `peers-ROW.svg`."""
    for name, title, workload in rows_of(workloads):
        figures = [
            (system.label, figures_of(measured.samples[name, system.label]))
            for system in systems
            if (name, system.label) in measured.samples
        ]
        is_time = workload.kind == "paced" or (workload.kind == "windowed" and workload.in_flight == 1)
        share = "p99" if workload.kind == "paced" else "p50"
        bars = [(label, getattr(one, share) if is_time else one.rate) for label, one in figures if not one.fault]
        if len(bars) < 2:
            continue
        unit = f"us, {share}, less is better" if is_time else "messages a second"
        path = directory / f"peers-{name.replace(' ', '-')}.svg"
        write_bars(path, f"{title} ({workload.durability}): {unit}", bars, "Reput")


if __name__ == "__main__":
    sys.exit(main())
