"""Spark's daemon of Python workers, whose workers end without a traceback once the JVM has hung up.

At the end of a session, and of a query's planning, the JVM closes the sockets of its workers. A worker that finds its
socket closed tries to report that to the JVM. Over TCP the report goes nowhere; a socket of the file system, which
sessions of `make_session` use, refuses it with BrokenPipeError, and PySpark's daemon prints that error. Here such a
worker just ends. Spark starts this module with the setting `spark.python.daemon.module`.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve the tasks of one worker; return its exit code, 1 if nothing reads its answers any more."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
