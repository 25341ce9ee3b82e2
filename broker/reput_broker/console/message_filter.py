"""Which messages a list shows: by tag, key, SQL92 expression, text, or a condition on the value of the body."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import trio

from reput_broker.console.source import InvalidQuery, Query
from reput_client.message_json import NOT_DECODED
from reput_protocol.errors import FilterSyntaxError, ReputError
from reput_protocol.filter.tags import TagFilter
from reput_protocol.printable import printable_json
from reput_protocol.properties import encode_properties

if TYPE_CHECKING:
    from reput_broker.console.bodies import Bodies
    from reput_client.received import ReceivedMessage
    from reput_protocol.filter.sql import SqlFilter

_SQL_CHARS_MAX: Final = 4096
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^\s.\[\]"'=!<>]+) | \[(?P<index>\d{1,9}|\*)\] | \[(?P<quoted>"(?:[^"\\]|\\.)*")\]""",
    re.VERBOSE,
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
