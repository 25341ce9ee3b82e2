"""Python workers of Spark, which run many tasks and collect garbage after each."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_tasks = 0
_modules = 0


def begin_task() -> None:
    """Exclude imported modules from later garbage collections of this process; call it when a task begins.

    Spark's daemon collects garbage after every task (`pyspark/daemon.py`), visiting some 100,000 objects of PySpark,
    Arrow and NumPy in 30 to 40 ms of CPU: most of the cost of a small task. So they are frozen (`gc.freeze`), and again
    only after further imports: reference cycles of the current task are frozen, too, and would never be collected.
    """
    global _tasks, _modules
    _tasks += 1
    # Collect first: garbage would be frozen too.
    if _tasks > 1 and len(sys.modules) > _modules:
        gc.freeze()
        _modules = len(sys.modules)


class TaskOf(Generic[T, R]):
    """A function of one item, run as a task; as picklable as the function."""

    def __init__(self, work: Callable[[T], Iterable[R]]) -> None:
        self._work = work

    def __call__(self, item: T) -> Iterable[R]:
        """Call the function, in a worker."""
        begin_task()
        return self._work(item)
