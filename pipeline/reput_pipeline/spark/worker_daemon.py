"""Spark's daemon of Python workers, without the tracebacks of workers whose JVM has closed their socket.

A worker whose socket the JVM has closed, at the end of a session or of planning, tries to report that to the JVM. A
Unix socket, which `make_session` uses, refuses with BrokenPipeError, which PySpark's daemon prints. Here such a worker
just ends. Spark starts this module by the setting `spark.python.daemon.module`.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve the tasks of one worker and return its exit code: 1 if the JVM has closed the socket."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
