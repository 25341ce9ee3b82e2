"""Celery programs with real workers."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from celery import chain, chord, group
from celery.app.task import Context
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult
from kombu import pools

from reput_client.tasks.celery import results
from support.faces import open_sockets
from support.waiting import wait_until

_HERE = Path(__file__).parent


class Worker:
    """A worker process, and the file to which its tasks write."""

    def __init__(self, url: str, queue: str, marks: Path, *options: str) -> None:
        self.marks = marks
        marks.touch()
        environ = {**os.environ, "REPUT_URL": url, "MARKS": str(marks), "PYTHONPATH": str(_HERE)}
        self.log = marks.with_suffix(f".{time.monotonic_ns()}.log")
        arguments = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-l", "INFO", "-Q", queue, *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                arguments, env=environ, stdout=log, stderr=log, cwd=marks.parent, start_new_session=True
            )
        self.until(lambda: " ready." in self.log.read_text())

    def until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the worker and its pool."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def lines(self) -> list[str]:
        """What the tasks have written."""
        return self.marks.read_text().splitlines()


@pytest.fixture
def workers(address: str, name: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers; they are killed at the end."""
    started: list[Worker] = []

    def start(*options: str) -> Worker:
        started.append(Worker(f"reput://{address}//", name, tmp_path / "marks.txt", *options))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture
def program(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program as a client of the workers."""
    monkeypatch.syspath_prepend(str(_HERE))
    monkeypatch.delitem(sys.modules, "celery_app", raising=False)
    celery_app = import_module("celery_app")
    url = f"reput://{address}//"
    celery_app.app.conf.update(broker_url=url, broker_read_url=url, broker_write_url=url, result_backend=url)
    yield celery_app
    pools.reset()
    results.close_clients()


def test_results_groups_chords_retries_and_control(workers: Callable[..., Worker], program: Any) -> None:
    worker = workers("-c", "2", "-Q", "celery")
    first = program.add.delay(1, 2)
    assert first.get(timeout=30) == 3
    assert group(program.add.s(n, 1) for n in range(5))().get(timeout=30) == [1, 2, 3, 4, 5]
    assert chain(program.add.s(1, 1), program.add.s(5))().get(timeout=30) == 7
    assert chord((program.add.s(n, 1) for n in range(5)), program.total.s())().get(timeout=30) == 15
    assert program.third_time.delay().get(timeout=30) == 2
    with pytest.raises(KeyError, match="no such order"):
        program.wrong.delay().get(timeout=30)

    # Looked up, as another process does it.
    program.app.backend.result_consumer.stop()
    assert AsyncResult(first.id, app=program.app).state == "SUCCESS"
    first.forget()
    assert AsyncResult(first.id, app=program.app).state == "PENDING"

    control = program.app.control
    assert [*control.ping(timeout=5.0, limit=1)[0].values()] == [{"ok": "pong"}]
    assert len(control.inspect(timeout=5.0, limit=1).stats() or {}) == 1
    control.shutdown()
    assert worker.process.wait(30) == 0


def test_a_killed_workers_task_is_done_by_another_and_a_long_one_once(
    workers: Callable[..., Worker], program: Any, name: str
) -> None:
    victim = workers("-c", "1")
    program.mark.apply_async(("killed", 30.0), queue=name)
    victim.until(lambda: "begin killed" in victim.lines())
    victim.kill()
    victim.marks.write_text("")
    program.mark.apply_async(("long", 5.0), queue=name)  # its message is invisible for 2 s at a time
    worker = workers("-c", "2", "--pool", "threads")
    worker.until(lambda: "begin killed" in worker.lines())
    worker.until(lambda: "end long" in worker.lines())
    time.sleep(1.0)
    assert sorted(worker.lines()) == ["begin killed", "begin long", "end long"]


def test_a_worker_that_ends_leaves_its_tasks_to_another(
    workers: Callable[..., Worker], program: Any, name: str
) -> None:
    worker = workers("-c", "1", "--prefetch-multiplier", "8")
    for n in range(6):
        program.mark.apply_async((str(n), 0.5), queue=name)
    worker.until(lambda: "begin 0" in worker.lines())
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 0
    other = workers("-c", "1", "--pool", "solo")
    other.until(lambda: sum(line.startswith("end") for line in other.lines()) >= 6)
    time.sleep(0.5)
    assert sorted(other.lines()) == sorted(f"{what} {n}" for n in range(6) for what in ("begin", "end"))


def test_tasks_with_an_eta_wait_in_the_broker(workers: Callable[..., Worker], program: Any, name: str) -> None:
    worker = workers("-c", "1")
    sent_at = time.monotonic()
    program.mark.apply_async(("later",), countdown=3.0, queue=name)
    time.sleep(1.0)
    (reserved,) = (program.app.control.inspect(timeout=5.0, limit=1).scheduled() or {}).values()
    assert reserved == []
    worker.until(lambda: "end later" in worker.lines())
    assert time.monotonic() - sent_at > 2.9


# -- results without a worker ------------------------------------------------------------------------------------------


def call(program: Any, task_id: str) -> tuple[AsyncResult, Any]:
    """Do what calling a task does for its result; return that, and what tells a worker where it goes."""
    program.app.backend.on_task_call(None, task_id)
    return AsyncResult(task_id, app=program.app), Context(reply_to=program.app.thread_oid)


@pytest.fixture
def is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are received, or not found."""
    monkeypatch.setattr(results, "_LOOK_S", 3600.0)


@pytest.mark.usefixtures("is_not_looked_up")
def test_threads_share_one_reader_and_each_gets_its_results(program: Any, name: str) -> None:
    store = program.app.backend.store_result
    call(program, f"{name}-main")
    store(f"{name}-main", 0, "SUCCESS")
    sockets = open_sockets()
    got: list[int] = []

    def caller(number: int) -> None:
        result, request = call(program, f"{name}-{number}")
        stores = threading.Timer(0.3, store, (result.id, number, "SUCCESS"), {"request": request})
        stores.start()
        got.append(result.get(timeout=20))
        stores.join()  # a result can arrive before its receipt, and the client is closed after the test

    for _ in range(2):
        threads = [threading.Thread(target=caller, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(got) == sorted([*range(5)] * 2)
    wait_until(lambda: [each.name for each in threading.enumerate()].count("reput-results") == 1)
    wait_until(lambda: open_sockets() <= sockets)
    arrivals = program.app.backend.clients.arrivals

    def mailboxes() -> int:
        gc.collect()
        return sum(map(len, arrivals._mailboxes.values()))

    wait_until(lambda: mailboxes() == 1)


@pytest.mark.usefixtures("is_not_looked_up")
def test_tags_of_threads_that_have_ended_are_read_no_more(
    program: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_TAGS", 3)
    arrivals = program.app.backend.clients.arrivals
    kept, short = results.Mailbox(), results.Mailbox()
    arrivals.deliver_to(kept, f"{name}-kept")
    for number in range(4):
        short = results.Mailbox()
        arrivals.deliver_to(short, f"{name}-{number}")
    gc.collect()
    arrivals.deliver_to(short, f"{name}-other")
    assert {f"{name}-kept", f"{name}-3", f"{name}-other"} <= arrivals._tags
    assert not {f"{name}-0", f"{name}-1", f"{name}-2"} & arrivals._tags


def test_more_threads_than_a_filter_may_have_tags(program: Any, name: str) -> None:
    backend = program.app.backend
    backend.clients.ensure_topic(backend.topic)
    arrivals = results.Arrivals(backend.topic, backend.client_options)
    callers = [f"{name.replace('.', '-')}-{number}" for number in range(514)]
    mailboxes = [results.Mailbox() for _ in range(514)]
    arrivals._tags = frozenset(callers[:512])
    arrivals._mailboxes = {callers[number]: WeakSet([mailboxes[number]]) for number in range(512)}
    for number in (512, 513):
        arrivals.deliver_to(mailboxes[number], callers[number])
    for number in (5, 513):
        backend.store_result("x", number, "SUCCESS", request=Context(reply_to=callers[number]))
        mailboxes[number].wait(10.0)
        assert mailboxes[number].take()
    arrivals.close()


@pytest.mark.usefixtures("is_not_looked_up")
def test_a_forked_process_receives_its_own_results(program: Any, name: str) -> None:
    call(program, f"{name}-parent")
    child = os.fork()
    if not child:
        signal.alarm(20)
        result, request = call(program, f"{name}-child")
        store = program.app.backend.store_result
        threading.Timer(0.5, store, (result.id, 7, "SUCCESS"), {"request": request}).start()
        os._exit(result.get(timeout=10))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_many_results_that_do_not_come_are_looked_up_in_turn(program: Any, name: str) -> None:
    backend = program.app.backend
    waiting = [AsyncResult(f"{name}-{number}", app=program.app) for number in range(1000)]
    for each in waiting:
        backend.add_pending_result(each)
    backend.store_result(waiting[900].id, 900, "SUCCESS")
    began = time.monotonic()
    with pytest.raises(CeleryTimeoutError):
        waiting[0].get(timeout=1.5)
    assert time.monotonic() - began < 2.5
    for _ in range(40):
        backend.result_consumer.drain_events(timeout=0.0)
        if waiting[900]._cache:
            break
    assert waiting[900].result == 900
    for each in waiting:
        backend.remove_pending_result(each)


def test_only_the_last_results_are_kept_for_a_thread_that_asks_for_none() -> None:
    mailbox = results.Mailbox()
    mailbox.add(b"%d" % number for number in range(10_000))
    mailbox.wait(0.0)
    taken = list(iter(mailbox.take, None))
    assert (len(taken), taken[-1]) == (8192, b"9999")
