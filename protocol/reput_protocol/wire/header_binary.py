"""Header type 1: RocketMQ's binary form (RocketMQSerializable), laid out in docs/protocol.md.

All numbers are big-endian and signed. A code beyond 16 bits raises here; RocketMQ truncates it silently.
"""

from __future__ import annotations

import struct

from reput_protocol.buffers import Buffer
from reput_protocol.errors import HeaderMalformed
from reput_protocol.kernel.frames import text_fields
from reput_protocol.wire.header import FIELDS_MAX, Header, Value, text_ext

_FIXED = struct.Struct(">hBhiii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_NAME_BYTES_MAX = 0x7FFF


def decode_binary_header(data: Buffer) -> Header:
    """Decode a binary header.

    Raises:
        HeaderMalformed: a size is negative, exceeds the header or leaves bytes over, or a text is not UTF-8.
    """
    data = bytes(data)
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(data)
        position = _end(data, _FIXED.size, remark_size, "remark")
        remark = data[_FIXED.size : position].decode("utf-8") if remark_size else None
        (ext_size,) = _I32.unpack_from(data, position)
        position += _I32.size
        if _end(data, position, ext_size, "fields") != len(data):
            raise HeaderMalformed("binary header: bytes are left over after its fields")
        ext: dict[str, Value] = {**text_fields(data, position, FIELDS_MAX)}
    except (struct.error, ValueError) as error:
        raise HeaderMalformed(f"binary header cannot be read: {error}") from None
    return Header(code, opaque, flag, remark, ext, language, version)


def encode_binary_header(header: Header) -> bytes:
    """Encode in RocketMQ's binary form; `ext` keeps its order.

    Raises:
        ValueError: a number or name does not fit, such as any request code of Reput.
    """
    parts: list[bytes] = []
    for name, value in text_ext(header.ext).items():
        name_bytes = name.encode()
        if len(name_bytes) > _NAME_BYTES_MAX:
            raise ValueError(f"header field name of {len(name_bytes)} bytes does not fit a binary header")
        value_bytes = value.encode()
        parts += (_I16.pack(len(name_bytes)), name_bytes, _I32.pack(len(value_bytes)), value_bytes)
    remark = b"" if header.remark is None else header.remark.encode()
    fields = b"".join(parts)
    try:
        fixed = _FIXED.pack(
            header.code, header.language, header.version, header.opaque, header.flag, len(remark)
        )
    except struct.error as error:
        raise ValueError(f"header with code {header.code} does not fit the binary form: {error}") from None
    return b"".join((fixed, remark, _I32.pack(len(fields)), fields))


def _end(data: bytes, start: int, size: int, what: str) -> int:
    """Return where a text of `size` bytes ends, which must be inside the header."""
    if size < 0 or size > len(data) - start:
        raise HeaderMalformed(f"binary header: {what} of {size} bytes, but {len(data) - start} are left")
    return start + size
