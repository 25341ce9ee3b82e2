"""What becomes of a message whose handler raised: the decision, and who makes it.

`run` asks an `OnFailure` each time. It may settle the message itself, by giving it back to the broker for instance
(`giving_back.py`): then it counts as handled. Or the message comes again here. Or `run` ends.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from reput_client.errors import DamagedMessage
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session

log = logging.getLogger("reput_client")


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
    other messages go on, but nothing from it on is committed. A damaged message is passed over.
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
