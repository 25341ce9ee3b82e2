"""The daemon of Python workers, as Spark starts it, and what a worker does besides its tasks."""

from __future__ import annotations

import gc
import os
import pickle
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from reput_pipeline.data_source import ReputDataSource
from reput_pipeline.spark import worker_daemon
from reput_pipeline.spark.session import LOCAL_DEFAULTS
from reput_pipeline.spark.worker_daemon import TaskOf, begin_task


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
    pytest.importorskip("pyspark")
    with tempfile.TemporaryDirectory() as directory:  # the path of a socket may have 107 bytes
        module = LOCAL_DEFAULTS["spark.python.daemon.module"]
        # Any worker will do; this one is quickly imported.
        assert ended(module, Path(directory), "pyspark.sql.worker.lookup_data_sources") == ""


def test_a_worker_that_has_planned_a_query_ends_without_a_traceback() -> None:
    """It is one of Spark's own daemon, to which the setting of another one does not apply."""
    pytest.importorskip("pyspark")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pyspark_planner.py").write_text(_PLANNER)
        assert ended("pyspark.daemon", Path(directory), "pyspark_planner", tasks=1) == ""


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_daemon, "_tasks", 0)
    monkeypatch.setattr(worker_daemon, "_modules", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_objects_loaded_by_the_first_task_are_frozen_after_a_collection() -> None:
    begin_task()
    assert gc.get_freeze_count() == 0, "garbage of the imports would stay for ever"
    begin_task()
    assert gc.get_freeze_count() > 10_000


def test_garbage_of_a_task_is_still_collected() -> None:
    """Only newly loaded modules are set aside: a task's own objects, set aside each time, would pile up."""
    begin_task()
    begin_task()
    count = gc.get_freeze_count()
    for _ in range(3):
        garbage: list[object] = []
        garbage.append(garbage)
        begin_task()
        del garbage
        assert gc.collect() > 0
    assert gc.get_freeze_count() <= count


def test_modules_of_a_later_task_are_frozen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_task()
    begin_task()
    count = gc.get_freeze_count()
    module = ModuleType("loaded_later")
    module.__dict__["names"] = [[number] for number in range(1000)]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    begin_task()
    assert gc.get_freeze_count() > count + 900, "some that were frozen before may be gone"


def test_a_process_that_plans_queries_keeps_its_modules_out_of_collections_too() -> None:
    options = {"path": "/store", "subscribe": "orders"}
    source = ReputDataSource(options)
    assert gc.get_freeze_count() == 0
    source.reader(source.schema())
    assert gc.get_freeze_count() > 10_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_memory_of_a_batch_is_kept_for_the_next() -> None:
    """In a process of its own, because the C library learns from what a process has freed before."""
    program = """
import resource, sys
from reput_pipeline.spark.worker_daemon import begin_task

def faults_of_a_batch():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [bytearray(8 << 20) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

begin_task()
print(faults_of_a_batch(), faults_of_a_batch())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = map(int, found.stdout.split())
    assert first > 1000, "the arrays were written"
    assert second < first / 20


def test_a_function_as_a_task() -> None:
    task = pickle.loads(pickle.dumps(TaskOf(range)))
    assert list(task(3)) == [0, 1, 2]
    assert worker_daemon._tasks == 1
