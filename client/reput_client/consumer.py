"""Consuming topics as a member of a group: an iterator over messages, or a handler that is called with them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from reput_client.backoff import Backoff
from reput_client.errors import ClientClosed
from reput_client.group.allocation import AllocationStrategy, averagely
from reput_client.group.assigned import Taken
from reput_client.group.failures import Failure, OnFailure, StopRunning, Verdict
from reput_client.group.flow import FlowLimits
from reput_client.group.local_offsets import FileOwner, offset_file
from reput_client.group.member import GroupMember, MemberOptions
from reput_client.group.starting import Start, checked_start
from reput_client.group.subscriptions import parse_topics
from reput_client.offset_store import LocalFileOffsetStore, OffsetStore
from reput_client.received import ReceivedMessage
from reput_client.runtime import Runtime
from reput_client.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, Session, wall_clock_ms
from reput_protocol.group_terms import MessageModel
from reput_protocol.message import MessageQueue
from reput_protocol.names import check_client_group

_YIELD_EVERY: Final = 32
_COMMIT_TIMEOUT_MIN_S: Final = 0.5
_ENDING_S: Final = 1.0
_MODELS: Final = {"clustering": MessageModel.CLUSTERING, "broadcasting": MessageModel.BROADCASTING}


class Consumer:
    """A member of a consumer group; an async context manager, under trio or asyncio.

        async with Consumer(address, group="billing", topic="orders") as consumer:
            async for message in consumer:
                ...  # handled once the loop comes back for the next message

    The members of a group share the queues of their topics out among themselves, anew within a second of a member's
    coming, leaving or dying. A message counts as handled when the next one is asked for, or when the `async with`
    block ends without an exception. Progress is committed every `commit_interval_s`, when a queue goes to another
    member and at the end, and never past a message that is not handled: after a crash some messages come again,
    none is left out.

    One task may iterate at a time; any task may close the consumer, which ends the iteration. A lost connection is
    made again, for ever, with back-off. From entering to closing a task of its own keeps the membership alive and
    commits, whatever the application does meanwhile; it belongs to the event loop and to no task group.

    Args:
        address: `host:port` of a broker, several with commas, or a list of them.
        group: the consumer group. All its members subscribe to the same topics and tags.
        topic, topics: what to consume: one topic, or several names, or a mapping from names to tags.
        tags: `*`, or tags joined by `||`, for every topic that has none of its own.
        start: where a queue begins of which the group has no offset yet: `earliest`, `latest`, a datetime
            (messages stored from then on), a queue offset, or a function that returns one for a queue.
        mode: `clustering`, or `broadcasting`: every member gets every message and keeps its own offsets.
        orderly: one message of a queue at a time, the next when that is handled, also with `run(concurrency=n)`,
            and by one member at a time: queues are locked at the broker.
        allocation: how queues are shared out, the same rule for all members (see `reput_client.group.allocation`).
        on_failure: what `run` does when a handler raises; by default it ends (see `reput_client.group.failures`).
        prefetch_messages, prefetch_bytes: how much may be held ahead of the application, over all queues (a single
            message may be larger).
        queue_messages_max, queue_bytes_max, queue_span_max: when to pull no more of a queue; see `FlowLimits`.
        commit_interval_s: seconds between commits; 0 commits each time a message is asked for.
        heartbeat_interval_s: seconds between heartbeats; less than the broker's `groups.heartbeat_timeout`.
        offset_store: where progress is kept; by default with the broker, or for `broadcasting` in a file in
            `~/.reput_offsets` (or `$REPUT_OFFSETS_DIR`).
        instance: tells consumers of one group apart that broadcast on one machine.

    Raises:
        InvalidName, FilterSyntaxError, ValueError: an argument breaks the rules.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        group: str,
        topic: str | None = None,
        topics: Iterable[str] | Mapping[str, str] | None = None,
        tags: str = "*",
        start: Start = "earliest",
        mode: str = "clustering",
        orderly: bool = False,
        allocation: AllocationStrategy = averagely,
        on_failure: OnFailure | None = None,
        prefetch_messages: int = 2048,
        prefetch_bytes: int = 16 * 1024 * 1024,
        queue_messages_max: int = 1000,
        queue_bytes_max: int = 100 * 1024 * 1024,
        queue_span_max: int = 2000,
        commit_interval_s: float = 5.0,
        heartbeat_interval_s: float = 30.0,
        offset_store: OffsetStore | None = None,
        instance: str = "DEFAULT",
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
        runtime: Runtime | None = None,
    ) -> None:
        if mode not in _MODELS:
            raise ValueError(f"mode is 'clustering' or 'broadcasting', not {mode!r}")
        if commit_interval_s < 0 or heartbeat_interval_s <= 0:
            raise ValueError("commit_interval_s must be 0 or more, heartbeat_interval_s more than 0")
        self.group = check_client_group(group)
        self._session = Session(
            address,
            runtime,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
        )
        model = _MODELS[mode]
        self._own_file: FileOwner | None = None
        if model is MessageModel.BROADCASTING and offset_store is None:
            path = offset_file(group, instance)
            self._own_file = FileOwner(path)
            offset_store = LocalFileOffsetStore(path, in_thread=self._session.runtime.in_thread)
        retries = model is MessageModel.CLUSTERING
        options = MemberOptions(
            group,
            parse_topics(group, topic, topics, tags, retries=retries, version=wall_clock_ms()),
            checked_start(start),
            model,
            orderly,
            allocation,
            FlowLimits(
                prefetch_messages, prefetch_bytes, queue_messages_max, queue_bytes_max, queue_span_max
            ),
            commit_interval_s,
            heartbeat_interval_s,
            offset_store,
        )
        self._on_failure = on_failure or StopRunning()
        self._commits_each_time = not commit_interval_s
        self._member = GroupMember(self._session, options)
        self._current: Taken | None = None
        self._busy = False
        self._until_yield = _YIELD_EVERY

    # -- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, join the group and take the queues that fall to this member.

        Queues that other members have to let go of first follow within a second.

        Raises:
            ConnectFailed: no broker answers at the given address.
            TopicNotFound: there is no such topic; create it, or send to it once.
            NoQueue: a topic cannot be read.
            BrokerError: the broker does not take us into the group.
            OffsetStoreInUse: another consumer that broadcasts has the offset file.
        """
        await self._session.connect()
        try:
            await self._join()
        except BaseException:
            self._close()
            raise
        return self

    async def _join(self) -> None:
        if self._own_file is not None:
            self._own_file.acquire()
        await self._member.join()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._current_is_handled()
        await self.aclose()

    async def aclose(self) -> None:
        """Commit what is handled, leave the group and close the connections; an iteration in progress ends.

        The message that the application holds at this moment does not count as handled. May be called twice.
        """
        session = self._session
        if session.closed:
            return
        try:
            await session.runtime.shielded(session.timeout_s, lambda: self._member.leave(session.timeout_s))
        finally:
            self._close()
            await session.runtime.shielded(_ENDING_S, self._member.ended)

    def _close(self) -> None:
        self._session.close()
        if self._own_file is not None:
            self._own_file.release()

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._session.closed

    # -- the group ---------------------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are consumed."""
        return self._member.options.subscriptions.topics

    @property
    def topic(self) -> str:
        """The topic; of several the first."""
        return self.topics[0]

    @property
    def client_id(self) -> str:
        """What the group knows this member by; empty before it was entered."""
        return self._member.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this member's now, those of the retry topic included."""
        return sorted(queue for queue, assigned in self._member.fetcher.queues.items() if assigned.confirmed)

    @property
    def connected(self) -> bool:
        """Whether there is a connection that has not failed yet."""
        return self._session.connected

    def positions(self) -> dict[MessageQueue, int]:
        """Return, for each queue of the assignment, the offset of its first message that is not handled."""
        queues = self._member.fetcher.queues
        return {queue: queues[queue].progress.position for queue in self.assignment}

    async def members(self) -> list[str]:
        """Return the client ids of the group's members, sorted.

        Raises:
            ReputError: the broker does not answer.
        """
        return await self._member.members()

    # -- messages ----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = self.next_at_hand()
        if message is None:
            message = await self.receive()
            if message is None:
                raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """Return the next message, or None when `timeout_s` is over or the consumer was closed.

        A commit that falls due meanwhile may take half a second more, with a `commit_interval_s` of 0.

        Asking for a message says that the one before is handled.

        Raises:
            BrokerError: a refusal that waiting does not cure, such as a topic that was deleted.
            RecordMalformed: what the broker sent is no records.
        """
        self._current_is_handled()
        self._current = taken = await self._take_alone(timeout_s)
        return None if taken is None else taken[1]

    def next_at_hand(self) -> ReceivedMessage | None:
        """As `receive`, but None where that would have to wait or has something else to do; never waits."""
        if self._until_yield <= 0 or self._busy or self._commits_each_time or self._session.closed:
            return None
        self._current_is_handled()
        self._current = taken = self._member.serving.take()
        if taken is None:
            return None
        self._until_yield -= 1
        return taken[1]

    async def take(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """As `receive`, but the message counts as handled only when `done` is called with it.

        For programs that handle several messages at a time; `run` does it for you.
        """
        taken = await self._take_alone(timeout_s)
        return None if taken is None else taken[1]

    async def _take_alone(self, timeout_s: float) -> Taken | None:
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
        """A message from `take` is handled; progress moves on once all before it are.

        Where its queue is another member's by now, that has no effect: it may come again there.
        """
        assigned = self._member.find(message.queue)
        if assigned is not None:
            self._member.handled((assigned, message))

    def again(self, message: ReceivedMessage, after_s: float = 1.0) -> None:
        """A message is not handled: it comes again, after `after_s` seconds. In order, its queue waits that long."""
        if self._current is not None and self._current[1] is message:
            self._current = None
        assigned = self._member.find(message.queue)
        if assigned is not None and assigned.progress.holds(message.queue_offset, message):
            self._member.again((assigned, message), after_s)

    async def run(
        self, handler: Callable[[ReceivedMessage], Awaitable[object]], *, concurrency: int = 1
    ) -> None:
        """Call `handler` with every message, up to `concurrency` at a time, until the consumer is closed.

        A message is handled when its handler returns; only a contiguous handled beginning of a queue is committed.
        With `concurrency=1`, or in an orderly consumer, messages of a queue are handled in order. When a handler
        raises, `on_failure` decides; by default the exception ends `run`: it comes out alone with `concurrency=1`,
        otherwise in a group, and its message is not handled.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        try:
            if concurrency > 1:
                from reput_client.concurrent_handling import handle_concurrently  # needs an event loop

                await handle_concurrently(self, handler, concurrency)
            else:
                while (message := await self.take()) is not None:
                    await self.handle(message, handler)
        finally:
            self.rewind()

    async def handle(
        self, message: ReceivedMessage, handler: Callable[[ReceivedMessage], Awaitable[object]]
    ) -> None:
        """Call `handler` with a message from `take`, and do what `run` does when it returns or raises."""
        try:
            await handler(message)
        except Exception as error:
            await self.failed(message, error)
        else:
            self.done(message)

    async def failed(self, message: ReceivedMessage, error: Exception) -> None:
        """A message from `take` could not be handled, because of `error`: do with it what `on_failure` says.

        Raises:
            Exception: `error` itself, if `on_failure` wants it to end everything.
        """
        assigned = self._member.find(message.queue)
        if assigned is None:
            if isinstance(self._on_failure, StopRunning):
                raise error
            return  # its queue is another member's by now, and so is the message
        failures = assigned.failures
        attempts = failures[message.queue_offset] = failures.get(message.queue_offset, 0) + 1
        failure = Failure(message, error, attempts, self.group, self._member.options.orderly)
        decision = await self._on_failure.decide(failure, self._session)
        if decision is Verdict.RAISE:
            raise error
        if decision is Verdict.HANDLED:
            self.done(message)
        else:
            self.again(message, decision.after_s)

    def rewind(self) -> None:
        """Hand out again, next, what was taken and is not handled. Messages handled out of turn come twice."""
        self._current = None
        self._member.fetcher.rewind()

    async def commit(self) -> None:
        """Commit all progress now, the message last received through iteration included.

        Raises:
            ReputError: the offset store could not take it; progress is kept and committed later.
        """
        self._current_is_handled()
        await self._member.commits.commit(self._member.fetcher.queues.values())

    # -- inside ------------------------------------------------------------------------------------------------

    async def _take(self, timeout_s: float) -> Taken | None:
        session = self._session
        deadline = session.runtime.now() + timeout_s
        try:
            while not session.closed:
                if self._commits_each_time:
                    await self._commit_in_between(deadline)
                taken = self._member.serving.take()
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

    async def _commit_in_between(self, deadline: float) -> None:
        # Without a connection a commit would only use up the time that the caller gave for a message.
        if self._session.connected and self._member.commits.dirty():
            left_s = max(_COMMIT_TIMEOUT_MIN_S, deadline - self._session.runtime.now())
            queues = self._member.fetcher.queues.values()
            await self._member.commits.commit_quietly(queues, min(self._session.timeout_s, left_s))

    async def _keep_going(self, taken: Taken) -> None:
        """Now and then, although messages are at hand, pull ahead and let other tasks run."""
        self._until_yield = _YIELD_EVERY
        fetcher = self._member.fetcher
        try:
            self._session.poll()
            fetcher.collect()
            await fetcher.pull_more(self._session.deadline(None))
            await self._session.runtime.pause()
        except BaseException:
            # Cancelled with a message in hand: it is neither handled nor lost, it comes first next time.
            if self._member.fetcher.queues.get(taken[0].queue) is taken[0]:
                self._member.serving.give_back(taken)
            raise

    async def _fetch(self, deadline: float) -> bool:
        """Wait until a pull has brought something or there is something else to do; False at the deadline."""
        session, member = self._session, self._member
        fetcher = member.fetcher
        if member.failure is not None:
            raise member.failure
        if not member.joined:
            await self._join()  # the first use of one that was not entered, or of one in a forked child
        session.poll()
        brought = fetcher.collect()
        await fetcher.pull_more(deadline)
        if brought:
            return True
        if session.runtime.now() >= deadline:
            return False
        await session.pump.wait(
            fetcher.waiter, min(deadline, fetcher.next_wake(), member.serving.next_wake())
        )
        return True

    def _current_is_handled(self) -> None:
        if self._current is not None:
            taken, self._current = self._current, None
            self._member.handled(taken)

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connections alone, and become a member of its own when used."""
        self._session.after_fork()
        self._member.forget()
        self._current = None
        self._busy = False
