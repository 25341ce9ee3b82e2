"""What all JSON bodies share: how they are read and written (RocketMQ: RemotingSerializable).

A body is a msgspec struct. A member's name is the field's own in camel case unless `field(name=...)` says otherwise.
Members come in alphabetical order, as RocketMQ writes them. What is missing or null takes its default, or is refused
where there is none, and unknown members are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, TypeVar

from msgspec import UNSET, DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import Decoder

from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.loose_json import LOOSE_BYTES_MAX, encode_json, read_json
from reput_protocol.message import MessageQueue

PART_BYTES: Final = 16_384
PART_VALUES: Final = 128
"""A part of a large body ends when it has so many bytes, or so many values."""

I64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
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
