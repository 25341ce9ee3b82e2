"""Header type 0x4D: Reput's, a msgpack array of seven elements (docs/protocol.md).

Values keep their types, so that the hot path parses no text. Elements after the seventh are reserved: checked against
the limits and otherwise ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgpack  # type: ignore[import-untyped]
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder

from reput_protocol.buffers import Buffer
from reput_protocol.errors import HeaderMalformed
from reput_protocol.wire.header import Header

_ELEMENTS = 7
_SEVEN_ELEMENTS = 0x97
_CONTAINER_LENGTH_MAX = 1024
_DEPTH_MAX = 4
_SMALL_BYTES = 2048
_CONTAINERS_MAX = 64
"""Arrays and maps in a header above `_SMALL_BYTES`: each takes a byte, and up to a microsecond."""
_VALUE_TYPES = frozenset({type(None), bool, int, float, str, bytes})


class _Elements(Struct, array_like=True):
    code: Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
    language: int
    version: int
    opaque: Annotated[int, Meta(ge=-0x8000_0000, le=0xFFFF_FFFF)]
    flag: int
    remark: str | None
    ext: dict[str, Any]


_decode = Decoder(_Elements).decode
_encode = Encoder().encode


def decode_msgpack_header(data: Buffer) -> Header:
    """Decode a msgpack header.

    Raises:
        HeaderMalformed: not exactly one array of at least seven elements of the right types, a text is not UTF-8, a map
            or array has more than 1024 entries, or nesting is deeper than 4; or it is larger than 2 KiB and has more
            than 64 maps and arrays.
    """
    try:
        if len(data) > _SMALL_BYTES:
            _unpack_large(data)  # for its limits
        found = _decode(data)
        if data[0] != _SEVEN_ELEMENTS:
            _check_reserved(msgpack.unpackb(data)[_ELEMENTS:])
    except (ValueError, TypeError, RecursionError) as error:
        raise HeaderMalformed(f"msgpack header cannot be read: {error}") from None
    ext = found.ext
    if len(ext) > _CONTAINER_LENGTH_MAX:
        raise HeaderMalformed(f"msgpack header: the fields are not a map of at most {_CONTAINER_LENGTH_MAX}")
    if not _VALUE_TYPES.issuperset(map(type, ext.values())):
        raise HeaderMalformed("msgpack header: a field holds a container or an extension type")
    return Header(found.code, found.opaque, found.flag, found.remark, ext, found.language, found.version)


def _unpack_large(data: Buffer) -> Any:
    containers = 0

    def count(container: Any) -> Any:
        nonlocal containers
        containers += 1
        if containers > _CONTAINERS_MAX:
            raise ValueError(f"it has more than {_CONTAINERS_MAX} arrays and maps")
        return container

    return msgpack.unpackb(
        data,
        list_hook=count,
        object_hook=count,
        max_array_len=_CONTAINER_LENGTH_MAX,
        max_map_len=_CONTAINER_LENGTH_MAX,
    )


def encode_msgpack_header(header: Header) -> bytes:
    """Encode as a msgpack array; `ext` keeps its order and types.

    Raises:
        ValueError: a text is half a surrogate pair, or an integer takes more than 64 bits.
    """
    try:
        return _encode(
            (
                header.code,
                header.language,
                header.version,
                header.opaque,
                header.flag,
                header.remark,
                header.ext,
            )
        )
    except OverflowError as error:
        raise ValueError(f"header field does not fit msgpack: {error}") from None


def _check_reserved(elements: list[object]) -> None:
    """Check the reserved elements against the limits, level by level, so that no nesting depth does harm."""
    if len(elements) > _CONTAINER_LENGTH_MAX - _ELEMENTS:
        raise HeaderMalformed(f"msgpack header: more than {_CONTAINER_LENGTH_MAX} elements")
    level, depth = elements, 1
    while level:
        deeper: list[object] = []
        for element in level:
            if type(element) in _VALUE_TYPES:
                continue
            if type(element) is list:
                content = element
            elif type(element) is dict:
                content = list(element.values())
            else:
                raise HeaderMalformed("msgpack header: extension types are not allowed")
            if len(content) > _CONTAINER_LENGTH_MAX or depth == _DEPTH_MAX:
                raise HeaderMalformed(
                    f"msgpack header: more than {_CONTAINER_LENGTH_MAX} entries or nested deeper than {_DEPTH_MAX}"
                )
            deeper += content
        level, depth = deeper, depth + 1
