"""What a worker process of Spark does besides its tasks."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from reput_pipeline.spark import worker_process
from reput_pipeline.spark.worker_process import TaskOf, begin_task


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_tasks", 0)
    monkeypatch.setattr(worker_process, "_modules", 0)
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


def test_a_function_as_a_task() -> None:
    task = pickle.loads(pickle.dumps(TaskOf(range)))
    assert list(task(3)) == [0, 1, 2]
    assert worker_process._tasks == 1
