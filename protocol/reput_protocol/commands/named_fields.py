"""Finds the fields of headers and bodies that name topics, groups, clients and brokers, by their types."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from reput_protocol.names import Names, popped_topic

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
