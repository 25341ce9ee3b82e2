"""Reading through the queues of topics, forwards or backwards, in the order in which messages were stored.

A place is where a reader is in each queue, as a text that a page keeps; queues that it does not name are new. Each
request reads, and with a filter looks at, a bounded number of messages; the place of its answer continues there. A
filter is a tag, key, SQL92 expression, text, or a condition on the value of the body.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import trio

from reput_broker.console.messages import stored_ms_of, summary_of
from reput_broker.console.source import Bodies, InvalidQuery, Query, Source
from reput_client.message_json import NOT_DECODED
from reput_protocol.commands.query import TIME_MAX_MS
from reput_protocol.errors import FilterSyntaxError, PermissionDenied, ReputError
from reput_protocol.filter.tags import TagFilter
from reput_protocol.printable import printable_json
from reput_protocol.properties import encode_properties

if TYPE_CHECKING:
    from reput_client.admin.topics import FetchedMessages
    from reput_client.received import ReceivedMessage
    from reput_protocol.filter.sql import SqlFilter

_SQL_CHARS_MAX: Final = 4096
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^\s.\[\]"'=!<>]+) | \[(?P<index>\d{1,9}|\*)\] | \[(?P<quoted>"(?:[^"\\]|\\.)*")\]""", re.VERBOSE
)
_OPERATOR: Final = re.compile(r"\s*(?P<operator>==|=|!=|<>|<=|>=|<|>|contains\b)\s*", re.IGNORECASE)
_STEPS_MAX: Final = 32
_FOUND_MAX: Final = 10_000
"""Values that a path with `*` may lead to."""


class MessageFilter(NamedTuple):
    """The conditions of a list; all of those given must hold."""

    tags: TagFilter | None = None
    key: str = ""
    sql: SqlFilter | None = None
    text: str = ""
    condition: BodyCondition | None = None

    @property
    def is_everything(self) -> bool:
        """Whether there is no condition."""
        return self == MessageFilter()

    def matches(self, message: ReceivedMessage, bodies: Bodies) -> bool:
        """Tell whether a message is shown; a damaged one is, unless there is a condition. May block."""
        if self.is_everything:
            return True
        try:
            return (
                (self.tags is None or self.tags.matches_tag(message.tag))
                and (not self.key or self._has_key(message))
                and (self.sql is None or self.sql.matches(encode_properties(message.properties)))
                and self._matches_body(message, bodies)
            )
        except ReputError:
            return False

    def _has_key(self, message: ReceivedMessage) -> bool:
        return self.key in message.keys or self.key == message.message_id

    def _matches_body(self, message: ReceivedMessage, bodies: Bodies) -> bool:
        if not self.text and self.condition is None:
            return True
        if self.text and self.condition is None and self.text in _text_of(message.body):
            return True
        value = bodies.decoded(message).value
        if self.condition is not None and (value is NOT_DECODED or not self.condition.holds(value)):
            return False
        if not self.text or self.text in _text_of(message.body):
            return True
        return value is not NOT_DECODED and self.text in printable_json(value).casefold()


def _text_of(body: bytes) -> str:
    return body.decode("utf-8", "replace").casefold()


async def filter_of(query: Query, *, serves_sql: bool) -> MessageFilter:
    """Return the filter that the parameters `tag`, `key`, `sql`, `text` and `path` describe.

    Raises:
        InvalidQuery: one of them is not valid, or SQL92 is turned off.
    """
    tag, sql, path = query.text("tag"), query.text("sql", size_max=_SQL_CHARS_MAX), query.text("path")
    if sql and not serves_sql:
        raise InvalidQuery("this broker does not filter by SQL92; set its option filters.sql = true")
    try:
        tags = TagFilter.parse(tag) if tag and tag != "*" else None
        compiled = await _compiled(sql) if sql else None
    except FilterSyntaxError as error:
        raise InvalidQuery(str(error)) from None
    condition = BodyCondition.parse(path) if path else None
    return MessageFilter(tags, query.text("key"), compiled, query.text("text").casefold(), condition)


async def _compiled(expression: str) -> SqlFilter:
    """Compile an expression in steps between which other tasks run."""
    from reput_protocol.filter.sql import SqlFilter

    for _ in SqlFilter.parsing(expression):
        await trio.lowlevel.checkpoint()
    return SqlFilter.parse(expression)  # known now


class BodyCondition(NamedTuple):
    """A path into the value of a body, and what it must lead to; without an operator anything but null.

    `order.items[0].sku = "A-1"`, `$.total >= 20`, `items[*].sku contains "A-"`, `["a name"]`.
    """

    steps: tuple[str | int | None, ...]
    compare: Callable[[Any, Any], bool] | None = None
    wanted: Any = None

    @staticmethod
    def parse(text: str) -> BodyCondition:
        """Return the condition; raises `InvalidQuery` with the position of what is not understood."""
        steps: list[str | int | None] = []
        at = 1 if text.startswith("$") else 0
        while (match := _STEP.match(text, at)) is not None:
            if match["name"] is not None and steps and not match[0].startswith("."):
                break
            at = match.end()
            if match["index"] is not None:
                steps.append(None if match["index"] == "*" else int(match["index"]))
            elif match["quoted"] is not None:
                steps.append(_literal(match["quoted"]))
            else:
                steps.append(None if match["name"] == "*" else match["name"])
        if not steps or len(steps) > _STEPS_MAX:
            raise InvalidQuery(f'{text[:80]!r} is not a path; write one such as order.items[0].sku = "A-1"')
        rest = text[at:]
        if not rest.strip():
            return BodyCondition(tuple(steps))
        found = _OPERATOR.match(rest)
        value = "" if found is None else rest[found.end() :].strip()
        if found is None or not value:
            raise InvalidQuery(
                f"{rest.strip()[:40]!r} at character {at} is not understood; after the path comes =, !=, <, <=, >, >= "
                "or contains, and a number, a text, true, false or null"
            )
        return BodyCondition(tuple(steps), _COMPARE[found["operator"].lower()], _literal(value))

    def holds(self, value: Any) -> bool:
        """Tell whether one of the values that the path leads to is as wanted."""
        if self.compare is None:
            return any(found is not None for found in self._led_to(value))
        return any(self.compare(found, self.wanted) for found in self._led_to(value))

    def _led_to(self, value: Any) -> Iterator[Any]:
        found = [value]
        for step in self.steps:
            found = [part for each in found for part in _parts(each, step)][:_FOUND_MAX]
        yield from found


def _parts(value: Any, step: str | int | None) -> Iterator[Any]:
    if step is None:
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif isinstance(value, dict):
        if str(step) in value:
            yield value[str(step)]
    elif isinstance(value, list) and str(step).isdecimal() and int(step) < len(value):
        yield value[int(step)]


def _literal(text: str) -> Any:
    """Return a value in JSON; other text stands for itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.strip("'")


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(found: Any, wanted: Any) -> bool:
        if isinstance(found, bool) or isinstance(wanted, bool):
            return False
        both_numbers = isinstance(found, int | float) and isinstance(wanted, int | float)
        both_texts = isinstance(found, str) and isinstance(wanted, str)
        return (both_numbers or both_texts) and compare(found, wanted)

    return compared


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, str):
        return found == _as_text(wanted)
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _as_text(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else msgspec.json.encode(wanted).decode()


def _contains(found: Any, wanted: Any) -> bool:
    if isinstance(found, str):
        return _as_text(wanted) in found
    return isinstance(found, list) and any(_equal(each, wanted) for each in found)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": _equal,
    "==": _equal,
    "!=": lambda found, wanted: not _equal(found, wanted),
    "<>": lambda found, wanted: not _equal(found, wanted),
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "contains": _contains,
}


Queue = tuple[str, int]
"""A topic and the number of one of its queues."""

_LISTED_MAX: Final = 100
_QUEUES_MAX: Final = 256
_BYTES_MAX: Final = 16 << 20
"""Bytes of messages that are read for one list."""
_LOOKED_AT_MAX: Final = 20_000
"""Messages that a filter looks at for one list."""
_SECONDS_MAX: Final = 2.0
_BLOCK_BYTES: Final = 1 << 20
_BLOCK_MESSAGES: Final = 500
_FIRST_BLOCK: Final = 8
_BEHIND_MAX: Final = 1000
"""Messages by which a reader that follows may be behind; it omits older ones."""
_PLACE_CHARS_MAX: Final = 5000
"""Of 8 KiB that the head of a request may have."""
_PATTERN: Final = re.compile(r"[*?\[]")


async def browse_messages(source: Source, query: Query) -> dict[str, Any]:
    """Return messages of `topic`, a name or several names and patterns, of its queue `queue` or of all.

    `start` is `newest`, `oldest`, `time` with `at_ms`, `offset` with `offset`, or `next` or `previous` with a `place`
    of an answer before; with `follow` a `next` that is far behind omits messages. The parameters of `filter_of` say
    which messages are shown.
    """
    bounds = await _bounds(source, query)
    wanted = await filter_of(query, serves_sql=source.serves_sql)
    count = query.number("count", 50, 1, _LISTED_MAX)
    start = query.text("start") or "newest"
    given, skipped = await _given_places(source, query, start, bounds)
    is_backwards = start in ("newest", "previous")
    reading = _Reading(source, bounds, given, wanted, count, is_backwards=is_backwards)
    await reading.read()
    rows, reached = reading.result()
    earlier, later = (reached, given) if is_backwards else (given, reached)
    readable = [queue for queue in bounds if queue[0] not in reading.denied]
    return {
        "topics": sorted({topic for topic, _ in bounds}),
        "queues_total": len(bounds),
        "messages": rows,
        "previous": _written(earlier),
        "next": _written(later),
        "has_older": any(earlier[queue] > bounds[queue][0] for queue in readable),
        "has_more": any(later[queue] < bounds[queue][1] for queue in readable),
        "looked_at": reading.looked_at,
        "is_cut": reading.is_cut,
        "skipped": skipped,
        "denied": sorted(reading.denied),
    }


# -- topics and places -------------------------------------------------------------------------------------------------


async def _bounds(source: Source, query: Query) -> dict[Queue, tuple[int, int]]:
    """Return the first and the next offset of each queue to read."""
    asked = [name for name in re.split(r"[,\s]+", query.needed("topic")) if name]
    patterns = [name for name in asked if _PATTERN.search(name)]
    topics = dict.fromkeys(name for name in asked if name not in patterns)
    if patterns:
        topics |= dict.fromkeys(
            summary.topic
            for summary in await source.admin.topic_summaries()
            if any(_is_meant(pattern, summary.kind) and fnmatchcase(summary.topic, pattern) for pattern in patterns)
        )
    found = await source.admin.queue_bounds(list(topics)) if topics else {}
    for topic in topics.keys() - {queue.topic for queue in found}:
        if topic in asked:
            await source.admin.topic_config(topic)  # raises that it does not exist, or may not be seen
    queue_id = query.number("queue", -1, -1)
    bounds = {
        (queue.topic, queue.queue_id): span
        for queue, span in found.items()
        if queue_id < 0 or queue.queue_id == queue_id
    }
    if queue_id >= 0 and not bounds and len(topics) == 1:
        raise InvalidQuery(f"queue is {queue_id}, and must be within -1 and {max(0, len(found) - 1)}")
    if len(bounds) > _QUEUES_MAX:
        what = next(iter(topics)) if len(topics) == 1 else f"these {len(topics)} topics"
        raise InvalidQuery(
            f"{what} {'has' if len(topics) == 1 else 'have'} {len(bounds)} queues, and at most {_QUEUES_MAX} can be "
            "shown together; choose a queue, or fewer topics"
        )
    return bounds


def _is_meant(pattern: str, kind: str) -> bool:
    """Tell whether a pattern stands for topics of a kind: those of users; with a % first, retry and dead letters."""
    return kind in ("retry", "dlq") if pattern.startswith("%") else kind == "normal"


async def _given_places(
    source: Source, query: Query, start: str, bounds: Mapping[Queue, tuple[int, int]]
) -> tuple[dict[Queue, int], int]:
    """Return where to start in each queue, and how many messages are omitted."""
    if start == "newest":
        return {queue: high for queue, (_, high) in bounds.items()}, 0
    if start == "oldest":
        return {queue: low for queue, (low, _) in bounds.items()}, 0
    if start == "offset":
        offset = query.number("offset", 0)
        return {queue: max(low, min(high, offset)) for queue, (low, high) in bounds.items()}, 0
    if start == "time":
        at_ms = query.number("at_ms", 0)
        found = {queue: await source.admin.offset_by_time(*queue, at_ms) for queue in bounds}
        return {queue: max(low, min(high, found[queue])) for queue, (low, high) in bounds.items()}, 0
    if start not in ("next", "previous"):
        raise InvalidQuery(f"start is {start[:40]!r}, and must be newest, oldest, offset, time, next or previous")
    known = _read_place(query.text("place", size_max=_PLACE_CHARS_MAX))
    places = {queue: max(low, min(high, known.get(queue, low))) for queue, (low, high) in bounds.items()}
    if query.text("follow") != "1":
        return places, 0
    share, skipped = max(1, _BEHIND_MAX // max(1, len(bounds))), 0
    if sum(high - places[queue] for queue, (_, high) in bounds.items()) > _BEHIND_MAX:
        for queue, (_, high) in bounds.items():
            skipped += max(0, high - share - places[queue])
            places[queue] = max(places[queue], high - share)
    return places, skipped


def _written(places: Mapping[Queue, int]) -> str:
    """Return a place as text: `TOPIC*QUEUE.OFFSET.OFFSET*...`, offsets from a queue on."""
    parts: list[str] = []
    before: Queue | None = None
    for (topic, queue_id), offset in sorted(places.items()):
        if before == (topic, queue_id - 1):
            parts[-1] += f".{offset}"
        else:
            parts += [topic, f"{queue_id}.{offset}"]
        before = topic, queue_id
    return "*".join(parts)


def _read_place(text: str) -> dict[Queue, int]:
    """Return the offsets of a place; raises `InvalidQuery` if it is not one."""
    parts = text.split("*") if text else []
    places: dict[Queue, int] = {}
    try:
        for topic, numbers in zip(parts[::2], parts[1::2], strict=True):
            first, *offsets = [int(number) for number in numbers.split(".")]
            places |= {(topic, first + step): offset for step, offset in enumerate(offsets)}
    except ValueError:
        raise InvalidQuery("place is not what a response contained; start again") from None
    if any(offset < 0 or offset >= 1 << 62 for offset in places.values()):
        raise InvalidQuery("place is not what a response contained; start again")
    return places


# -- reading -----------------------------------------------------------------------------------------------------------


class _LookedAt(NamedTuple):
    """A message that was read. Smaller keys come first in the direction of the reading, within a queue and among all.

    `row` is None if the filter does not match.
    """

    key: int
    offset: int
    row: dict[str, Any] | None


class _QueueReading:
    """What was read of one queue, in the direction of the reading.

    Attributes:
        reached: the offset after the last message that was looked at; backwards, the offset of that message.
        bound: where there are no more.
        found: the messages, in the order of their keys.
        shown: the keys of those with a row.
    """

    def __init__(self, number: int, queue: Queue, place: int, bound: int) -> None:
        self.number = number
        self.queue = queue
        self.reached = place
        self.bound = bound
        self.found: list[_LookedAt] = []
        self.shown: list[int] = []

    @property
    def is_done(self) -> bool:
        """Whether all of the queue was looked at."""
        return self.reached == self.bound

    @property
    def frontier(self) -> int:
        """The last key: no message with a smaller one follows."""
        return self.found[-1].key if self.found else -TIME_MAX_MS

    def add(self, offset: int, key: int, row: dict[str, Any] | None) -> None:
        """Note the next message. A key is never smaller than the one before, also if the clock was set."""
        key = max(self.frontier, key)
        self.found.append(_LookedAt(key, offset, row))
        if row is not None:
            self.shown.append(key)


class _Reading:
    """Reads the queues of a list, the one whose messages come next first, and keeps rows only.

    Attributes:
        looked_at: messages that were read.
        is_cut: whether the list ends early, because so much was read for it.
        denied: topics that the user may not read.
    """

    def __init__(
        self,
        source: Source,
        bounds: Mapping[Queue, tuple[int, int]],
        places: Mapping[Queue, int],
        wanted: MessageFilter,
        count: int,
        *,
        is_backwards: bool,
    ) -> None:
        self._source = source
        self._wanted = wanted
        self._count = count
        self._sign = -1 if is_backwards else 1
        self._queues = [
            _QueueReading(number, queue, places[queue], bounds[queue][0 if is_backwards else 1])
            for number, queue in enumerate(sorted(bounds))
        ]
        self._left = _BYTES_MAX
        self._topics = {topic for topic, _ in bounds}
        self.looked_at = 0
        self.is_cut = False
        self.denied: set[str] = set()

    async def read(self) -> None:
        """Read until there are enough rows, nothing is left, or it has become too much."""
        ends_at = trio.current_time() + _SECONDS_MAX
        while open_queues := [queue for queue in self._queues if not queue.is_done]:
            queue = min(open_queues, key=lambda each: each.frontier)
            if queue.found:  # else it has not been begun: then nothing can be shown
                ready = sum(bisect_right(each.shown, queue.frontier) for each in self._queues)
                if ready >= self._count:
                    return
                is_much = self._left <= 0 or self.looked_at >= _LOOKED_AT_MAX
                if is_much or trio.current_time() >= ends_at:
                    self.is_cut = True
                    return
            try:
                await self._read_block(queue, len(open_queues))
            except PermissionDenied:
                if len(self._topics) == 1:
                    raise
                self.denied.add(queue.queue[0])
                queue.bound = queue.reached

    async def _read_block(self, queue: _QueueReading, open_queues: int) -> None:
        size = _BLOCK_MESSAGES
        if self._wanted.is_everything:  # no more than will be shown, most likely
            size = self._count if queue.found else max(_FIRST_BLOCK, self._count // open_queues + 1)
        share = max(1, min(_BLOCK_BYTES, self._left // open_queues))
        if self._sign > 0:
            low, high = queue.reached, min(queue.bound, queue.reached + size)
            found = await self._fetch(queue, low, high, share)
            reached = found.next_offset
        else:
            reached, high = max(queue.bound, queue.reached - size), queue.reached
            found = await self._fetch(queue, reached, high, share)
            while reached < found.next_offset < high:  # they are large: only the end of these is read
                reached = max(found.next_offset, high - max(1, (found.next_offset - reached) // 2))
                found = await self._fetch(queue, reached, high, share)
        if found.next_offset <= (queue.reached if self._sign > 0 else reached):
            queue.bound = queue.reached  # deleted meanwhile, or not on disk any more
            return
        messages = found.messages[:: self._sign]
        self.looked_at += len(messages)
        for row in await trio.to_thread.run_sync(self._looked_at, messages):
            queue.add(row.offset, row.key, row.row)
        queue.reached = reached

    async def _fetch(self, queue: _QueueReading, start: int, end: int, max_bytes: int) -> FetchedMessages:
        found = await self._source.admin.fetch_messages(*queue.queue, start, end, max_bytes=max_bytes)
        self._left -= found.messages.record_bytes
        return found

    def _looked_at(self, messages: Sequence[ReceivedMessage]) -> list[_LookedAt]:
        """Return messages with their rows; runs in a worker thread."""
        bodies = self._source.bodies
        found = []
        for message in messages:
            row = summary_of(message, bodies) if self._wanted.matches(message, bodies) else None
            stored_ms = stored_ms_of(message)
            key = -TIME_MAX_MS if stored_ms is None else self._sign * stored_ms
            found.append(_LookedAt(key, message.queue_offset, row))
        return found

    def result(self) -> tuple[list[dict[str, Any]], dict[Queue, int]]:
        """Return the rows, the oldest first, and where each queue continues.

        Where more of a queue follows than was read, nothing beyond its last message is shown: it could be in between.
        """
        until = min((queue.frontier for queue in self._queues if not queue.is_done), default=TIME_MAX_MS)
        ranked = [
            (self._rank(queue, each), each.row)
            for queue in self._queues
            for each in queue.found
            if each.row is not None and each.key <= until
        ]
        ranked.sort(key=itemgetter(0))
        last = (until, len(self._queues), 0) if len(ranked) <= self._count else ranked[self._count - 1][0]
        rows = [row for _, row in ranked[: self._count]]
        reached = {queue.queue: self._continues(queue, last) for queue in self._queues}
        return rows[:: self._sign], reached

    def _rank(self, queue: _QueueReading, each: _LookedAt) -> tuple[int, int, int]:
        return each.key, self._sign * queue.number, self._sign * each.offset

    def _continues(self, queue: _QueueReading, last: tuple[int, int, int]) -> int:
        """Return where a queue continues after the last row, or after the last message that could be shown."""
        at = bisect_right(queue.found, last, key=lambda each: self._rank(queue, each))
        if at == len(queue.found):
            return queue.reached
        return queue.found[at].offset + (0 if self._sign > 0 else 1)
