"""Consuming a topic: an iterator over its messages, or a handler that is called with them, with committed progress."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Final, Self, TypeAlias

from reput_client.backoff import Backoff
from reput_client.errors import ClientClosed, ConnectFailed, ConnectionLost, NoQueue, RequestTimeout
from reput_client.fetching import FetchedQueue, Fetcher
from reput_client.offset_store import OFFSET_NOT_FOUND, OffsetStore, ReadOffsetType, RemoteOffsetStore
from reput_client.offsets import OffsetRequests
from reput_client.received import ReceivedMessage
from reput_client.routing import Route
from reput_client.runtime import Runtime
from reput_client.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, Session
from reput_client.wanted import Wanted
from reput_protocol.errors import ReputError
from reput_protocol.message import MessageQueue
from reput_protocol.names import check_client_group, check_topic

_YIELD_EVERY: Final = 32
_COMMIT_TIMEOUT_MIN_S: Final = 0.5

_Taken: TypeAlias = tuple[FetchedQueue, ReceivedMessage]

log = logging.getLogger("reput_client")


class Consumer:
    """Reads every queue of a topic on behalf of a group; an async context manager, under trio or asyncio.

        async with Consumer(address, group="billing", topic="orders") as consumer:
            async for message in consumer:
                ...  # handled once the loop comes back for the next message

    A message counts as handled when the next one is asked for, or when the `async with` block ends without an
    exception. Progress is committed every `commit_interval_s` and at the end, and never past a message
    that is not handled: after a crash some messages come again, none is left out.

    One task may iterate at a time; any task may close the consumer, which ends the iteration. A lost connection is
    made again, for ever, with back-off.

    Args:
        address: `host:port` of a broker, several with commas, or a list of them.
        group: the consumer group whose progress is kept.
        tags: `*`, or tags joined by `||`.
        sql: instead of tags, a SQL92 expression over the properties of messages: `amount > 5 AND TAGS = 'paid'`.
        start: where a queue begins of which the group has no offset yet: `earliest`, `latest`, a datetime
            (messages stored from then on) or a queue offset.
        prefetch_messages, prefetch_bytes: how much may be held ahead of the application, over all queues (a single
            message may be larger).
        commit_interval_s: seconds between commits; 0 commits each time a message is asked for.
        offset_store: where progress is kept; by default with the broker.

    Raises:
        InvalidName, FilterSyntaxError, ValueError: an argument breaks the rules.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        group: str,
        topic: str,
        tags: str = "*",
        sql: str | None = None,
        start: str | datetime | int = "earliest",
        prefetch_messages: int = 2048,
        prefetch_bytes: int = 16 * 1024 * 1024,
        commit_interval_s: float = 5.0,
        offset_store: OffsetStore | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
        runtime: Runtime | None = None,
    ) -> None:
        self.group = check_client_group(group)
        self.topic = check_topic(topic)
        self._start = _checked_start(start)
        if prefetch_messages < 1 or prefetch_bytes < 1 or commit_interval_s < 0:
            raise ValueError("prefetch bounds must be 1 or more, commit_interval_s 0 or more")
        self._session = Session(
            address,
            runtime,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
        )
        self._offsets = OffsetRequests(self._session)
        self._store = offset_store if offset_store is not None else RemoteOffsetStore(_OwnOffsets(self))
        self._fetcher = Fetcher(
            self._session, self.group, Wanted.of(tags, sql), prefetch_messages, prefetch_bytes
        )
        self._commit_interval_s = commit_interval_s
        self._next_commit_at = -math.inf
        self._commit_timeout_s = timeout_s
        self._route: Route | None = None
        self._current: _Taken | None = None
        self._busy = False
        self._until_yield = _YIELD_EVERY

    # -- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect and find out where to start.

        Raises:
            ConnectFailed: no broker answers at the given address.
            TopicNotFound: there is no such topic; create it, or send to it once.
        """
        await self._session.connect()
        try:
            await self._follow_route()
        except BaseException:
            self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._current_is_handled()
        await self.aclose()

    async def aclose(self) -> None:
        """Commit what is handled and close the connections; an iteration in progress ends.

        The message that the application holds at this moment does not count as handled. May be called twice.
        """
        if self._session.closed:
            return
        self._commit_timeout_s = self._session.timeout_s
        try:
            if self._is_dirty():
                await self._session.runtime.shielded(self._session.timeout_s, self._commit_quietly)
        finally:
            self._session.close()
            self._fetcher.waiter.notify()

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._session.closed

    # -- messages ----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """Return the next message, or None when `timeout_s` is over or the consumer was closed.

        A commit that falls due meanwhile may take half a second more.

        Asking for a message says that the one before is handled.

        Raises:
            BrokerError: a refusal that waiting does not cure, such as a topic that was deleted.
            RecordMalformed: what the broker sent is no records.
        """
        self._current_is_handled()
        self._current = taken = await self._take_alone(timeout_s)
        return None if taken is None else taken[1]

    async def take(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """As `receive`, but the message counts as handled only when `done` is called with it.

        For programs that handle several messages at a time; `run` does it for you.
        """
        taken = await self._take_alone(timeout_s)
        return None if taken is None else taken[1]

    async def _take_alone(self, timeout_s: float) -> _Taken | None:
        if self._busy:
            raise RuntimeError(
                "another task is waiting for a message of this consumer; use run(concurrency=)"
            )
        self._busy = True
        try:
            return await self._take(timeout_s)
        finally:
            self._busy = False

    def done(self, message: ReceivedMessage) -> None:
        """A message from `take` is handled; progress moves on once all before it are."""
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        fetched = self._fetcher.queues.get(queue)
        if fetched is not None:
            fetched.progress.handled(message.queue_offset)

    async def run(
        self, handler: Callable[[ReceivedMessage], Awaitable[object]], *, concurrency: int = 1
    ) -> None:
        """Call `handler` with every message, up to `concurrency` at a time, until the consumer is closed.

        A message is handled when its handler returns; only a contiguous handled beginning of a queue is committed.
        With `concurrency=1` messages of a queue are handled in order. An exception of a handler ends `run`: it
        comes out alone with `concurrency=1`, otherwise in a group, and its message is not handled.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        try:
            if concurrency > 1:
                from reput_client.concurrent_handling import handle_concurrently  # needs an event loop

                await handle_concurrently(self, handler, concurrency)
            else:
                while (message := await self.take()) is not None:
                    await handler(message)
                    self.done(message)
        finally:
            self.rewind()

    def rewind(self) -> None:
        """Hand out again, next, what was taken and is not handled. Messages handled out of turn come twice."""
        self._current = None
        self._fetcher.rewind()

    async def commit(self) -> None:
        """Commit all progress now, the message last received through iteration included.

        Raises:
            ReputError: the offset store could not take it; progress is kept and committed later.
        """
        self._current_is_handled()
        self._commit_timeout_s = self._session.timeout_s
        await self._commit()

    # -- inside ------------------------------------------------------------------------------------------------

    async def _take(self, timeout_s: float) -> _Taken | None:
        session = self._session
        deadline = session.runtime.now() + timeout_s
        try:
            while not session.closed:
                # Without a connection a commit would only use up the time that the caller gave for a message.
                if session.connected and session.runtime.now() >= self._next_commit_at:
                    self._commit_timeout_s = deadline - session.runtime.now()
                    await self._commit_quietly()
                taken = self._fetcher.take()
                if taken is not None:
                    self._until_yield -= 1
                    if self._until_yield <= 0:
                        await self._keep_going(taken)
                    return taken
                if not await self._fetch(deadline):
                    return None
        except ClientClosed:
            if not session.closed:
                raise
        return None

    async def _keep_going(self, taken: _Taken) -> None:
        """Now and then, although messages are at hand, pull ahead and let other tasks run."""
        self._until_yield = _YIELD_EVERY
        try:
            self._session.poll()
            self._fetcher.collect()
            await self._fetcher.pull_more(self._session.deadline(None))
            await self._session.runtime.pause()
        except BaseException:
            # Cancelled with a message in hand: it is neither handled nor lost, it comes first next time.
            self._fetcher.give_back(*taken)
            raise

    async def _fetch(self, deadline: float) -> bool:
        """Wait until a pull has brought something or there is something else to do; False at the deadline."""
        session = self._session
        fetcher = self._fetcher
        session.poll()
        fetcher.collect()
        await self._follow_changes()
        await fetcher.pull_more(deadline)
        if fetcher.has_results:
            return True
        if session.runtime.now() >= deadline:
            return False
        next_commit_at = self._next_commit_at if self._is_dirty() else math.inf
        await session.pump.wait(fetcher.waiter, min(deadline, next_commit_at, fetcher.next_wake()))
        return True

    async def _follow_changes(self) -> None:
        """Take up queues that the topic has gained and leave those that it has lost."""
        self._session.refresh_soon(self.topic)
        if self._route is not None and self._route is self._session.routes.get(self.topic):
            return
        try:
            await self._follow_route()
        except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
            if not self._fetcher.queues:
                raise
            log.warning("consumer of %s: queues not compared with the route: %s", self.topic, error)

    def _is_dirty(self) -> bool:
        return any(fetched.uncommitted for fetched in self._fetcher.queues.values())

    def _current_is_handled(self) -> None:
        if self._current is not None:
            (fetched, message), self._current = self._current, None
            fetched.progress.handled(message.queue_offset)

    # -- queues and their starting points ----------------------------------------------------------------------

    async def _follow_route(self) -> None:
        """Pull from exactly the queues that the topic's route names."""
        session = self._session
        route = await session.route(self.topic, session.deadline(None))
        if not route.readable:
            raise NoQueue(self.topic, "readable queue")
        wanted = set(route.readable)
        for queue in [queue for queue in self._fetcher.queues if queue not in wanted]:
            self._fetcher.drop(queue)
        for queue in route.readable:
            if queue not in self._fetcher.queues:
                committed, start = await self._starting_point(queue)
                self._fetcher.add(FetchedQueue(queue, start, committed))
        self._route = route

    async def _starting_point(self, queue: MessageQueue) -> tuple[int | None, int]:
        """Return the committed offset, if there is one, and where to start."""
        offset = await self._store.read(queue, ReadOffsetType.READ_FROM_STORE)
        if offset >= 0:
            return offset, offset
        if offset != OFFSET_NOT_FOUND:
            assert self._store.failure is not None, "a store that answers -2 says why"
            raise self._store.failure
        topic, queue_id = queue.topic, queue.queue_id
        start = self._start
        if isinstance(start, int):
            return None, start
        if isinstance(start, datetime):
            return None, await self._offsets.offset_by_time(topic, queue_id, start)
        if start == "latest":
            return None, await self._offsets.max_offset(topic, queue_id)
        return None, await self._offsets.min_offset(topic, queue_id)

    # -- commits -----------------------------------------------------------------------------------------------

    @property
    def commit_timeout_s(self) -> float:
        """How long a commit may take: what the caller's own deadline leaves, within reason both ways."""
        return max(_COMMIT_TIMEOUT_MIN_S, min(self._session.timeout_s, self._commit_timeout_s))

    async def _commit(self) -> None:
        self._next_commit_at = self._session.runtime.now() + self._commit_interval_s
        fetcher = self._fetcher
        positions = {
            fetched.queue: fetched.progress.position
            for fetched in fetcher.queues.values()
            if fetched.uncommitted
        }
        for queue, position in positions.items():
            self._store.update(queue, position)
            await self._store.persist(queue)
            if queue in fetcher.queues:
                fetcher.queues[queue].committed = position

    async def _commit_quietly(self) -> None:
        try:
            await self._commit()
        except (ReputError, OSError) as error:
            log.warning("consumer of %s: offsets not committed, trying again: %s", self.topic, error)

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connections alone."""
        self._session.after_fork()
        self._busy = False


class _OwnOffsets:
    """The group's offsets at the broker, asked over the consumer's own connection."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def committed(self, topic: str, queue_id: int) -> int | None:
        consumer = self._consumer
        return await consumer._offsets.committed(consumer.group, topic, queue_id)  # noqa: SLF001

    async def commit(self, topic: str, queue_id: int, offset: int) -> None:
        consumer = self._consumer
        await consumer._offsets.commit(  # noqa: SLF001
            consumer.group, topic, queue_id, offset, timeout_s=consumer.commit_timeout_s
        )


def _checked_start(start: str | datetime | int) -> str | datetime | int:
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise ValueError(f"start is 'earliest', 'latest', a datetime or a queue offset, not {start!r}")
    if isinstance(start, int) and start < 0:
        raise ValueError(f"start {start} is below 0, the first offset of every queue")
    return start
