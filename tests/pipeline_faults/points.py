"""A point at which a driver dies, or a task fails. The environment names it, so that every process of Spark knows it.

The first process that reaches it kills the whole group of the driver, JVM included, and leaves a mark, so that no other
process dies there.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final, Self

POINT: Final = "PIPELINE_FAULTS_POINT"
MARKS: Final = "PIPELINE_FAULTS_MARKS"
GROUP: Final = "PIPELINE_FAULTS_GROUP"
BUG: Final = "PIPELINE_FAULTS_BUG"
FAILING: Final = "failing-task"
"""A task of each batch fails once, after it has done everything."""
ALWAYS_FAILING: Final = "always-failing-task"
SLOW: Final = "slow-task"
"""A task of each batch that is done but takes long to report it: Spark starts another attempt."""


class TaskFails(RuntimeError):
    """What a task fails with that is to fail."""


class Point:
    """Where to die, once.

    Args:
        text: `NAME:NUMBER`; the number is that of the batch.
        marks: the directory of the marks.
        group: the process group of the driver.
    """

    def __init__(self, text: str, marks: Path, group: int) -> None:
        self.name, _, number = text.partition(":")
        self.number = int(number or 0)
        self._marks = marks
        self._mark = marks / text
        self._group = group

    @classmethod
    def of_environment(cls) -> Self:
        """Return the point that the environment of this process names."""
        return cls(os.environ.get(POINT, "none:0"), Path(os.environ.get(MARKS, ".")), int(os.environ.get(GROUP, "0")))

    def reached(self, name: str, number: int) -> None:
        """Die, if this is the point and no process has died there before."""
        if (name, number) != (self.name, self.number) or not self._group:
            return
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.killpg(self._group, signal.SIGKILL)

    def note(self, name: str) -> None:
        """Leave a mark that something has happened."""
        (self._marks / name).touch()

    def fail_task(self, attempt: int, partition: int) -> None:
        """Fail, if tasks are to: the first one once, or all of them always."""
        fails = self.name == FAILING and attempt == 0 and partition == 0
        if fails or self.name == ALWAYS_FAILING:
            raise TaskFails("this task fails after it has done everything")


def lead_group() -> None:
    """Note in the environment that this process, the driver, leads the group that dies."""
    os.environ[GROUP] = str(os.getpgrp())
