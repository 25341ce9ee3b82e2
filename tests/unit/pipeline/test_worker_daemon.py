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


_PLANNER = """
def main(infile, outfile):
    import reput_pipeline.data_source
    if not infile.read(4):
        outfile.write(bytes(4))  # as PySpark tells the JVM that it has hung up
"""


def ended(module: str, directory: Path, worker_module: str, tasks: int = 0) -> str:
    """Start a daemon, have it make a worker, hang up after its tasks as the JVM does, and return its stderr."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(directory), *(path for path in sys.path if path)]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", module, worker_module]
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
            for _ in range(tasks):
                connection.sendall(bytes(4))
        while is_alive(worker):
            time.sleep(0.01)
        daemon.stdin.close()
        return daemon.stderr.read().decode()


def test_a_worker_with_a_closed_socket_ends_without_a_traceback() -> None:
    with tempfile.TemporaryDirectory() as directory:  # the path of a socket may have 107 bytes
        module = LOCAL_DEFAULTS["spark.python.daemon.module"]
        # Any worker will do; this one is quickly imported.
        assert ended(module, Path(directory), "pyspark.sql.worker.lookup_data_sources") == ""


def test_a_worker_that_has_planned_a_query_ends_without_a_traceback() -> None:
    """It is one of Spark's own daemon, to which the setting of another one does not apply."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pyspark_planner.py").write_text(_PLANNER)
        assert ended("pyspark.daemon", Path(directory), "pyspark_planner", tasks=1) == ""
