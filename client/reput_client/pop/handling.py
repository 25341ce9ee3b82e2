"""Calling the application's handler with popped messages (`PopConsumer.run`).

A background task, or a thread in the synchronous API, acknowledges handled messages and extends the invisible times of
those in hand. Messages come in *lanes*: of a lane, one is handled at a time. In order, a lane has the messages that a
pop took from one queue; otherwise each message is in a lane of its own.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, Generic, TypeAlias, TypeVar

from typing_extensions import override

from reput_client.consume.group.failures import Failure, OnFailure, Verdict, default_delay_s
from reput_client.consume.group.subscriber import NotAwaitable
from reput_client.consume.send_back import DEAD_LETTER, reason_of
from reput_client.errors import InvalidHandle
from reput_client.pop.fetcher import PopFetcher, Wait
from reput_client.pop.popped import Popped, Settling
from reput_client.transport.background import Background, Chore
from reput_client.transport.backoff import Backoff
from reput_client.transport.session import Session
from reput_protocol.commands.pop import POP_MESSAGES_MAX
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.record.delays import DELAY_LEVELS_MS

M = TypeVar("M", bound=Popped)
Handler: TypeAlias = Callable[[M], Awaitable[object]]
_Lane: TypeAlias = deque[M]

_MARGIN: Final = 1 / 2
"""The part of the invisible time that is left when it is extended."""
_RETRY_S: Final = 1.0
"""When a request that failed is sent again."""
_HELD_S: Final = 0.1
"""Messages for so long are popped at once: one that waits here would wait for no other member."""

log = logging.getLogger("reput_client")


def check_invisible(invisible_s: float) -> None:
    """Raise ValueError unless messages can be invisible for so long."""
    if not 0 < invisible_s < math.inf:
        raise ValueError(f"invisible_s must be more than 0, and not infinite; it is {invisible_s}")


@dataclass(frozen=True, slots=True)
class PopFailure(Failure):
    """A handler raised for a popped message."""

    async def give_back(self, *, delay_level: int = 0, attempts_max: int | None = None) -> None:
        """See `Failure`. The broker counts attempts and makes dead letters by the group's setting."""
        message = self.message
        assert isinstance(message, Popped), "`Run` makes these failures"
        is_last = attempts_max is not None and message.reconsume_times >= attempts_max
        if delay_level == DEAD_LETTER or is_last:
            await message._settling.reject(message, reason_of(self.error))
        else:
            delay_s = DELAY_LEVELS_MS[delay_level - 1] / 1000 if delay_level else default_delay_s(self)
            await message._settling.nack(message, delay_s)


class Run(Chore, Generic[M]):
    """One `run` of a consumer: what is in hand, and who handles it. Also the chore of its background.

    Args:
        concurrency: how many messages are handled at a time; may be changed.
        ahead: pop more than that, as far as they are handled soon.
    """

    def __init__(
        self,
        kind: type[M],
        session: Session,
        fetcher: PopFetcher,
        settling: Settling,
        on_failure: OnFailure,
        *,
        invisible_s: float,
        concurrency: int,
        ahead: bool,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        check_invisible(invisible_s)
        self._kind = kind
        self._session = session
        self._fetcher = fetcher
        self._settling = settling
        self._on_failure = on_failure
        self._invisible_s = invisible_s
        self.concurrency = concurrency
        self._ahead = ahead
        self._ready: deque[_Lane[M]] = deque()
        self._running: dict[M, _Lane[M]] = {}
        self._again: list[tuple[float, int, _Lane[M]]] = []
        self._numbers = count()
        self._handled: list[M] = []  # to be acknowledged
        self._unwanted: list[M] = []  # to be given back
        self._failures: dict[M, int] = {}
        self._requests_from = -math.inf  # when requests may be sent again, after failed ones
        self._wait = Wait()
        self._pauses = Backoff()
        self._popped_at = -math.inf
        self._popped = 0
        self._background = Background(session, [self], on_failure=self.stop)
        self.stopped = False

    # -- taking ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the background."""
        self._background.start()

    def stop(self) -> None:
        """Take no more messages. Never waits."""
        self.stopped = True
        self._fetcher.end_waiting(self._wait)

    async def take(self, timeout_s: float = math.inf) -> M | None:
        """Return a message to handle, for one caller at a time; None after `timeout_s`, or when stopped or closed.

        Without `ahead` it waits while `concurrency` messages are handled.

        Raises:
            BrokerError: a permanent refusal.
        """
        session = self._session
        until = session.runtime.now() + timeout_s
        while not (self.stopped or session.closed):
            self._wait.clear()
            message = self._next()
            if message is not None:
                return message
            if session.runtime.now() >= until:
                return None
            wake_at = min(until, self._again[0][0]) if self._again else until
            wanted = self._wanted()
            if wanted <= 0:
                await session.pump.wait(self._wait, wake_at)
                continue
            try:
                found = await self._fetcher.receive(self._kind, wanted, self._invisible_s, wake_at, self._wait)
            except ReputError as error:
                if session.closed:
                    break
                if isinstance(error, BrokerError) and not error.retryable:
                    raise
                log.warning("group %s: nothing is popped: %s", self._settling.group, error)
                await session.pump.wait(self._wait, session.runtime.now() + self._pauses.next_delay_s())
            else:
                self._pauses.reset()
                self._add(found)
        if self._background.failure is not None:
            raise self._background.failure
        return None

    def _wanted(self) -> int:
        """Return how many messages to pop: no more than are handled soon, so that other members have the rest."""
        free = self.concurrency - len(self._running)
        if not self._ahead:
            return free
        took_s = self._session.runtime.now() - self._popped_at
        soon = int(self._popped * _HELD_S / took_s) if took_s > 0 else 0
        return max(1, free, min(POP_MESSAGES_MAX, soon))

    def _add(self, messages: list[M]) -> None:
        self._popped, self._popped_at = len(messages), self._session.runtime.now()
        if not self._fetcher.orderly:
            self._ready.extend(deque([message]) for message in messages)
        else:
            lanes: dict[int, _Lane[M]] = {}
            for message in messages:
                lanes.setdefault(message.queue_id, deque()).append(message)
            self._ready.extend(lanes.values())
        self._background.wake()

    def _next(self) -> M | None:
        now = self._session.runtime.now()
        while self._again and self._again[0][0] <= now:
            self._ready.append(heapq.heappop(self._again)[2])
        while self._ready:
            lane = self._ready.popleft()
            if lane[0]._invisible_until > now:
                self._running[lane[0]] = lane
                return lane[0]
            log.warning(
                "group %s: %r waited longer than its invisible time, and is redelivered", self._settling.group, lane[0]
            )
            self._drop(lane)
        return None

    def give_back_waiting(self) -> None:
        """Give back what waits to be handled."""
        for lane in (*self._ready, *(lane for _, _, lane in self._again)):
            self._unwanted.extend(lane)
        self._ready.clear()
        self._again.clear()
        self._background.wake()

    def _drop(self, lane: _Lane[M]) -> None:
        """Give back what follows a message that is not handled here."""
        self._failures.pop(lane.popleft(), None)
        self._unwanted.extend(lane)

    # -- handling ----------------------------------------------------------------------------------------------

    async def run_one_by_one(self, handler: Handler[M]) -> None:
        """Call `handler` with one message after the other until delivery ends."""
        while (message := await self.take()) is not None:
            await self.handle(message, handler)

    async def run_concurrently(self, handler: Handler[M]) -> None:
        """Call `handler` with several messages at a time until delivery ends or a handler ends it."""
        import anyio  # not at the top: the synchronous API imports no event loop

        gate = anyio.Lock(fast_acquire=True)

        async def work() -> None:
            while True:
                async with gate:
                    message = await self.take()
                if message is None:
                    return
                await self.handle(message, handler)

        async with anyio.create_task_group() as tasks:
            for _ in range(self.concurrency):
                tasks.start_soon(work)

    async def handle(self, message: M, handler: Handler[M]) -> None:
        """Call `handler`, and settle the message; raises the handler's exception if it ends the run."""
        try:
            await handler(message)
        except Exception as error:
            await self.failed(message, error)
        else:
            self.handled(message)

    def handled(self, message: M) -> None:
        """Note that a message is handled; it is acknowledged soon, unless the handler has settled it itself."""
        was_full = self._wanted() <= 0
        lane = self._running.pop(message, None)
        if lane is None:
            return  # the run has ended, and has given it back
        if message.is_given_back:
            self._drop(lane)
        else:
            self._failures.pop(lane.popleft(), None)
            if not message.is_acknowledged:
                self._handled.append(message)
            if lane:
                self._ready.append(lane)
        if lane or was_full:
            self._fetcher.end_waiting(self._wait)  # there is a message, or room for one
        self._background.wake()

    async def failed(self, message: M, error: Exception) -> None:
        """Apply `on_failure` to a message whose handler raised `error`; raises that if it ends the run."""
        if isinstance(error, NotAwaitable):
            raise error
        attempts = self._failures[message] = self._failures.get(message, 0) + 1
        failure = PopFailure(message, error, attempts, self._settling.group, self._fetcher.orderly)
        decision = await self._on_failure.decide(failure)
        if decision is Verdict.RAISE:
            raise error
        if decision is Verdict.HANDLED:
            self.handled(message)
            return
        lane = self._running.pop(message, None)
        if lane is not None:
            due = self._session.runtime.now() + decision.after_s
            heapq.heappush(self._again, (due, next(self._numbers), lane))
            self._fetcher.end_waiting(self._wait)

    # -- the background ----------------------------------------------------------------------------------------

    @override
    def next_due(self) -> float:
        if self._handled or self._unwanted:
            due = -math.inf
        else:
            due = min(map(self._extend_at, self._in_hand()), default=math.inf)
        return max(due, self._requests_from)

    @override
    async def do(self) -> None:
        """Acknowledge what is handled, and extend the invisible times of the rest."""
        await self._acknowledge()
        unwanted, self._unwanted = self._unwanted, []
        left = await self._each(unwanted, self._return)
        self._unwanted += left
        now = self._session.runtime.now()
        await self._each([message for message in self._in_hand() if self._extend_at(message) <= now], self._extend)

    def _in_hand(self) -> Iterator[M]:
        """Yield the messages that are handled or wait for that, and are invisible."""
        now = self._session.runtime.now()
        for lane in (*self._running.values(), *self._ready, *(lane for _, _, lane in self._again)):
            for message in lane:
                if message._invisible_until > now and not (message.is_acknowledged or message.is_given_back):
                    yield message

    def _extend_at(self, message: M) -> float:
        return message._invisible_until - _MARGIN * self._invisible_s

    async def _acknowledge(self) -> None:
        messages, self._handled = self._handled, []
        if not messages:
            return
        kept = []
        for index, error in (await self._settling.ack(messages)).items():
            if isinstance(error, InvalidHandle):
                log.warning("group %s: a handled message is redelivered: %s", self._settling.group, error)
            else:
                kept.append(messages[index])
                self._failed_request(error)
        self._handled = kept + self._handled

    async def _extend(self, message: M) -> None:
        await self._settling.change(message, self._invisible_s)

    async def _give_back(self, message: M) -> None:
        await self._settling.nack(message, 0.0)

    async def _return(self, message: M) -> None:
        """Give back a message that no handler has begun with."""
        await self._settling.nack(message, 0.0, counts=False)

    async def _each(self, messages: Iterable[M], work: Callable[[M], Awaitable[None]]) -> list[M]:
        """Do something for each message, but no more at a broker where it has failed; return what is to be repeated."""
        failed = set()
        left = []
        for message in messages:
            if message.broker_name in failed:
                left.append(message)
                continue
            try:
                await work(message)
            except InvalidHandle as error:
                if not message.is_acknowledged:
                    message._invisible_until = min(message._invisible_until, self._session.runtime.now())
                    log.warning("group %s: %s", self._settling.group, error)
            except ReputError as error:
                failed.add(message.broker_name)
                left.append(message)
                self._failed_request(error)
        return left

    def _failed_request(self, error: ReputError) -> None:
        self._session.check_open()
        self._requests_from = self._session.runtime.now() + min(_RETRY_S, self._invisible_s * _MARGIN / 4)
        log.warning("group %s: popped messages not settled, this is tried again: %s", self._settling.group, error)

    # -- the end -----------------------------------------------------------------------------------------------

    async def finish(self, *, counts: bool = True) -> None:
        """Acknowledge what is handled, and give back the rest, so that it is redelivered at once.

        Args:
            counts: whether this was an attempt for the messages that a handler has begun with.
        """
        self.stop()
        await self._background.stop(math.inf)
        if self._session.closed:
            return
        begun = {*self._running, *self._failures} if counts else set()
        in_hand = [*self._in_hand()]
        tried = [message for message in in_hand if message in begun]
        untried = [*self._unwanted, *(message for message in in_hand if message not in begun)]
        self._ready.clear()
        self._running.clear()
        self._again.clear()
        self._unwanted.clear()
        await self._acknowledge()
        await self._each(tried, self._give_back)
        await self._each(untried, self._return)

    def forget(self) -> None:
        """In a forked child: have nothing in hand, and no background, which are the parent's."""
        self.stopped = True
        self._background.forget()
        self._ready.clear()
        self._running.clear()
        self._again.clear()
        self._handled.clear()
        self._unwanted.clear()
        self._failures.clear()
