"""Calling the application's handler with the messages of a member, and what follows if it raises."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeAlias

from reput_client.consume.group.assigned_queue import Taken
from reput_client.consume.group.failures import Failure, OnFailure, StopRunning, Verdict
from reput_client.consume.group.handlers import NotAwaitable
from reput_client.consume.group.member import MemberParts
from reput_client.consume.group.taking import Taking
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session
from reput_protocol.codes import MessageModel

Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[object]]


class Handling:
    """Runs handlers for one consumer.

    Attributes:
        handlers: the running handlers and their messages, updated by the code that runs them.
    """

    def __init__(self, session: Session, member: MemberParts, taking: Taking, on_failure: OnFailure) -> None:
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
            # `Iteration.next_now` inlined, as in `Consumer.__anext__`.
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
        if isinstance(error, NotAwaitable):
            raise error
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
