"""A Python worker of Spark: a process that outlives its tasks, and collects garbage after each of them."""

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
    """Keep what previous tasks have imported out of the garbage collections of this process; call it as a task begins.

    Spark's daemon collects all garbage after every task (`pyspark/daemon.py`). With PySpark, Arrow and NumPy loaded
    that looks at some 100,000 objects which live as long as the process, and took 30 to 40 ms of CPU: most of what a
    small task costs, and in a stream of small batches it meets the next one. So the objects that are left after such a
    collection are set aside (`gc.freeze`), again only where more modules have been loaded since: what a task holds
    itself is set aside with them, and would stay if it became garbage in a circle.
    """
    global _tasks, _modules
    _tasks += 1
    # Before the first collection there is garbage of the imports, which would stay for ever.
    if _tasks > 1 and len(sys.modules) > _modules:
        gc.freeze()
        _modules = len(sys.modules)


class TaskOf(Generic[T, R]):
    """A function of one item, as a task of its own; can be pickled if the function can.

    Args:
        work: is called in the worker.
    """

    def __init__(self, work: Callable[[T], Iterable[R]]) -> None:
        self._work = work

    def __call__(self, item: T) -> Iterable[R]:
        """Do it with an item."""
        begin_task()
        return self._work(item)
