"""The header of a frame as a value, independent of its encoding.

`frames` encodes and decodes its three forms. The fields of one request, with their types, are a
`commands.base.CommandHeader`: what `ext` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeAlias

from msgspec import Struct

from reput_protocol.codes import LanguageCode

Value: TypeAlias = bool | int | float | str | bytes | None
"""The value of a header field. JSON and binary headers carry and decode to text only."""

RESPONSE_FLAG: Final = 0x1
ONEWAY_FLAG: Final = 0x2
FIELDS_MAX: Final = 1024
"""How many fields a header of any type may have."""
_TEXT: Final = frozenset((str,))


class HeaderType(IntEnum):
    """The encoding of a header: the top byte of a frame's mark."""

    JSON = 0
    BINARY = 1
    MSGPACK = 0x4D


class Header(Struct, gc=False):
    """Code, correlation number and fields of one request or response (RocketMQ: RemotingCommand).

    `opaque` links an answer to its request. `ext` (RocketMQ: extFields) has the fields of the request, and keeps their
    order.
    """

    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    ext: dict[str, Value] = {}
    language: int = LanguageCode.PYTHON.value
    version: int = 0

    @property
    def is_response(self) -> bool:
        """Whether this is the answer to a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no answer."""
        return bool(self.flag & ONEWAY_FLAG)


def value_text(value: Value) -> str:
    """Return a value as text: `true`/`false`, decimal digits, or the text itself.

    Raises `ValueError` for None, and bytes that are not UTF-8.
    """
    if isinstance(value, str):
        return str(value)
    if value is None:
        raise ValueError("an absent value has no text form; leave the field out")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return str(value)


def text_ext(ext: Mapping[str, Value]) -> dict[str, str]:
    """Return `ext` as strings in the same order, without those that are None."""
    if _TEXT.issuperset(map(type, ext.values())):
        return ext  # type: ignore[return-value]
    return {
        name: value if type(value) is str else value_text(value) for name, value in ext.items() if value is not None
    }
