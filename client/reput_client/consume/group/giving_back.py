"""What a handler could not handle goes back to the broker, which brings it to the group again later (`send_back`).

It comes back through the group's retry topic, after a delay that grows with each attempt; and when it has come back as
often as it may, the broker puts it with the group's dead letters.
"""

from __future__ import annotations

import logging
from typing import Final

from reput_client.consume.group.failures import Again, Decision, Failure, OnFailure, Verdict, is_passed_over
from reput_client.consume.send_back import DEAD_LETTER, is_unsupported, reason_of, send_back
from reput_client.transport.session import Session
from reput_protocol.delay_levels import DELAY_LEVELS_MS
from reput_protocol.errors import ReputError

_KEPT_S: Final = 5.0
"""When a message comes again here that the broker did not take (RocketMQ: submitConsumeRequestLater)."""
_FIRST_LEVEL: Final = 3

log = logging.getLogger("reput_client")


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
