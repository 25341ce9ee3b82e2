"""`manage.py reput_worker`: a worker, which receives the tasks of a backend and runs them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Collection
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections, reset_queries
from django.utils import timezone
from django.utils.crypto import get_random_string

from reput_client.blocking.consumer import BlockingRun, PopConsumer, PoppedMessage
from reput_client.errors import DamagedMessage
from reput_client.tasks.django.backend import HOP, WAITED_UNTIL, ReputBackend, add_backend, selected_backend
from reput_client.tasks.django.interface import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from reput_client.tasks.django.stored_task import decode, due, encode, encode_not_started, error_of, is_finished
from reput_client.transport.backoff import Backoff
from reput_protocol.errors import BrokerError, InvalidMessage, MessageRefused, ReputError

_EARLY_S: Final = 1.0
"""A task that is received before its time waits in the worker for so long at most."""
_PAUSE_MAX_S: Final = 5.0
_SAVE_AGAIN_S: Final = 1.0
_END_S: Final = 30.0
"""For how long a worker that is stopped tries to store the result of a task."""

log = logging.getLogger("reput_client")


class Worker:
    """Runs tasks of some queues of a backend, up to `concurrency` at a time, each in a thread.

    A task's message is kept invisible while it runs, and acknowledged when its result is stored. If the process is
    killed, another worker runs the task again, `invisible_s` seconds later at most; unless its result was stored.

    Args:
        queues: names, all of them valid for the backend.
    """

    def __init__(self, backend: ReputBackend, queues: Collection[str], *, concurrency: int, invisible_s: float) -> None:
        self._backend = backend
        self._queues = queues
        self._concurrency = concurrency
        self._invisible_s = invisible_s
        self._stopped = threading.Event()
        self._consumer: PopConsumer[bytes] | None = None
        self.id = f"{socket.gethostname()}-{os.getpid()}-{get_random_string(8)}"

    def stop(self) -> None:
        """Receive no more tasks; `run` returns when those that run are done. Any signal handler may call it."""
        self._stopped.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.stop()

    def run(self) -> None:
        """Receive and run tasks until `stop`, or a second signal. While the broker is away, wait.

        Raises:
            BrokerError: a permanent refusal, such as `PermissionDenied`.
        """
        configuration = self._backend.configuration
        topics = [configuration.topic_of(queue) for queue in self._queues]
        pauses = Backoff(max_s=_PAUSE_MAX_S)
        is_away = False
        while not self._stopped.is_set():
            try:
                for topic in topics:
                    self._backend.ensure_topic(topic)
                with PopConsumer(
                    group=configuration.group, topics=topics, orderly=False, **configuration.client_options
                ) as consumer:
                    self._consumer = consumer
                    if self._stopped.is_set():
                        return
                    # Not `consumer.run`, which pops ahead: a task would wait for a long one, and other workers be idle.
                    run = BlockingRun(consumer, self._concurrency, self._invisible_s, ahead=False)
                    run.handle_all(self._handle)
                return
            except ReputError as error:
                if isinstance(error, BrokerError) and not error.retryable:
                    raise
                if not is_away:
                    log.warning("the worker does not reach its broker, and tries again: %s", error)
                is_away = True
                self._stopped.wait(pauses.next_delay_s())

    def _handle(self, message: PoppedMessage[bytes]) -> None:
        """Run a task; if this raises, the message is given back, and the task runs again."""
        try:
            body = message.body
            result = decode(body, self._backend.alias)
        except (DamagedMessage, ValueError) as error:
            log.error("%r is no task, and becomes a dead letter: %s", message, error)
            message.reject(reason=str(error))
            return
        except Exception as error:  # its code is not here, or its settings do not permit it
            result_id, failed = encode_not_started(body, error, self.id)
            if message.reconsume_times and self._is_over(result_id, self._backend.saved(result_id)):
                return
            log.error("task %s cannot be started: %s", result_id, error)
            self._save(result_id, failed)
            return
        if self._waits_again(message, result, body):
            return
        # One that has waited again may be stored twice, if its worker was killed and `dedup.window` was over then.
        if (message.reconsume_times or message.get_property(HOP)) and self._was_done(result):
            return
        reset_queries()
        close_old_connections()
        try:
            self._run(result)
        finally:
            close_old_connections()

    def _waits_again(self, message: PoppedMessage[bytes], result: TaskResult, body: bytes) -> bool:
        """Send a task again that is due later than its message could wait; wait here for the last second.

        A message that has waited for the whole time is due by the clock of the broker. If the clock of this worker is
        behind, the task does not wait again for that.
        """
        run_after = due(result.task)
        if run_after is None:
            return False
        early_s = (run_after - datetime.now(UTC)).total_seconds()
        waited_until = message.get_property(WAITED_UNTIL)
        if waited_until is not None and early_s > _EARLY_S:
            hop = int(message.get_property(HOP) or 0) + 1
            self._backend.send_again(result, body, hop, datetime.fromisoformat(waited_until))
            return True
        if early_s > 0:
            time.sleep(min(early_s, _EARLY_S))
        return False

    def _was_done(self, result: TaskResult) -> bool:
        """Whether a redelivered task is finished; else take over from its last run what it has left."""
        body = self._backend.saved(result.id)
        if body is None:
            return False
        if self._is_over(result.id, body):
            return True
        before = decode(body, self._backend.alias)
        result.worker_ids[:] = before.worker_ids
        _change(result, started_at=before.started_at)
        return False

    def _is_over(self, result_id: str, saved: bytes | None) -> bool:
        if saved is None or not is_finished(saved):
            return False
        log.info("task %s is finished, and does not run again", result_id)
        return True

    def _run(self, result: TaskResult) -> None:
        sender = type(self._backend)
        now = timezone.now()
        _change(result, status=TaskResultStatus.RUNNING, started_at=result.started_at or now, last_attempted_at=now)
        result.worker_ids.append(self.id)
        # It is only information, which may be lost with the broker's machine.
        self._save_result(result, ack="page_cache")
        task_started.send(sender, task_result=result)
        try:
            context = [TaskContext(task_result=result)] if result.task.takes_context else []
            returned = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        except KeyboardInterrupt:
            raise  # a second Ctrl-C ends the worker, and the task runs again
        except BaseException as error:
            self._finish_failed(result, error)
            return
        _change(result, _return_value=returned, finished_at=timezone.now(), status=TaskResultStatus.SUCCESSFUL)
        try:
            self._save_result(result)
        except ReputError as error:
            if not _is_refused(error):
                raise
            self._finish_failed(result, error)  # the return value is too large
        else:
            task_finished.send(sender, task_result=result)

    def _finish_failed(self, result: TaskResult, error: BaseException) -> None:
        result.errors.append(error_of(error))
        _change(result, finished_at=timezone.now(), status=TaskResultStatus.FAILED)
        self._save_result(result)
        task_finished.send(type(self._backend), task_result=result)

    def _save_result(self, result: TaskResult, **options: Any) -> None:
        try:
            self._save(result.id, encode(result), **options)
        except ReputError as error:
            if not _is_refused(error):
                raise
            self._save(result.id, encode(result, is_brief=True), **options)

    def _save(self, result_id: str, body: bytes, **options: Any) -> None:
        """Store a state, however long the broker is away, but not for long when this worker is stopped."""
        until: float | None = None
        while True:
            try:
                self._backend.save(result_id, body, **options)
                return
            except ReputError as error:
                if _is_refused(error):
                    raise
                if self._stopped.is_set():
                    until = until or time.monotonic() + _END_S
                    if time.monotonic() > until:
                        raise
                log.warning("the state of task %s is not stored, and is sent again: %s", result_id, error)
                time.sleep(_SAVE_AGAIN_S)


def _change(result: TaskResult, **attributes: Any) -> None:
    """Set attributes of a result, which is frozen for programs."""
    for name, value in attributes.items():
        object.__setattr__(result, name, value)


def _is_refused(error: ReputError) -> bool:
    """Whether it is because of the state itself that it is not stored, such as its size."""
    return isinstance(error, InvalidMessage | MessageRefused)


class Command(BaseCommand):
    """Receives tasks until SIGTERM or SIGINT; a second one ends it at once."""

    help = (
        "Run the tasks of a backend until SIGTERM or SIGINT: then the tasks that run are finished. "
        "With an outbox, a thread sends what is in it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """See Django."""
        add_backend(parser)
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="QUEUE",
            help="a queue to receive; may be repeated; by default all QUEUES of the backend",
        )
        parser.add_argument(
            "--concurrency", type=int, default=1, help="how many tasks run at a time, each in a thread (default: 1)"
        )
        parser.add_argument(
            "--invisible",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="after how long another worker gets the tasks of one that was killed (default: 60)",
        )
        parser.add_argument("--no-relay", action="store_true", help="leave the outbox to manage.py reput_relay")

    def handle(self, *args: Any, **options: Any) -> None:
        """See Django."""
        backend = selected_backend(options["backend"])
        queues = options["queues"] or sorted(backend.queues)
        if not queues:
            raise CommandError("name the queues with --queue: the backend has QUEUES = [], which is any queue")
        unknown = [queue for queue in queues if backend.queues and queue not in backend.queues]
        if unknown:
            raise CommandError(
                f"the backend has no queue {', '.join(unknown)}; its QUEUES are {', '.join(sorted(backend.queues))}"
            )
        if options["concurrency"] < 1 or options["invisible"] <= 0:
            raise CommandError("--concurrency must be at least 1, and --invisible more than 0")
        worker = Worker(backend, queues, concurrency=options["concurrency"], invisible_s=options["invisible"])
        relay = None if options["no_relay"] else backend.relay()
        thread = threading.Thread(target=relay.run, name="reput-relay") if relay is not None else None

        def stop(number: int, frame: FrameType | None) -> None:
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, before[each])
            worker.stop()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        if thread is not None:
            thread.start()
        self.stdout.write(f"worker {worker.id} receives {', '.join(queues)}")
        try:
            worker.run()
        except ReputError as error:
            raise CommandError(str(error)) from error
        finally:
            if relay is not None and thread is not None:
                relay.stop()
                thread.join()
            backend.close()
            for number, handler in before.items():
                signal.signal(number, handler)
