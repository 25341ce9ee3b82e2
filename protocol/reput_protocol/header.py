"""Headers of frames: one value, three ways to write it. Choose the codec by the type that the frame announces."""

from __future__ import annotations

from reput_protocol.buffers import Buffer
from reput_protocol.errors import UnknownHeaderType
from reput_protocol.header_binary import decode_binary_header, encode_binary_header
from reput_protocol.header_json import decode_json_header, encode_json_header
from reput_protocol.header_model import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Header,
    HeaderType,
    Value,
    value_text,
)
from reput_protocol.header_msgpack import decode_msgpack_header, encode_msgpack_header

__all__ = [
    "ONEWAY_FLAG",
    "RESPONSE_FLAG",
    "Header",
    "HeaderType",
    "Value",
    "decode_header",
    "encode_header",
    "value_text",
]

_DECODERS = {
    HeaderType.JSON.value: decode_json_header,
    HeaderType.BINARY.value: decode_binary_header,
    HeaderType.MSGPACK.value: decode_msgpack_header,
}
_ENCODERS = {
    HeaderType.JSON.value: encode_json_header,
    HeaderType.BINARY.value: encode_binary_header,
    HeaderType.MSGPACK.value: encode_msgpack_header,
}


def decode_header(header_type: int, data: Buffer) -> Header:
    """Decode the header of a frame; nothing of `data` is kept.

    Raises:
        UnknownHeaderType: nobody here speaks `header_type`.
        HeaderMalformed: `data` is not a header of that type.
    """
    decode = _DECODERS.get(header_type)
    if decode is None:
        raise UnknownHeaderType(header_type)
    return decode(data)


def encode_header(header: Header, header_type: int) -> bytes:
    """Encode a header in one of the three types.

    Raises:
        UnknownHeaderType: there is no such type.
        ValueError: the type cannot carry a value, such as a code beyond 16 bits in the binary form.
    """
    encode = _ENCODERS.get(header_type)
    if encode is None:
        raise UnknownHeaderType(header_type)
    return encode(header)
