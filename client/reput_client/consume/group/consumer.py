"""The consumer: a member of a group, used as an iterator over messages or with a handler."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Final, Generic, Self, TypeAlias

from reput_client.consume.group.assigned_queue import AssignedQueue, Taken
from reput_client.consume.group.commits import FileOwner, offset_file
from reput_client.consume.group.failures import Failure, GiveBack, StopRunning, Verdict
from reput_client.consume.group.member import MemberParts, Taking
from reput_client.consume.group.options import ConsumerOptions
from reput_client.consume.group.subscriber import NotAwaitable, StopSignals, Subscriber, awaited
from reput_client.consume.offsets import OffsetRequests
from reput_client.errors import QueueNotAssigned
from reput_client.offset_store import LocalFileOffsetStore
from reput_client.received import ReceivedMessage, V
from reput_client.transport.options import takes
from reput_protocol.codes import MessageModel
from reput_protocol.record.message import MessageQueue

_ENDING_S: Final = 1.0

Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[object]]


class Consumer(Subscriber, Generic[V]):
    """A member of a consumer group; an async context manager for trio and asyncio.

        async with Consumer(address, group="billing", topic="orders") as consumer:
            async for message in consumer:
                ...  # handled when the loop asks for the next message

    Or `run` calls a handler, for several messages at a time.

    Members divide the queues of their topics among themselves, again within a second after a member joins, leaves or
    dies. Progress is never committed past an unhandled message: after a crash some messages are redelivered, and none
    is lost (docs/client.md, Consuming).

    One task may iterate at a time; any task may close the consumer, which ends the iteration. Lost connections are
    reconnected with back-off, without limit. While entered, a task outside any task group keeps the membership and
    commits.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        group: the consumer group. All members must subscribe to the same topics and tags.
        topic, topics: one topic, several names, a mapping from names to tags, or a compiled regular expression: all
            topics whose whole name matches, also those that are created later, which are read from their beginning. It
            needs the right to list topics (`describe` on the cluster), and finds no topics of the system.
        tags: `*`, or tags joined by `||`, for every topic without its own.
        sql: instead of tags, a SQL92 expression over message properties: `amount > 5 AND TAGS = 'paid'`.
        start: where to begin in a queue for which the group has no offset: `earliest`, `latest`, a datetime (messages
            stored from then on), a queue offset, or a function that returns one for a queue.
        mode: `clustering`, or `broadcasting`: every member gets every message and keeps its own offsets.
        deserializer: returns `ReceivedMessage.value` for a body, such as `Json(Order).deserialize`. The type of the
            consumer, `Consumer[Order]`, and of its messages follows from it.
        orderly: deliver one message of a queue at a time, even with `run(concurrency=n)`, under a lock at the broker. A
            queue moves when its message is handled; after a member was killed, within a minute.
        allocation: how queues are divided, the same for all members: `averagely`, `circularly`, `by_machine_room`,
            `by_config` or `consistent_hash`.
        on_assigned: called with a list of queues that this member was assigned, before their first message is
            delivered, so it may `seek`. Here and in `on_revoked`, a coroutine is awaited, and an exception is logged.
        on_revoked: called with a list of queues that this member gives up, also at its end, after their last message
            was delivered and before their last commit. Other members wait 0.3 s for that, except in order.
        on_failure: what `run` does when a handler raises: `GiveBack` (default), `RetryHere` or `StopRunning`. A message
            that cannot be deserialized is not tried again.
        handler_timeout_s: after this long in a handler of `run` or with the caller of `take` or `receive_many`, a
            message is given back to the broker and counts as handled. Not in order or broadcasting.
        prefetch_messages, prefetch_bytes: prefetch limits over all queues (a single message may be larger).
        queue_messages_max, queue_bytes_max, queue_span_max: when to stop pulling from a queue; see `FlowLimits`.
        commit_interval_s: seconds between commits; 0 commits each time a message is requested.
        heartbeat_interval_s: seconds between heartbeats; less than the broker's `groups.heartbeat_timeout`.
        offset_store: where progress is kept; by default at the broker, or for `broadcasting` in a file in
            `~/.reput_offsets` (or `$REPUT_OFFSETS_DIR`).
        wait_for_topic: wait for a topic that does not exist, and read it from the beginning even with `start="latest"`;
            if False, entering raises `TopicNotFound`.
        instance: distinguishes broadcasting consumers of one group on one machine.

    Raises:
        InvalidName, FilterSyntaxError, ValueError, TypeError: an argument is not valid.
    """

    @takes(ConsumerOptions)
    def __init__(self, options: ConsumerOptions[V]) -> None:
        self.group = options.group
        super().__init__(options)
        self._own_file: FileOwner | None = None
        if options.model is MessageModel.BROADCASTING and options.offset_store is None:
            path = offset_file(options.group, options.instance)
            self._own_file = FileOwner(path)
            in_thread = self._session.runtime.in_thread
            options = replace(options, offset_store=LocalFileOffsetStore(path, in_thread=in_thread))
        self._subscriptions = options.subscriptions
        self._member = MemberParts(self._session, options)
        self._taking = Taking(self._session, self._member, self._join)
        self._iteration = self._taking.iteration
        self._offsets = OffsetRequests(self._session)
        self._on_failure = options.on_failure or GiveBack()

    # -- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, join the group and take the assigned queues.

        Queues that other members have to give up first follow within a second.

        Raises:
            ConnectFailed: no broker responds at the given addresses.
            TopicNotFound: there is no such topic, and `wait_for_topic` is False.
            NoQueue: a topic cannot be read.
            BrokerError: the broker refuses the member.
            OffsetStoreInUse: another broadcasting consumer uses the offset file.
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
        message = self._iteration.message
        has_handler = self._member.handlers.is_single  # the handler of `run` still has the message
        if message is not None and not has_handler:
            if kind is None:
                self._taking.current_is_handled()
            else:
                self._member.redeliver(message)
        await self.aclose()

    def stop(self) -> None:
        """Deliver no more messages: an iteration ends at its next message, `run` when its handlers are done.

        Never waits; any task may call it. `aclose`, or the end of the `async with` block, then commits all delivered
        messages and leaves the group.
        """
        self._taking.stop()

    async def aclose(self) -> None:
        """Commit what is handled, leave the group and close the connections; an iteration in progress ends.

        The application's message does not count as handled. In order, its queue stays locked until the lock expires, as
        if the program was killed; to avoid that, call `stop` and wait for the end of `run`. Idempotent.
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
    def stopped(self) -> bool:
        """Whether no more messages are delivered, because the consumer was stopped or closed."""
        return self._taking.over

    # -- the group ---------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The id of this member in the group; empty before it has joined."""
        return self._member.client_id

    async def members(self) -> list[str]:
        """Return the client ids of the group's members, sorted.

        Raises:
            ReputError: the broker does not answer.
        """
        return await self._member.members()

    # -- its queues --------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[MessageQueue]:
        """This member's queues now, including those of the retry topic."""
        return sorted(queue for queue, assigned in self._member.fetcher.queues.items() if assigned.confirmed)

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of the first unhandled message of each assigned queue."""
        return {queue: self._assigned(queue).progress.position for queue in self.assignment}

    async def lag(self) -> dict[MessageQueue, int]:
        """Return how many offsets of each assigned queue, from its position to its end, are not handled.

        The broker filters later, so messages that a filter leaves out are included.

        Raises:
            ReputError: a broker does not answer.
        """
        ends = {queue: await self._offsets.max_offset(queue) for queue in self.assignment}
        positions = self.positions()
        return {queue: max(0, ends[queue] - at) for queue, at in positions.items() if queue in ends}

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all progress now, including the message last received by iteration; once it returns, it is durable.

        Args:
            offsets: commit only these queues, each at the offset after its last handled message: all delivered messages
                below it count as handled.

        Raises:
            QueueNotAssigned: one of the queues is not assigned to this member.
            ValueError: an offset is below the position, where `seek` goes, or above the last delivered message.
            ReputError: the offset store failed; progress is kept and committed later.
        """
        if offsets is None:
            self._taking.current_is_handled()
            await self._member.commits.commit(self._member.fetcher.queues.values())
            return
        chosen = {self._assigned(queue): offset for queue, offset in offsets.items()}
        for assigned, offset in chosen.items():
            first, end = assigned.progress.position, assigned.progress.delivered_to
            if not first <= offset <= end:
                raise ValueError(
                    f"cannot commit offset {offset} of {assigned.queue}: its position is {first}, and messages before "
                    f"{end} were delivered; use seek to continue elsewhere"
                )
        for assigned, offset in chosen.items():
            assigned.handled_before(offset)
        self._member.fetcher.wake()  # there may be room for pulls
        await self._member.commits.commit(chosen)

    # -- seeking -----------------------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset` in an assigned queue, which is also committed.

        Messages in flight from `offset` on do not count any more when they are handled; those below still count. The
        background commits at once; await `commit` to be sure. At an offset that the queue does not have, the broker
        says where to continue: at the queue's start or end.

        Raises:
            QueueNotAssigned: `queue` is not assigned to this member.
            ValueError: the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"cannot seek to offset {offset}; offsets start at 0")
        self._member.seek(self._assigned(queue), offset)

    async def seek_to_time(self, when: datetime | int, queue: MessageQueue | None = None) -> None:
        """Continue at the first message stored at or after `when` (a datetime, or milliseconds since 1970).

        Without `queue`, here and below, in all assigned queues except those of the retry topic.

        Raises:
            QueueNotAssigned: `queue` is not assigned to this member.
            ReputError: a broker does not answer; queues asked before have moved.
        """
        await self._seek_each(queue, lambda each: self._offsets.offset_by_time(each, when))

    async def seek_to_beginning(self, queue: MessageQueue | None = None) -> None:
        """Continue at the first message still in the queue; otherwise like `seek_to_time`."""
        await self._seek_each(queue, self._offsets.min_offset)

    async def seek_to_end(self, queue: MessageQueue | None = None) -> None:
        """Continue with the next message that is sent; otherwise like `seek_to_time`."""
        await self._seek_each(queue, self._offsets.max_offset)

    async def _seek_each(self, queue: MessageQueue | None, offset_of: Callable[[MessageQueue], Awaitable[int]]) -> None:
        if queue is not None:
            self._assigned(queue)
            self.seek(queue, await offset_of(queue))
            return
        retry = self._member.options.subscriptions.retry
        for each in self.assignment:
            if each.topic != retry:
                offset = await offset_of(each)
                if each in self.assignment:  # it may have moved to another member meanwhile
                    self.seek(each, offset)

    # -- pausing -----------------------------------------------------------------------------------------------

    def pause(self, *queues: MessageQueue) -> None:
        """Deliver nothing more of these queues, by default of all assigned ones, until `resume`.

        Prefetched messages are dropped and pulled again later. Membership, commits and messages in flight are not
        affected. A queue that moves to another member and returns is not paused.

        Raises:
            QueueNotAssigned: one of them is not assigned to this member; none was paused.
        """
        for assigned in self._several(queues):
            self._member.fetcher.pause(assigned)

    def resume(self, *queues: MessageQueue) -> None:
        """Deliver messages of these queues, by default of all assigned ones, again.

        Raises:
            QueueNotAssigned: one of them is not assigned to this member; none was resumed.
        """
        for assigned in self._several(queues):
            self._member.fetcher.resume(assigned)

    @property
    def paused(self) -> list[MessageQueue]:
        """The assigned queues that are paused."""
        return [queue for queue in self.assignment if self._assigned(queue).paused]

    def _several(self, queues: tuple[MessageQueue, ...]) -> list[AssignedQueue]:
        return [self._assigned(queue) for queue in queues or self.assignment]

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        assigned = self._member.fetcher.queues.get(queue)
        if assigned is None or not assigned.confirmed:
            raise QueueNotAssigned(queue, self.assignment)
        return assigned

    # -- messages ----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage[V]:
        # `Iteration.next_now` inlined: this runs for every message.
        iteration = self._iteration
        if monotonic() < iteration.until:
            message = next(iteration.messages, None)
            if message is not None:
                iteration.message = message
                return message
        message = await self._taking.receive(math.inf)
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float = math.inf) -> ReceivedMessage[V] | None:
        """Mark the message before as handled; return the next, or None after `timeout_s` or when stopped or closed.

        With a `commit_interval_s` of 0, a commit may take half a second longer than `timeout_s`.

        Raises:
            BrokerError: a refusal that waiting does not change, such as a deleted topic.
            RecordMalformed: the broker's answer does not consist of records.
        """
        return await self._taking.receive(timeout_s)

    async def take(self, timeout_s: float = math.inf) -> ReceivedMessage[V] | None:
        """Like `receive`, but the message counts as handled only when its `ack`, `nack` or `reject` is called.

        For programs that handle several messages at a time, as `run` does.
        """
        taken = await self._taking.take(timeout_s)
        return None if taken is None else taken[1]

    async def receive_many(self, max_messages: int, timeout_s: float) -> list[ReceivedMessage[V]]:
        """Return up to `max_messages` messages at a time; empty after `timeout_s` or when stopped or closed.

        Waits for the first only, and adds those that have arrived by then. As with `take`, each counts as handled only
        when its `ack`, `nack` or `reject` is called. In order, there is at most one message of each queue.

        Raises:
            ValueError: `max_messages` is below 1.
            ReputError: as `receive`.
        """
        if max_messages < 1:
            raise ValueError(f"max_messages must be at least 1, not {max_messages}")
        taken = await self._taking.take(timeout_s)
        messages: list[ReceivedMessage[V]] = []
        while taken is not None:
            messages.append(taken[1])
            taken = self._taking.take_ready() if len(messages) < max_messages else None
        return messages

    async def run(
        self,
        handler: Callable[[ReceivedMessage[V]], Awaitable[object]],
        *,
        concurrency: int = 1,
        handle_signals: bool = True,
    ) -> None:
        """Call `handler` with every message, up to `concurrency` at a time, until the consumer is stopped or closed.

        A message is handled when its handler returns; only a contiguous prefix of a queue is committed. With
        `concurrency=1` or `orderly`, messages of a queue are handled in order. When a handler raises, `on_failure`
        decides. If that ends `run`, the exception is raised, with `concurrency` above 1 in an exception group; its
        message is not handled.

        SIGTERM and SIGINT (Ctrl-C) stop the consumer: `run` returns when the handlers in progress are done, with their
        progress committed. A second signal has its usual effect. That applies in the main thread, unless the program
        has set a handler for the signal, and not with `handle_signals=False`.

        Raises:
            TypeError: `handler` takes other arguments, or is a plain function; no message counts as handled.
            ReputError: as `receive`.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        handler = awaited(handler)
        if self._tracing is not None:
            handler = self._tracing.handler(handler, self.group)
        with StopSignals(self._session.runtime, self.stop, enabled=handle_signals) as signals:
            handlers = self._member.handlers
            handlers.begin(concurrency)
            try:
                await (self._run_concurrently(handler) if concurrency > 1 else self._run_one_by_one(handler))
            finally:
                handlers.end()
                self.rewind()
            if signals.received:
                await self._member.commits.commit_quietly(self._member.fetcher.queues.values())

    async def _run_one_by_one(self, handler: Handler) -> None:
        iteration = self._iteration
        while True:
            # `Iteration.next_now` inlined, as in `__anext__`.
            message = next(iteration.messages, None) if monotonic() < iteration.until else None
            if message is not None:
                iteration.message = message
            else:
                message = await self._taking.receive(math.inf)
                if message is None:
                    return
            try:
                await handler(message)
            except Exception as error:
                await self.failed(message, error)

    async def _run_concurrently(self, handler: Handler) -> None:
        """Call `handler` with each message, as many at a time as there are slots, until delivery ends or one fails.

        Each task takes one message at a time, so a slow handler delays no other message while a task is free.
        """
        import anyio  # not at the top: the synchronous API imports no event loop

        taking, slots = self._taking, self._member.handlers.slots
        gate = anyio.Lock(fast_acquire=True)

        async def work(number: int) -> None:
            while True:
                taken = taking.take_nowait()
                if taken is None:
                    slots[number] = None
                    async with gate:
                        taken = await taking.take(math.inf)
                    if taken is None:
                        return
                slots[number] = taken[1]
                await self._handle(taken, handler)

        async with anyio.create_task_group() as tasks:
            for number in range(len(slots)):
                tasks.start_soon(work, number)

    async def _handle(self, taken: Taken, handler: Handler) -> None:
        try:
            await handler(taken[1])
        except Exception as error:
            await self._failed(taken, error)
        else:
            self._member.handled(taken)

    async def failed(self, message: ReceivedMessage, error: Exception) -> None:
        """Apply `on_failure` to a message from `take` whose handling raised `error`.

        Raises:
            Exception: `error` itself, if `on_failure` ends `run`.
        """
        taken = self._iteration.finish() if self._iteration.message is message else None
        if taken is None:
            assigned = self._member.find(message.queue)
            taken = None if assigned is None else (assigned, message)
        if taken is not None:
            await self._failed(taken, error)
        elif isinstance(self._on_failure, StopRunning):
            raise error

    async def _failed(self, taken: Taken, error: Exception) -> None:
        if isinstance(error, NotAwaitable):
            raise error
        assigned, message = taken
        options = self._member.options
        if not assigned.progress.holds(message.queue_offset, message) and not isinstance(self._on_failure, StopRunning):
            return  # its queue has moved to another member
        failures = assigned.failures
        attempts = failures[message.queue_offset] = failures.get(message.queue_offset, 0) + 1
        failure = Failure(
            message,
            error,
            attempts,
            options.group,
            options.orderly,
            options.model is MessageModel.BROADCASTING,
            self._session,
        )
        assigned.deciding.add(message.queue_offset)
        try:
            decision = await self._on_failure.decide(failure)
        finally:
            assigned.deciding.discard(message.queue_offset)
        if decision is Verdict.RAISE:
            raise error
        if decision is Verdict.HANDLED:
            self._member.handled(taken)
        else:
            self._member.again(taken, decision.after_s)

    def rewind(self) -> None:
        """Redeliver next what was taken and not handled. Messages handled out of order are delivered twice."""
        self._iteration.finish()
        self._member.rewind()

    def _after_fork(self) -> None:
        """In a forked child: abandon the parent's connections, and join as a new member when used."""
        self._session.after_fork()
        self._taking.forget()
        self._member.forget()
