"""What all JSON bodies share: how they are read and written (RocketMQ: RemotingSerializable).

A body is a msgspec struct. A member's name is the field's own in camel case unless `field(name=...)` says otherwise.
Members come in alphabetical order, as RocketMQ writes them. What is missing or null takes its default, or is refused
where there is none, and unknown members are ignored.

JSON is written strictly and without blanks, because the Go client's route parser trips over a blank. One exception: a
map keyed by message queue has objects as keys, as Java's library writes it and every client expects it. It is read
leniently in just two points, both Java's: keys may be bare integers or objects. The interpreter's own parser reads
both: loose keys are put in quotes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from secrets import token_hex
from typing import Annotated, Any, ClassVar, Final, NoReturn, Self, TypeAlias, TypeVar

from msgspec import UNSET, DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import Decoder, Encoder

from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.record.message import MessageQueue

ObjectKey: TypeAlias = tuple[tuple[str, Any], ...]
"""What an object that stands as a key is read as: its members, sorted by name."""

LOOSE_BYTES_MAX: Final = 2048
"""The largest text with loose keys that is read from a stranger: such a key costs some microseconds."""

_STRING: Final = r'"(?:[^"\\]++|\\.)*+"?'
_FLAT_REST: Final = rf'(?:[^{{}}"]++|{_STRING})*+\}}'
"""An object without others in it, from behind its brace on."""
_UP_TO_KEY: Final = re.compile(
    # All that is no loose key, which only a colon tells: strings, numbers and opening braces among the rest. Nothing
    # that was matched is given back (`++`), so the time is in proportion to the text.
    rf'((?:[^"{{0-9]++|{_STRING}|[0-9]++(?!\s*+:)|\{{(?!{_FLAT_REST}\s*+:))*+)'
    rf"(?:([0-9]++)|(\{{{_FLAT_REST})|\Z)",
    re.DOTALL,
)


encode_json = Encoder(order="sorted").encode
"""Return a value, structs among them, as compact JSON with sorted keys."""


def read_json(data: Buffer, *, loose_bytes_max: int = LOOSE_BYTES_MAX) -> dict[Any, Any]:
    """Read a body that must be one object. A key that is an object becomes an `ObjectKey`.

    Args:
        data: the text, in UTF-8.
        loose_bytes_max: how large a text with loose keys may be. What a broker or a file of ours holds may be larger
            than the default, which is for requests.

    Raises:
        BodyMalformed: it is no UTF-8, no such JSON, no object, or nested too deeply.
    """
    try:
        text = str(data, "utf-8")
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError:
            if len(data) > loose_bytes_max:
                raise
            value = _read_loosely(text)
    except (ValueError, RecursionError) as error:
        raise BodyMalformed(f"JSON body cannot be read: {error}") from None
    if type(value) is not dict:
        raise BodyMalformed(f"JSON body is a {type(value).__name__} and not an object")
    return value


def _read_loosely(text: str) -> object:
    stand_in = token_hex()  # which no text holds by accident, nor by design
    objects: dict[str, ObjectKey] = {}

    def quoted(match: re.Match[str]) -> str:
        before, number, key = match.groups()
        if number is not None:
            return f'{before[:-1]}"-{number}"' if before.endswith("-") else f'{before}"{number}"'
        if key is None:
            return before
        members = json.loads(key, parse_constant=_refuse_constant)
        if any(isinstance(value, (dict, list)) for value in members.values()):
            raise ValueError("a key has members that are not plain")
        name = f"{stand_in}{len(objects)}"
        objects[name] = tuple(sorted(members.items()))
        return f'{before}"{name}"'

    def with_keys(members: list[tuple[str, Any]]) -> dict[Any, Any]:
        return {objects.get(name, name): value for name, value in members}

    return json.loads(
        _UP_TO_KEY.sub(quoted, text), parse_constant=_refuse_constant, object_pairs_hook=with_keys
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


PART_BYTES: Final = 16_384
PART_VALUES: Final = 128
"""A part of a large body ends when it has so many bytes, or so many values."""

Number: TypeAlias = Annotated[float, Meta(ge=-1e300, le=1e300)]

T = TypeVar("T")


class Members(Struct, rename="camel"):
    """An object in a body."""


class Body(Members):
    """A whole body."""

    IS_TRUSTED: ClassVar[bool] = False
    """Whether it comes from a broker, so that its loose keys may be many; see `read_json`."""

    @classmethod
    def from_json(cls, data: Buffer, *, is_trusted: bool | None = None) -> Self:
        """Read the body.

        Raises:
            BodyMalformed: it is no JSON object, or a member is not of its type; the message names the member.
        """
        try:
            body: Self = _decoder(cls).decode(data)
            return body
        except (DecodeError, RecursionError, UnicodeEncodeError):
            trusted = cls.IS_TRUSTED if is_trusted is None else is_trusted
            members = read_json(data, loose_bytes_max=len(data) if trusted else LOOSE_BYTES_MAX)
            return read_members(cls, members)

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object; what is None or unset is left out."""
        values = ((name, getattr(self, own)) for name, own in _names(type(self)))
        return {name: value for name, value in values if value is not None and value is not UNSET}

    def to_json(self) -> bytes:
        """Return the body."""
        return encode_json(self.to_members())


class LargeBody(Body):
    """A body that is written in parts, so that others can have their turns in between.

    Items of its lists and values of its maps are written whole unless they are lists, maps or such bodies themselves,
    so they have to be small. A map keyed by message queue is no strict JSON: its keys are objects, as RocketMQ writes
    them, and every client reads that.
    """

    def json_parts(self) -> Iterator[bytes]:
        """Return the body in parts. They are written when they are asked for: what is in the body must not change."""
        texts: list[bytes] = []
        size = 0
        for text in _texts(self):
            texts.append(text)
            size += len(text)
            if size >= PART_BYTES or len(texts) >= PART_VALUES:
                yield b"".join(texts)
                texts, size = [], 0
        yield b"".join(texts)

    def to_json(self) -> bytes:
        """Return the body in one piece."""
        return b"".join(self.json_parts())


def read_members(kind: type[T], members: Mapping[Any, Any]) -> T:
    """Read an object of a body from its members as `read_json` returns them; raises BodyMalformed."""
    try:
        return convert(_plain(members), kind, str_keys=True)
    except (ValidationError, RecursionError, UnicodeEncodeError) as error:  # the last for lone surrogates
        raise BodyMalformed(f"JSON body cannot be read: {error}") from None


@cache
def _decoder(kind: type[T]) -> Decoder[T]:
    return Decoder(kind)


@cache
def _names(kind: type[Struct]) -> tuple[tuple[str, str], ...]:
    """Return the fields of a struct, each with its name on the wire and its own."""
    return tuple(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def _plain(value: Any) -> Any:
    """Return a value of `read_json` without nulls; what is keyed by objects, or a list of such pairs, by queues."""
    if type(value) is dict:
        return {
            _queue(dict(key)) if type(key) is tuple else key: _plain(item)
            for key, item in value.items()
            if item is not None
        }
    if type(value) is list:
        if value and all(type(item) is list and len(item) == 2 and type(item[0]) is dict for item in value):
            return {_queue(key): _plain(item) for key, item in value}
        return [_plain(item) for item in value]
    return value


def _queue(members: Mapping[str, Any]) -> MessageQueue:
    return convert(_plain(members), MessageQueue)


_Entries: TypeAlias = LargeBody | Mapping[Any, Any] | list[Any]


def _texts(value: _Entries, before: bytes = b"") -> Iterator[bytes]:
    """Return the text of some entries, each by itself; `before` stands in front of it all."""
    if isinstance(value, LargeBody):
        value = value.to_members()
    if isinstance(value, Mapping):
        before += b"{"
        is_sorted = isinstance(next(iter(value), None), MessageQueue)
        for key in value if is_sorted else sorted(value):
            yield from _entry(value[key], b"%b%b:" % (before, encode_json(key)))
            before = b","
        yield b"}" if before == b"," else before + b"}"
    else:
        before += b"["
        for item in value:
            yield from _entry(item, before)
            before = b","
        yield b"]" if before == b"," else before + b"]"


def _entry(value: object, before: bytes) -> Iterable[bytes]:
    if isinstance(value, LargeBody | Mapping | list):
        return _texts(value, before)
    return (before + encode_json(value),)
