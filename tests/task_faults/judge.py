"""Judges the marks of a run: what was sent has run, not early, and again only after a kill that explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_EARLY_S: Final = 0.05
"""Clocks of processes are read one after the other."""
_ACK_S: Final = 5.0
"""How long before a kill a task can have run whose acknowledgement the kill has lost."""


@dataclass(frozen=True)
class Kill:
    """What was killed and when; the processes that ended with it, or none if it was the broker.

    A broker is away until `until`; acknowledgements that are made meanwhile may be lost.
    """

    what: str
    at: float
    until: float
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Run:
    """A task has begun: in which process and when."""

    pid: int
    at: float


@dataclass
class Marks:
    """What the files of a run say, by the number of the task."""

    due: dict[int, float] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    runs: dict[int, list[Run]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Marks:
        """Read all files; a line that a kill has cut is none."""
        marks = cls()
        for path in directory.iterdir():
            for line in path.read_text().splitlines():
                words = line.split()
                if len(words) != 4:
                    continue
                number, due, at = int(words[1]), float(words[2]), float(words[3])
                marks.due[number] = due
                if words[0] == "sent":
                    marks.sent.add(number)
                else:
                    marks.runs.setdefault(number, []).append(Run(int(path.name), at))
        for runs in marks.runs.values():
            runs.sort(key=lambda run: run.at)
        return marks


@dataclass
class Verdict:
    """Numbers of tasks, and what is wrong, a line each."""

    sent: int
    lost: list[int]
    early: list[int]
    unexplained: dict[int, list[Run]]
    repeated: Counter[str]
    late_s: Sequence[float]

    @property
    def wrong(self) -> list[str]:
        """What promises were broken."""
        named = {"never ran": self.lost, "ran before its time": self.early}
        named["ran again without a kill that explains it"] = [*self.unexplained]
        runs = [f"task {number}: {self.unexplained[number]}" for number in sorted(self.unexplained)[:3]]
        return [
            f"{len(numbers)} tasks: {what}: {', '.join(map(str, sorted(numbers)[:10]))}"
            for what, numbers in named.items()
            if numbers
        ] + runs


def judge(marks: Marks, kills: Iterable[Kill]) -> Verdict:
    """Judge a run that has ended.

    A task that has run may run again if the process that ran it, or the broker, was killed before its acknowledgement
    was there.
    """
    kills = list(kills)
    unexplained: dict[int, list[Run]] = {}
    repeated: Counter[str] = Counter()
    for number, runs in marks.runs.items():
        for run in runs[:-1]:
            why = next((kill.what for kill in kills if _explains(kill, run)), None)
            if why is None:
                unexplained[number] = runs
            else:
                repeated[why] += 1
    return Verdict(
        len(marks.sent),
        [number for number in marks.sent if number not in marks.runs],
        [number for number, runs in marks.runs.items() if runs[0].at < marks.due[number] - _EARLY_S],
        unexplained,
        repeated,
        sorted(runs[0].at - marks.due[number] for number, runs in marks.runs.items()),
    )


def _explains(kill: Kill, run: Run) -> bool:
    return (not kill.pids or run.pid in kill.pids) and kill.at - _ACK_S <= run.at <= kill.until


def counted(verdict: Verdict, kills: Iterable[Kill]) -> str:
    """Say what a run has counted."""
    late = verdict.late_s
    by_kind = ", ".join(
        f"{number} of a {what}" for what, number in sorted(Counter(kill.what for kill in kills).items())
    )
    repeated = ", ".join(f"{number} by a {what}" for what, number in sorted(verdict.repeated.items()))
    return (
        f"{verdict.sent} tasks sent, {len(late)} have run; kills: {by_kind or 'none'}; {len(verdict.lost)} lost, "
        f"{len(verdict.early)} early, run again: {repeated or 'none'} explained, {len(verdict.unexplained)} not; "
        f"late by {late[len(late) // 2]:.2f} s (median), {late[len(late) * 99 // 100]:.1f} s (99 %), {late[-1]:.1f} s"
    )
