"""Taking messages from a member, one caller at a time, and calling the application's handler.

The caller that takes messages drives the pulls, so prefetching follows consumption. Even while messages are available
it polls every `POLL_INTERVAL_S`: it takes what has arrived, pulls ahead and lets other tasks run.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeAlias

from reput_client.consume.group.assigned_queue import Taken
from reput_client.consume.group.failures import Failure, OnFailure, StopRunning, Verdict
from reput_client.consume.group.member import GroupMember
from reput_client.consume.group.serving import POLL_INTERVAL_S
from reput_client.errors import ClientClosed
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session
from reput_protocol.codes import MessageModel

_COMMIT_TIMEOUT_MIN_S: Final = 0.5
_STOOD_STILL_S: Final = 0.25


class Taking:
    """Delivers the messages of one member.

    Attributes:
        iteration: the application's: the current message and those available without other work.
    """

    def __init__(self, session: Session, member: GroupMember, join: Callable[[], Awaitable[None]]) -> None:
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
            raise RuntimeError(
                "another task is waiting for a message of this consumer; use run(concurrency=)"
            )
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
            await session.pump.wait(
                fetcher.waiter, min(deadline, fetcher.next_wake(), member.serving.next_wake())
            )
            fetcher.collect()
        self._poll_at = monotonic() + POLL_INTERVAL_S
        return True

    def forget(self) -> None:
        """In a forked child: hold no message; a waiting caller exists in the parent only."""
        self.iteration.finish()
        self._busy = False


Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[object]]


class Handling:
    """Runs handlers for one consumer.

    Attributes:
        handlers: the running handlers and their messages, updated by the code that runs them.
    """

    def __init__(self, session: Session, member: GroupMember, taking: Taking, on_failure: OnFailure) -> None:
        self._session = session
        self._member = member
        self._taking = taking
        self._on_failure = on_failure
        self.handlers = member.handlers

    async def run_one_by_one(self, handler: Handler) -> None:
        """Call `handler` with one message after the other until delivery ends.

        Raises the handler's exception if it ends `run`; the message is not handled.
        """
        self.handlers.begin(1)
        try:
            await self._run_one_by_one(handler)
        finally:
            self.handlers.end()

    async def _run_one_by_one(self, handler: Handler) -> None:
        taking, iteration = self._taking, self._taking.iteration
        while True:
            message = next(iteration.messages, None) if monotonic() < iteration.until else None
            if message is not None:
                iteration.message = message
            else:
                message = await taking.receive(math.inf)
                if message is None:
                    return
            try:
                await handler(message)
            except Exception as error:
                await self.failed(message, error)

    async def run_concurrently(self, handler: Handler, concurrency: int) -> None:
        """Call `handler` with each message, `concurrency` at a time, until delivery ends or a handler fails.

        Each of `concurrency` tasks takes one message at a time, so a slow handler delays no other message while a task
        is free.
        """
        import anyio  # not at the top: the synchronous API imports no event loop

        taking, handlers = self._taking, self.handlers
        gate = anyio.Lock(fast_acquire=True)
        handlers.begin(concurrency)
        slots = handlers.slots

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

        try:
            async with anyio.create_task_group() as tasks:
                for number in range(concurrency):
                    tasks.start_soon(work, number)
        finally:
            handlers.end()

    async def _handle(self, taken: Taken, handler: Handler) -> None:
        try:
            await handler(taken[1])
        except Exception as error:
            await self._failed(taken, error)
        else:
            self._member.handled(taken)

    async def failed(self, message: ReceivedMessage, error: Exception) -> None:
        """Apply the application's `on_failure` to a message whose handling raised `error`.

        Raises:
            Exception: `error` itself, if it ends `run`.
        """
        taken = self._taking.iteration.finish() if self._taking.iteration.message is message else None
        if taken is None:
            assigned = self._member.find(message.queue)
            taken = None if assigned is None else (assigned, message)
        if taken is not None:
            await self._failed(taken, error)
        elif isinstance(self._on_failure, StopRunning):
            raise error

    async def _failed(self, taken: Taken, error: Exception) -> None:
        assigned, message = taken
        options = self._member.options
        if not assigned.progress.holds(message.queue_offset, message) and not isinstance(
            self._on_failure, StopRunning
        ):
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
        )
        assigned.deciding.add(message.queue_offset)
        try:
            decision = await self._on_failure.decide(failure, self._session)
        finally:
            assigned.deciding.discard(message.queue_offset)
        if decision is Verdict.RAISE:
            raise error
        if decision is Verdict.HANDLED:
            self._member.handled(taken)
        else:
            self._member.again(taken, decision.after_s)
