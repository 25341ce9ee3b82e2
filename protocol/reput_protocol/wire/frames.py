"""Frames: how requests and responses follow each other on a connection (RocketMQ: NettyDecoder, NettyEncoder).

```text
offset 0   u32  total         4 + header size + body size; does not count itself
offset 4   u32  mark          header type << 24 | header size
offset 8   ...  header        header size bytes
           ...  body          total - 4 - header size bytes
```

`FrameReader` splits a byte stream into frames, however it was chunked. A read that holds whole frames, the common case,
is never copied: bodies are views of it. Only a frame that straddles reads is put together in a buffer of its own, every
byte once, and that buffer grows with what has come and not with what was announced.
"""

from __future__ import annotations

import struct
import sys
from functools import partial
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.errors import FrameMalformed, FrameTooLarge, ProtocolError, UnknownHeaderType
from reput_protocol.kernel.frames import cut_frames
from reput_protocol.wire.header import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Header,
    HeaderType,
    Value,
    value_text,
)
from reput_protocol.wire.header_binary import decode_binary_header, encode_binary_header
from reput_protocol.wire.header_json import decode_json_header, encode_json_header
from reput_protocol.wire.header_msgpack import decode_msgpack_header, encode_msgpack_header

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


FRAME_BYTES_MAX: Final = 16_777_216
"""The longest frame, its length field included."""

HEADER_BYTES_MAX: Final = 65_536
"""The longest header that a `FrameReader` takes unless it is told otherwise."""

_HEAD = struct.Struct(">II")
_LENGTH_SIZE: Final = 4
_HEAD_SIZE: Final = _HEAD.size
_MARK_SIZE: Final = 4


class Frame(NamedTuple):
    """One frame. `body` may be a view of the read that brought it, and keeps that read in memory."""

    header_type: int
    header: bytes
    body: memoryview


_frame: Final = partial(tuple.__new__, Frame)  # skips the Python-level constructor of a named tuple


class FrameReader:
    """Split a byte stream into frames.

    Every length is checked before a byte is kept for it. A frame that breaks the rules ends the stream: the frames
    before it are still returned, `failure` says what happened, and every later call raises it.
    """

    __slots__ = ("_buffer", "_header_max", "_needed", "_total_max", "failure")

    def __init__(self, frame_limit: int = FRAME_BYTES_MAX, header_limit: int = HEADER_BYTES_MAX) -> None:
        self._total_max = frame_limit - _LENGTH_SIZE
        self._header_max = header_limit
        self._buffer = bytearray()  # the one incomplete frame, from its first byte
        self._needed = _HEAD_SIZE  # size at which _buffer says more: the head first, then the whole frame
        self.failure: ProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an incomplete frame are kept."""
        return len(self._buffer)

    @property
    def allocated_bytes(self) -> int:
        """How much memory the incomplete frame takes."""
        return sys.getsizeof(self._buffer) if self._buffer else 0

    @property
    def needed_bytes(self) -> int:
        """How long the incomplete frame will be, as far as is known."""
        return self._needed

    @property
    def mid_frame(self) -> bool:
        """Whether the stream, if it ended here, would end inside a frame."""
        return bool(self._buffer)

    def close(self) -> None:
        """Forget the incomplete frame: the stream has ended."""
        self._buffer = bytearray()

    def receive_data(self, data: Buffer) -> list[Frame]:
        """Take the next bytes and return the frames that they complete, in order.

        Bodies are views of `data` where they can be, so a caller that passes a `bytearray` must not change or reuse
        it while they live; `bytes` are always safe.

        Raises:
            FrameTooLarge, FrameMalformed: the frame at which the stream stands breaks the rules. Where whole frames
                came before it in the same read, these are returned first, `failure` is set, and the next call raises.
        """
        if self.failure is not None:
            raise self.failure
        frames: list[Frame] = []
        start = 0
        while self._buffer and start < len(data) and self.failure is None:
            piece = memoryview(data)[start : start + self._needed - len(self._buffer)]
            self._buffer += piece
            start += len(piece)
            if self._cut(self._buffer, 0, frames):
                self._buffer = bytearray()
        if not self._buffer and self.failure is None:
            start = self._cut(data, start, frames)
            self._buffer += memoryview(data)[start:]
        if self.failure is not None:
            self._buffer = bytearray()
            if not frames:
                raise self.failure
        return frames

    def _cut(self, data: Buffer, start: int, frames: list[Frame]) -> int:
        """Append all whole frames of `data` from `start` on; return where they end."""
        found, end, self._needed, fault = cut_frames(data, start, self._total_max, self._header_max, _frame)
        frames += found
        if fault is not None:
            self.failure = self._refusal(*fault)
        return end

    def _refusal(self, total: int, header_size: int) -> ProtocolError:
        if total > self._total_max:
            return FrameTooLarge("frame", total + _LENGTH_SIZE, self._total_max + _LENGTH_SIZE)
        if header_size > total - _MARK_SIZE:
            return FrameMalformed(f"frame of {total} bytes cannot hold its header of {header_size} bytes")
        return FrameTooLarge("header", header_size, self._header_max)


def encode_frame_head(header: Header, header_type: int, body_size: int) -> bytes:
    """Encode all of a frame but its body, which the caller sends right after it, for example from a mapped file.

    Raises:
        FrameTooLarge: the frame would be longer than any peer accepts.
        ValueError: the header type cannot carry a value (see `encode_header`).
    """
    encoded = encode_header(header, header_type)
    header_size = len(encoded)
    total = _MARK_SIZE + header_size + body_size
    if total > FRAME_BYTES_MAX - _LENGTH_SIZE:
        raise FrameTooLarge("frame", total + _LENGTH_SIZE, FRAME_BYTES_MAX)
    return _HEAD.pack(total, header_type << 24 | header_size) + encoded


def encode_frame(header: Header, header_type: int, body: Buffer = b"") -> bytes:
    """Encode one whole frame. The body is copied once.

    Raises:
        FrameTooLarge: the frame would be longer than any peer accepts.
        ValueError: the header type cannot carry a value (see `encode_header`).
    """
    encoded = encode_header(header, header_type)
    header_size = len(encoded)
    total = _MARK_SIZE + header_size + len(body)
    if total > FRAME_BYTES_MAX - _LENGTH_SIZE:
        raise FrameTooLarge("frame", total + _LENGTH_SIZE, FRAME_BYTES_MAX)
    return b"".join((_HEAD.pack(total, header_type << 24 | header_size), encoded, body))
