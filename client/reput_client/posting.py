"""Messages handed over one at a time: `post` puts each into a block and returns; its outcome is reported later."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from reput_client.backoff import Backoff
from reput_client.errors import BrokerNotFound, ClientClosed, PostsFailed, RequestTimeout
from reput_client.post_block import Block
from reput_client.post_gathering import Gathering, OnDone
from reput_client.post_steps import PostSteps
from reput_client.post_tending import PostTending
from reput_client.posted import Posted
from reput_client.puts import Putter
from reput_client.queue_selector import RoundRobin
from reput_client.routing import Route
from reput_client.session import Session
from reput_protocol.codes import AckLevel
from reput_protocol.message import Message, MessageQueue
from reput_protocol.message_id import UniqueIdGenerator

log = logging.getLogger("reput_client")

POST_LINGER_S: Final = 0.005
BUFFER_BYTES: Final = 32 << 20
_FAILED_BLOCKS_MAX: Final = 1000
_EXIT_S: Final = 5.0
"""How long the end of a program may wait for what was posted."""


class Posts:
    """What was posted with one producer: taken here, sent and told of by `PostTending`."""

    def __init__(
        self,
        session: Session,
        putter: Putter,
        selector: RoundRobin,
        ids: UniqueIdGenerator | None,
        *,
        linger_s: float,
        block_bytes: int,
        buffer_bytes: int,
        retries: int,
        new_backoff: Callable[[], Backoff],
    ) -> None:
        self._session = session
        self._linger_s = linger_s if linger_s > 0 else POST_LINGER_S
        self._gathering = Gathering(
            session.routes,
            selector,
            ids,
            known_alone=putter.deduplicate,
            block_bytes=block_bytes,
            held_max=buffer_bytes,
        )
        self._steps = PostSteps(
            session,
            putter,
            self._gathering,
            ids,
            retries=retries,
            new_backoff=new_backoff,
            on_failed=self._on_failed,
            on_idle=lambda: _unfinished.discard(self),
        )
        self._tending = PostTending(session, self._steps)
        self._failed: deque[Block] = deque()
        """Failed; `flush` raises for the messages whose failure was not reported yet."""
        self._failed_before = 0
        """Such messages of blocks that are forgotten."""
        self._flushing = 0
        """How many wait in `flush`, and will be told of failures."""
        self._closed = False

    # -- taking messages -----------------------------------------------------------------------------------------------

    def take(
        self, message: Message, ack: AckLevel, queue_id: int | None, key: str | None, on_done: OnDone | None
    ) -> Posted | None:
        """Take a message if a block is open for it and nothing is due; else None: see `post`."""
        if self._tending.is_due():
            return None
        return self._gathering.take(message, ack, queue_id, key, on_done)

    async def post(
        self, message: Message, ack: AckLevel, queue_id: int | None, key: str | None, on_done: OnDone | None
    ) -> Posted:
        """Do what is due, wait for room and for the route, and take a message.

        Whatever is raised, and whenever the caller is cancelled, the message was not taken.
        """
        self._check_open()
        gathering, session = self._gathering, self._session
        size = gathering.size_of(message)
        await self._tending.attend()
        await session.runtime.pause()
        deadline = session.deadline(None)
        while True:
            route = await session.publish_route(message.topic, deadline)
            self._check_open()
            if gathering.has_room(size):
                break
            await self._make_room(size, deadline)
        # From here to the end nothing waits.
        posted = self._put(message, size, ack, route, queue_id, key, on_done)
        self._tending.see_to_task()
        return posted

    def _put(
        self,
        message: Message,
        size: int,
        ack: AckLevel,
        route: Route,
        queue_id: int | None,
        key: str | None,
        on_done: OnDone | None,
    ) -> Posted:
        """Put a message into an open block; what that replaces leaves at once. Nothing here waits."""
        gathering, left = self._gathering, False
        alone = gathering.is_alone(message)
        is_current = queue_id is None and key is None and not alone
        block = gathering.current(message.topic) if is_current else None
        if block is not None and not gathering.fits(block, message, size, ack):
            self._steps.leave(block)
            block, left = None, True
        if block is None:
            queue = gathering.choose(route, queue_id, key, lambda queue: self._is_held_up(route, queue))
            address = route.brokers.get(queue.broker_name)
            if address is None:
                raise BrokerNotFound(queue.broker_name, queue.topic)
            block = gathering.open.get(queue)
            if block is not None and not gathering.fits(block, message, size, ack):
                self._steps.leave(block)
                block, left = None, True
            if block is None:
                due_at = self._session.runtime.now() + self._linger_s
                block = gathering.begin(
                    queue, address, message, ack, due_at, self._tending, is_current=is_current
                )
                self._steps.begun(block)
                _unfinished.add(self)
        posted = gathering.put(block, message, size, on_done)
        if alone:
            self._steps.leave(block)
            left = True
        if left and not self._steps.step():
            self._steps.wake()  # who waits writes the rest
        return posted

    async def _make_room(self, size: int, deadline: float) -> None:
        started_at = self._session.runtime.now()
        if not await self._tending.wait(lambda: self._is_ready_for(size), deadline):
            what = f"room for {size} bytes beside the {self._gathering.held} that wait for an answer"
            raise RequestTimeout(what, deadline - started_at)
        self._check_open()

    def _is_ready_for(self, size: int) -> bool:
        """Whether there is room, or never will be; asked again whenever a block is done."""
        gathering, steps = self._gathering, self._steps
        nothing_leaves = bool(gathering.open) and len(gathering.open) == len(steps.unfinished)
        if nothing_leaves and not self._closed and not gathering.has_room(size):
            steps.leave_all()  # nothing else can make room
            steps.wake()
        return self._closed or gathering.has_room(size)

    def _is_held_up(self, route: Route, queue: MessageQueue) -> bool:
        address = route.brokers.get(queue.broker_name)
        return address is None or self._steps.is_held_up(address)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    # -- telling -------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send what has gathered, and wait until all that was posted before is done, and its callbacks are called.

        Raises:
            PostsFailed: messages failed, and that was not reported yet.
        """
        steps, last = self._steps, self._gathering.last_serial
        steps.leave_all()
        self._flushing += 1
        try:
            await self._tending.attend()
            await self._tending.wait(lambda: next(iter(steps.unfinished), last + 1) > last, math.inf)
            await self._tending.called_back(last)
        finally:
            self._flushing -= 1
        self._raise_untold()

    def tell_interrupted(self) -> None:
        """After an interrupt has closed the client: call the callbacks that are left, and raise what `flush` raises.

        Raises:
            PostsFailed: messages failed or have an unknown outcome, and that was not reported yet.
        """
        self._tending.call_back_interrupted()
        self._raise_untold()

    def _raise_untold(self) -> None:
        failed, count = self._untold()
        if count:
            raise PostsFailed(failed, count)

    def _on_failed(self, block: Block) -> None:
        self._failed.append(block)
        if len(self._failed) > _FAILED_BLOCKS_MAX:
            self._failed_before += len(_untold(self._failed.popleft()))

    def _untold(self) -> tuple[list[Posted], int]:
        """Return the messages whose failure was not reported, and how many they are with those forgotten."""
        blocks = list(self._failed)
        if self._tending.interruption is not None:
            # Those that were not done by then; one may be in both places.
            blocks = list(dict.fromkeys((*blocks, *self._steps.unfinished.values())))
        failed = [posted for block in blocks for posted in _untold(block)]
        count = self._failed_before + len(failed)
        self._failed.clear()
        self._failed_before = 0
        for posted in failed:
            posted.is_told()
        return failed, count

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """After the connections were closed: end everything. Never waits."""
        self._closed = True
        self._steps.take_answers()
        self._steps.give_up(ClientClosed("the producer was closed before the message was sent"))

    async def ended(self) -> None:
        """After `close`: have the callbacks called and the task end, and log the failures that were not reported."""
        await self._tending.ended()
        if not self._flushing:
            self._log_untold()

    def _log_untold(self) -> None:
        _, count = self._untold()
        if count:
            log.error("%d posted messages have failed: the producer was closed without a flush", count)

    def end_with_program(self, deadline: float) -> None:
        """The program ends without `close`: send what was posted, or, where that takes an event loop, log how much."""
        caller = self._tending.caller
        if caller is None:
            count = sum(block.count or len(block.bodies) for block in self._steps.unfinished.values())
            log.error("%d posted messages have no outcome: the program has ended without a flush", count)
            return
        try:
            caller.run(self._flush_and_close(deadline))
        except ClientClosed:  # by an interrupt
            self._tending.call_back_interrupted()
            self._log_untold()

    async def _flush_and_close(self, deadline: float) -> None:
        self._steps.leave_all()
        await self._tending.wait(lambda: not self._steps.unfinished, deadline)
        self._session.close()
        self.close()
        await self.ended()

    def forget(self, ids: UniqueIdGenerator | None) -> None:
        """In a forked child: what is under way is the parent's; continue with other ids."""
        self._steps.forget(ids)
        self._tending.forget()
        self._failed.clear()
        self._failed_before = self._flushing = 0


_unfinished: Final[set[Posts]] = set()
"""Those with blocks that are not done; they are kept for `_end_with_program` even if the program forgets them."""

os.register_at_fork(after_in_child=_unfinished.clear)


@atexit.register
def _end_with_program() -> None:
    deadline = time.monotonic() + _EXIT_S
    unfinished = list(_unfinished)
    for number, posts in enumerate(unfinished):
        now = time.monotonic()
        share_s = max(0.0, deadline - now) / (len(unfinished) - number)
        try:
            posts.end_with_program(now + share_s)
        except (Exception, SystemExit):
            log.exception("a producer has failed to send what was posted before the program ended")


def _untold(block: Block) -> list[Posted]:
    """Return the messages of a block that failed or have an unknown outcome, where that was not reported."""
    count = block.count or len(block.bodies)
    return [
        Posted(block, number)
        for number in range(count)
        if number not in block.asked and block.error_of(number) is not None
    ]
