"""The times of a schedule: a cron expression in a time zone, or an interval.

Daylight saving is that of Debian's cron. Of an expression whose minute and hour both do not begin with `*`, a time that
the clock skips is moved to the next moment that exists, and one that comes twice counts once, the first time. Others
follow the time that passes: `*/10 * * * *` is every ten minutes also while the clock is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, takewhile
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from typing_extensions import override

from reput_protocol.errors import ReputError
from reput_protocol.quantities import parse_duration

FIELDS: Final = ("minute", "hour", "day of month", "month", "day of week")
NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EVERY: Final = "@every"
_INTERVAL_MIN_S: Final = 1.0
_INTERVAL_MAX_S: Final = 366 * 86_400.0
_FIRST_SPAN_MS: Final = 60_000
_SOME_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


class InvalidTimes(ReputError):
    """An expression or time zone has no times; the text has the place and the remedy."""


class Times(Protocol):
    """When a schedule sends."""

    def next(self, after_ms: int) -> int | None:
        """Return the first time after `after_ms`, in ms since 1970; None without one within 50 years."""

    def following(self, after_ms: int) -> Iterator[int]:
        """Yield the times after `after_ms`."""

    def latest(self, after_ms: int, until_ms: int) -> int | None:
        """Return the last time after `after_ms` that is not after `until_ms`; None if there is none."""


class CronTimes(Times):
    """The times of a cron expression.

    Args:
        expression: five fields.
        zone: of the expression.

    Raises:
        InvalidTimes: it is not such an expression.
    """

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        _check(expression)
        self._expression = expression
        self._zone = zone

    @override
    def next(self, after_ms: int) -> int | None:
        return next(self.following(after_ms), None)

    @override
    def following(self, after_ms: int) -> Iterator[int]:
        # In whole seconds, from which the first step leads to the next one.
        begin = datetime.fromtimestamp(after_ms // 1000, self._zone)
        for moment in CronSim(self._expression, begin):
            time_ms = int(moment.timestamp()) * 1000
            if time_ms > after_ms:  # not so in an hour that comes twice: its times were before
                yield time_ms
                after_ms = time_ms

    @override
    def latest(self, after_ms: int, until_ms: int) -> int | None:
        # Looks only forward, from ever earlier moments, so that it finds what `next` does.
        span_ms = _FIRST_SPAN_MS
        while after_ms < until_ms:
            begin_ms = max(after_ms, until_ms - span_ms)
            found = None
            for time_ms in between(self, begin_ms, until_ms):
                found = time_ms
            if found is not None or begin_ms == after_ms:
                return found
            span_ms *= 4
        return None


class IntervalTimes(Times):
    """Times at equal distances from a moment on.

    Args:
        anchor_ms: one interval before the first time.
    """

    def __init__(self, interval_ms: int, anchor_ms: int) -> None:
        self._interval_ms = interval_ms
        self._anchor_ms = anchor_ms

    @override
    def next(self, after_ms: int) -> int | None:
        return next(self.following(after_ms))

    @override
    def following(self, after_ms: int) -> Iterator[int]:
        passed = max(0, (after_ms - self._anchor_ms) // self._interval_ms)
        return count(self._anchor_ms + (passed + 1) * self._interval_ms, self._interval_ms)

    @override
    def latest(self, after_ms: int, until_ms: int) -> int | None:
        passed = (until_ms - self._anchor_ms) // self._interval_ms
        time_ms = self._anchor_ms + passed * self._interval_ms
        return time_ms if passed > 0 and time_ms > after_ms else None


def times_of(when: str, time_zone: str, anchor_ms: int) -> Times:
    """Return the times of a schedule.

    Args:
        when: as of `ScheduleDefinition`.
        anchor_ms: from which on an interval counts.

    Raises:
        InvalidTimes: there are none.
    """
    zone = _zone_of(time_zone)
    text = when.strip()
    if not text.startswith("@"):
        return CronTimes(text, zone)
    nickname, _, rest = text.partition(" ")
    if nickname.lower() == EVERY:
        return IntervalTimes(_interval_ms(rest.strip()), anchor_ms)
    if text.lower() not in NICKNAMES:
        raise InvalidTimes(
            f"{text[:80]!r} at position 1 is unknown; write one of {', '.join(NICKNAMES)}, "
            f"or an interval such as '{EVERY} 90s'"
        )
    return CronTimes(NICKNAMES[text.lower()], zone)


def between(times: Times, after_ms: int, until_ms: int) -> Iterator[int]:
    """Return the times after `after_ms` that are not after `until_ms`, in order."""
    return takewhile(lambda time_ms: time_ms <= until_ms, times.following(after_ms))


def _zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError):  # unknown, a directory, or not a name; ZoneInfoNotFoundError is a KeyError
        pass
    except KeyError:
        pass
    raise InvalidTimes(f"time zone {name[:80]!r} is unknown; write a name of IANA's such as Europe/Berlin")


def _interval_ms(text: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise InvalidTimes(f"the interval at position {len(EVERY) + 2}: {error}") from None
    if not _INTERVAL_MIN_S <= seconds <= _INTERVAL_MAX_S:
        raise InvalidTimes(
            f"the interval {text!r} at position {len(EVERY) + 2} is {seconds:g} s; it is 1 s to 366 d"
        )
    return round(seconds * 1000)


def _check(expression: str) -> None:
    """Check an expression, and name the place of what is wrong.

    Raises:
        InvalidTimes: it is not one.
    """
    fields = expression.split()
    if len(fields) != len(FIELDS):
        raise InvalidTimes(
            f"the cron expression {expression[:80]!r} has {len(fields)} fields; it has {len(FIELDS)}: "
            f"{', '.join(FIELDS)} (there are no seconds: for those write '{EVERY} 10s')"
        )
    place = 0
    for number, field in enumerate(fields):
        place = expression.index(field, place)
        for part in field.split(","):
            alone = ["*"] * len(FIELDS)
            alone[number] = part
            if not _is_valid(" ".join(alone)):
                raise InvalidTimes(
                    f"the cron expression {expression[:80]!r} has the {FIELDS[number]} {part[:40]!r} at position "
                    f"{place + 1}; write {_ALLOWED[number]}"
                )
            place += len(part) + 1
        place -= 1  # the last part has no comma
    if not _is_valid(expression):
        raise InvalidTimes(f"the cron expression {expression[:80]!r}: no month has this day")


_ALLOWED: Final = tuple(
    f"{values}, or *, with lists (1,2), ranges (1-3) and steps (*/2)"
    for values in ("0 to 59", "0 to 23", "1 to 31 or L", "1 to 12 or JAN to DEC", "0 to 7 or SUN to SAT")
)


def _is_valid(expression: str) -> bool:
    # Only an empty part of a list is not noticed, because the fields are split at blanks.
    if len(expression.split()) != len(FIELDS):
        return False
    try:
        CronSim(expression, _SOME_TIME)
    except (CronSimError, AssertionError, TypeError, ValueError):
        return False
    return True
