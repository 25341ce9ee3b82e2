"""Messages that are not handled: their handler raised, or did not return in time.

When it raised, `run` asks an `OnFailure`, by default `GiveBack`.

When a handler hangs, or the application neither acknowledges a message nor gives it back, the message holds back its
queue's commits, and then its pulls (`FlowLimits.queue_span_max`). So it is given back to the broker and counts as
handled (RocketMQ: ConsumeMessageConcurrentlyService.cleanExpireMsg, consumeTimeout); if its handler finishes after all,
it is handled twice. A hanging handler keeps its slot of `run(concurrency=n)`. When all hang, this member keeps its
queues but handles nothing more; that is logged.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue, Iteration, Taken
from reput_client.consume.group.serving import Serving
from reput_client.consume.send_back import DEAD_LETTER, is_unsupported, reason_of, send_back
from reput_client.errors import DamagedMessage, NotDeserialized, UnsupportedCompression
from reput_client.received import ReceivedMessage
from reput_client.transport.background import Chore
from reput_client.transport.session import Session
from reput_protocol.errors import ReputError, leaves
from reput_protocol.record.delays import DELAY_LEVELS_MS
from reput_protocol.record.message import MessageQueue

log = logging.getLogger("reput_client")

_KEPT_S: Final = 5.0
"""When to redeliver here a message that the broker did not take back (RocketMQ: submitConsumeRequestLater)."""
_FIRST_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """A handler raised `error`; its message has failed `attempts` times in this member."""

    message: ReceivedMessage
    error: Exception
    attempts: int
    group: str
    orderly: bool
    broadcasting: bool = False
    _session: Session | None = field(default=None, repr=False, compare=False)

    async def give_back(self, *, delay_level: int = 0, attempts_max: int | None = None) -> None:
        """Give the message back to the broker, which redelivers it to the group later.

        Return `Verdict.HANDLED` afterwards: it counts as handled here.

        Args:
            delay_level: RocketMQ's delay level; 0: longer with each attempt, from 10 s on; -1: make it a dead letter,
                as after too many attempts.
            attempts_max: after so many redeliveries it becomes a dead letter; None: the group's setting.

        Raises:
            ReputError: as `ReceivedMessage.nack`.
        """
        assert self._session is not None, "the consumer made it"
        await send_back(
            self._session,
            self.message,
            group=self.group,
            queue=self.message.queue,
            delay_level=delay_level,
            max_reconsume_times=attempts_max,
            reason=reason_of(self.error),
        )

    @property
    def is_permanent(self) -> bool:
        """Whether the message cannot be deserialized or decompressed: every further attempt would fail as this one."""
        message = self.message
        return any(
            isinstance(error, NotDeserialized | UnsupportedCompression)
            and (error.queue_offset, error.queue_id, error.topic)
            == (message.queue_offset, message.queue_id, message.topic)
            for error in leaves(self.error)
        )

    def __str__(self) -> str:
        topic, _, queue_id = self.message.queue
        place = f"message {self.message.queue_offset} of {topic}/{queue_id}"
        attempt = self.message.reconsume_times + self.attempts
        return f"group {self.group}: {place} was not handled (attempt {attempt}): {self.error!r}"


class Verdict(Enum):
    """A decision that takes effect immediately."""

    RAISE = "end run with the handler's exception; the message is not handled"
    HANDLED = "the message is settled"


@dataclass(frozen=True, slots=True)
class Again:
    """Redeliver the message after this many seconds. In order, its queue waits until then."""

    after_s: float


Decision: TypeAlias = Verdict | Again
"""What an `OnFailure` returns."""


class OnFailure(ABC):
    """Decides about messages that could not be handled."""

    @abstractmethod
    async def decide(self, failure: Failure) -> Decision:
        """Return what to do; may await only methods of `failure`, so that this works in both APIs of the client.

        Raises:
            Exception: ends `run`, like `Verdict.RAISE`.
        """


def check_on_failure(on_failure: OnFailure | None) -> None:
    """Raise TypeError if `on_failure` would fail itself, at the first message that is not handled."""
    if on_failure is None or isinstance(on_failure, OnFailure):
        return
    if isinstance(on_failure, type) and issubclass(on_failure, OnFailure):
        raise TypeError(f"on_failure is the class {on_failure.__name__}; pass an object: {on_failure.__name__}()")
    raise TypeError(f"on_failure is an OnFailure such as GiveBack() or RetryHere(), not {on_failure!r}")


class StopRunning(OnFailure):
    """End `run` at the first exception; its message is redelivered next time."""

    @override
    async def decide(self, failure: Failure) -> Decision:
        del failure
        return Verdict.RAISE


class RetryHere(OnFailure):
    """Redeliver the message in this member until it is handled; after `attempts_max` failures end `run`.

    In order, its queue is suspended meanwhile (RocketMQ: SUSPEND_CURRENT_QUEUE_A_MOMENT, one second). Otherwise other
    messages are delivered, but nothing from this one on is committed. A damaged message is skipped, and one of which no
    attempt can succeed (`Failure.is_permanent`) ends `run` at once.
    """

    def __init__(self, after_s: float = 1.0, attempts_max: int | None = None) -> None:
        if after_s < 0 or (attempts_max is not None and attempts_max < 1):
            raise ValueError("after_s must be 0 or more, attempts_max 1 or more")
        self._after_s = after_s
        self._attempts_max = attempts_max

    @override
    async def decide(self, failure: Failure) -> Decision:
        if is_passed_over(failure):
            return Verdict.HANDLED
        if failure.is_permanent or (self._attempts_max is not None and failure.attempts >= self._attempts_max):
            return Verdict.RAISE
        log.warning("%s; redelivered here", failure, exc_info=failure.error)
        return Again(self._after_s)


def is_passed_over(failure: Failure) -> bool:
    """Return whether the message is damaged and cannot be handled; logs the damage."""
    try:
        _ = failure.message.raw_body
    except DamagedMessage as damage:
        log.error("group %s: %s; continuing with the next", failure.group, damage)
        return True
    return False


class GiveBack(OnFailure):
    """Give the message back to the broker, which redelivers it to any member (RocketMQ: RECONSUME_LATER).

    Here it counts as handled. The delay is that of `delay_level`, or 10 s, 30 s, 1 min and so on. After `attempts_max`
    redeliveries (by default the group's setting, 16) it becomes a dead letter. While the broker does not take it, it is
    redelivered here.

    In order, it is redelivered here after `after_s` with its queue suspended, and becomes a dead letter only if
    `attempts_max` is given, after that many attempts. Broadcasting members redeliver it here without end.

    A message that cannot be deserialized or decompressed (`NotDeserialized`, `UnsupportedCompression`) becomes a dead
    letter at the first attempt, also in order; a broadcasting member skips it, as every member does a damaged one.
    """

    def __init__(self, delay_level: int = 0, attempts_max: int | None = None, after_s: float = 1.0) -> None:
        if after_s < 0 or (attempts_max is not None and attempts_max < 1):
            raise ValueError("after_s must be 0 or more, attempts_max 1 or more")
        if not DEAD_LETTER <= delay_level <= len(DELAY_LEVELS_MS):
            raise ValueError(f"delay_level {delay_level} is not from -1 to {len(DELAY_LEVELS_MS)}")
        self._delay_level = delay_level
        self._attempts_max = attempts_max
        self._after_s = after_s

    @override
    async def decide(self, failure: Failure) -> Decision:
        if is_passed_over(failure):
            return Verdict.HANDLED
        delay_level = self._delay_level
        if failure.is_permanent:
            if failure.broadcasting:
                log.error("%s; skipped", failure, exc_info=failure.error)
                return Verdict.HANDLED
            delay_level = DEAD_LETTER
        elif failure.orderly or failure.broadcasting:
            attempts_max = self._attempts_max
            if failure.broadcasting or attempts_max is None or failure.attempts < attempts_max:
                log.warning("%s; redelivered here", failure, exc_info=failure.error)
                return Again(self._after_s)
            delay_level = DEAD_LETTER
        try:
            await failure.give_back(delay_level=delay_level, attempts_max=self._attempts_max)
        except ReputError as error:
            after_s = default_delay_s(failure) if is_unsupported(error) else _KEPT_S
            log.warning(
                "%s; not returned to the broker, redelivered here in %.3g s: %s",
                failure,
                after_s,
                error,
                exc_info=failure.error,
            )
            return Again(after_s)
        outcome = "returned to the broker" if delay_level != DEAD_LETTER else "made a dead letter"
        log.warning("%s; %s", failure, outcome, exc_info=failure.error)
        return Verdict.HANDLED


def default_delay_s(failure: Failure) -> float:
    """Return how long a broker delays a message that is given back."""
    level = _FIRST_LEVEL + failure.message.reconsume_times + failure.attempts - 1
    return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1] / 1000


_LOOKS: Final = 4
"""How often a message is checked before it is overdue."""
_INTERVAL_MAX_S: Final = 60.0


class RunningHandlers:
    """How many handlers may run at a time (0 without `run`), and the message of each.

    A single handler has the iteration's current message, so nothing is noted here.

    Attributes:
        slots: with several handlers, the message of each; the code that runs a handler updates its slot.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self.count = 0
        self.slots: list[ReceivedMessage | None] = []

    def begin(self, count: int) -> None:
        """Note the start of `run` with `count` handlers."""
        self.count = count
        self.slots = [None] * (count if count > 1 else 0)

    def end(self) -> None:
        """Note the end of `run`."""
        self.begin(0)

    @property
    def is_single(self) -> bool:
        """Whether there is one handler, which has the iteration's current message."""
        return self.count == 1

    def held(self) -> list[ReceivedMessage]:
        """Return the messages that handlers have."""
        slots = [self._iteration.message] if self.is_single else self.slots
        return [message for message in slots if message is not None]


class Overdue(Chore):
    """Gives back overdue messages; a background chore.

    It checks periodically, so that delivering a message costs nothing. The current message of an iterating application
    is left alone: no other message waits for it.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        queues: Mapping[MessageQueue, AssignedQueue],
        serving: Serving,
        handlers: RunningHandlers,
        timeout_s: float,
        handled: Callable[[Taken], None],
    ) -> None:
        """`handled` is called with each message given back."""
        self._session = session
        self._group = group
        self._queues = queues
        self._serving = serving
        self._handlers = handlers
        self._timeout_s = timeout_s
        self._handled = handled
        self._seen: dict[tuple[MessageQueue, int], tuple[ReceivedMessage, float]] = {}
        self._pending: deque[Taken] = deque()  # overdue and not given back yet
        self._hanging: list[ReceivedMessage] = []  # overdue messages of running handlers
        self._all_hang = False
        self._due_at = math.inf

    def begin(self) -> None:
        """Start to check."""
        self._due_at = self._session.runtime.now() + min(self._timeout_s / _LOOKS, _INTERVAL_MAX_S)

    @override
    def next_due(self) -> float:
        return self._due_at

    @override
    async def do(self) -> None:
        """Give back at most one message, since that may take a while and other chores wait."""
        if not self._pending:
            self._pending.extend(self._overdue())
        self._look_at_handlers()
        self.begin()
        while self._pending:
            taken = self._pending.popleft()
            if self._is_in_hand(taken):
                await self._give_back(taken)
                break
        if self._pending:
            self._due_at = self._session.runtime.now()

    def _is_in_hand(self, taken: Taken) -> bool:
        """Whether a message is still to be given back; giving back those before it takes time."""
        assigned, message = taken
        return (
            self._queues.get(assigned.queue) is assigned
            and assigned.progress.holds(message.queue_offset, message)
            and not self._serving.will_come(message)
            and message.queue_offset not in assigned.deciding
        )

    async def _give_back(self, taken: Taken) -> None:
        try:
            await send_back(
                self._session,
                taken[1],
                group=self._group,
                queue=taken[0].queue,
                reason=f"not handled within {self._timeout_s:.6g} s",
            )
        except ReputError as error:
            log.warning("%s; not returned to the broker: %s", self._story(taken), error)
            if is_unsupported(error):
                self._pending.clear()
                self._due_at = math.inf
        else:
            log.warning("%s; returned to the broker", self._story(taken))
            self._handled(taken)

    def _look_at_handlers(self) -> None:
        """Log when all handlers of `run` hang, and when one has returned."""
        held = self._handlers.held()
        overdue = [*self._hanging, *(message for _, message in self._pending)]
        self._hanging = [message for message in held if any(message is other for other in overdue)]
        all_hang = 0 < self._handlers.count <= len(self._hanging)
        if all_hang and not self._all_hang:
            log.error(
                "group %s: all %d handlers of run hang, each for more than %.6g s: this member handles nothing until "
                "one of them returns, and keeps its queues; end it if none does",
                self._group,
                self._handlers.count,
                self._timeout_s,
            )
        elif self._all_hang and not all_hang:
            log.warning("group %s: a handler of run has returned, messages are handled again", self._group)
        self._all_hang = all_hang

    def _overdue(self) -> list[Taken]:
        now = self._session.runtime.now()
        seen, self._seen = self._seen, {}
        found: list[Taken] = []
        for queue, assigned in self._queues.items():
            for message in assigned.progress.unhandled:
                if message is self._serving.iteration.message and not self._handlers.is_single:
                    continue
                key = queue, message.queue_offset
                before, since = seen.get(key, (None, now))
                if before is not message:
                    since = now
                if now - since >= self._timeout_s:
                    if self._is_in_hand((assigned, message)):
                        found.append((assigned, message))
                    since = now
                self._seen[key] = message, since
        return found

    def _story(self, taken: Taken) -> str:
        assigned, message = taken
        topic, _, queue_id = assigned.queue
        return (
            f"group {self._group}: message {message.queue_offset} of {topic}/{queue_id} was not handled within "
            f"{self._timeout_s:.6g} s"
        )
