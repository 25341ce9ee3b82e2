"""Header type 0x4D: Reput's, a msgpack array of seven elements (docs/protocol.md).

Values keep their types, so that the hot path parses no text. Elements after the seventh are reserved: checked against
the limits and otherwise ignored.
"""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]

from reput_protocol.buffers import Buffer
from reput_protocol.errors import HeaderMalformed
from reput_protocol.wire.header import Header

_ELEMENTS = 7
_CONTAINER_LENGTH_MAX = 1024
_DEPTH_MAX = 4
_SMALL_BYTES = 2048
_CONTAINERS_MAX = 64
"""Arrays and maps in a header above `_SMALL_BYTES`: each takes a byte, and up to a microsecond."""
_PACKED_BYTES = 512
"""What a packer allocates at first; its own default is 256 KiB for each header."""
_KEY_TYPES = frozenset({str})
_VALUE_TYPES = frozenset({type(None), bool, int, float, str, bytes})


def decode_msgpack_header(data: Buffer) -> Header:
    """Decode a msgpack header.

    Raises:
        HeaderMalformed: not exactly one array of at least seven elements of the right types, a text is not UTF-8, a map
            or array has more than 1024 entries, or nesting is deeper than 4; or it is larger than 2 KiB and has more
            than 64 maps and arrays.
    """
    try:
        elements = msgpack.unpackb(data) if len(data) <= _SMALL_BYTES else _unpack_large(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise HeaderMalformed(f"msgpack header cannot be read: {error}") from None
    if type(elements) is not list or len(elements) < _ELEMENTS:
        raise HeaderMalformed(f"msgpack header: it is not an array of {_ELEMENTS} elements")
    if len(elements) > _ELEMENTS:
        _check_reserved(elements[_ELEMENTS:])
        del elements[_ELEMENTS:]
    code, language, version, opaque, flag, remark, ext = elements
    if not (
        type(code) is type(language) is type(version) is type(opaque) is type(flag) is int
        and -0x8000_0000 <= code <= 0x7FFF_FFFF
        and -0x8000_0000 <= opaque <= 0xFFFF_FFFF
        and (remark is None or type(remark) is str)
    ):
        raise HeaderMalformed("msgpack header: code, language, version, opaque, flag or remark is not valid")
    if type(ext) is not dict or len(ext) > _CONTAINER_LENGTH_MAX:
        raise HeaderMalformed(f"msgpack header: the fields are not a map of at most {_CONTAINER_LENGTH_MAX}")
    if not (_KEY_TYPES.issuperset(map(type, ext)) and _VALUE_TYPES.issuperset(map(type, ext.values()))):
        raise HeaderMalformed(
            "msgpack header: a field has no text as name, or holds a container or extension type"
        )
    return Header(code, opaque, flag, remark, ext, language, version)


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
    elements = (
        header.code, header.language, header.version, header.opaque, header.flag, header.remark, header.ext
    )  # fmt: skip
    try:
        # A packer of its own: one that threads share would mix up their headers.
        packed: bytes = msgpack.packb(elements, buf_size=_PACKED_BYTES)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"header field does not fit msgpack: {error}") from None
    return packed


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
