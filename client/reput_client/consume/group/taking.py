"""Taking messages out of a member's hands, one caller at a time: waiting for them, and doing what that takes.

A member's pulls are driven by whoever takes messages, so that what is pulled ahead follows what is used. A caller that
finds messages at hand looks round all the same every `TURN_S`: takes what has come, pulls ahead, lets others run.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from reput_client.consume.group.assigned import Taken
from reput_client.consume.group.member import GroupMember
from reput_client.consume.group.serving import TURN_S
from reput_client.errors import ClientClosed
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session

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
            RuntimeError: somebody else is waiting.
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
        """Hand out nothing more: whoever waits gets None, and whoever asks later."""
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
        """In a forked child: nothing is in hand, and whoever was waiting is in the parent."""
        self.turn.finish()
        self._busy = False
