"""The header of a frame as a value, whichever of the three types carries it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeAlias

from msgspec import Struct

from reput_protocol.codes import LanguageCode

Value: TypeAlias = bool | int | float | str | bytes | None
"""What a header field may hold. JSON and binary headers carry text only, and decode to `str`."""

RESPONSE_FLAG: Final = 0x1
ONEWAY_FLAG: Final = 0x2


_TEXT: Final = frozenset((str,))
FIELDS_MAX: Final = 1024
"""The most named fields of a header, in any of its types."""


class HeaderType(IntEnum):
    """How a header is written: the top byte of a frame's mark."""

    JSON = 0
    BINARY = 1
    MSGPACK = 0x4D


class Header(Struct, gc=False):
    """Code, correlation and named fields of one request or response (RocketMQ: RemotingCommand).

    `opaque` is the number that ties an answer to its request. `ext` keeps the order in which it was filled.
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
        """Whether this answers a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & ONEWAY_FLAG)


def value_text(value: Value) -> str:
    """Return the text form of a value that is there: `true`/`false`, decimal, or the text itself.

    Raises:
        ValueError: it is None, or bytes that are no UTF-8, which text cannot carry.
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
    """Return `ext` as a map of strings in the same order, fields without a value left out."""
    if _TEXT.issuperset(map(type, ext.values())):
        return ext  # type: ignore[return-value]
    return {
        name: value if type(value) is str else value_text(value)
        for name, value in ext.items()
        if value is not None
    }
