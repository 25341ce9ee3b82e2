"""taskiq on Reput: a broker and a result backend (docs/taskiq.md).

broker = ReputBroker("127.0.0.1:10911").with_result_backend(ReputResultBackend("127.0.0.1:10911"))

@broker.task(delay=60)
async def remind(order: int) -> None: ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult
from taskiq.exceptions import ResultGetError

from reput_client import Admin, PopConsumer, PoppedMessage, Producer
from reput_client.errors import ClientClosed
from reput_client.pop.handling import Run
from reput_client.produce.queue_selector import AnyBroker
from reput_client.transport.options import ClientOptions
from reput_protocol.codes import Ack
from reput_protocol.errors import TopicNotFound
from reput_protocol.record.message import Message

T = TypeVar("T")
C = TypeVar("C")

_PRIORITIES: Final = 10


class ReputBroker(AsyncBroker):
    """A broker whose queues are topics, with a group that pops them.

    A task is acknowledged as taskiq's `ack_type` says, by default when its result is saved. Until then its message is
    kept, however long that takes; if the worker dies, another one gets it within `invisible_s` seconds. After as many
    deliveries as the group allows it is a dead letter of the group.

    taskiq starts the broker of a worker; another program calls `startup` before it sends, and `shutdown` at its end.

    Labels of tasks: `delay`, seconds for which the message waits in the broker; `priority`, 0 to 9, 9 first;
    `queue_name`, another queue than the first.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        queues: what this process's worker receives; the first one is where tasks go.
        group: the consumer group of the workers.
        ack: when `kiq()` returns: `page_cache`, `flushed` or `replicated`.
        invisible_s: seconds after which another worker gets the tasks of one that has died.
        at_once: how many tasks are received before the first one is acknowledged, at most; not less than taskiq's
            `--max-async-tasks`.
        client_options: `tls`, `credentials` and the other options that all clients have.

    Raises:
        ValueError: there is no queue, or an option is not valid.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        queues: Iterable[str] = ("taskiq",),
        group: str = "taskiq",
        ack: Ack = "flushed",
        invisible_s: float = 60.0,
        at_once: int = 100,
        result_backend: AsyncResultBackend[Any] | None = None,
        task_id_generator: Callable[[], str] | None = None,
        **client_options: Any,
    ) -> None:
        super().__init__(result_backend, task_id_generator)
        self._queues = [*queues]
        if not self._queues:
            raise ValueError("queues is empty; a worker receives at least one")
        self._group = group
        self._invisible_s = invisible_s
        self._at_once = at_once
        self._client_options: dict[str, Any] = {"address": address, **client_options}
        ClientOptions(**self._client_options)
        self._ack = ack
        self._topics: set[str] = set()
        self._runs: list[tuple[PopConsumer, Run[PoppedMessage]]] = []
        self._open = AsyncExitStack()
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    async def startup(self) -> None:
        """Connect, and create the topics that do not exist."""
        self._admin = await self._open.enter_async_context(Admin(**self._client_options))
        self._producer = await self._open.enter_async_context(
            Producer(group=self._group, ack=self._ack, create_topics=False, **self._client_options)
        )
        for queue in self._queues:
            await self._ensure_topic(queue)
        await super().startup()

    async def _ensure_topic(self, topic: str) -> None:
        if topic not in self._topics:
            await _started(self._admin).ensure_topic(topic, queues=_PRIORITIES, message_type="PRIORITY")
            self._topics.add(topic)

    async def shutdown(self) -> None:
        """Give back what is not acknowledged, and disconnect."""
        await super().shutdown()
        runs, self._runs = self._runs, []
        for consumer, run in runs:
            # taskiq does not say which tasks have begun.
            await consumer._end_run(run, counts=False)
        self._topics.clear()
        await self._open.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; on return it is as safe as `ack` says.

        Raises:
            ClientClosed: `startup` was not called, or `shutdown` was.
            ReputError: the task was not sent, or it is unknown.
        """
        labels = message.labels
        topic = str(labels.get("queue_name") or self._queues[0])
        await self._ensure_topic(topic)
        delay_s = float(labels.get("delay") or 0.0)
        sent = Message(
            topic,
            message.message,
            quoted(message.task_name) or None,
            [quoted(message.task_id)] if message.task_id else [],
            delay_s=delay_s or None,
        )
        # The queue is the priority: Message.priority is not for messages that wait.
        queue_id = AnyBroker(min(max(int(labels.get("priority") or 0), 0), _PRIORITIES - 1))
        producer = _started(self._producer)
        try:
            await producer.send(sent, queue_id=queue_id)
        except TopicNotFound:  # it was deleted
            self._topics.discard(topic)
            await self._ensure_topic(topic)
            await producer.send(sent, queue_id=queue_id)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield the tasks of the queues. What was yielded can be acknowledged until `shutdown`."""
        consumer = await self._open.enter_async_context(
            PopConsumer(group=self._group, topics=self._queues, orderly=False, **self._client_options)
        )
        run = consumer._begin_run(PoppedMessage, self._at_once, self._invisible_s, ahead=False)
        self._runs.append((consumer, run))
        try:
            while (message := await run.take()) is not None:
                yield AckableMessage(data=message.body, ack=_acknowledging(run.handled, message))
        finally:
            # taskiq ends this before the tasks that run, whose messages stay invisible.
            run.stop()
            run.give_back_waiting()


def quoted(text: str) -> str:
    """Return a task's name as tag, or its id as key: with %XX for what neither can have."""
    return quote(text, safe="!#$&'(*)+,-./:;<=>?@[]^_`{}~")


def _started(client: C | None) -> C:
    """Return a client of a broker or of a result backend, which has none before it is started."""
    if client is None:
        raise ClientClosed("the taskiq broker is not started; call `await broker.startup()` first")
    return client


def _acknowledging(handled: Callable[[Any], None], message: PoppedMessage[Any]) -> Callable[[], Awaitable[None]]:
    async def ack() -> None:
        handled(message)

    return ack


class ReputResultBackend(AsyncResultBackend[T]):
    """Results as JSON in a topic, found by the task's id.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        topic: where the results are.
        keep: how long a result is found; no longer than the broker keeps its log.
        client_options: as of `ReputBroker`.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        topic: str = "taskiq-results",
        keep: timedelta = timedelta(days=1),
        **client_options: Any,
    ) -> None:
        self._topic = topic
        self._keep = keep
        self._client_options: Mapping[str, Any] = {"address": address, **client_options}
        self._open = AsyncExitStack()
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    async def startup(self) -> None:
        """Connect, and create the topic if it does not exist."""
        self._admin = await self._open.enter_async_context(Admin(**self._client_options))
        self._producer = await self._open.enter_async_context(Producer(create_topics=False, **self._client_options))
        await self._admin.ensure_topic(self._topic, queues=1)

    async def shutdown(self) -> None:
        """Disconnect."""
        await self._open.aclose()

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        """Store a result; on return it is on the broker's disk."""
        message = Message(self._topic, result.model_dump_json().encode(), keys=[quoted(task_id)])
        producer, admin = _started(self._producer), _started(self._admin)
        try:
            await producer.send(message)
        except TopicNotFound:  # it was deleted
            await admin.ensure_topic(self._topic, queues=1)
            await producer.send(message)

    async def is_result_ready(self, task_id: str) -> bool:
        """Whether there is a result."""
        return await self._find(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """Return the last result of a task; its log is left out unless `with_logs`.

        Raises:
            ResultGetError: there is none, or it is too old.
        """
        body = await self._find(task_id)
        if body is None:
            raise ResultGetError
        result: TaskiqResult[T] = TaskiqResult.model_validate_json(body)
        if not with_logs:
            result.log = None
        return result

    async def _find(self, task_id: str) -> bytes | None:
        begin = datetime.now(UTC) - self._keep
        try:
            found = await _started(self._admin).find_messages(self._topic, quoted(task_id), max_messages=1, begin=begin)
        except TopicNotFound:  # it was deleted, with its results
            return None
        return found.messages[0].body if found.messages else None
