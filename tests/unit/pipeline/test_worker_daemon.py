"""The daemon of Python workers, as Spark starts it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from reput_pipeline.spark.session import LOCAL_DEFAULTS

pytest.importorskip("pyspark")


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def ended(module: str, directory: Path) -> str:
    """Start a daemon, have it make a worker, hang up as the JVM does, and return what it wrote to stderr."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    # Any worker will do; this one is quickly imported.
    command = [sys.executable, "-m", module, "pyspark.sql.worker.lookup_data_sources"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        (size,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(daemon.stdout.read(size).decode())
            (worker,) = struct.unpack(">i", connection.recv(4))
        while is_alive(worker):
            time.sleep(0.01)
        daemon.stdin.close()
        return daemon.stderr.read().decode()


def test_a_worker_with_a_closed_socket_ends_without_a_traceback() -> None:
    with tempfile.TemporaryDirectory() as directory:  # the path of a socket may have 107 bytes
        assert ended(LOCAL_DEFAULTS["spark.python.daemon.module"], Path(directory)) == ""
