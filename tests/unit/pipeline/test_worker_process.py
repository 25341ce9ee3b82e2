"""What a worker process of Spark does besides its tasks."""

from __future__ import annotations

import gc
import pickle
import platform
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from reput_pipeline.data_source import ReputDataSource
from reput_pipeline.spark import worker_daemon
from reput_pipeline.spark.worker_daemon import TaskOf, begin_task


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
