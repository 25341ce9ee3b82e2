"""Django's tasks on a real broker: the backend in this process, workers in threads and in processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test.utils import override_settings
from django.utils import timezone

from reput_client.blocking import Admin, Message, PopConsumer, Producer
from reput_client.tasks.django import ReputBackend
from reput_client.tasks.django import backend as backend_module
from reput_client.tasks.django.backend import HOP, WAITED_UNTIL
from reput_client.tasks.django.interface import TaskResult, TaskResultDoesNotExist, TaskResultStatus, task_backends
from reput_client.tasks.django.management.commands import reput_worker as worker_module
from reput_client.tasks.django.management.commands.reput_worker import Worker
from reput_client.tasks.django.stored_task import UnknownTask, decode, due, encode
from reput_protocol.errors import BrokerError, ErrorCode, MessageRefused, StoreUnavailable, TopicNotFound
from support.waiting import wait_until
from tasks import django_jobs as jobs

Status = TaskResultStatus


def settings_of(address: str, name: str, /, **options: Any) -> dict[str, Any]:
    given = {"server": address, "name": name.replace(".", "-"), **options}
    backend = "reput_client.tasks.django.ReputBackend"
    return {"default": {"BACKEND": backend, "QUEUES": ["default", "mails"], "OPTIONS": given}}


@pytest.fixture
def backend(address: str, name: str) -> Iterator[ReputBackend]:
    """A backend with topics of the test's own."""
    jobs.done.clear()
    jobs.go_on.clear()
    with override_settings(TASKS=settings_of(address, name)):
        found = task_backends["default"]
        yield found
        found.close()


@contextmanager
def working(backend: ReputBackend, *queues: str, **options: Any) -> Iterator[Worker]:
    """Run a worker in a thread."""
    options = {"concurrency": 4, "invisible_s": 60.0, **options}
    worker = Worker(backend, queues or ("default", "mails"), **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        jobs.go_on.set()
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


def finished(result: Any, timeout_s: float = 20.0) -> Any:
    """Wait for the end of a task, and return its result."""

    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_until(is_finished, timeout_s)
    return result


def test_states_and_results(backend: ReputBackend) -> None:
    sent = jobs.add.enqueue(1, 2)
    assert jobs.add.get_result(sent.id).status == Status.READY
    with working(backend) as worker:
        result = finished(sent)
        assert (result.status, result.return_value, result.worker_ids) == (Status.SUCCESSFUL, 3, [worker.id])
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert finished(jobs.add_async.enqueue(3, y=4)).return_value == 7
        assert finished(jobs.attempt.using(queue_name="mails").enqueue()).return_value[0] == 1

        failed = finished(jobs.wrong.enqueue())
        assert failed.status == Status.FAILED
        assert failed.errors[0].exception_class is KeyError
        assert "no such order" in failed.errors[0].traceback
        for kind, error in (("object", "TypeError"), ("large", "")):
            refused = finished(jobs.returns.enqueue(kind))
            assert refused.status == Status.FAILED
            assert error in refused.errors[0].exception_class_path

        slow = jobs.slow.enqueue("x")
        wait_until(lambda: jobs.slow.get_result(slow.id).status == Status.RUNNING)
        slow.refresh()
        assert slow.worker_ids == [worker.id]
        jobs.go_on.set()
        assert finished(slow).return_value is None


def test_arguments_as_large_as_a_message(backend: ReputBackend) -> None:
    """A state has more than the task's message has; it is stored without the arguments then."""
    room = 4 * 1024 * 1024 - len(encode(jobs.note.enqueue("")))
    sent = jobs.note.enqueue("x" * room)
    with pytest.raises(MessageRefused):
        jobs.note.enqueue("x" * (room + 100))
    with working(backend):
        assert finished(sent).status == Status.SUCCESSFUL
    assert jobs.note.get_result(sent.id).args == []
    assert [len(each) for each in jobs.done] == [0, room]


def test_async_callers(backend: ReputBackend) -> None:
    async def scenario() -> Any:
        sent = await jobs.add.aenqueue(1, 2)
        while not sent.is_finished:
            await asyncio.sleep(0.02)
            await sent.arefresh()
        return (await jobs.add.aget_result(sent.id)).return_value

    with working(backend):
        assert asyncio.run(asyncio.wait_for(scenario(), 20)) == 3


def test_tasks_that_do_not_exist(backend: ReputBackend) -> None:
    for result_id in ("0" * 32, "none", "two words"):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(result_id)
    sent = jobs.note.enqueue("x")
    body = next(backend._waiting(sent.id)).replace(b"django_jobs.note", b"django_jobs.gone")
    topic = backend.configuration.topic_of("default")
    with Producer(backend.configuration.client_options["address"]) as producer, working(backend):
        finished(sent)
        other = body.replace(sent.id.encode(), b"1" * 32)
        second = body.replace(sent.id.encode(), b"2" * 32)
        producer.send(Message(topic, other))
        producer.send(Message(topic, second.replace(b"tasks.django_jobs.gone", b"os.getcwd")))
        producer.send(Message(topic, b"no task"))
        for key in ("1" * 32, "2" * 32):
            saved = wait_until(partial(backend.saved, key))
            assert saved is not None
            assert b'"FAILED"' in saved
            assert b"UnknownTask" in saved
        with Admin(backend.configuration.client_options["address"]) as admin:

            def dead_letters() -> int:
                with suppress(TopicNotFound):  # it is created for the first one
                    return len(admin.dead_letters(backend.configuration.group))
                return 0

            wait_until(lambda: dead_letters() == 1)


def test_higher_priorities_come_first(backend: ReputBackend) -> None:
    for text, priority in (("low", -100), ("high", 100), ("normal", 0), ("more", 1)):
        jobs.note.using(priority=priority).enqueue(text)
    with working(backend, concurrency=1):
        wait_until(lambda: len(jobs.done) == 4)
    assert jobs.done == ["high", "more", "normal", "low"]


def test_priorities_of_the_broker() -> None:
    levels = [backend_module.priority_of(each) for each in range(-100, 101)]
    assert levels == sorted(levels)
    assert [backend_module.priority_of(each) for each in (-100, -80, -20, -19, 0, 1, 20, 21, 80, 81, 100)] == [
        *(0, 0, 3, 4, 4, 5, 5, 6, 8, 9, 9)
    ]


def test_a_time_beyond_what_a_message_may_wait(address: str, name: str) -> None:
    jobs.done.clear()
    with override_settings(TASKS=settings_of(address, name, wait_max_s=0.8)):
        backend = task_backends["default"]
        run_after = timezone.now() + timedelta(seconds=3.0)
        later = jobs.attempt.using(run_after=run_after, priority=50).enqueue()
        assert jobs.attempt.get_result(later.id).status == Status.READY
        with working(backend):
            result = finished(later)
        assert timedelta(0) <= result.started_at - run_after < timedelta(seconds=2)
        assert result.return_value == [1, later.id]
        with Admin(address) as admin:
            topic = backend.configuration.topic_of("default")
            sent = {each.get_property(HOP): each for each in admin.find_messages(topic, later.id).messages}
            assert sent.keys() >= {None, "1"}
            ends = [sent[hop].get_property(WAITED_UNTIL) for hop in (None, "1")]
            first, second = (datetime.fromisoformat(end) for end in ends if end is not None)
            assert second - first == timedelta(seconds=0.8)
            # The same wait once more, by a worker that was killed before it acknowledged the message.
            backend.send_again(later, sent[None].body, 1, first)
            assert len(admin.find_messages(topic, later.id).messages) == len(sent)
            assert not admin.list_delayed(topic=topic)
        backend.close()


def test_moments_without_a_time_zone() -> None:
    """They are stored in UTC; the hour that a clock shows twice is told apart by `fold`."""
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"), timezone.override("America/New_York"):
        for fold, hour in ((0, 0), (1, 1)):
            run_after = datetime(2030, 10, 27, 2, 30, fold=fold)
            task = replace(jobs.add, run_after=run_after)
            assert due(task) == datetime(2030, 10, 27, hour, 30, tzinfo=UTC)
            result = ready(task)
            again = decode(encode(result), "default")
            assert (again.task.run_after, again.task.run_after.fold) == (run_after, fold)
            assert again.enqueued_at == result.enqueued_at


def ready(task: Any) -> TaskResult:
    """A task as it is when it is enqueued."""
    return TaskResult(
        task=task,
        id="1",
        status=Status.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=[],
        kwargs={},
        backend="default",
        errors=[],
        worker_ids=[],
    )


def test_modules_that_a_message_may_have_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the project and its apps; an error of one is not an error of the message."""
    project = tmp_path / "some_project"
    project.mkdir()
    (project / "tasks.py").write_text("{}['missing']")
    (tmp_path / "some_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    body = encode(ready(jobs.add))
    with override_settings(SETTINGS_MODULE="some_project.settings"):
        with pytest.raises(UnknownTask) as raised:
            decode(body.replace(b"tasks.django_jobs.add", b"some_project.tasks.add"), "default")
        assert isinstance(raised.value.__cause__, KeyError)
        with pytest.raises(UnknownTask, match="INSTALLED_APPS"):
            decode(body.replace(b"tasks.django_jobs.add", b"some_module.add"), "default")
    assert "some_module" not in sys.modules


def test_a_result_that_the_broker_does_not_store_for_a_while(
    backend: ReputBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, failures = backend.save, [StoreUnavailable(ErrorCode.READ_ONLY), BrokerError(ErrorCode.INTERNAL)]

    def save_or_fail(result_id: str, body: bytes, **options: Any) -> None:
        if b'"SUCCESSFUL"' in body and failures:
            raise failures.pop()
        save(result_id, body, **options)

    monkeypatch.setattr(backend, "save", save_or_fail)
    monkeypatch.setattr(worker_module, "_SAVE_AGAIN_S", 0.01)
    sent = jobs.attempt.enqueue()
    with working(backend):
        assert finished(sent).return_value == [1, sent.id]
    assert not failures


def test_a_worker_has_no_more_tasks_than_it_runs(backend: ReputBackend) -> None:
    for number in range(10):
        jobs.note.enqueue(str(number))
    slow = jobs.slow.enqueue("slow")
    jobs.note.enqueue("after")
    with working(backend, concurrency=1):
        wait_until(lambda: "slow" in jobs.done, 10.0)
        with working(backend, concurrency=1):
            wait_until(lambda: "after" in jobs.done, 10.0)
            assert jobs.slow.get_result(slow.id).status == Status.RUNNING


def test_what_a_killed_worker_has_finished_does_not_run_again(backend: ReputBackend) -> None:
    """A result is stored before the message is acknowledged; a redelivered message of such a task is dropped."""
    done, not_done = jobs.note.enqueue("finished"), jobs.attempt.enqueue()
    states = [(done, Status.SUCCESSFUL), (not_done, Status.RUNNING)]
    for result, status in states:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "started_at", timezone.now())
        result.worker_ids.append("killed")
        backend.save(result.id, encode(result))
    # Another worker did not have the code, when it got the task once more.
    object.__setattr__(done, "status", Status.FAILED)
    backend.save(done.id, encode(done))
    assert jobs.note.get_result(done.id).status == Status.SUCCESSFUL
    configuration = backend.configuration
    with PopConsumer(
        group=configuration.group, topic=configuration.topic_of("default"), **configuration.client_options
    ) as consumer:
        received = 0
        while received < 2:
            for message in consumer.receive(invisible_s=60.0):
                message.nack()
                received += 1
    with working(backend) as worker:
        assert finished(not_done).return_value == [2, not_done.id]
    assert not_done.worker_ids == ["killed", worker.id]
    assert jobs.done == []


def test_checks(address: str) -> None:
    def found(**options: Any) -> list[str]:
        with override_settings(TASKS=settings_of(address, "x", **options)):
            return [each.id for each in task_backends["default"].check()]

    assert found() == []
    assert found(outbox="default") == []
    assert found(outbox="other") == ["reput.E003"]
    assert found(outbox=True) == ["reput.E001"]
    for wrong in (
        {"sever": "x"},
        {"server": ""},
        {"ack": "sometime"},
        {"wait_max_s": 0},
        {"tls": True},
        {"name": "x" * 300},
    ):
        assert found(**wrong) == ["reput.E001"]
    with override_settings(INSTALLED_APPS=[]):
        assert found() == ["reput.W001"]
        assert found(outbox="default") == ["reput.W001", "reput.E002"]


def test_commands_say_what_is_wrong(backend: ReputBackend) -> None:
    for arguments, reason in (
        (["reput_worker", "--queue", "letters"], "no queue letters; its QUEUES are default, mails"),
        (["reput_worker", "--concurrency", "0"], "at least 1"),
        (["reput_worker", "--backend", "other"], "other"),
        (["reput_relay"], "has no outbox"),
    ):
        with pytest.raises(CommandError, match=reason):
            call_command(*arguments)


@pytest.fixture
def start(address: str, name: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands of Django in processes of their own."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str, **environ: str) -> subprocess.Popen[str]:
        more = {
            "DJANGO_SETTINGS_MODULE": "tasks.django_settings",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "TEST_SERVER": address,
            "TEST_NAME": name.replace(".", "-"),
            **environ,
        }
        command = [sys.executable, "-m", "django", *arguments]
        process = subprocess.Popen(command, env=os.environ | more, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start_one
    for each in started:
        each.kill()
        each.wait()
        assert each.stdout is not None
        each.stdout.close()


@pytest.mark.process
def test_killed_and_stopped_workers(
    backend: ReputBackend, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    def lines(path: Path) -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    first, second = tmp_path / "first", tmp_path / "second"
    finishes = jobs.write.enqueue(str(first), 3.0)
    stopped = start("reput_worker", "--invisible", "3", "--queue", "default")
    wait_until(lambda: bool(lines(first)))
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(20) == 0
    assert lines(first) == [f"begin {stopped.pid}", f"end {stopped.pid}"]
    assert finished(finishes, 1.0).status == Status.SUCCESSFUL
    sent = jobs.write.enqueue(str(second), 60.0)
    killed = start("reput_worker", "--invisible", "3")
    wait_until(lambda: bool(lines(second)))
    killed.kill()
    # The killed worker's task runs again.
    third = start("reput_worker", "--invisible", "3")
    wait_until(lambda: len(lines(second)) == 2)
    wait_until(lambda: jobs.write.get_result(sent.id).attempts == 2)
    third.kill()
    assert len(lines(first)) == 2
