"""What becomes of a message whose handler raised: the decision, and the rules that make it.

`run` asks an `OnFailure` each time. `GiveBack`, the default, gives the message to the broker, which hands it
to the group again through its retry topic, after a delay that grows with each attempt; after the last attempt
the broker puts it with the group's dead letters. Such a message counts as handled here. Other rules hand it
out again here, or end `run`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from reput_client.consume.send_back import DEAD_LETTER, is_unsupported, reason_of, send_back
from reput_client.errors import DamagedMessage
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session
from reput_protocol.errors import ReputError
from reput_protocol.record.delays import DELAY_LEVELS_MS

log = logging.getLogger("reput_client")

_KEPT_S: Final = 5.0
"""When a message comes again here that the broker did not take (RocketMQ: submitConsumeRequestLater)."""
_FIRST_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """A handler raised `error`; it is the `attempts`-th time in this member that the message was not handled."""

    message: ReceivedMessage
    error: Exception
    attempts: int
    group: str
    orderly: bool
    broadcasting: bool = False

    def __str__(self) -> str:
        topic, _, queue_id = self.message.queue
        place = f"message {self.message.queue_offset} of {topic}/{queue_id}"
        return f"group {self.group}: {place} was not handled (attempt {self.attempts}): {self.error!r}"


class Verdict(Enum):
    """What is to be done at once."""

    RAISE = "end run with the handler's exception; the message is not handled"
    HANDLED = "the message is settled"


@dataclass(frozen=True, slots=True)
class Again:
    """The message comes again after so many seconds. In order, its queue stands still until then."""

    after_s: float


Decision: TypeAlias = Verdict | Again


class OnFailure(ABC):
    """Decides about messages that could not be handled."""

    @abstractmethod
    async def decide(self, failure: Failure, session: Session) -> Decision:
        """Return what to do. Requests go through `session`, so that this serves both faces of the client.

        Raises:
            Exception: ends `run`, as `Verdict.RAISE` does.
        """


class StopRunning(OnFailure):
    """The first exception ends `run`; its message comes again next time."""

    async def decide(self, failure: Failure, session: Session) -> Decision:
        """See `OnFailure`."""
        del failure, session
        return Verdict.RAISE


class RetryHere(OnFailure):
    """The message comes again in this member, until it is handled or has failed `attempts_max` times: then `run` ends.

    In order its queue is suspended meanwhile (RocketMQ: SUSPEND_CURRENT_QUEUE_A_MOMENT, one second). Otherwise the
    other messages are handed out, but nothing from it on is committed. A damaged message is passed over.
    """

    def __init__(self, after_s: float = 1.0, attempts_max: int | None = None) -> None:
        if after_s < 0 or (attempts_max is not None and attempts_max < 1):
            raise ValueError("after_s must be 0 or more, attempts_max 1 or more")
        self._after_s = after_s
        self._attempts_max = attempts_max

    async def decide(self, failure: Failure, session: Session) -> Decision:
        """See `OnFailure`."""
        del session
        if is_passed_over(failure):
            return Verdict.HANDLED
        if self._attempts_max is not None and failure.attempts >= self._attempts_max:
            return Verdict.RAISE
        log.warning("%s; it comes again here", failure, exc_info=failure.error)
        return Again(self._after_s)


def is_passed_over(failure: Failure) -> bool:
    """Whether no handler can ever handle the message, since it is damaged: that is said, and nothing waits for it."""
    try:
        _ = failure.message.raw_body
    except DamagedMessage as damage:
        log.error("group %s: %s; going on with the next", failure.group, damage)
        return True
    return False


class GiveBack(OnFailure):
    """The message goes back to the broker, and any member of the group gets it again (RocketMQ: RECONSUME_LATER).

    After 10 s, 30 s, 1 min and so on, or after `delay_level`; when it has come back `attempts_max` times (by default
    the group's setting, 16), it goes to the dead letters. While the broker does not take it, it comes again here.

    In order it comes again here, `after_s` later, and its queue is suspended meanwhile; only with `attempts_max` does
    it go to the dead letters then. A damaged message is passed over.
    """

    def __init__(self, delay_level: int = 0, attempts_max: int | None = None, after_s: float = 1.0) -> None:
        if after_s < 0 or (attempts_max is not None and attempts_max < 1):
            raise ValueError("after_s must be 0 or more, attempts_max 1 or more")
        if not DEAD_LETTER <= delay_level <= len(DELAY_LEVELS_MS):
            raise ValueError(f"delay_level {delay_level} is none of -1 to {len(DELAY_LEVELS_MS)}")
        self._delay_level = delay_level
        self._attempts_max = attempts_max
        self._after_s = after_s

    async def decide(self, failure: Failure, session: Session) -> Decision:
        """See `OnFailure`."""
        if is_passed_over(failure):
            return Verdict.HANDLED
        delay_level = self._delay_level
        if failure.orderly or failure.broadcasting:
            attempts_max = self._attempts_max
            if failure.broadcasting or attempts_max is None or failure.attempts < attempts_max:
                log.warning("%s; it comes again here", failure, exc_info=failure.error)
                return Again(self._after_s)
            delay_level = DEAD_LETTER
        try:
            await send_back(
                session,
                failure.message,
                group=failure.group,
                queue=failure.message.queue,
                delay_level=delay_level,
                max_reconsume_times=self._attempts_max,
                reason=reason_of(failure.error),
            )
        except ReputError as error:
            after_s = _delay_s(failure) if is_unsupported(error) else _KEPT_S
            log.warning(
                "%s; not given back, it comes again here in %.3g s: %s",
                failure,
                after_s,
                error,
                exc_info=failure.error,
            )
            return Again(after_s)
        log.warning("%s; given back", failure, exc_info=failure.error)
        return Verdict.HANDLED


def _delay_s(failure: Failure) -> float:
    """How long a broker would let the message wait that gives back itself."""
    level = _FIRST_LEVEL + failure.message.reconsume_times + failure.attempts - 1
    return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1] / 1000
