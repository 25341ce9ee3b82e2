"""The base of JSON bodies, msgspec structs (RocketMQ: RemotingSerializable).

Members have the fields' names in camel case unless `field(name=...)` is given, and are written in alphabetical order,
as by RocketMQ. A missing or null member gets its default, or is refused without one; unknown members are ignored.

JSON is strict and without blanks, on which the Go client's route parser fails. Exception: a map keyed by message queue
has objects as keys, as Java writes it. When reading, keys may also be bare integers; such loose keys are quoted before
`json.loads`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NoReturn, Self, TypeAlias, TypeVar

from msgspec import UNSET, DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import Decoder, Encoder

from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.record.message import MessageQueue

ObjectKey: TypeAlias = tuple[tuple[str, Any], ...]
"""An object used as a key: its members, sorted by name."""

LOOSE_BYTES_MAX: Final = 2048
"""Maximum size of text with loose keys from an untrusted peer; each costs some microseconds."""

# Time is linear because each text has one way to match, and because `_UP_TO_KEY` always matches. No group is
# possessive, because Python before 3.11.5 matches such groups wrongly.
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*'
_FLAT_REST: Final = rf'[^{{}}"]*+(?:{_STRING}"[^{{}}"]*+)*\}}'
"""The rest of an object without nested ones, after its opening brace."""
_UP_TO_KEY: Final = re.compile(
    # Everything up to a loose key, which only the colon after it identifies. A string may lack its end.
    rf'([^"{{0-9]*+(?:(?:{_STRING}"?|[0-9]++(?!\s*+:)|\{{(?!{_FLAT_REST}\s*+:))[^"{{0-9]*+)*)'
    rf"(?:([0-9]++)|(\{{{_FLAT_REST})|\Z)",
    re.DOTALL,
)


encode_json = Encoder(order="sorted").encode
"""Return a value, including structs, as compact JSON with sorted keys."""
PART_BYTES: Final = 16_384
PART_VALUES: Final = 128
"""A part of a large body ends at this many bytes or values."""
Number: TypeAlias = Annotated[float, Meta(ge=-1e300, le=1e300)]
T = TypeVar("T")


def read_json(data: Buffer, *, loose_bytes_max: int = LOOSE_BYTES_MAX) -> dict[Any, Any]:
    """Parse a body that must be one object. A key that is an object becomes an `ObjectKey`.

    Args:
        data: UTF-8 text.
        loose_bytes_max: maximum size of text with loose keys; the default is for requests, not for brokers' answers and
            own files.

    Raises:
        BodyMalformed: it is not UTF-8, not such JSON, not an object, or nested too deeply.
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
    from secrets import token_hex  # rarely needed, and slow to import

    stand_in = token_hex()  # random, so that no text contains it
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


class Members(Struct, rename="camel"):
    """An object in a body."""


class Body(Members):
    """A whole body."""

    IS_TRUSTED: ClassVar[bool] = False
    """Whether it comes from a broker and may have many loose keys; see `read_json`."""

    @classmethod
    def from_json(cls, data: Buffer, *, is_trusted: bool | None = None) -> Self:
        """Read the body.

        Raises:
            BodyMalformed: not a JSON object, or a member, which the message names, has a wrong type.
        """
        try:
            body: Self = _decoder(cls).decode(data)
            return body
        except (DecodeError, RecursionError, UnicodeError):
            trusted = cls.IS_TRUSTED if is_trusted is None else is_trusted
            members = read_json(data, loose_bytes_max=len(data) if trusted else LOOSE_BYTES_MAX)
            cls.forgive(members)
            return read_members(cls, members)

    @classmethod
    def forgive(cls, members: dict[Any, Any]) -> None:
        """Change members that some peers write in another form; called before a body that did not fit is refused."""

    def to_members(self) -> dict[str, Any]:
        """Return the JSON object's members without those that are None or unset."""
        values = ((name, getattr(self, own)) for name, own in _names(type(self)))
        return {name: value for name, value in values if value is not None and value is not UNSET}

    def to_json(self) -> bytes:
        """Return the body."""
        return encode_json(self.to_members())


class LargeBody(Body):
    """A body that is written in parts, so that other tasks can run in between.

    Items of lists and values of maps are written whole unless they are lists, maps or large bodies themselves, so they
    must be small.
    """

    def json_parts(self) -> Iterator[bytes]:
        """Yield the body in parts, each encoded on request: the body must not change meanwhile."""
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
    """Convert an object's members from `read_json`; raises BodyMalformed."""
    try:
        return convert(_plain(members), kind, str_keys=True)
    except (ValidationError, RecursionError, UnicodeEncodeError) as error:  # the last for lone surrogates
        raise BodyMalformed(f"JSON body cannot be read: {error}") from None


@cache
def _decoder(kind: type[T]) -> Decoder[T]:
    return Decoder(kind)


@cache
def _names(kind: type[Struct]) -> tuple[tuple[str, str], ...]:
    """Return a struct's fields: name on the wire and attribute name."""
    return tuple(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def _plain(value: Any) -> Any:
    """Return a value of `read_json` without nulls; maps keyed by objects, and lists of such pairs, keyed by queue."""
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
    """Yield each entry's text; `before` precedes all."""
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
