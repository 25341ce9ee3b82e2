"""The type of a row in the table of requests (`commands.table`): all that the code of a request decides.

Access checks, the answers of slaves and of masters without a lease, limits of bodies, counters and the documentation of
requests derive from it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.body import Body
from reput_protocol.commands.header import CommandHeader
from reput_protocol.names import Names, popped_topic
from reput_protocol.rights import Right

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
