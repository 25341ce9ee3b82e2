"""JSON bodies as RocketMQ's brokers and tools write and read them (RocketMQ: RemotingSerializable).

Written strictly and without blanks, because the Go client's route parser trips over a blank. There is one exception
to strictness: a map keyed by message queue has objects as keys, as Java's library writes it and every client expects
it. Read leniently in just two points, both Java's: keys may be bare integers or objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, NoReturn, TypeAlias

from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed

ObjectKey: TypeAlias = tuple[tuple[str, Any], ...]
"""What an object that stands as a key is read as: its members, sorted by name."""

_DEPTH_MAX: Final = 32
_BLANK = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BARE_KEY = re.compile(r"-?[0-9]+")
_WORDS: Final = {"true": True, "false": False, "null": None}

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def write_json(value: object) -> bytes:
    """Return `value` as compact JSON with sorted keys."""
    return _encode(value).encode()


def write_object_keyed_map(entries: Mapping[ObjectKey, object]) -> str:
    """Return a map whose keys are objects, as RocketMQ writes it: `{{"queueId":0}:1}`. This is not strict JSON."""
    return "{" + ",".join(f"{_encode(dict(key))}:{_encode(value)}" for key, value in entries.items()) + "}"


def read_json(data: Buffer) -> dict[Any, Any]:
    """Read a body that must be one object. A key that is an object becomes an `ObjectKey`.

    Raises:
        BodyMalformed: it is no UTF-8, no such JSON, no object, or nested deeper than 32.
    """
    try:
        text = str(data, "utf-8")
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError:
            value = _LooseReader(text).read()
    except (ValueError, RecursionError) as error:
        raise BodyMalformed(f"JSON body cannot be read: {error}") from None
    if type(value) is not dict:
        raise BodyMalformed(f"JSON body is a {type(value).__name__} and not an object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class _LooseReader:
    """Recursive descent over a text, never deeper than `_DEPTH_MAX`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def read(self) -> object:
        value = self._value(0)
        if self._next():
            self._fail("the end")
        return value

    def _value(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise ValueError(f"nested deeper than {_DEPTH_MAX}")
        first = self._next()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first == '"':
            return self._string()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._position):
                self._position += len(word)
                return value
        match = _NUMBER.match(self._text, self._position)
        if match is None:
            self._fail("a value")
        self._position = match.end()
        return float(match[0]) if match[1] or match[2] else int(match[0])

    def _object(self, depth: int) -> dict[Any, Any]:
        self._position += 1
        members: dict[Any, Any] = {}
        if self._skip("}"):
            return members
        while True:
            key = self._key(depth + 1)
            if not self._skip(":"):
                self._fail("':'")
            members[key] = self._value(depth + 1)
            if self._skip("}"):
                return members
            if not self._skip(","):
                self._fail("',' or '}'")

    def _key(self, depth: int) -> str | ObjectKey:
        first = self._next()
        if first == '"':
            return self._string()
        if first == "{":
            if depth > _DEPTH_MAX:
                raise ValueError(f"nested deeper than {_DEPTH_MAX}")
            members = self._object(depth)
            if not all(type(name) is str for name in members):
                self._fail("a key of plain members")
            if any(isinstance(value, (dict, list)) for value in members.values()):
                self._fail("a key of plain members")
            return tuple(sorted(members.items()))
        match = _BARE_KEY.match(self._text, self._position)
        if match is None:
            self._fail("a key")
        self._position = match.end()
        return match[0]

    def _array(self, depth: int) -> list[Any]:
        self._position += 1
        items: list[Any] = []
        if self._skip("]"):
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._skip("]"):
                return items
            if not self._skip(","):
                self._fail("',' or ']'")

    def _string(self) -> str:
        text, self._position = scanstring(self._text, self._position + 1, True)
        return str(text)

    def _next(self) -> str:
        """Return the next character that is no blank, "" at the end."""
        match = _BLANK.match(self._text, self._position)
        assert match is not None, "the pattern matches nothing at all, too"
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _skip(self, character: str) -> bool:
        if self._next() != character:
            return False
        self._position += 1
        return True

    def _fail(self, expected: str) -> NoReturn:
        raise ValueError(f"expected {expected} at character {self._position}")
