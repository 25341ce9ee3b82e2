"""When a message is to be delivered, as its sender says it: a level, a time from now, or a moment.

(RocketMQ: Message.setDelayTimeLevel, setDelayTimeMs, setDeliverTimeMs.)
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from reput_protocol.delay_levels import DELAY_LEVELS_MS
from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DELAY_MAX_S: Final = 10**11
"""Some three thousand years. How far ahead messages are really taken is the broker's to say, and much less."""


class Delay(NamedTuple):
    """The property that asks for a delay: its name and its value."""

    name: str
    value: str


def delay_of(delay_level: int | None, delay_s: float | None, deliver_at: datetime | None) -> Delay | None:
    """Return the property that says what one of the three asks for; None for nothing, and for a delay of 0 seconds.

    Args:
        delay_level: 1 to 18, RocketMQ's fixed delays from one second to two hours.
        delay_s: seconds from the moment at which the broker stores the message, rounded up to milliseconds.
        deliver_at: the moment, rounded up likewise. Without a time zone it is local time, as everywhere in Python. One
            that has passed delivers at once.

    Raises:
        InvalidMessage: more than one is given, or its value is of a wrong type or out of range.
    """
    if (delay_level is not None) + (delay_s is not None) + (deliver_at is not None) > 1:
        raise InvalidMessage("a message has one delay; pass one of delay_level=, delay_s= and deliver_at=")
    if delay_level is not None:
        return Delay(DELAY, str(_checked_level(delay_level)))
    if delay_s is not None:
        delay_ms = _checked_delay_ms(delay_s)
        return Delay(TIMER_DELAY_MS, str(delay_ms)) if delay_ms else None
    if deliver_at is not None:
        return Delay(TIMER_DELIVER_MS, str(_checked_moment_ms(deliver_at)))
    return None


def _checked_level(level: object) -> int:
    if type(level) is not int or not 1 <= level <= len(DELAY_LEVELS_MS):
        raise InvalidMessage(
            f"delay_level {level!r} must be an int from 1 to {len(DELAY_LEVELS_MS)}; for other times pass delay_s="
        )
    return level


def _checked_delay_ms(delay_s: object) -> int:
    if type(delay_s) is not int and type(delay_s) is not float:
        hint = "pass its total_seconds()" if isinstance(delay_s, timedelta) else "pass seconds"
        raise InvalidMessage(f"delay_s must be an int or a float, not {type(delay_s).__name__}; {hint}")
    if not 0 <= delay_s <= _DELAY_MAX_S:
        raise InvalidMessage(
            f"delay_s {delay_s!r} must be seconds from 0 on; nothing is delivered before it is sent"
        )
    # Never early, but what floats add to a whole number of milliseconds is no millisecond of its own.
    return math.ceil(round(delay_s * 1000, 3))


def _checked_moment_ms(moment: object) -> int:
    if not isinstance(moment, datetime):
        raise InvalidMessage(f"deliver_at must be a datetime, not {type(moment).__name__}; or pass delay_s=")
    try:
        since_epoch = moment.astimezone(UTC) - _EPOCH
    except (OverflowError, OSError, ValueError):
        raise InvalidMessage(
            f"deliver_at {moment!r} is beyond what a clock can show; pass a nearer one"
        ) from None
    if since_epoch < timedelta(0):
        raise InvalidMessage(f"deliver_at {moment!r} lies before 1970; pass the moment of the delivery")
    return -(-(since_epoch // _MICROSECOND) // 1000)
