"""Spark's daemon of Python workers, without the tracebacks of workers whose JVM has closed their socket.

A worker whose socket the JVM has closed, at the end of a session or of planning, tries to report that to the JVM. A
Unix socket, which `make_session` uses, refuses with BrokenPipeError, which PySpark's daemon prints. Here such a worker
just ends. Spark starts this module by the setting `spark.python.daemon.module` for the tasks of queries, and its own
daemon, whatever that says, for workers that plan them: these call `end_quietly`.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

_SPARKS_DAEMON = "pyspark.daemon"


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
