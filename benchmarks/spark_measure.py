"""Run several ways of doing the same alternately, check the rows of every run, and print a table of ratios.

Only ratios within one run can be compared across machines. They are taken in each round, so that other load affects
both sides; a ratio that varies by more than a fifth between rounds is marked.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

NOISY = 0.2
Counted = int | Callable[[], int]
"""The number of rows seen, or a function that returns it outside of the measured time."""
Way = Callable[[], Counted]
"""Runs once, and returns the rows that it has seen."""
_TICK = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


def descendants(pid: int, but: int = 0) -> Iterator[int]:
    """Yield all descendants of a process, without `but` and its descendants."""
    with contextlib.suppress(*_GONE):
        for task in list(Path(f"/proc/{pid}/task").glob("*/children")):
            for child in map(int, task.read_text().split()):
                if child != but:
                    yield child
                    yield from descendants(child, but)


def cpu_s(but: int = 0) -> float:
    """Return the CPU seconds of this process's descendants, including those that have ended, without child `but`."""
    total = 0
    for pid in descendants(os.getpid(), but):
        with contextlib.suppress(*_GONE):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return total / _TICK


def own_cpu_s(pid: int) -> float:
    """Return the CPU seconds of one process; 0 for the number 0."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


class WorkerMemory:
    """The highest private memory (RssAnon) seen in a Python worker of Spark."""

    def __init__(self) -> None:
        self.most_mib = 0.0

    def update(self) -> None:
        """Measure the current workers."""
        found = []
        for pid in descendants(os.getpid()):
            with contextlib.suppress(*_GONE):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"pyspark.worker" in command:  # of whichever daemon
                    found.append(_rss_anon_mib(pid))
        self.most_mib = max([self.most_mib, *found])


def _rss_anon_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


class LostRows(Exception):
    """A run has not seen all rows, so it gives no figure."""


class Spent(NamedTuple):
    """The time of one run, in seconds."""

    wall: float
    cpu: float
    """CPU of the JVMs, the Python workers and this process."""
    broker_cpu: float = 0.0


class Line(NamedTuple):
    """A line of the table."""

    name: str
    unit: str
    ours: float
    baseline: float | None = None
    ratios: Sequence[float] = ()
    """Ratio of each round: the speed relative to the baseline, or with `at_most` the figure itself."""
    cpu_ratio: float | None = None
    goal: float | None = None
    floor: float | None = None
    at_most: bool = False
    """Whether the goal is an upper bound."""
    rounds: int = 0
    spread: float | None = None


class Turns:
    """Runs several ways alternately.

    Args:
        rounds: number of runs of each, after a first one that starts workers and is not counted.
        memory: measures the workers after each run.
    """

    def __init__(self, rounds: int, memory: WorkerMemory) -> None:
        self.rounds = rounds
        self._memory = memory

    def take(self, rows: int, ways: Mapping[str, Way], *, but: int = 0, broker: int = 0) -> dict[str, list[Spent]]:
        """Return the times of each way's rounds.

        Args:
            rows: the number of rows that each run has to see.
            ways: by name.
            but: a process whose CPU is not counted.
            broker: a process whose CPU is counted apart.

        Raises:
            LostRows: a run saw more rows, or fewer.
        """
        spent: dict[str, list[Spent]] = {name: [] for name in ways}
        for number in range(self.rounds + 1):
            for name, way in ways.items():
                cpu, broker_cpu = cpu_s(but or broker) + time.process_time(), own_cpu_s(broker)
                since = time.perf_counter()
                counted = way()
                wall = time.perf_counter() - since
                used = cpu_s(but or broker) + time.process_time() - cpu
                broker_cpu = own_cpu_s(broker) - broker_cpu
                seen = counted if isinstance(counted, int) else counted()
                if seen != rows:
                    raise LostRows(f"{name}: {seen:,} rows of {rows:,}")
                if number:
                    spent[name].append(Spent(wall, used, broker_cpu))
                self._memory.update()
        return spent


def compared(
    name: str, rows: int, ours: Sequence[Spent], baseline: Sequence[Spent], *, cores: int = 1, **bounds: Any
) -> Line:
    """Return a line of rows per second; ours is divided by `cores`."""
    ratios = [base.wall / mine.wall / cores for mine, base in zip(ours, baseline, strict=True)]
    cpu = [
        (base.cpu + base.broker_cpu) / (mine.cpu + mine.broker_cpu) for mine, base in zip(ours, baseline, strict=True)
    ]
    return Line(
        name,
        "rows/s",
        rows / statistics.median(one.wall for one in ours) / cores,
        rows / statistics.median(one.wall for one in baseline),
        ratios,
        statistics.median(cpu),
        **bounds,
    )


def compared_by_cpu(
    name: str, rows: int, ours: Sequence[Spent], baseline: Sequence[Spent], goal: float | None = None
) -> Line:
    """Return a line of rows per CPU second, whose ratio is held against the goal; without the broker's."""
    return Line(
        name,
        "rows/CPU s",
        rows / statistics.median(one.cpu for one in ours),
        rows / statistics.median(one.cpu for one in baseline),
        [base.cpu / mine.cpu for mine, base in zip(ours, baseline, strict=True)],
        goal=goal,
    )


def per_cpu_second(name: str, rows: int, ours: Sequence[Spent]) -> Line:
    """Return a line of rows per CPU second, with that of the broker."""
    rates = [rows / (one.cpu + one.broker_cpu) for one in ours]
    middle = statistics.median(rates)
    return Line(name, "rows/CPU s", middle, rounds=len(rates), spread=(max(rates) - min(rates)) / middle)


def ns_per_row(name: str, rows: int, ours: Sequence[Spent], goal: float | None = None) -> Line:
    """Return a line of CPU time per row with that of the broker, in nanoseconds; `goal` is an upper bound."""
    times = [(one.cpu + one.broker_cpu) / rows * 1e9 for one in ours]
    middle = statistics.median(times)
    spread = (max(times) - min(times)) / middle
    return Line(name, "ns/row", middle, goal=goal, at_most=True, rounds=len(times), spread=spread)


def rows_of(path: Path) -> int:
    """Return the number of rows in the footer of a Parquet file."""
    return int(pq.read_metadata(path).num_rows)


HEADINGS = ("", "unit", "ours", "baseline", "ratio", "ratio, CPU", "goal", "floor", "rounds", "spread", "")


def cells(line: Line) -> tuple[str, ...]:
    """Return the cells of a line as text."""
    ratio = statistics.median(line.ratios) if line.ratios else None
    spread = line.spread
    if ratio is not None:
        spread = (max(line.ratios) - min(line.ratios)) / ratio
    bound = "<=" if line.at_most else ">="
    held = ratio if line.baseline is not None else line.ours
    remarks = []
    if line.goal is not None and held is not None:
        remarks.append(_verdict(line, held))
    if spread is not None and spread > NOISY:
        remarks.append("noisy")
    return (
        line.name,
        line.unit,
        f"{line.ours:,.0f}",
        "" if line.baseline is None else f"{line.baseline:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if line.cpu_ratio is None else f"{line.cpu_ratio:.2f}",
        "" if line.goal is None else f"{bound} {line.goal:g}",
        "" if line.floor is None else f"{bound} {line.floor:g}",
        str(len(line.ratios) or line.rounds or ""),
        "" if spread is None else f"{spread:.0%}",
        ", ".join(remarks),
    )


def _verdict(line: Line, held: float) -> str:
    assert line.goal is not None, "called only for lines with a goal"
    if line.at_most:
        return "reached" if held <= line.goal else "missed"
    if held >= line.goal:
        return "reached"
    return "above the floor" if line.floor is not None and held >= line.floor else "missed"


def print_table(lines: Sequence[Line]) -> None:
    """Print all lines as a Markdown table."""
    rows = [HEADINGS, *map(cells, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        texts = [
            text.ljust(width) if at in (0, 1, 10) else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(f"| {' | '.join(texts)} |")
        if not number:
            print(f"|{'|'.join('-' * (width + 2) for width in widths)}|")
