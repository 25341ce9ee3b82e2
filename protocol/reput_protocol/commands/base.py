"""What every family of requests needs: the base classes of headers and bodies, and the type of a row.

A row of the table of requests (`commands.table`) has all that the code of a request decides. Access checks, the answers
of slaves and of masters without a lease, limits of bodies, counters and the documentation of requests derive from it.

A header is a struct read from the `ext` of a `wire.header.Header` and written to it. Fields have their names in camel
case on the wire unless `field(name=...)` is given. One class reads all three header types: a value may be typed
(msgpack) or text (JSON, binary), and an empty text is an absent number, as in RocketMQ's binary headers. Unknown fields
are ignored.

A body is JSON (RocketMQ: RemotingSerializable). Members have the fields' names in camel case unless `field(name=...)`
is given, and are written in alphabetical order, as by RocketMQ. A missing or null member gets its default, or is
refused without one; unknown members are ignored. JSON is strict and without blanks, on which the Go client's route
parser fails. Exception: a map keyed by message queue has objects as keys, as Java writes it. When reading, keys may
also be bare integers; such loose keys are quoted before `json.loads`.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from functools import cache
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import UNSET, DecodeError, Meta, Struct, ValidationError, convert, to_builtins
from msgspec.json import Decoder, Encoder
from msgspec.structs import FieldInfo, fields
from msgspec.structs import fields as fields_of

from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import BodyMalformed, HeaderFieldError
from reput_protocol.kernel.frames import typed_fields
from reput_protocol.names import Names, popped_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import Right
from reput_protocol.wire.header import HeaderType, Value, value_text

T = TypeVar("T")

_MSGPACK: Final = HeaderType.MSGPACK.value

I32: TypeAlias = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
I64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class CommandHeader(Struct, gc=False, rename="camel"):
    """The base class of typed headers."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields.

        Raises:
            HeaderFieldError: a required field is missing, or a value has the wrong type or range.
        """
        found = typed_fields(ext, *_not_texts(cls))
        try:
            return convert(found, cls)
        except ValidationError:
            return convert(_forgive(cls, found), cls)

    def to_ext(self, header_type: int = _MSGPACK) -> dict[str, Value]:
        """Return the fields other than None: as text for JSON and binary, typed for msgpack.

        The client leaves it at MSGPACK: it may not know yet what the server reads, and a header that then leaves as
        JSON has its values turned into text by the encoder (`text_ext`).
        """
        ext: dict[str, Value] = to_builtins(self)
        if header_type != _MSGPACK:
            return {
                name: value if type(value) is str else str(value) if type(value) is int else value_text(value)
                for name, value in ext.items()
                if value is not None
            }
        for name in _optional(type(self)):
            if ext[name] is None:
                del ext[name]
        return ext


@cache
def _fields(kind: Any) -> tuple[FieldInfo, ...]:
    """Return the fields of a class. To look them up evaluates all annotations, which takes longer than a request."""
    return fields_of(kind)


@cache
def _optional(kind: Any) -> tuple[str, ...]:
    """Return the names of fields that may be None."""
    return tuple(field.encode_name for field in _fields(kind) if field.default is None)


@cache
def _not_texts(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the integer fields, and of the flags."""
    plain = [(field.encode_name, _plain_type(field.type)) for field in _fields(kind)]
    return (tuple(name for name, found in plain if found is int), tuple(name for name, found in plain if found is bool))


def _forgive(kind: Any, found: Mapping[str, Value]) -> dict[str, Value]:
    """Return the fields without absent ones, and numbers as text where text is wanted.

    Raises:
        HeaderFieldError: for the first invalid one.
    """
    forgiven: dict[str, Value] = {}
    for field in _fields(kind):
        name, value, plain = field.encode_name, found.get(field.encode_name), _plain_type(field.type)
        if value is None or (value == "" and plain is not str):
            if field.required:
                raise HeaderFieldError(name, "is missing")
            continue
        try:
            forgiven[name] = value = value_text(value) if plain is str else value
            convert(value, field.type)
        except ValueError:
            raise HeaderFieldError(name, _fault(field.type, value)) from None
    return forgiven


def _fault(hint: Any, value: Value) -> str:
    plain = _plain_type(hint)
    if plain is str:
        return "is not text"
    if plain is bool:
        return "is neither true nor false"
    if plain is not int:
        return f"is not one of {', '.join(plain)}"
    if type(value) is not int:
        return "is not an integer"
    for bits, kind in ((32, I32), (64, I64)):
        if hint in (kind, kind | None):
            return f"does not fit {bits} bits"
    (bounds,) = (meta for meta in get_args(hint)[1:] if isinstance(meta, Meta))
    return f"is not from {bounds.ge} to {bounds.le}"


@cache
def _plain_type(hint: Any) -> Any:
    """Return the type in an annotation: `int` for `I32 | None`."""
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        return _plain_type(get_args(hint)[0])
    return hint


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

    return json.loads(_UP_TO_KEY.sub(quoted, text), parse_constant=_refuse_constant, object_pairs_hook=with_keys)


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


_SEPARATORS: Final = {Names.TOPICS: ";", Names.GROUPS: ","}

_Steps = tuple["_Step", ...]


class _Step(NamedTuple):
    """From a value to a part of it, or to parts of one kind."""

    part: Callable[[Any], Any]
    is_many: bool = False


class NamedField(NamedTuple):
    """One field that names something.

    `path` has the names on the wire from the header or body inwards, joined by dots. `steps` lead from a header or body
    to the field's texts. The group's path and steps are those of the group of a `POPPED_TOPIC`.
    """

    path: str
    names: Names
    may_be_absent: bool
    steps: _Steps
    group_path: str = ""
    group_steps: _Steps = ()

    def names_in(self, value: object) -> Iterator[str]:
        """Yield the names that the field has in a header or body, each once."""
        found = _parts(value, self.steps)
        if self.group_steps:
            pairs = dict.fromkeys(zip(found, _parts(value, self.group_steps), strict=True))
            found = [popped_topic(topic, group) for topic, group in pairs]
        for text in dict.fromkeys(found):
            if text is not None:
                yield from self.split(text)

    def split(self, text: str) -> Iterable[str]:
        """Return the names in the text of the field."""
        separator = _SEPARATORS.get(self.names)
        return (text,) if separator is None else filter(None, text.split(separator))


@cache
def named_fields(kind: type[Struct] | None) -> tuple[NamedField, ...]:
    """Return the fields of a header or body that name something."""
    return () if kind is None else tuple(_fields_of(kind, (), ()))


def _parts(value: object, steps: _Steps) -> list[Any]:
    values = [value]
    for part, is_many in steps:
        if is_many:
            values = [one for value in values if value is not None for one in part(value)]
        else:
            values = [None if value is None else part(value) for value in values]
    return values


def _fields_of(kind: Any, path: tuple[str, ...], steps: _Steps) -> Iterator[NamedField]:
    members = list(_members(kind))
    groups = [member for member in members if _named(member[2]) is Names.GROUP]
    for name, wire_name, hint, is_required in members:
        inner = (*steps, _Step(attrgetter(name)))
        for found in _found(hint, (*path, wire_name), inner, is_required):
            if found.names is Names.POPPED_TOPIC and not found.group_path:
                ((group, group_wire_name, _, _),) = groups
                group_path = ".".join((*path, group_wire_name))
                found = found._replace(group_path=group_path, group_steps=(*steps, _Step(attrgetter(group))))
            yield found


def _members(kind: Any) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield attribute, name on the wire, type, and whether it is always there."""
    if issubclass(kind, Struct):
        for member in fields(kind):
            yield member.name, member.encode_name, member.type, member.required
    else:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            yield name, name, hint, True


def _found(hint: Any, path: tuple[str, ...], steps: _Steps, is_required: bool) -> Iterator[NamedField]:
    names = _named(hint)
    if names is not None:
        yield NamedField(".".join(path), names, not is_required, steps)
        return
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for part in inner:
            yield from _found(part, path, steps, is_required)
    elif origin is Annotated:
        yield from _found(inner[0], path, steps, is_required)
    elif origin in (dict, Mapping):
        yield from _found(inner[0], path, (*steps, _Step(iter, is_many=True)), is_required)
        yield from _found(inner[1], path, (*steps, _Step(dict.values, is_many=True)), is_required)
    elif origin in (list, Sequence):
        yield from _found(inner[0], path, (*steps, _Step(iter, is_many=True)), is_required)
    elif isinstance(hint, type) and (issubclass(hint, Struct) or hasattr(hint, "_fields")):
        yield from _fields_of(hint, path, steps)


def _named(hint: Any) -> Names | None:
    """Return what a text names by its type; None if the type does not say so."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_named, get_args(hint))), None)
    if get_origin(hint) is not Annotated:
        return None
    return next((mark for mark in get_args(hint)[1:] if isinstance(mark, Names)), None)


class Sender(StrEnum):
    """Who sends a request."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    CLIENT = "client"
    OPERATOR = "operator"
    BROKER = "broker"
    TO_CLIENTS = "broker, to its clients"


class Content(Enum):
    """What a body has, which decides how large it may be."""

    VALUES = "values, parsed at once"
    PUT = "messages, and nothing is done but to append them"
    MESSAGES = "messages"
    TABLE = "a whole table, as large as a frame"


class Kind(Enum):
    """What a request does, which decides the brokers that serve it; the text is what a slave does with it.

    CHANGES: it changes something that slaves copy. A slave refuses it, and so does a master that may have been
    replaced, or that completes what an earlier run began.
    MASTER_ONLY: only a master knows the answer.
    READS: it gives out messages. A new master does so once it knows which are confirmed.
    OFFSETS: it asks for the offsets of a group.
    ANY: every broker serves it, because it changes nothing, or something of that broker alone.
    """

    CHANGES = "rejects it, since it changes something"
    MASTER_ONLY = "rejects it, since only a master can respond to it"
    READS = "serves messages, if `ha.slave_read_enabled` permits it and it knows that they are confirmed"
    OFFSETS = "serves it once it has its master's offsets"
    ANY = "serves it"


class RequestType(Struct, frozen=True):
    """One request.

    Attributes:
        header, body: None: without fields, without a body or with one that is no JSON object.
        topics, groups: the right on each topic and group that a field of header or body names, by the field's type. A
            field that is absent and may be needs none.
        cluster: the right on the cluster, which covers all that fields name.
        unnamed: the right on the cluster if no field names anything.
        fields: exceptions by the name of the field (`mqSet.topic`): another right, or why it needs none.
        handler_checks: rights that the handler checks itself, in words.
        writes_something: whether its user must be allowed to send to some topic, whichever.
        refusal: response code of a slave's or former master's refusal.
        completes_first: whether a master refuses it while it completes what an earlier run began.
        newest_only: whether a master does not answer any more once it may have been replaced.
        changes_tables: whether it changes tables that slaves copy besides the log; the answer may wait for them.
        proves_master: whether a slave acts on its answer, which the master therefore proves to be its own.
        waits: whether its `sysFlag` may ask to wait for messages.
        pops: whether it gives out messages as a pop does; a new master does so once it knows which are confirmed.
        pool: RocketMQ's thread pool, for its metrics.
        is_oneway: whether the sender waits for no answer.
        unserved: why a broker or name server may have no handler for it.
    """

    code: RequestCode
    header: type[CommandHeader] | None = None
    body: type[Body] | None = None
    sender: Sender = Sender.OPERATOR
    topics: Right | None = None
    groups: Right | None = None
    cluster: Right | None = None
    unnamed: Right | None = None
    fields: Mapping[str, Right | str] = {}
    handler_checks: str = ""
    writes_something: bool = False
    content: Content = Content.VALUES
    kind: Kind = Kind.ANY
    refusal: ResponseCode = ResponseCode.SYSTEM_BUSY
    completes_first: bool = False
    newest_only: bool = False
    proves_master: bool = False
    waits: bool = False
    pops: bool = False
    changes_tables: bool = False
    pool: str = "admin"
    is_oneway: bool = False
    unserved: str = ""

    @property
    def is_administrative(self) -> bool:
        """Whether it is logged for an audit, and refused from other machines while access control is off."""
        return Right.ADMIN in (self.topics, self.groups, self.cluster, *self.fields.values())

    @property
    def changes(self) -> bool:
        """Whether it changes something that slaves copy."""
        return self.kind is Kind.CHANGES

    def right_on(self, named: NamedField) -> Right | None:
        """Return the right that is needed on what a field names; None if none is."""
        exception = self.fields.get(named.path)
        if exception is not None:
            return exception if isinstance(exception, Right) else None
        if named.names in (Names.TOPIC, Names.TOPICS, Names.POPPED_TOPIC):
            return self.topics
        return self.groups if named.names in (Names.GROUP, Names.GROUPS) else None


class NotServed(NamedTuple):
    """A request of RocketMQ that is not served."""

    code: int
    name: str
    reason: str
