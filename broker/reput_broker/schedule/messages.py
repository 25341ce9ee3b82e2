"""The messages that schedules send (their unique ids, records and queues), and when: a cron expression in a time zone,
or an interval.

Daylight saving is that of Debian's cron. Of an expression whose minute and hour both do not begin with `*`, a time that
the clock skips is moved to the next moment that exists, and one that comes twice counts once, the first time. Others
follow the time that passes: `*/10 * * * *` is every ten minutes also while the clock is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count, takewhile
from secrets import token_hex
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from typing_extensions import override

from reput_broker.tenure.core import Core
from reput_protocol.commands.schedule import ScheduleDefinition
from reput_protocol.errors import InvalidMessage, ReputError
from reput_protocol.properties import (
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    SCHEDULE,
    SCHEDULE_TIME,
    SHARDING_KEY,
    UNIQ_KEY,
    check_properties_size,
    encode_properties,
)
from reput_protocol.property_rules import is_reserved
from reput_protocol.quantities import parse_duration
from reput_protocol.record.layout import index_hash
from reput_protocol.record.message import Message, encode_properties_text
from reput_protocol.record.record import Record

BODY_BYTES_MAX: Final = 65_536
_OVERHEAD_BYTES: Final = 1024
"""More than a record has besides topic, properties and body."""
_REPLIES: Final = (REPLY_TO_CLIENT, CORRELATION_ID, MSG_TYPE)
_SOME_MS: Final = 10**14
"""A time with more digits than any that comes."""
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


def unique_id_of(name: str, time_ms: int) -> str:
    """Return the unique id of the message of a schedule for one of its times: the same at every broker."""
    return f"SCHEDULE-{name}-{time_ms}"


def unique_id_by_hand(name: str) -> str:
    """Return a unique id for the message of a schedule that is run by hand."""
    return f"SCHEDULE-{name}-run-{token_hex(8)}"


class Content:
    """What each message of a schedule has, checked as a whole: a record of it can always be made.

    Raises:
        InvalidMessage, InvalidName: no producer could send such a message; the text says why.
    """

    def __init__(self, definition: ScheduleDefinition) -> None:
        message = _message_of(definition)
        self._name = definition.name
        self.body = bytes(message.body)
        self._text = encode_properties_text(message, None)
        check_properties_size(len(self.properties(unique_id_by_hand(definition.name), _SOME_MS)))

    def properties(self, unique_id: str, time_ms: int | None) -> bytes:
        """Return the encoded properties of one message, as of `ScheduledMessages.record`."""
        marks = {SCHEDULE: self._name}
        if time_ms is not None:
            marks[SCHEDULE_TIME] = str(time_ms)
        return encode_properties({UNIQ_KEY: unique_id}) + self._text + encode_properties(marks)


def _message_of(definition: ScheduleDefinition) -> Message:
    """Return the message that a schedule sends, as a producer would send it.

    Raises:
        InvalidMessage, InvalidName: no producer could send it; the text says why.
    """
    try:
        body = definition.message_body
    except ValueError as error:
        raise InvalidMessage(f"the body is not Base64: {error}") from None
    if len(body) > BODY_BYTES_MAX:
        raise InvalidMessage(
            f"the body has {len(body)} bytes, and that of a schedule at most {BODY_BYTES_MAX}; send a reference to "
            "the data"
        )
    properties = dict(definition.properties)
    for name in (SCHEDULE, SCHEDULE_TIME):
        if name in properties:
            raise InvalidMessage(f"the broker sets the property {name} of what a schedule sends; leave it out")
    for name in properties:
        if name in _REPLIES:
            raise InvalidMessage(
                f"the property {name} is that of a request or a reply, which a schedule cannot send; leave it out"
            )
        if is_reserved(name, in_retries=True):
            raise InvalidMessage(f"the property {name} is reserved for the broker; choose another name")
    if definition.ordering_key is not None:
        if definition.priority is not None:
            raise InvalidMessage("a message has an ordering key or a priority, not both")
        properties[SHARDING_KEY] = definition.ordering_key
    return Message(
        definition.topic,
        body,
        tag=definition.tag,
        keys=definition.keys,
        properties=properties,
        priority=definition.priority,
    )


class ScheduledMessages:
    """Makes the records of messages."""

    def __init__(self, core: Core) -> None:
        self._topics = core.topic_access
        self._host = core.store.options.host
        self._clock_ms: Callable[[], int] = core.clock_ms
        self._rotation = count()

    def why_not(self, topic: str) -> str | None:
        """Return why nothing can be sent to a topic, one of `observe.counters.TIME_MISSED_REASONS`; None if it can."""
        if self._topics.known(topic) is None:
            return "no_topic"
        return None if self._topics.may_write(topic, 0) else "refused"

    def record(self, definition: ScheduleDefinition, content: Content, unique_id: str, time_ms: int | None) -> Record:
        """Return the record of a message to a topic.

        Args:
            content: of the schedule.
            time_ms: the time for which it is sent; None if it is run by hand.

        Raises:
            Refusal: NO_TOPIC.
        """
        return Record(
            definition.topic,
            content.body,
            queue_id=self._queue_of(definition),
            born_timestamp_ms=self._clock_ms(),
            born_host=self._host,
            properties=content.properties(unique_id, time_ms),
        )

    def _queue_of(self, definition: ScheduleDefinition) -> int:
        config = self._topics.existing(definition.topic)
        queues = max(1, config.write_queue_nums)
        if definition.ordering_key is not None:
            return index_hash(definition.ordering_key) % queues  # as clients do
        if definition.priority is not None:
            return min(definition.priority, queues - 1)
        return next(self._rotation) % queues


def size_max(record: Record) -> int:
    """Return an upper bound of a record's bytes."""
    return len(record.body) + len(record.properties) + _OVERHEAD_BYTES


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
        raise InvalidTimes(f"the interval {text!r} at position {len(EVERY) + 2} is {seconds:g} s; it is 1 s to 366 d")
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
