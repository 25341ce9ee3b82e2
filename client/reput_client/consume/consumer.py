"""Consuming topics as a member of a group: an iterator over messages, or a handler that is called with them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Final, Self

from reput_client.consume.group.allocation import AllocationStrategy, averagely
from reput_client.consume.group.commits import FileOwner, offset_file
from reput_client.consume.group.failures import GiveBack, OnFailure
from reput_client.consume.group.fetching import FlowLimits
from reput_client.consume.group.handling import Handling, Taking
from reput_client.consume.group.member import GroupMember, MemberOptions
from reput_client.consume.group.subscriptions import Start, checked_start, parse_topics
from reput_client.consume.group.turn import Hands
from reput_client.consume.send_back import send_back
from reput_client.offset_store import LocalFileOffsetStore, OffsetStore
from reput_client.received import ReceivedMessage
from reput_client.transport.backoff import Backoff
from reput_client.transport.client import Client
from reput_client.transport.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, wall_clock_ms
from reput_protocol.codes import MessageModel
from reput_protocol.names import check_client_group
from reput_protocol.record.message import MessageQueue

HANDLER_TIMEOUT_S: Final = 900.0
"""(RocketMQ: consumeTimeout, 15 minutes.)"""
_ENDING_S: Final = 1.0
_MODELS: Final = {"clustering": MessageModel.CLUSTERING, "broadcasting": MessageModel.BROADCASTING}


class Consumer(Client):
    """A member of a consumer group; an async context manager, under trio or asyncio.

        async with Consumer(address, group="billing", topic="orders") as consumer:
            async for message in consumer:
                ...  # handled once the loop comes back for the next message

    Or `run` calls a handler, for several messages at a time.

    The members of a group share the queues of their topics out among themselves, again within a second of a member's
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
        sql: instead of tags, a SQL92 expression over the properties of messages: `amount > 5 AND TAGS = 'paid'`.
        start: where a queue begins of which the group has no offset yet: `earliest`, `latest`, a datetime
            (messages stored from then on), a queue offset, or a function that returns one for a queue.
        mode: `clustering`, or `broadcasting`: every member gets every message and keeps its own offsets.
        orderly: one message of a queue at a time, the next when that is handled, also with `run(concurrency=n)`,
            and by one member at a time: queues are locked at the broker. A queue changes hands when its message is
            handled, however long that takes; those of a member that was killed do within a minute.
        allocation: how queues are shared out, the same rule for all members: `averagely`,
            `circularly`, `by_machine_room`, `by_config` or `consistent_hash`.
        on_failure: what `run` does when a handler raises: by default `GiveBack`, the message goes back to the broker
            and comes again later; in order, or broadcasting, it comes again here. Others: `RetryHere`, `StopRunning`.
        handler_timeout_s: a message that a handler of `run`, or the caller of `take`, has had for so long is given
            back to the broker and handled by that, so that it comes again and the rest of its queue can be committed;
            not in order, and not for `broadcasting`.
        prefetch_messages, prefetch_bytes: how much may be held ahead of the application, over all queues (a single
            message may be larger).
        queue_messages_max, queue_bytes_max, queue_span_max: when to pull no more of a queue; see `FlowLimits`.
        commit_interval_s: seconds between commits; 0 commits each time a message is asked for.
        heartbeat_interval_s: seconds between heartbeats; less than the broker's `groups.heartbeat_timeout`.
        offset_store: where progress is kept; by default with the broker, or for `broadcasting` in a file in
            `~/.reput_offsets` (or `$REPUT_OFFSETS_DIR`).
        wait_for_topic: a topic that does not exist yet is waited for, and then read from its beginning even with
            `start="latest"`; False: entering raises `TopicNotFound`.
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
        sql: str | None = None,
        start: Start = "earliest",
        mode: str = "clustering",
        orderly: bool = False,
        allocation: AllocationStrategy = averagely,
        on_failure: OnFailure | None = None,
        handler_timeout_s: float = HANDLER_TIMEOUT_S,
        prefetch_messages: int = 2048,
        prefetch_bytes: int = 16 * 1024 * 1024,
        queue_messages_max: int = 1000,
        queue_bytes_max: int = 100 * 1024 * 1024,
        queue_span_max: int = 2000,
        commit_interval_s: float = 5.0,
        heartbeat_interval_s: float = 30.0,
        offset_store: OffsetStore | None = None,
        wait_for_topic: bool = True,
        instance: str = "DEFAULT",
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        if mode not in _MODELS:
            raise ValueError(f"mode is 'clustering' or 'broadcasting', not {mode!r}")
        if commit_interval_s < 0 or heartbeat_interval_s <= 0 or handler_timeout_s <= 0:
            raise ValueError(
                "commit_interval_s must be 0 or more, heartbeat_interval_s and handler_timeout_s more than 0"
            )
        self.group = check_client_group(group)
        super().__init__(
            address, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s, new_backoff=new_backoff
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
            parse_topics(group, topic, topics, tags, sql, retries=retries, version=wall_clock_ms()),
            checked_start(start),
            model,
            orderly,
            allocation,
            FlowLimits(
                prefetch_messages, prefetch_bytes, queue_messages_max, queue_bytes_max, queue_span_max
            ),
            commit_interval_s,
            heartbeat_interval_s,
            handler_timeout_s,
            offset_store,
            wait_for_topic,
        )
        self._member = GroupMember(self._session, options)
        self._taking = Taking(self._session, self._member, self._join)
        self._turn = self._taking.turn
        self._handling = Handling(self._session, self._member, self._taking, on_failure or GiveBack())

    # -- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, join the group and take the queues that fall to this member.

        Queues that other members have to let go of first follow within a second.

        Raises:
            ConnectFailed: no broker answers at the given address.
            TopicNotFound: there is no such topic, and `wait_for_topic` is False.
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
        self._taking.stop()
        message = self._turn.message
        if message is not None and not self._member.hands.in_turn:  # else a handler of `run` still has it
            if kind is None:
                self._taking.current_is_handled()
            else:
                self.again(message, 0.0)
        await self.aclose()

    def stop(self) -> None:
        """Hand out nothing more: an iteration ends when its loop comes back, `run` when its handlers are done.

        Never waits, and any task may call it; `aclose`, or the end of the `async with` block, then leaves the group
        with everything committed that was handed out.
        """
        self._taking.stop()

    async def aclose(self) -> None:
        """Commit what is handled, leave the group and close the connections; an iteration in progress ends.

        The message that the application holds at this moment does not count as handled. In order, no member gets it, or
        what follows it in its queue, before the queue's lock has expired, as when the program is killed; to `stop` and
        wait for the end of `run` spares others that. May be called twice.
        """
        session = self._session
        if session.closed:
            return
        self._taking.stop()
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

    @property
    def stopped(self) -> bool:
        """Whether nothing more is handed out, because the consumer was stopped or closed."""
        return self._taking.over

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
        # Once for each message: what `next_in_turn` does, and a call less.
        turn = self._turn
        if monotonic() < turn.until:
            message = next(turn.messages, None)
            if message is not None:
                turn.message = message
                return message
        message = await self._taking.receive(math.inf)
        if message is None:
            raise StopAsyncIteration
        return message

    def next_in_turn(self) -> ReceivedMessage | None:
        """As `receive`, but None where that would have to wait or has something else to do; never waits."""
        turn = self._turn
        if monotonic() < turn.until:
            message = next(turn.messages, None)
            if message is not None:
                turn.message = message
                return message
        return None

    async def receive(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """Return the next message, or None when `timeout_s` is over or the consumer was stopped or closed.

        A commit that falls due meanwhile may take half a second more, with a `commit_interval_s` of 0.

        Asking for a message says that the one before is handled.

        Raises:
            BrokerError: a refusal that waiting does not cure, such as a topic that was deleted.
            RecordMalformed: what the broker sent is no records.
        """
        return await self._taking.receive(timeout_s)

    async def take(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """As `receive`, but the message counts as handled only when `done` is called with it.

        For programs that handle several messages at a time; `run` does it for you.
        """
        taken = await self._taking.take(timeout_s)
        return None if taken is None else taken[1]

    def done(self, message: ReceivedMessage) -> None:
        """A message from `take` is handled; progress moves on once all before it are.

        Where its queue is another member's by now, that has no effect: it may come again there.
        """
        assigned = self._member.find(message.queue)
        if assigned is not None:
            self._member.handled((assigned, message))

    def again(self, message: ReceivedMessage, after_s: float = 1.0) -> None:
        """A message is not handled: it comes again, after `after_s` seconds. In order, its queue waits that long."""
        if self._turn.message is message:
            self._turn.finish()
        assigned = self._member.find(message.queue)
        if assigned is not None and assigned.progress.holds(message.queue_offset, message):
            self._member.again((assigned, message), after_s)

    async def give_back(
        self, message: ReceivedMessage, *, delay_level: int = 0, reason: str | None = None
    ) -> None:
        """A message could not be handled: the broker takes it, and the group gets it again later.

        Here it is handled by that. Where its queue is another member's by now, nothing happens: it comes again there.

        Args:
            delay_level: how long it waits, as RocketMQ's delay level; 0: longer with each attempt, from 10 s on; -1: it
                goes to the group's dead letters, as do messages that have come back too often.
            reason: why, for people who look at it later.

        Raises:
            BrokerError: the broker does not take it.
            ConnectFailed, ConnectionLost, RequestTimeout: it is not known whether the broker has it; to ask again is
                safe.
            DamagedMessage: it is unknown which message it is.
        """
        assigned = self._member.find(message.queue)
        if assigned is not None and assigned.progress.holds(message.queue_offset, message):
            await send_back(
                self._session,
                message,
                group=self.group,
                queue=message.queue,
                delay_level=delay_level,
                reason=reason,
            )
            self._member.handled((assigned, message))

    async def run(
        self, handler: Callable[[ReceivedMessage], Awaitable[object]], *, concurrency: int = 1
    ) -> None:
        """Call `handler` with every message, up to `concurrency` at a time, until the consumer is stopped or closed.

        A message is handled when its handler returns; only a contiguous handled beginning of a queue is committed.
        With `concurrency=1`, or in an orderly consumer, messages of a queue are handled in order. When a handler
        raises, `on_failure` decides. If that ends `run`, the exception comes out alone with `concurrency=1`,
        otherwise in a group, and its message is not handled.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        try:
            if concurrency > 1:
                await self._handling.run_concurrently(handler, concurrency)
            else:
                await self._handling.run_in_turn(handler)
        finally:
            self.rewind()

    @property
    def hands(self) -> Hands:
        """What the handlers of `run` hold; for code that runs handlers in another way."""
        return self._member.hands

    async def failed(self, message: ReceivedMessage, error: Exception) -> None:
        """A message from `take` could not be handled, because of `error`: do with it what `on_failure` says.

        Raises:
            Exception: `error` itself, if `on_failure` wants it to end everything.
        """
        await self._handling.failed(message, error)

    def rewind(self) -> None:
        """Hand out again, next, what was taken and is not handled. Messages handled out of turn come twice."""
        self._turn.finish()
        self._member.rewind()

    async def commit(self) -> None:
        """Commit all progress now, the message last received through iteration included.

        Raises:
            ReputError: the offset store could not take it; progress is kept and committed later.
        """
        self._taking.current_is_handled()
        await self._member.commits.commit(self._member.fetcher.queues.values())

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connections alone, and become a member of its own when used."""
        self._session.after_fork()
        self._taking.forget()
        self._member.forget()
