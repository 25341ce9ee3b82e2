"""JSON bodies that may be large: written in parts, so that others can have their turns in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from reput_protocol.loose_json import encode_json
from reput_protocol.message import MessageQueue
from reput_protocol.queue_members import queue_members

PART_CHARACTERS: Final = 16_384
PART_VALUES: Final = 128
"""A part ends when it has so many characters, or so many values."""


class LargeBody:
    """A body that is written in parts.

    Items of its lists and iterators and values of its maps may have `to_members` themselves: it is called when their
    part is written. They are written whole, so they have to be small. A map keyed by message queue is no strict JSON;
    see `queue_members.py`.
    """

    __slots__ = ()

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        raise NotImplementedError

    def json_parts(self) -> Iterator[bytes]:
        """Return the body in parts. They are written when they are asked for: what is in the body must not change."""
        texts: list[str] = []
        size = 0
        for text in _texts(self):
            texts.append(text)
            size += len(text)
            if size >= PART_CHARACTERS or len(texts) >= PART_VALUES:
                yield "".join(texts).encode()
                texts, size = [], 0
        yield "".join(texts).encode()

    def to_json(self) -> bytes:
        """Return the body in one piece."""
        return b"".join(self.json_parts())


_Entries: TypeAlias = LargeBody | Mapping[Any, Any] | list[Any] | Iterator[Any]


def _texts(value: _Entries, before: str = "") -> Iterator[str]:
    """Return the text of some entries, each by itself; `before` stands in front of it all."""
    if isinstance(value, LargeBody):
        value = value.to_members()
    if isinstance(value, Mapping):
        before += "{"
        for key in value if _is_keyed_by_queue(value) else sorted(value):
            yield from _entry(value[key], f"{before}{_text(key)}:")
            before = ","
        yield "}" if before == "," else before + "}"
    else:
        before += "["
        for item in value:
            yield from _entry(item, before)
            before = ","
        yield "]" if before == "," else before + "]"


def _entry(value: object, before: str) -> Iterable[str]:
    if isinstance(value, (LargeBody, Mapping, list, Iterator)):
        return _texts(value, before)
    return (before + _text(value),)


def _is_keyed_by_queue(value: Mapping[Any, object]) -> bool:
    return isinstance(next(iter(value), None), MessageQueue)


def _text(value: object) -> str:
    return encode_json(queue_members(value) if isinstance(value, MessageQueue) else value)
