"""What the processes of Spark use: CPU of all of them, private memory of the Python workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


def descendants(pid: int, but: int = 0) -> Iterator[int]:
    """Yield a process's children, theirs, and so on; without `but` and what is below it."""
    with contextlib.suppress(*_GONE):
        for task in list(Path(f"/proc/{pid}/task").glob("*/children")):
            for child in map(int, task.read_text().split()):
                if child != but:
                    yield child
                    yield from descendants(child, but)


def cpu_s(but: int = 0) -> float:
    """CPU seconds that this process's children have used so far, those that have ended included.

    Args:
        but: a child that does not count: the broker.
    """
    total = 0
    for pid in descendants(os.getpid(), but):
        with contextlib.suppress(*_GONE):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return total / _TICK


class WorkerMemory:
    """The most private memory (RssAnon) that any Python worker of Spark was seen to have."""

    def __init__(self) -> None:
        self.most_mib = 0.0
        self.workers = 0
        """How many there were at once at most."""

    def look(self) -> None:
        """Look at the workers that there are now."""
        found = []
        for pid in descendants(os.getpid()):
            with contextlib.suppress(*_GONE):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"pyspark.daemon" in command or b"pyspark/daemon" in command:
                    found.append(_rss_anon_mib(pid))
        self.workers = max(self.workers, len(found))
        self.most_mib = max([self.most_mib, *found])


def _rss_anon_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0
