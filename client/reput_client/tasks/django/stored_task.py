"""Tasks and their results as JSON: the bodies of their messages."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from reput_client.tasks.django.interface import Task, TaskError, TaskResult, TaskResultStatus

_TIMES = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")
_BRIEF = 10_000
_RANKS = {TaskResultStatus.FAILED.value: 1, TaskResultStatus.SUCCESSFUL.value: 2}


def encode(result: TaskResult, *, is_brief: bool = False) -> bytes:
    """Return a task with its state as the body of a message.

    Args:
        is_brief: leave out the arguments and all but the end of tracebacks, because the message would be too large.
    """
    task = result.task
    stored: dict[str, Any] = {
        "id": result.id,
        "task": task.module_path,
        "priority": task.priority,
        "queue_name": task.queue_name,
        "run_after": _text(task.run_after),
        "args": [] if is_brief else result.args,
        "kwargs": {} if is_brief else result.kwargs,
        "status": result.status.value,
        "errors": [
            [error.exception_class_path, error.traceback[-_BRIEF:] if is_brief else error.traceback]
            for error in result.errors
        ],
        "worker_ids": result.worker_ids,
    }
    stored |= {name: _text(getattr(result, name)) for name in _TIMES}
    if result.status == TaskResultStatus.SUCCESSFUL:
        stored["return_value"] = result.return_value
    return json.dumps(stored, separators=(",", ":")).encode()


def decode(body: bytes, backend: str) -> TaskResult:
    """Return the task and its state that `encode` has stored.

    Args:
        backend: the alias of the backend.

    Raises:
        ValueError: the body was not made by `encode`.
        UnknownTask: this process does not have the function of the task, or cannot import it.
    """
    stored = json.loads(body)
    try:
        path = str(stored["task"])
        changes: dict[str, Any] = {
            "priority": stored["priority"],
            "queue_name": stored["queue_name"],
            "run_after": _moment(stored["run_after"]),
        }
        parts: dict[str, Any] = {
            "id": stored["id"],
            "status": TaskResultStatus(stored["status"]),
            "args": stored["args"],
            "kwargs": stored["kwargs"],
            "errors": [TaskError(exception_class_path=name, traceback=text) for name, text in stored["errors"]],
            "worker_ids": stored["worker_ids"],
        }
        parts |= {name: _moment(stored[name]) for name in _TIMES}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a task of this backend: {error!r}") from error
    task = replace(_task_at(path), backend=backend, **changes)
    result = TaskResult(task=task, backend=backend, **parts)
    object.__setattr__(result, "_return_value", stored.get("return_value"))
    return result


def rank_of(body: bytes) -> int:
    """Return the rank of a stored state: 0 if it is not final, more for success than for failure."""
    return _RANKS.get(json.loads(body)["status"], 0)


def is_finished(body: bytes) -> bool:
    """Whether a stored state is a final one."""
    return rank_of(body) > 0


class UnknownTask(ImportError):
    """This process has no task of a stored name, for example because its code is older, or cannot import its module."""

    def __init__(self, path: str, remedy: str = "this process needs the code that has enqueued it") -> None:
        super().__init__(f"there is no task {path!r}; {remedy}")


def encode_not_started(body: bytes, error: Exception, worker_id: str) -> tuple[str, bytes]:
    """Return the id of a stored task, and the body with the state of one that could not be started.

    Raises:
        ValueError: the body was not made by `encode`.
    """
    stored = json.loads(body)
    try:
        result_id, now = str(stored["id"]), _text(timezone.now())
        stored["worker_ids"].append(worker_id)
        stored["errors"].append(_error_of(error))
        stored |= {"status": TaskResultStatus.FAILED.value, "finished_at": now, "last_attempted_at": now}
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"it is not a task of this backend: {wrong!r}") from wrong
    return result_id, json.dumps(stored, separators=(",", ":")).encode()


def error_of(error: BaseException) -> TaskError:
    """Return an exception as the error of a result."""
    path, text = _error_of(error)
    return TaskError(exception_class_path=path, traceback=text)


def _error_of(error: BaseException) -> list[str]:
    kind = type(error)
    return [f"{kind.__module__}.{kind.__qualname__}", "".join(format_exception(error))]


def _task_at(path: str) -> Task:
    module = path.rpartition(".")[0]
    if not _may_import(module):
        raise UnknownTask(
            path, "tasks are in modules of INSTALLED_APPS or of the project, or in modules that these import"
        )
    try:
        known = import_string(path)
    except Exception as error:  # the module may raise any
        raise UnknownTask(path) from error
    if not isinstance(known, Task):  # a message must not call just any function
        raise UnknownTask(path)
    return known


def _may_import(module: str) -> bool:
    """Whether a module may be imported because a message names it: importing one runs its code."""
    if module in sys.modules:
        return True
    project = (settings.SETTINGS_MODULE or "").rpartition(".")[0]
    packages = [project, *(config.name for config in apps.get_app_configs())]
    return any(f"{module}.".startswith(f"{package}.") for package in packages if package)


def due(task: Task) -> datetime | None:
    """Return when a task may run, in UTC; None: at once."""
    return None if task.run_after is None else _in_utc(task.run_after)


def _in_utc(moment: datetime) -> datetime:
    if timezone.is_naive(moment):  # not the active time zone, which depends on the request or the thread
        moment = timezone.make_aware(moment, timezone.get_default_timezone())
    return moment.astimezone(UTC)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else _in_utc(moment).isoformat()


def _moment(text: str | None) -> datetime | None:
    """Return a moment as Django's settings say: with `USE_TZ` in UTC, otherwise naive in the default time zone."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return moment if settings.USE_TZ else timezone.make_naive(moment, timezone.get_default_timezone())
