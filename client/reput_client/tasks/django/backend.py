"""The backend: its OPTIONS in `TASKS`, what programs enqueue, and the states that they look up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from django.apps import apps
from django.core import checks
from django.core.management.base import CommandError, CommandParser
from django.db import connections
from django.utils import timezone

from reput_client.outbox import Relay
from reput_client.produce.queue_selector import AnyBroker
from reput_client.tasks.django.interface import (
    BaseTaskBackend,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from reput_client.tasks.django.stored_task import decode, due, encode, rank_of
from reput_client.tasks.shared import WAIT_MAX_S, PerProcess, ProcessClients, checked, quoted, result_that_counts
from reput_client.transport.options import ClientOptions
from reput_protocol.codes import Ack, AckLevel
from reput_protocol.errors import ErrorCode, MessageRefused, TopicNotFound
from reput_protocol.names import check_group
from reput_protocol.record.message import Message

_CLIENT: Final = frozenset({"tls", "credentials", "timeout_s", "connect_timeout_s"})
_OWN: Final = frozenset({"server", "name", "ack", "wait_max_s", "outbox"})


class Configuration(NamedTuple):
    """What the OPTIONS of a backend say.

    Attributes:
        client_options: the arguments that all clients have.
        name: what the names of its topics and of its group begin with.
        ack: when `enqueue` returns.
        wait_max_s: seconds for which a message waits in the broker at a time.
        outbox: the alias of the database with the outbox; None: tasks are sent at once.
    """

    client_options: Mapping[str, Any]
    name: str
    ack: Ack
    wait_max_s: float
    outbox: str | None

    @property
    def group(self) -> str:
        """The consumer group of all workers."""
        return f"{self.name}-worker"

    @property
    def results_topic(self) -> str:
        """Where the states of tasks are."""
        return f"{self.name}-results"

    @property
    def tasks_prefix(self) -> str:
        """What the topics of queues begin with."""
        return f"{self.name}-tasks-"

    def topic_of(self, queue: str) -> str:
        """Return the topic of a queue.

        Raises:
            ValueError: the name would be too long.
        """
        return checked(self.tasks_prefix + quoted(queue), f"queue {queue!r}")


def configuration_of(options: Mapping[str, Any], queues: Iterable[str]) -> Configuration:
    """Return the configuration that OPTIONS and QUEUES give.

    Raises:
        ValueError: one is not valid; the text says which, and the remedy.
        TypeError: one has a wrong type.
    """
    unknown = options.keys() - _OWN - _CLIENT
    if unknown:
        raise ValueError(f"OPTIONS has {', '.join(sorted(unknown))}; it may have {', '.join(sorted(_OWN | _CLIENT))}")
    server = options.get("server")
    if not server:
        raise ValueError('OPTIONS has no server; give the address of a broker: "server": "127.0.0.1:10911"')
    client_options = {name: options[name] for name in _CLIENT if name in options} | {"address": server}
    ClientOptions(**client_options)
    configuration = Configuration(
        client_options,
        quoted(str(options.get("name", "django"))),
        AckLevel(options.get("ack", "flushed")).value,
        float(options.get("wait_max_s", WAIT_MAX_S)),
        options.get("outbox"),
    )
    if configuration.wait_max_s <= 0:
        raise ValueError(f"wait_max_s must be more than 0, not {configuration.wait_max_s}")
    if configuration.outbox is not None and not isinstance(configuration.outbox, str):
        raise TypeError('outbox is the alias of a database: "outbox": "default"')
    check_group(configuration.group)
    for queue in queues:
        configuration.topic_of(queue)
    return configuration


_APP: Final = "reput_client.tasks.django"
_PRIORITIES: Final = 10
_clients: Final[PerProcess[ProcessClients]] = PerProcess()


class ReputBackend(BaseTaskBackend):
    """Tasks as messages of topics, one for each queue; docs/django.md has the options.

    `enqueue` returns when the task is stored as safely as the option `ack` says, or, with an outbox, when its row is
    inserted. It raises what `Producer.send` raises, or the database.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @cached_property
    def configuration(self) -> Configuration:
        """What the settings say.

        Raises:
            InvalidTaskBackend: they are not valid.
        """
        try:
            return configuration_of(self.options, self.queues)
        except (TypeError, ValueError) as error:
            raise InvalidTaskBackend(f"TASKS[{self.alias!r}]: {error}") from error

    @property
    def clients(self) -> ProcessClients:
        """The clients of this process."""
        configuration = self.configuration
        return _clients.get(
            (self.alias, repr(self.options)),
            lambda: ProcessClients(
                configuration.client_options, group=configuration.name, ack=configuration.ack, deduplicate=True
            ),
        )

    def close(self) -> None:
        """Disconnect what backends of this process have; the next use connects again."""
        _clients.close()

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Return what is wrong with the settings, for `manage.py check`."""
        try:
            configuration = self.configuration
        except InvalidTaskBackend as error:
            return [checks.Error(str(error), id="reput.E001")]
        found: list[checks.CheckMessage] = []
        where = f"TASKS[{self.alias!r}]"
        has_app = apps.is_installed(_APP)
        if not has_app:
            found.append(
                checks.Warning(
                    f"{where} has no command for a worker.", hint=f'Add "{_APP}" to INSTALLED_APPS.', id="reput.W001"
                )
            )
        if configuration.outbox is not None:
            if not has_app:
                found.append(
                    checks.Error(
                        f"{where} has an outbox, whose table is not installed.",
                        hint=f'Add "{_APP}" to INSTALLED_APPS, and run manage.py migrate.',
                        id="reput.E002",
                    )
                )
            found += _check_database(configuration.outbox, where)
        return found

    # -- enqueue -----------------------------------------------------------------------------------------------

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Send a task, or insert it into the outbox."""
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=uuid4().hex,
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if self.configuration.outbox is None:
            self._send(*self._message(result, encode(result), None, datetime.now(UTC)))
        else:
            from reput_client.tasks.django.models import Outbox

            message, queue_id = self._message(result, encode(result), result.id, datetime.now(UTC))
            Outbox.add(message, queue_id=queue_id, backend=self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _message(
        self,
        result: TaskResult,
        body: bytes,
        unique_id: str | None,
        since: datetime,
        properties: Mapping[str, str] | None = None,
    ) -> tuple[Message, int | None]:
        """Return the message of a task, and its queue if it waits: such a message has no priority of its own.

        Args:
            unique_id: by which the broker recognises it if another process sends it again.
            since: when it begins to wait; it waits for `wait_max_s` at most.
        """
        task = result.task
        priority = priority_of(task.priority)
        run_after = due(task)
        more: dict[str, Any] = {"priority": priority}
        queue_id = None
        if run_after is not None and run_after > since:
            until = since + timedelta(seconds=self.configuration.wait_max_s)
            if until < run_after:
                properties = {**(properties or {}), WAITED_UNTIL: until.isoformat()}
            more, queue_id = {"deliver_at": min(run_after, until)}, AnyBroker(priority)
        topic = self.configuration.topic_of(task.queue_name)
        message = Message(topic, body, keys=[result.id], properties=properties, unique_id=unique_id, **more)
        return message, queue_id

    def send_again(self, result: TaskResult, body: bytes, hop: int, waited_until: datetime) -> None:
        """Let a task wait once more: it is due later than a message may wait at a time.

        The message depends on the arguments only, not on the clock, so the broker stores it once if a worker is
        killed before it has acknowledged the previous one, and another worker does this again.

        Args:
            hop: how often it waits again then.
            waited_until: the end of the wait before.
        """
        message, queue_id = self._message(result, body, f"{result.id}-{hop}", waited_until, {HOP: str(hop)})
        if queue_id is not None:
            queue_id = int(queue_id)  # of the first broker: another one would not recognise it
        try:
            self._send(message, queue_id)
        except MessageRefused as error:
            if error.error is not ErrorCode.DUPLICATE:
                raise
            # It is stored, with other properties of a trace.

    def _send(self, message: Message, queue_id: int | None) -> None:
        self.clients.send(message, queues=_PRIORITIES, message_type="PRIORITY", queue_id=queue_id)

    def ensure_topic(self, topic: str) -> bool:
        """Create the topic of a queue unless it exists; return False, and do nothing, for any other topic."""
        if not topic.startswith(self.configuration.tasks_prefix):
            return False
        self.clients.ensure_topic(topic, queues=_PRIORITIES, message_type="PRIORITY")
        return True

    def ensure_topic_again(self, topic: str) -> bool:
        """As `ensure_topic`, but ask the broker, even if this process has seen the topic before."""
        self.clients.forget_topic(topic)
        return self.ensure_topic(topic)

    def relay(self) -> Relay | None:
        """Return the relay of the outbox, or None without one."""
        from reput_client.tasks.django.models import DjangoOutbox

        configuration = self.configuration
        if configuration.outbox is None:
            return None
        return Relay(
            DjangoOutbox(configuration.outbox, self.alias),
            ack=configuration.ack,
            ensure_topic=self.ensure_topic_again,  # the relay remembers those that it has ensured
            **configuration.client_options,
        )

    # -- states ------------------------------------------------------------------------------------------------

    def save(self, result_id: str, body: bytes, **options: Any) -> None:
        """Store a state of a task; on return it is as safe as the option `ack` says."""
        message = Message(self.configuration.results_topic, body, keys=[result_id])
        self.clients.send(message, **options)

    def saved(self, result_id: str) -> bytes | None:
        """Return the state that counts, or None if none was stored: the task is not begun, or the log is too short."""
        try:
            found = self.clients.admin.find_messages(self.configuration.results_topic, result_id)
        except TopicNotFound:
            return None
        return result_that_counts(found.messages, rank_of)

    def get_result(self, result_id: str) -> TaskResult:
        """Return a task with its state.

        Raises:
            TaskResultDoesNotExist: no task has this id, or the broker has deleted it from its log.
            UnknownTask: this process does not have the task's function.
        """
        body = self.saved(result_id) if _is_id(result_id) else None
        if body is None:
            body = next(self._waiting(result_id), None) if _is_id(result_id) else None
        if body is None:
            raise TaskResultDoesNotExist(result_id)
        return decode(body, self.alias)

    def _waiting(self, result_id: str) -> Iterator[bytes]:
        """Yield the body of a task that no worker has begun with, from each place where it may be."""
        configuration, admin = self.configuration, self.clients.admin
        if configuration.outbox is not None:
            from reput_client.tasks.django.models import Outbox

            rows = Outbox.objects.using(configuration.outbox).filter(unique_id=result_id)
            yield from map(bytes, rows.values_list("body", flat=True))
        if self.queues:
            topics = [configuration.topic_of(queue) for queue in sorted(self.queues)]
        else:
            topics = [each for each in admin.list_topics() if each.startswith(configuration.tasks_prefix)]
        for topic in topics:
            with suppress(TopicNotFound):
                yield from self._sent(topic, result_id)
                # The broker looks through all messages that wait.
                for each in admin.list_delayed(topic=topic, key=result_id, max_messages=1):
                    yield admin.view_message(each.offset_message_id).body
                yield from self._sent(topic, result_id)  # it has come meanwhile

    def _sent(self, topic: str, result_id: str) -> Iterator[bytes]:
        found = self.clients.admin.find_messages(topic, result_id, max_messages=1)
        yield from (message.body for message in found.messages)


HOP: Final = "DJANGO_TASK_WAITED"
"""The property with how often a task has waited as long as a message may."""
WAITED_UNTIL: Final = "DJANGO_TASK_WAITED_UNTIL"
"""The property with the end of a wait, in UTC, if the task is due later."""


def priority_of(priority: int) -> int:
    """Return the broker's priority, 0 to 9, for Django's, -100 to 100: 0 is 4, and each 20 more or less is one."""
    return min(max(-(-priority // 20) + 4, 0), _PRIORITIES - 1)


def _is_id(text: object) -> bool:
    try:
        return isinstance(text, str) and UUID(text).hex == text
    except ValueError:
        return False


def _check_database(alias: str, where: str) -> list[checks.CheckMessage]:
    if alias not in connections:
        known = ", ".join(connections)
        return [checks.Error(f"{where}: the outbox is in the database {alias!r}; there are {known}.", id="reput.E003")]
    connection = connections[alias]
    # Oracle stores the empty text of the column `error` as NULL.
    can_lock = connection.features.has_select_for_update_skip_locked and connection.vendor != "oracle"
    if connection.vendor != "sqlite" and not can_lock:
        return [
            checks.Error(
                f"{where}: the database {alias!r} cannot have an outbox.",
                hint="Use PostgreSQL, MySQL 8, MariaDB 10.6 or SQLite for the outbox.",
                id="reput.E004",
            )
        ]
    return []


def add_backend(parser: CommandParser) -> None:
    """Add the option `--backend`."""
    parser.add_argument("--backend", default="default", help="the alias in TASKS (default: default)")


def selected_backend(alias: str) -> ReputBackend:
    """Return a backend of this package.

    Raises:
        CommandError: there is none with the alias, it is of another package, or its settings are not valid.
    """
    try:
        backend = task_backends[alias]
        if isinstance(backend, ReputBackend):
            backend.configuration  # noqa: B018 - raises unless it is valid
            return backend
    except InvalidTaskBackend as error:
        raise CommandError(str(error)) from error
    raise CommandError(f"TASKS[{alias!r}] has the BACKEND {type(backend).__name__}, which has its own worker")
