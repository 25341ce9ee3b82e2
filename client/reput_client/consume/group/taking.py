"""Taking messages from a member, one caller at a time.

The caller that takes messages drives the pulls, so prefetching follows consumption. Even while messages are available
it polls every `POLL_INTERVAL_S`: it takes what has arrived, pulls ahead and lets other tasks run.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from reput_client.consume.group.assigned_queue import Taken
from reput_client.consume.group.member import MemberParts
from reput_client.consume.group.serving import POLL_INTERVAL_S
from reput_client.errors import ClientClosed
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session

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
