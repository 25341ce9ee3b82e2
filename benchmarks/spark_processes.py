"""The CPU time of Spark's processes, and the private memory of its Python workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

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
