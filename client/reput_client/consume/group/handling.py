"""Taking messages from a member, one caller at a time, and calling the application's handler with them.

A member's pulls are driven by the caller that takes messages, so that what is pulled ahead follows what is
used. A caller that finds messages at hand does other work all the same every `TURN_S`: it takes what has
arrived, pulls ahead and lets others run.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeAlias

from reput_client.consume.group.assigned import Taken
from reput_client.consume.group.failures import Failure, OnFailure, StopRunning, Verdict
from reput_client.consume.group.member import GroupMember
from reput_client.consume.group.serving import TURN_S
from reput_client.errors import ClientClosed
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session
from reput_protocol.codes import MessageModel

_COMMIT_TIMEOUT_MIN_S: Final = 0.5
_STOOD_STILL_S: Final = 0.25


class Taking:
    """Hands out the messages of one member.

    Attributes:
        turn: while an application iterates: the message in its hands, and those that it gets without further ado.
    """

    def __init__(self, session: Session, member: GroupMember, join: Callable[[], Awaitable[None]]) -> None:
        """`join` makes it a member if it is none yet."""
        self.turn = member.serving.turn
        self._session = session
        self._member = member
        self._join = join
        self._commits_each_time = member.commits.each_time
        self._busy = False
        self._stopping = False
        self._look_round_at = -math.inf

    async def receive(self, timeout_s: float) -> ReceivedMessage | None:
        """Return the next message, whose turn it is then; the one before is handled. None as for `take`."""
        self.current_is_handled()
        taken = await self.take(timeout_s)
        if taken is None:
            return None
        serving = self._member.serving
        if self._commits_each_time:
            serving.turn.begin(taken)
        else:
            serving.begin_turn(taken)
        return taken[1]

    def current_is_handled(self) -> None:
        """The message of the turn is handled, if there is one."""
        taken = self.turn.finish()
        if taken is not None:
            self._member.handled(taken)

    async def take(self, timeout_s: float) -> Taken | None:
        """Return the next message, or None when `timeout_s` is over, or nothing is to be handed out any more.

        Raises:
            RuntimeError: another caller is waiting.
            BrokerError: a refusal that waiting does not cure.
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

    def take_at_hand(self) -> Taken | None:
        """As `take`, but None where that would have to wait or has something else to do; never waits."""
        if self._busy or self.over or self._commits_each_time or monotonic() >= self._look_round_at:
            return None
        return self._member.serving.take()

    def stop(self) -> None:
        """Hand out nothing more: a caller that waits gets None, and so does every later one."""
        self._stopping = True
        self.turn.rest()
        self._member.fetcher.wake()

    @property
    def over(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._stopping or self._session.closed

    async def _take(self, timeout_s: float) -> Taken | None:
        deadline = self._session.runtime.now() + timeout_s
        while not self.over:
            if self._commits_each_time:
                await self._commit_in_between(deadline)
            if monotonic() >= self._look_round_at:
                await self._look_round()
                if self.over:
                    return None
            taken = self._member.serving.take()
            if taken is not None:
                return taken
            if not await self._fetch(deadline):
                return None
        return None

    async def _commit_in_between(self, deadline: float) -> None:
        # Without a connection a commit would only use up the time that the caller gave for a message.
        if self._session.connected and self._member.commits.dirty():
            left_s = max(_COMMIT_TIMEOUT_MIN_S, deadline - self._session.runtime.now())
            queues = self._member.fetcher.queues.values()
            await self._member.commits.commit_quietly(queues, min(self._session.timeout_s, left_s))

    async def _look_round(self) -> None:
        """Now and then, although messages are at hand, pull ahead and let other tasks run."""
        if self._member.joined:
            fetcher = self._member.fetcher
            # After standing still it may be a member no more; that is found out before anything else is handed out.
            stood_still = monotonic() - self._look_round_at >= _STOOD_STILL_S
            self._session.poll(to_the_end=stood_still)
            fetcher.collect()
            await fetcher.pull_more(self._session.deadline(None))
            await self._session.runtime.pause()
        self._look_round_at = monotonic() + TURN_S

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
        if not brought:
            if session.runtime.now() >= deadline:
                return False
            await session.pump.wait(
                fetcher.waiter, min(deadline, fetcher.next_wake(), member.serving.next_wake())
            )
            fetcher.collect()
        self._look_round_at = monotonic() + TURN_S
        return True

    def forget(self) -> None:
        """In a forked child: nothing is held, and the caller that was waiting is in the parent."""
        self.turn.finish()
        self._busy = False


Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[object]]


class Handling:
    """Runs handlers for one consumer.

    Attributes:
        hands: what the handlers hold; the code that runs them notes it there.
    """

    def __init__(self, session: Session, member: GroupMember, taking: Taking, on_failure: OnFailure) -> None:
        self._session = session
        self._member = member
        self._taking = taking
        self._on_failure = on_failure
        self.hands = member.hands

    async def run_in_turn(self, handler: Handler) -> None:
        """Call `handler` with one message after the other until no more is handed out.

        Raises:
            Exception: what the handler raised, if that is to end it. The message is not handled.
        """
        self.hands.begin(1)
        try:
            await self._run_in_turn(handler)
        finally:
            self.hands.end()

    async def _run_in_turn(self, handler: Handler) -> None:
        taking, turn = self._taking, self._taking.turn
        while True:
            message = next(turn.messages, None) if monotonic() < turn.until else None
            if message is not None:
                turn.message = message
            else:
                message = await taking.receive(math.inf)
                if message is None:
                    return
            try:
                await handler(message)
            except Exception as error:
                await self.failed(message, error)

    async def run_concurrently(self, handler: Handler, concurrency: int) -> None:
        """Call `handler` with each message, `concurrency` at a time, until no more is handed out or a handler fails.

        Each of so many tasks takes a message and handles it: a slow handler holds up no message while a task is free.
        """
        import anyio  # not at the top: the blocking API loads no event loop

        taking, hands = self._taking, self.hands
        gate = anyio.Lock(fast_acquire=True)
        hands.begin(concurrency)
        slots = hands.slots

        async def work(number: int) -> None:
            while True:
                taken = taking.take_at_hand()
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
            hands.end()

    async def _handle(self, taken: Taken, handler: Handler) -> None:
        try:
            await handler(taken[1])
        except Exception as error:
            await self._failed(taken, error)
        else:
            self._member.handled(taken)

    async def failed(self, message: ReceivedMessage, error: Exception) -> None:
        """A message could not be handled, because of `error`: do with it what the application has chosen.

        Raises:
            Exception: `error` itself, if it is to end everything.
        """
        taken = self._taking.turn.finish() if self._taking.turn.message is message else None
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
            return  # its queue is another member's by now, and so is the message
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
        decision = await self._on_failure.decide(failure, self._session)
        if decision is Verdict.RAISE:
            raise error
        if decision is Verdict.HANDLED:
            self._member.handled(taken)
        else:
            self._member.again(taken, decision.after_s)
