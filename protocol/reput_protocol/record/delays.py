"""Delivery times: a delay level, a delay in seconds, or a moment; and times after which a message expires.

(RocketMQ: Message.setDelayTimeLevel, setDelayTimeMs, setDeliverTimeMs; DefaultMessageStore, ScheduleMessageService.)

Expiry is Reput's: RocketMQ has no such property, and its clients and brokers keep these as they are.

`EXPIRES_AFTER_MS` counts from when the message is stored in its queue: of a delayed message, from its delivery on. Of a
message that is redelivered, the broker replaces it by `EXPIRES_AT_MS`, the moment.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypedDict

from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import (
    DELAY,
    EXPIRES_AFTER,
    EXPIRES_AT,
    PRIORITY,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    find_property,
)

DELAY_LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""Delays of the levels from 1 on; level n is stored in queue n - 1 of `SCHEDULE_TOPIC_XXXX`."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DELAY_MAX_S: Final = 10**11
"""About three thousand years; the broker's own limit is much lower."""


def moment_of(timestamp_ms: int) -> datetime:
    """Return a time in ms since 1970 as a datetime in UTC, exactly.

    Raises:
        OverflowError: it is beyond the years 1 to 9999.
    """
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


def delay_level_of(delay_s: float) -> int:
    """Return the first delay level that is not shorter than `delay_s` seconds.

    Raises:
        ValueError: it is negative, or longer than the last level.
    """
    if not 0 <= delay_s <= DELAY_LEVELS_MS[-1] / 1000:
        raise ValueError(f"delay_s must be from 0 to {DELAY_LEVELS_MS[-1] // 1000}, not {delay_s}")
    return 1 + bisect_left(DELAY_LEVELS_MS, delay_s * 1000)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays, in ms, in RocketMQ's option messageDelayLevel: `1s 5s 10m 2h`.

    Raises:
        ValueError: a word, which the text names, is not a delay.
    """
    delays: list[int] = []
    for word in text.split():
        count, unit = word[:-1], word[-1]
        if unit not in _UNITS_MS or not (count.isascii() and count.isdecimal() and 0 < int(count) < 1 << 31):
            raise ValueError(f"{word!r} is not a delay: write a number and s, m, h or d, such as 1s 5s 10m 2h")
        delays.append(int(count) * _UNITS_MS[unit])
    if not delays:
        raise ValueError("there is no delay in it: write a number and s, m, h or d for each, such as 1s 5s 10m 2h")
    return tuple(delays)


def deliver_time(delay: bytes | None, store_timestamp_ms: int, levels_ms: Sequence[int]) -> int | None:
    """Return when a message with the property `DELAY` is due, in ms; None without a level above 0.

    A level beyond the table means its last one; text that is not a number means none.
    """
    if not delay or not delay.isdigit() or len(delay) > 10:
        return None
    level = min(int(delay), len(levels_ms))
    if level <= 0:
        return None
    # Wraps like Java's: even with a damaged timestamp the result must fit into a unit's 64 bits.
    return (store_timestamp_ms + levels_ms[level - 1] + (1 << 63)) % (1 << 64) - (1 << 63)


_PRIORITY_MAX: Final = (1 << 31) - 1
_PRIORITY: Final = re.compile(r"\+?0*[0-9]{1,10}")


class Delay(NamedTuple):
    """Name and value of the property that requests a delay or a priority, or says when a message expires: what has one
    is sent alone."""

    name: str
    value: str

    @property
    def is_priority(self) -> bool:
        """Whether it is a priority."""
        return self.name == PRIORITY

    @property
    def keeps_order(self) -> bool:
        """Whether the message keeps its order among others: it is not delayed."""
        return self.name in _IN_ORDER


_IN_ORDER: Final = (PRIORITY, EXPIRES_AFTER, EXPIRES_AT)


class ExpiryOptions(TypedDict, total=False):
    """The arguments of `Message` that say when it expires."""

    ttl_s: float | None
    """Seconds after which no consumer gets it any more, from when the broker stores it in its queue, rounded up to
    milliseconds; of a delayed message, from its delivery on."""
    expires_at: datetime | None
    """The moment from which on no consumer gets it any more; local time without a time zone."""


class DelayOptions(ExpiryOptions, total=False):
    """The arguments of `Message` because of which it is sent alone. It has at most one delay or priority."""

    delay_level: int | None
    """1 to 18, RocketMQ's fixed delays from one second to two hours."""
    delay_s: float | None
    """Seconds from when the broker stores the message, rounded up to milliseconds."""
    deliver_at: datetime | None
    """The moment, rounded up likewise; local time without a time zone. A past one delivers at once."""
    priority: int | None
    """0 or more: the broker stores the message in the queue of this number, at most in the last one. Pops of a topic of
    the type PRIORITY begin with the highest."""


def delay_of(options: DelayOptions) -> Delay | None:
    """Return the property for one of the options; None without any, and for 0 seconds.

    Raises:
        InvalidMessage: more than one is given, or the value has a wrong type or is out of range.
        TypeError: there is another option.
    """
    for unknown in options.keys() - DelayOptions.__optional_keys__:
        raise TypeError(f"Message.__init__() got an unexpected keyword argument {unknown!r}")
    if sum(value is not None for name, value in options.items() if name not in _EXPIRY) > 1:
        raise InvalidMessage(
            "a message has one delay, or a priority; pass one of delay_level=, delay_s=, deliver_at= and priority="
        )
    delay_level, delay_s, deliver_at = map(options.get, ("delay_level", "delay_s", "deliver_at"))
    priority = options.get("priority")
    if priority is not None:
        return Delay(PRIORITY, str(_checked_priority(priority)))
    if delay_level is not None:
        return Delay(DELAY, str(_checked_level(delay_level)))
    if delay_s is not None:
        delay_ms = _checked_delay_ms(delay_s)
        return Delay(TIMER_DELAY_MS, str(delay_ms)) if delay_ms else None
    if deliver_at is not None:
        return Delay(TIMER_DELIVER_MS, str(_checked_moment_ms(deliver_at)))
    return None


_EXPIRY: Final = ExpiryOptions.__optional_keys__


def expiry_of(options: DelayOptions) -> dict[str, str]:
    """Return the properties that say when a message expires.

    Raises:
        InvalidMessage: a value has a wrong type or is out of range.
    """
    ttl_s, expires_at = options.get("ttl_s"), options.get("expires_at")
    properties = {}
    if ttl_s is not None:
        ttl_ms = _checked_delay_ms(ttl_s, "ttl_s")
        if not ttl_ms:
            raise InvalidMessage("ttl_s is 0, so that no consumer could get the message; pass the seconds it lives")
        properties[EXPIRES_AFTER] = str(ttl_ms)
    if expires_at is not None:
        properties[EXPIRES_AT] = str(_checked_moment_ms(expires_at, "expires_at"))
    return properties


def take_expiry(properties: dict[str, str]) -> ExpiryOptions:
    """Remove the properties that say when a message expires, and return them as options for a copy.

    Raises:
        ValueError, OverflowError: a value is no number, or beyond the years of a datetime.
    """
    after_ms, at_ms = properties.pop(EXPIRES_AFTER, None), properties.pop(EXPIRES_AT, None)
    options: ExpiryOptions = {}
    if after_ms is not None:
        options["ttl_s"] = int(after_ms) / 1000
    if at_ms is not None:
        options["expires_at"] = moment_of(int(at_ms))
    return options


def _checked_priority(priority: object) -> int:
    if type(priority) is not int or not 0 <= priority <= _PRIORITY_MAX:
        raise InvalidMessage(f"priority {priority!r} must be an int from 0 to {_PRIORITY_MAX}")
    return priority


def priority_of(text: str | None) -> int | None:
    """Parse the property of a priority; None if it is missing or not a number from 0 to 2^31 - 1."""
    if not text or _PRIORITY.fullmatch(text) is None:
        return None
    priority = int(text)
    return priority if priority <= _PRIORITY_MAX else None


def _checked_level(level: object) -> int:
    if type(level) is not int or not 1 <= level <= len(DELAY_LEVELS_MS):
        raise InvalidMessage(
            f"delay_level {level!r} must be an int from 1 to {len(DELAY_LEVELS_MS)}; for other times pass delay_s="
        )
    return level


def _checked_delay_ms(delay_s: object, what: str = "delay_s") -> int:
    if type(delay_s) is not int and type(delay_s) is not float:
        hint = "pass its total_seconds()" if isinstance(delay_s, timedelta) else "pass seconds"
        raise InvalidMessage(f"{what} must be an int or a float, not {type(delay_s).__name__}; {hint}")
    if not 0 <= delay_s <= _DELAY_MAX_S:
        raise InvalidMessage(f"{what} {delay_s!r} must be seconds from 0 on; nothing is delivered before it is sent")
    # Rounded up, so that it is never early, but without floats' rounding error.
    return math.ceil(round(delay_s * 1000, 3))


def _checked_moment_ms(moment: object, what: str = "deliver_at") -> int:
    if not isinstance(moment, datetime):
        raise InvalidMessage(f"{what} must be a datetime, not {type(moment).__name__}; or pass seconds")
    try:
        since_epoch = moment.astimezone(UTC) - _EPOCH
    except (OverflowError, OSError, ValueError):
        raise InvalidMessage(f"{what} {moment!r} is beyond what a clock can show; pass a nearer one") from None
    if since_epoch < timedelta(0):
        raise InvalidMessage(f"{what} {moment!r} is before 1970; pass a later moment")
    return -(-(since_epoch // _MICROSECOND) // 1000)


MARK: Final = b"EXPIRES_A"
"""Part of the encoded properties of each message that expires."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_AT: Final = EXPIRES_AT.encode()
_AFTER: Final = EXPIRES_AFTER.encode()


def expiry_in(properties: bytes, store_timestamp_ms: int) -> int | None:
    """Return the moment, in ms since 1970, from which on a message is expired; None if it never is.

    Args:
        properties: of its record, encoded. A value that is not a number means none.
        store_timestamp_ms: of its record.
    """
    return _moment(_text(find_property(properties, _AT)), _text(find_property(properties, _AFTER)), store_timestamp_ms)


def fix_expiry(properties: dict[str, str], store_timestamp_ms: int) -> None:
    """Give a message that is stored once more the moment at which it expires, in place of a time to live."""
    after = properties.pop(EXPIRES_AFTER, None)
    if after is not None:
        moment = _moment(properties.get(EXPIRES_AT), after, store_timestamp_ms)
        if moment is not None:
            properties[EXPIRES_AT] = str(moment)


def expires(properties: dict[str, str]) -> bool:
    """Tell whether a message says when it expires."""
    return EXPIRES_AFTER in properties or EXPIRES_AT in properties


def _moment(at: str | None, after: str | None, store_timestamp_ms: int) -> int | None:
    moments = []
    if at is not None and _NUMBER.fullmatch(at):
        moments.append(int(at))
    if after is not None and _NUMBER.fullmatch(after):
        moments.append(store_timestamp_ms + int(after))
    return min(moments, default=None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
