"""Messages that gather in blocks: `send` waits for the outcome, `post` reports it later, to callbacks too."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import repeat
from threading import get_ident
from typing import Final

from reput_client.errors import ClientClosed, PostsFailed, RequestTimeout
from reput_client.produce.accumulator import Accumulator, is_alone
from reput_client.produce.block import EncodedBlock, GatheredBlock, PostedMessage, Terms
from reput_client.produce.block_sender import BlockSender
from reput_client.produce.puts import outcome_unknown
from reput_client.produce.queue_selector import FreeChoice, QueueChoice
from reput_client.receipts import OnDone, SendReceipt
from reput_client.transport.runtime import CallerRuns, Event, Runtime
from reput_client.transport.session import Session
from reput_protocol.buffers import Buffer
from reput_protocol.errors import ReputError
from reput_protocol.record.delays import Delay
from reput_protocol.record.message import Message, MessageQueue
from reput_protocol.record.message_id import UniqueIdGenerator

log = logging.getLogger("reput_client")

POST_LINGER_S: Final = 0.005
_GROWS_S: Final = 0.05
"""How long a block of sends takes more messages while others are unanswered; some of them have little time left."""
BUFFER_BYTES: Final = 32 << 20
_FAILED_BLOCKS_MAX: Final = 1000
_STOP_S: Final = 5.0
_EXIT_S: Final = 5.0
"""How long a program's exit may wait for posted messages."""
_ENDS_CALLER: Final = (KeyboardInterrupt, SystemExit)
_unfinished: Final[set[Gathering]] = set()
"""Those with unfinished blocks, kept until `_end_with_program` even if the program drops them."""


class Callbacks:
    """Calls one producer's callbacks, one at a time, in the order in which their blocks were done."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # A producer's task must survive these; a caller need not.
        self._let_through = _ENDS_CALLER if isinstance(runtime, CallerRuns) else ()
        self._to_call: deque[GatheredBlock] = deque()
        """Done blocks with callbacks to call."""
        self._calling: int | None = None
        """The thread that is calling one."""
        self._called: Event | None = None
        """Set when a block's callbacks were called, if a caller waits."""

    def __bool__(self) -> bool:
        return bool(self._to_call)

    @property
    def are_due(self) -> bool:
        """Whether `call` would call any."""
        return bool(self._to_call) and self._calling is None

    def add(self, block: GatheredBlock) -> None:
        """Schedule the callbacks of a done block that has some."""
        self._to_call.append(block)

    async def call(self) -> None:
        """Call the callbacks of done blocks; does nothing while any thread is calling one."""
        while self._to_call and self._calling is None:
            block = self._to_call[0]
            self._calling = get_ident()
            try:
                await self._runtime.outside(partial(self._call_each, block))
            finally:
                self._calling = None
                if not block.callbacks and self._to_call and self._to_call[0] is block:
                    self._to_call.popleft()
                if self._called is not None:
                    self._called.set()
                    self._called = None

    def call_interrupted(self, unfinished: Iterable[GatheredBlock]) -> None:
        """Like `call`, after an interrupt has closed the client; includes unfinished blocks.

        Another thread may still be in a callback.
        """
        for block in (*self._to_call, *unfinished):
            self._call_each(block)

    async def called(self, last: int) -> None:
        """Return when the callbacks of blocks up to serial `last` were called, by any thread.

        Returns early when called from a callback, which would wait for itself.
        """
        await self.call()
        while self._calling not in (None, get_ident()) and any(block.serial <= last for block in self._to_call):
            if self._called is None:
                self._called = self._runtime.event()
            await self._called.wait(math.inf)
            await self.call()

    def forget(self) -> None:
        """In a forked child: drop the parent's callbacks."""
        self._to_call.clear()
        self._calling = self._called = None

    def _call_each(self, block: GatheredBlock) -> None:
        with suppress(IndexError):  # from `popleft`: none is left
            # CPython runs no signal handler between a step of this `map` and the first instruction of `on_done`, so
            # each callback is called once.
            for posted, on_done in map(deque.popleft, repeat(block.callbacks)):
                try:
                    on_done(posted)
                except self._let_through:
                    raise
                except BaseException:
                    log.exception("the callback of a posted message has raised")


class Gathering:
    """The messages of `send` and `post` of one producer: added, sent and reported.

    Under trio and asyncio a task sends those of `post` while any is unfinished; a waiting caller restarts it if it was
    cancelled. In the synchronous API the callers that post or wait send them.
    """

    def __init__(self, session: Session, accumulator: Accumulator, sender: BlockSender, *, linger_s: float) -> None:
        self._session = session
        self._accumulator = accumulator
        self._sender = sender
        self.linger_s = linger_s
        """How long a message waits for others, see `Producer`; holds for blocks that open from now on."""
        self._unfinished: dict[int, GatheredBlock] = {}
        """Unfinished blocks by serial, in order."""
        self._callbacks = Callbacks(session.runtime)
        self._ended: Event | None = None
        """Set when the task has ended; None without a task."""
        self._failed: deque[GatheredBlock] = deque()
        """Failed blocks; `flush` raises for messages not reported."""
        self._failed_before = 0
        """Number of such messages in blocks dropped from `_failed`."""
        self._flushing = 0
        """Callers in `flush`, which reports failures."""
        self._closed = False

    # -- taking messages -----------------------------------------------------------------------------------------------

    def take(self, message: Message, terms: Terms, choice: QueueChoice, on_done: OnDone | None) -> PostedMessage | None:
        """Add a message if its block is open and nothing is due; else return None, and `post` is needed."""
        if self._sender.blocking_runtime is not None and self._session.runtime.now() >= self._sender.due_at:
            return None
        posted = self._accumulator.take(message, terms, choice)
        if posted is None:
            return None
        if on_done is not None:
            posted.block.call_back(posted, on_done)
        return posted

    async def post(self, message: Message, terms: Terms, choice: QueueChoice, on_done: OnDone | None) -> PostedMessage:
        """Do what is due, let other tasks run, and add a message as soon as there is room."""
        self._check_open()
        await self._do_due()
        await self._session.runtime.pause()
        posted = await self._take(message, terms, choice, on_done)
        self._ensure_task()
        return posted

    async def post_block(self, queue: MessageQueue, count: int, data: Buffer, terms: Terms) -> PostedMessage:
        """Do what is due, and send an encoded block of `count` messages as soon as there is room."""
        self._check_open()
        await self._do_due()
        accumulator, sender = self._accumulator, self._sender
        if not accumulator.has_room(len(data)):
            await self._make_room(len(data), self._session.runtime.now() + terms.timeout_s)
        before = accumulator.open.get(queue)
        if before is not None:
            sender.seal(before)
        accumulator.last_serial += 1
        block = EncodedBlock(
            queue,
            terms,
            self._on_done,
            serial=accumulator.last_serial,
            waits=self,
            count=count,
            data=data,
            size=len(data),
            positions=(0,),
            unique_ids=(None,),
        )
        accumulator.held += block.size
        self._unfinished[block.serial] = block
        _unfinished.add(self)
        sender.add(block)
        sender.go_on()
        self._ensure_task()
        return PostedMessage(block, 0)

    async def send(self, message: Message, terms: Terms, choice: QueueChoice) -> SendReceipt:
        """Send a message in a block with others that come soon; return its receipt or raise like `Producer.send`.

        If the caller is cancelled before the block is sealed, the message is removed from it.
        """
        posted = self._accumulator.take(message, terms, choice) or await self._take(message, terms, choice)
        block, number = posted.block, posted.number
        try:
            await self._sender.wait_for(block)
        except ClientClosed as closed:  # from an interrupt
            raise outcome_unknown(block.queue, [block.unique_id_of(number)], str(closed)) from closed
        finally:
            if not block.done:
                self._leave(block, number)
        return block.outcome(number)

    def send_now(self) -> None:
        """Send the open blocks, because no further message is to be expected soon."""
        self._sender.seal_all()
        self._sender.go_on()

    def _leave(self, block: GatheredBlock, number: int) -> None:
        """Take a message of a cancelled send out of its block; a block that no caller waits for is not sent."""
        if self._accumulator.open.get(block.queue) is block:
            self._accumulator.withdraw(block, number)
            if not block.is_empty:
                return
            self._accumulator.close(block)
        else:
            block.left += 1
            if block.left < block.count:
                return
            self._sender.withdraw([block])
        block.finish(None, None)
        self._on_done(block)

    async def _take(
        self, message: Message, terms: Terms, choice: QueueChoice, on_done: OnDone | None = None
    ) -> PostedMessage:
        """Wait for room and for the route, and add a message; if this raises or is cancelled, it was not added."""
        accumulator, session = self._accumulator, self._session
        self._check_open()
        text, size = accumulator.measure(message)
        now = session.runtime.now()
        deadline = now + terms.timeout_s
        while True:
            route = session.routes.fresh(message.topic, now)
            if route is None:
                route = await session.publish_route(message.topic, deadline)
                self._check_open()
            if accumulator.has_room(size):
                break
            await self._make_room(size, deadline)
        # No wait from here on. A block that the message does not fit into is sent.
        sender, left = self._sender, False
        alone = message.delay is not None and is_alone(message)
        block: GatheredBlock | None = None
        if isinstance(choice, FreeChoice) and not alone:
            block = accumulator.current.get((message.topic, choice))
        if block is not None and not accumulator.fits(block, message, size, terms):
            sender.seal(block)
            block, left = None, True
        if block is None:
            queue = sender.choose(route, choice)
            block = accumulator.open.get(queue)
            if block is not None and (alone or not accumulator.fits(block, message, size, terms)):
                sender.seal(block)
                block, left = None, True
            if block is None:
                block = self._begin(queue, terms, choice, message.delay if alone else None)
        if choice is not None:
            block.pin(choice)
        posted = accumulator.put(block, message, text, size)
        if on_done is not None:
            block.call_back(posted, on_done)
        if alone:
            sender.seal(block)
            left = True
        if left:
            sender.go_on()
        return posted

    def _begin(self, queue: MessageQueue, terms: Terms, choice: QueueChoice, delay: Delay | None) -> GatheredBlock:
        sender, now = self._sender, self._session.runtime.now()
        if terms.is_bulk:  # posted
            due_at, grows_until = now + (self.linger_s or POST_LINGER_S), now + terms.timeout_s
        else:
            due_at = now + self.linger_s
            grows_until = due_at + _GROWS_S
        block = self._accumulator.begin(queue, terms, self._on_done, self, choice, delay)
        block.since, block.due_at, block.grows_until = now, due_at, grows_until
        self._unfinished[block.serial] = block
        if terms.is_bulk:
            _unfinished.add(self)
            sender.require_step(due_at)
        elif sender.is_driven:
            sender.require_step(grows_until if sender.is_busy(queue) else due_at)
        return block

    async def _make_room(self, size: int, deadline: float) -> None:
        accumulator, started_at = self._accumulator, self._session.runtime.now()
        accumulator.wanting += 1
        try:
            self._sender.wake()  # open blocks may have to make room
            is_ready = await self._wait(lambda: self._closed or accumulator.has_room(size), deadline)
        finally:
            accumulator.wanting -= 1
        if not is_ready:
            what = f"room for {size} bytes besides the {accumulator.held} that wait for a response"
            raise RequestTimeout(what, deadline - started_at)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    # -- reporting -----------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send all open blocks, wait until everything posted before is done, and call its callbacks.

        Raises `PostsFailed` if messages failed and this was not reported yet.
        """
        last = self._accumulator.last_serial
        self._sender.seal_all()
        self._flushing += 1
        try:
            await self._do_due()
            await self._wait(lambda: next(iter(self._unfinished), last + 1) > last, math.inf)
            await self._callbacks.called(last)
        finally:
            self._flushing -= 1
        self._raise_unreported()

    def report_interrupted(self) -> None:
        """After an interrupt has closed the client: call the remaining callbacks, and raise what `flush` would."""
        self._callbacks.call_interrupted(self._unfinished.values())
        self._raise_unreported()

    def _raise_unreported(self) -> None:
        failed, count = self._take_unreported()
        if count:
            raise PostsFailed(failed, count)

    def _on_done(self, block: GatheredBlock) -> None:
        for end in block.ends_of_spans:
            end()
        if block.callbacks:
            self._callbacks.add(block)
        if block.error is not None and block.is_posted:  # else its callers wait for it
            self._failed.append(block)
            if len(self._failed) > _FAILED_BLOCKS_MAX:
                self._failed_before += len(_unreported(self._failed.popleft()))
        self._accumulator.held -= block.size
        # Last: if an interrupt comes before, the outcome is unknown or not reported yet.
        del self._unfinished[block.serial]
        if not self._unfinished:
            _unfinished.discard(self)

    def _take_unreported(self) -> tuple[list[PostedMessage], int]:
        """Return the messages whose failure was not reported, and their number including those of dropped blocks."""
        blocks = list(self._failed)
        if self.interruption is not None:
            # Including unfinished blocks; a block may be in both collections.
            unfinished = [block for block in self._unfinished.values() if block.is_posted]
            blocks = list(dict.fromkeys((*blocks, *unfinished)))
        failed = [posted for block in blocks for posted in _unreported(block)]
        count = self._failed_before + len(failed)
        self._failed.clear()
        self._failed_before = 0
        for posted in failed:
            posted.mark_reported()
        return failed, count

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _do_due(self) -> None:
        await self._sender.do_due()
        await self._callbacks.call()

    async def _send_until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Like `BlockSender.until`, and call callbacks meanwhile."""
        callbacks = self._callbacks
        while True:
            await callbacks.call()
            if condition():
                return True
            if not await self._sender.until(lambda: callbacks.are_due or condition(), deadline):
                return False

    # -- the task ------------------------------------------------------------------------------------------------------

    def _ensure_task(self) -> None:
        if self._sender.blocking_runtime is not None:
            return
        self._session.runtime.end_dead()
        if self._ended is None and (self._unfinished or self._callbacks):
            self._ended = ended = self._session.runtime.event()
            self._session.runtime.spawn(partial(self._run, ended), partial(self._has_ended, ended))

    async def _run(self, ended: Event) -> None:
        try:
            await self._send_until(self._is_idle, math.inf)
        except Exception as error:
            log.exception("posted messages cannot be sent any more")
            self._give_up(ReputError(f"posting has failed: {error!r}"))
        finally:
            # Here, not when the loop gets to it: the next post must see that there is no task.
            self._has_ended(ended)

    def _has_ended(self, ended: Event) -> None:
        """Note that the task has ended; if it was cancelled, even before it started, waiting callers restart it."""
        ended.set()
        if self._ended is ended:
            self._ended = None

    def _is_idle(self) -> bool:
        return not (self._unfinished or self._callbacks or self._sender.is_connecting)

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait for `condition`, which changes when a block is done; False if `deadline` came first."""
        if self._sender.blocking_runtime is not None:
            return await self._send_until(condition, deadline)
        self._ensure_task()
        return await self._sender.until(condition, deadline)

    async def wait_for(self, block: GatheredBlock) -> None:
        """Return when the block is done."""
        if self._sender.blocking_runtime is not None:
            await self._send_until(lambda: block.done, math.inf)
        else:
            self._ensure_task()
            await self._sender.wait_for(block)

    def wait_in_thread(self, block: GatheredBlock) -> None:
        """Block the calling thread until the block is done or the client was interrupted.

        Raises:
            RuntimeError: the program has an event loop, in which blocking is not allowed.
        """
        if self._sender.blocking_runtime is None:
            raise RuntimeError("the message is not acknowledged yet; await it, or flush the producer first")
        try:
            self._sender.blocking_runtime.run(self.wait_for(block))
        except ClientClosed:
            if self.interruption is None:
                raise

    @property
    def interruption(self) -> str | None:
        """Why an interrupt closed the client, or None."""
        return self._sender.interruption

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Fail everything unfinished, after the connections were closed. Never waits."""
        self._closed = True
        self._sender.take_answers()
        self._give_up(ClientClosed("the producer was closed before the message was sent"))

    def _give_up(self, error: ReputError) -> None:
        self._sender.give_up(self._unfinished.values(), error)

    async def ended(self) -> None:
        """After `close`: call the callbacks, wait for the task to end, and log unreported failures."""
        await self._callbacks.call()
        if self._ended is not None:
            self._sender.wake()
            await self._ended.wait(_STOP_S)
        await self._sender.until(lambda: not self._sender.is_connecting, self._session.deadline(_STOP_S))
        if not self._flushing:
            self._log_unreported()

    def _log_unreported(self) -> None:
        _, count = self._take_unreported()
        if count:
            log.error("posted messages that have failed: %d; the producer was closed without a flush", count)

    def end_with_program(self, deadline: float) -> None:
        """Send what was posted, at program exit without `close`; with an event loop, only log how much there is."""
        runtime = self._sender.blocking_runtime
        if runtime is None:
            count = sum(block.count or len(block.bodies) for block in self._unfinished.values())
            log.error("posted messages without an outcome: %d; the program has ended without a flush", count)
            return
        try:
            runtime.run(self._flush_and_close(deadline))
        except ClientClosed:  # from an interrupt
            self._callbacks.call_interrupted(self._unfinished.values())
            self._log_unreported()

    async def _flush_and_close(self, deadline: float) -> None:
        self._sender.seal_all()
        await self._wait(lambda: not self._unfinished, deadline)
        self._session.close()
        self.close()
        await self.ended()

    def forget(self, ids: UniqueIdGenerator | None) -> None:
        """In a forked child: drop what the parent sends, and continue with other ids."""
        self._sender.forget(ids)
        for block in self._unfinished.values():
            reason = "it was posted before the fork, and the parent process sends it"
            block.finish(None, outcome_unknown(block.queue, (), reason))
        self._accumulator.held = 0
        self._unfinished.clear()
        self._callbacks.forget()
        self._failed.clear()
        self._failed_before = self._flushing = 0
        self._ended = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unfinished.clear)


@atexit.register
def _end_with_program() -> None:
    deadline = time.monotonic() + _EXIT_S
    unfinished = list(_unfinished)
    for number, gathering in enumerate(unfinished):
        now = time.monotonic()
        share_s = max(0.0, deadline - now) / (len(unfinished) - number)
        try:
            gathering.end_with_program(now + share_s)
        except (Exception, SystemExit):
            log.exception("a producer has failed to send what was posted before the program ended")


def _unreported(block: GatheredBlock) -> list[PostedMessage]:
    """Return a block's failed messages, unknown outcomes included, that were not reported."""
    return [
        PostedMessage(block, number)
        for number in range(block.outcomes)
        if number not in block.asked and block.error_of(number) is not None
    ]
