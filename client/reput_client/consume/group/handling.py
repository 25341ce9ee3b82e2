"""Calling the application's handler with messages, and what becomes of those that it cannot handle."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeAlias

from reput_client.consume.group.assigned import Taken
from reput_client.consume.group.failures import Failure, OnFailure, StopRunning, Verdict
from reput_client.consume.group.member import GroupMember
from reput_client.consume.group.taking import Taking
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session
from reput_protocol.group_terms import MessageModel

Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[object]]


class Handling:
    """Runs handlers for one consumer.

    Attributes:
        hands: what they have in theirs; whoever runs handlers says so there.
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

    async def handle(self, taken: Taken, handler: Handler) -> None:
        """Call `handler` with one message that was taken; raises as `run_in_turn`."""
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
