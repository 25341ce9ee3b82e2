"""Spark's daemon of Python workers, without the tracebacks of workers whose JVM has closed their socket.

A worker whose socket the JVM has closed, at the end of a session or of planning, tries to report that to the JVM. A
Unix socket, which `make_session` uses, refuses with BrokenPipeError, which PySpark's daemon prints. Here such a worker
just ends. Spark starts this module by the setting `spark.python.daemon.module` for the tasks of queries, and its own
daemon, whatever that says, for workers that plan them: these call `end_quietly`. What a worker does for each of its
tasks is here too (`begin_task`, `TaskOf`).
"""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

_SPARKS_DAEMON = "pyspark.daemon"
T = TypeVar("T")
R = TypeVar("R")

_KEPT_BYTES: Final = 64 << 20
_LARGEST_KEPT_BYTES: Final = 32 << 20
"""Bytes of an array above which it is returned to the system in any case: the most that glibc accepts."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt` (malloc.h)."""

_tasks = 0
_modules = 0


def begin_task() -> None:
    """Prepare this process for a task; call it when one begins.

    Imported modules are excluded from later garbage collections. Spark's daemon collects garbage after every task and
    every step of planning (`pyspark/daemon.py`), visiting some 100,000 objects of PySpark, Arrow and NumPy in 20 to
    40 ms of CPU: most of the cost of a small task. So they are frozen (`gc.freeze`), and again only after further
    imports: reference cycles of the current task are frozen, too, and would never be collected.
    """
    global _tasks, _modules
    _tasks += 1
    if _tasks == 1:
        keep_freed_memory()
    # Collect first: garbage would be frozen too.
    if _tasks > 1 and len(sys.modules) > _modules:
        gc.freeze()
        _modules = len(sys.modules)


def keep_freed_memory() -> None:
    """Have the C library keep up to `_KEPT_BYTES` of freed memory for the next batches, if it is glibc.

    By default it returns the memory of large arrays to the system when they are freed, at the end of a batch or a task.
    Their next pages are then zeroed and mapped one by one: 50 to 100 page faults for 1,000 rows, a third of the CPU
    time of a reading.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


@dataclass(eq=False, repr=False)
class TaskOf(Generic[T, R]):
    """A function of one item, run as a task; as picklable as the function."""

    _work: Callable[[T], Iterable[R]]

    def __call__(self, item: T) -> Iterable[R]:
        """Call the function, in a worker."""
        begin_task()
        return self._work(item)


def quiet(serve: Callable[[socket.socket, bool], int]) -> Callable[[socket.socket, bool], int]:
    """Return a daemon's function `worker` that returns 1, its exit code, if the JVM has closed the socket."""

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return serve(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return worker


def end_quietly() -> None:
    """If this is a worker of Spark's own daemon, have it end without a traceback after its current task."""
    main: Any = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _SPARKS_DAEMON:
        main.worker = quiet(main.worker)


if __name__ == "__main__":
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
