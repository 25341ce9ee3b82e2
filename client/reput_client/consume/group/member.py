"""A member of a consumer group: its parts, how it joins and leaves, and how it gives messages to one caller at a time.

The caller that takes messages drives the pulls, so prefetching follows consumption. Even while messages are available
it polls every `POLL_INTERVAL_S`: it takes what has arrived, pulls ahead and lets other tasks run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from reput_client.consume.group.assigned_queue import AssignedQueue, Taken
from reput_client.consume.group.commits import Commits
from reput_client.consume.group.failures import Overdue, RunningHandlers
from reput_client.consume.group.fetcher import Fetcher
from reput_client.consume.group.handover import Handover
from reput_client.consume.group.membership import ForwardedRequests, Membership
from reput_client.consume.group.options import ConsumerOptions
from reput_client.consume.group.rebalance import Assignment, Rebalancer
from reput_client.consume.group.serving import POLL_INTERVAL_S, FairServing, OrderedServing, Serving
from reput_client.consume.group.subscriptions import TopicSearch
from reput_client.consume.send_back import DEAD_LETTER, send_back
from reput_client.errors import ClientClosed, NoQueue
from reput_client.received import ReceivedMessage
from reput_client.transport.background import Background, Chore
from reput_client.transport.client import new_client_id
from reput_client.transport.session import Session, wall_clock_ms
from reput_protocol.codes import MessageModel
from reput_protocol.errors import TopicNotFound
from reput_protocol.record.delays import delay_level_of
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Waiter

_SETTLE_S: Final = 1.0
"""How long joining waits for queues that others have to give up."""
_STOP_S: Final = 0.5

log = logging.getLogger("reput_client")


class MemberParts:
    """The parts of this member of the group, and their background.

    Attributes:
        handlers: the handlers of `run` and their messages.
        fetcher, serving, commits: used directly by callers.
    """

    def __init__(self, session: Session, options: ConsumerOptions) -> None:
        self.options = options
        self._session = session
        now = session.runtime.now
        self.serving: Serving = OrderedServing(now) if options.orderly else FairServing(now)
        self.handlers = RunningHandlers(self.serving.iteration)
        self._membership = Membership(
            session,
            options,
            on_change=self._group_changed,
            on_lost=self._broker_lost,
            on_failure=lambda: self.fetcher.wake(),
        )
        self.fetcher = Fetcher(session, options, self.serving, self._membership.source, self)
        ForwardedRequests(options, self.fetcher, wall_clock_ms()).register(session.requests)
        self.commits = Commits(session, options, self.fetcher, self._membership)
        self._rebalancer = Rebalancer(session, options, self._membership, self._assigned)
        self._search = TopicSearch(session, options.subscriptions, self._found)
        session.on_stale_routes = self._routes_stale
        self._handover = Handover(session, options, self.fetcher, self._membership, self.commits)
        chores: list[Chore] = [self._search, self._membership, self._rebalancer, self._handover, self.commits]
        if self._handover.locks is not None:
            chores.append(self._handover.locks)
        self._overdue: Overdue | None = None
        clustering = options.model is MessageModel.CLUSTERING
        if clustering and not options.orderly and options.handler_timeout_s < math.inf:
            self._overdue = Overdue(
                session,
                options.group,
                self.fetcher.queues,
                self.serving,
                self.handlers,
                options.handler_timeout_s,
                self.handled,
            )
            chores.append(self._overdue)
        self._background = Background(session, chores, on_failure=self.fetcher.wake)

    @property
    def client_id(self) -> str:
        """The member's id in the group; empty before it has joined."""
        return self._membership.client_id

    @property
    def joined(self) -> bool:
        """Whether it has joined and its background runs."""
        return self._background.running

    @property
    def failure(self) -> Exception | None:
        """A permanent failure: refused by the group, a topic that is gone, or an internal error."""
        if self._background.failure is not None:
            return self._background.failure
        if self._membership.failure is not None:
            return self._membership.failure
        return self._rebalancer.failure

    # -- life ------------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Join the group and take the assigned queues; raises like `Consumer.__aenter__`.

        May be repeated after an interrupt. Queues that other members have to give up first may follow later.
        """
        session = self._session
        deadline = session.deadline(None)
        await self._search.look(self._session.deadline(None))
        for topic in self.options.subscriptions.topics:
            try:
                route = await session.route(topic, deadline)
            except TopicNotFound:
                if not self.options.wait_for_topic:
                    raise
                self._wait_for(topic)
                continue
            if not route.readable:
                raise NoQueue(topic, "readable queue")
        if not self._membership.client_id:
            connection = await session.open(None, deadline)
            self._membership.client_id = new_client_id(connection.sock.getsockname()[0])
        await self._membership.enter(session.deadline(None))
        await self._rebalancer.do()
        if self._rebalancer.failure is not None:
            raise self._rebalancer.failure
        await self._settle()
        self.commits.begin()
        if self.commits.dirty():
            self.commits.soon()
        if self._handover.locks is not None:
            self._handover.locks.begin()
        if self._overdue is not None:
            self._overdue.begin()
        self._background.start()

    def _found(self, topic: str) -> None:
        """Take the queues of a topic that matches the pattern, a later one's from their beginning."""
        if self.joined:
            self._handover.starting.late_topics.add(topic)
            self._membership.soon()
            self._rebalancer.soon()

    def _wait_for(self, topic: str) -> None:
        """Take the queues of a topic once it exists, from their beginning: all messages are new."""
        if topic not in self._rebalancer.awaited:
            log.warning(
                "topic %s does not exist yet: group %s waits for it to be created (wait_for_topic=False raises)",
                topic,
                self.options.group,
            )
        self._rebalancer.awaited.add(topic)
        self._handover.starting.late_topics.add(topic)

    async def _settle(self) -> None:
        session = self._session
        until = session.runtime.now() + _SETTLE_S
        waiter = Waiter()
        while True:
            for chore in (self._membership, self._rebalancer, self._handover):
                if chore.next_due() <= session.runtime.now():
                    await chore.do()
            if self._handover.settled or session.runtime.now() >= until:
                return
            await session.pump.wait(waiter, min(until, self._handover.next_due()))

    async def leave(self, timeout_s: float) -> None:
        """Commit, free locks and unregister. Never raises; `timeout_s` is for each request.

        In order, a queue whose message is being handled stays locked until the lock expires, so that no member begins
        with its next message. The member then does not unregister, which would free all its locks; the broker notices
        the end of the connection.
        """
        await self._background.stop(_STOP_S)
        queues = self._handover.queues
        await self._handover.revoked(queues)
        if self._session.connected:
            in_hand = [assigned for assigned in queues if self.options.orderly and assigned.progress.in_flight]
            for assigned in in_hand:
                log.warning("queue %s stays locked for a while, a message of it is being handled", assigned.queue)
            await self._handover.let_go(queues, timeout_s, locked=in_hand)
            if not in_hand:
                await self._membership.leave(timeout_s)

    async def ended(self) -> None:
        """Return when nothing runs any more, after the session was closed."""
        self.fetcher.wake()
        await self._background.stop(math.inf)

    def forget(self) -> None:
        """In a forked child: become a new member without messages, which joins when used."""
        for assigned in self.fetcher.queues.values():
            assigned.leaving_until = 0.0
            self.serving.forget(assigned)
        self.fetcher.forget()
        self._background.forget()
        self._membership.forget()
        self._rebalancer.forget()
        self._handover.forget()
        self.commits.forget()

    # -- settling --------------------------------------------------------------------------------------------------

    def ack(self, message: ReceivedMessage) -> None:
        """See `ReceivedMessage`."""
        self._session.runtime.call(lambda: self._ack(message))

    def _ack(self, message: ReceivedMessage) -> None:
        assigned = self.find(message.queue)
        if assigned is not None:
            self.handled((assigned, message))

    def nack(self, message: ReceivedMessage, delay_s: float | None, reason: str | None) -> Awaitable[None]:
        """See `ReceivedMessage`."""
        delay_level = 0 if delay_s is None else delay_level_of(delay_s)
        if self.options.orderly or self.options.model is MessageModel.BROADCASTING:
            work = self._come_again(message, 1.0 if delay_s is None else delay_s)
        else:
            work = self._give_back(message, delay_level, reason)
        return self._session.runtime.perform(work)

    def reject(self, message: ReceivedMessage, reason: str | None) -> Awaitable[None]:
        """See `ReceivedMessage`."""
        return self._session.runtime.perform(self._give_back(message, DEAD_LETTER, reason))

    async def _come_again(self, message: ReceivedMessage, after_s: float) -> None:
        self.redeliver(message, after_s)

    def redeliver(self, message: ReceivedMessage, after_s: float = 0.0) -> None:
        """Redeliver a message of the application here, without the broker."""
        taken = self._in_hand(message)
        if taken is not None:
            self.again(taken, after_s)

    async def _give_back(self, message: ReceivedMessage, delay_level: int, reason: str | None) -> None:
        taken = self._in_hand(message)
        if taken is None:
            return
        if self.options.model is MessageModel.BROADCASTING:
            log.warning("group %s: %r rejected: %s", self.options.group, message, reason)
        else:
            await send_back(
                self._session,
                message,
                group=self.options.group,
                queue=message.queue,
                delay_level=delay_level,
                reason=reason,
            )
        self.handled(taken)

    def _in_hand(self, message: ReceivedMessage) -> Taken | None:
        """Return a message of the application with its queue, or None if it is not in flight here.

        An iteration with it ends: the next request does not count it as handled.
        """
        assigned = self.find(message.queue)
        if assigned is None or not assigned.progress.holds(message.queue_offset, message):
            return None
        if self.serving.iteration.message is message:
            self.serving.iteration.finish()
        return assigned, message

    # -- events ----------------------------------------------------------------------------------------------------

    def handled(self, taken: Taken) -> None:
        """Note that a message is handled, and wake what may have waited for that."""
        assigned, message = taken
        assigned.handled(message)
        if assigned.leaving_until is not None:
            if not assigned.progress.in_flight:
                self._background.wake()
        elif assigned.held_back or self.options.orderly:
            self.fetcher.wake()

    def again(self, taken: Taken, after_s: float) -> None:
        """Redeliver an unhandled message, or leave it to the next owner of its queue."""
        assigned, message = taken
        if assigned.is_active:
            self.serving.again(taken, self._session.runtime.now() + after_s)
            self.fetcher.wake()
        elif assigned.leaving_until is None:
            self.fetcher.rewind_queue(assigned)
        elif self.options.orderly:
            assigned.progress.put_back(message.queue_offset)
            self._background.wake()

    def seek(self, assigned: AssignedQueue, offset: int) -> None:
        """Continue at an offset that the application chose, and commit it soon."""
        self.fetcher.seek(assigned, offset)
        self.commits.soon()
        self._background.wake()

    def rewind(self) -> None:
        """Redeliver what was delivered and not handled, or leave it to the next owner."""
        self.fetcher.rewind()
        self._handover.rewind()
        self._background.wake()

    def find(self, queue: MessageQueue) -> AssignedQueue | None:
        """Return one of the member's queues, or of those it is giving up."""
        return self.fetcher.queues.get(queue) or self._handover.leaving.get(queue)

    def _group_changed(self) -> None:
        self._search.soon()
        self._rebalancer.soon()
        self._background.wake()

    def _routes_stale(self) -> None:
        self._rebalancer.refresh_routes()
        self._background.wake()

    def _assigned(self, assignment: Assignment) -> None:
        self._handover.follow(assignment)
        if self._rebalancer.failure is not None:
            self.fetcher.wake()

    def _broker_lost(self, broker_name: str) -> None:
        self._handover.doubt(broker_name)
        self._rebalancer.cut_off()
        self._background.wake()

    async def members(self) -> list[str]:
        """Return the client ids of the group's members, sorted, as one of its brokers knows them.

        Raises `ReputError` if the broker does not answer.
        """
        return sorted(await self._membership.any_members())


_COMMIT_TIMEOUT_MIN_S: Final = 0.5
_STOOD_STILL_S: Final = 0.25


class Taking:
    """Delivers the messages of one member.

    Attributes:
        iteration: the application's: the current message and those available without other work.
    """

    def __init__(self, session: Session, member: MemberParts, join: Callable[[], Awaitable[None]]) -> None:
        """`join` joins the group if the member has not."""
        self.iteration = member.serving.iteration
        self._session = session
        self._member = member
        self._join = join
        self._commits_each_time = member.commits.each_time
        self._busy = False
        self._stopping = False
        self._poll_at = -math.inf

    async def receive(self, timeout_s: float) -> ReceivedMessage | None:
        """Mark the current message as handled and return the next one, or None as `take`."""
        self.current_is_handled()
        taken = await self.take(timeout_s)
        if taken is None:
            return None
        serving = self._member.serving
        if self._commits_each_time:
            serving.iteration.begin(taken)
        else:
            serving.begin_iteration(taken)
        return taken[1]

    def current_is_handled(self) -> None:
        """Mark the iteration's current message, if any, as handled."""
        taken = self.iteration.finish()
        if taken is not None:
            self._member.handled(taken)

    async def take(self, timeout_s: float) -> Taken | None:
        """Return the next message, or None after `timeout_s` or when the consumer is stopped or closed.

        Raises:
            RuntimeError: another caller is waiting.
            BrokerError: a refusal that waiting does not change.
        """
        if self._busy:
            raise RuntimeError("another task is waiting for a message of this consumer; use run(concurrency=)")
        self._busy = True
        try:
            return await self._take(timeout_s)
        except ClientClosed:
            if not self._session.closed:
                raise
            return None
        finally:
            self._busy = False

    def take_nowait(self) -> Taken | None:
        """Like `take`, but never waits: None if it would have to wait or poll."""
        if self._busy or self.over or self._commits_each_time or monotonic() >= self._poll_at:
            return None
        return self._member.serving.take()

    def take_ready(self) -> Taken | None:
        """Return a message that has arrived and follows one just taken; None if there is none, and when it is over."""
        return None if self.over else self._member.serving.take()

    def stop(self) -> None:
        """Deliver nothing more: waiting and later callers get None."""
        self._stopping = True
        self.iteration.drop_rest()
        self._member.fetcher.wake()

    @property
    def over(self) -> bool:
        """Whether no more messages are delivered."""
        return self._stopping or self._session.closed

    async def _take(self, timeout_s: float) -> Taken | None:
        deadline = self._session.runtime.now() + timeout_s
        while not self.over:
            if self._commits_each_time:
                await self._commit_in_between(deadline)
            if monotonic() >= self._poll_at:
                await self._poll()
                if self.over:
                    return None
            taken = self._member.serving.take()
            if taken is not None:
                return taken
            if not await self._fetch(deadline):
                return None
        return None

    async def _commit_in_between(self, deadline: float) -> None:
        # Without a connection a commit would only use up the caller's timeout.
        if self._session.connected and self._member.commits.dirty():
            left_s = max(_COMMIT_TIMEOUT_MIN_S, deadline - self._session.runtime.now())
            queues = self._member.fetcher.queues.values()
            await self._member.commits.commit_quietly(queues, min(self._session.timeout_s, left_s))

    async def _poll(self) -> None:
        if self._member.joined:
            fetcher = self._member.fetcher
            # After a long pause it may not be a member any more; notice that before any delivery.
            stood_still = monotonic() - self._poll_at >= _STOOD_STILL_S
            self._session.poll(to_the_end=stood_still)
            fetcher.collect()
            await fetcher.pull_more(self._session.deadline(None))
            await self._session.runtime.pause()
        self._poll_at = monotonic() + POLL_INTERVAL_S

    async def _fetch(self, deadline: float) -> bool:
        """Wait until a pull is answered or there is other work; False at the deadline."""
        session, member = self._session, self._member
        fetcher = member.fetcher
        if member.failure is not None:
            raise member.failure
        if not member.joined:
            await self._join()  # the first use without `async with`, or in a forked child
        session.poll()
        brought = fetcher.collect()
        await fetcher.pull_more(deadline)
        if not brought:
            if session.runtime.now() >= deadline:
                return False
            await session.pump.wait(fetcher.waiter, min(deadline, fetcher.next_wake(), member.serving.next_wake()))
            fetcher.collect()
        self._poll_at = monotonic() + POLL_INTERVAL_S
        return True

    def forget(self) -> None:
        """In a forked child: hold no message; a waiting caller exists in the parent only."""
        self.iteration.finish()
        self._busy = False
