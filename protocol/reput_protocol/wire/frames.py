"""Frames: the units of requests and responses on a connection (RocketMQ: NettyDecoder, NettyEncoder).

The layout is in docs/protocol.md. `FrameReader` splits a byte stream into frames. Bodies are views of a read that has
whole frames, the usual case. Only a frame that spans reads is copied, once, into a buffer that grows with the bytes
received, not with the announced size.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from reput_protocol.buffers import Buffer
from reput_protocol.errors import FrameMalformed, FrameTooLarge, ProtocolError, UnknownHeaderType
from reput_protocol.kernel.frames import cut_frames
from reput_protocol.wire.header import (
    Header,
    HeaderType,
)
from reput_protocol.wire.header_binary import decode_binary_header, encode_binary_header
from reput_protocol.wire.header_json import decode_json_header, encode_json_header
from reput_protocol.wire.header_msgpack import decode_msgpack_header, encode_msgpack_header

T = TypeVar("T")


class _ByType(dict[int, T]):
    """What is there for each header type; for others it raises `UnknownHeaderType`."""

    def __missing__(self, header_type: int) -> T:
        raise UnknownHeaderType(header_type)


_DECODERS: Final[_ByType[Callable[[Buffer], Header]]] = _ByType(
    {
        HeaderType.JSON.value: decode_json_header,
        HeaderType.BINARY.value: decode_binary_header,
        HeaderType.MSGPACK.value: decode_msgpack_header,
    }
)
_ENCODERS: Final[_ByType[Callable[[Header], bytes]]] = _ByType(
    {
        HeaderType.JSON.value: encode_json_header,
        HeaderType.BINARY.value: encode_binary_header,
        HeaderType.MSGPACK.value: encode_msgpack_header,
    }
)
FRAME_BYTES_MAX: Final = 16_777_216
"""Maximum size of a frame, including its length field."""
HEADER_BYTES_MAX: Final = 1_048_576
"""Default maximum size of a header for a `FrameReader`: properties of 32,767 bytes are six times as long in JSON if
each is escaped, and larger ones are to be refused by name."""
_HEAD = struct.Struct(">II")
_LENGTH_SIZE: Final = 4
_HEAD_SIZE: Final = _HEAD.size
_MARK_SIZE: Final = 4


def decode_header(header_type: int, data: Buffer) -> Header:
    """Decode a frame's header; keeps no reference to `data`.

    Raises:
        UnknownHeaderType: there is no such type.
        HeaderMalformed: `data` is not a header of that type.
    """
    return _DECODERS[header_type](data)


def encode_header(header: Header, header_type: int) -> bytes:
    """Encode a header in one of the three types.

    Raises:
        UnknownHeaderType: there is no such type.
        ValueError: the type cannot carry a value, such as a code beyond 16 bits in the binary form.
    """
    return _ENCODERS[header_type](header)


class Frame(NamedTuple):
    """One frame. `body` may be a view of the bytes passed to `receive_data`, and keeps them in memory."""

    header_type: int
    header: bytes
    body: memoryview


_frame: Final = partial(tuple.__new__, Frame)  # no Python-level constructor


class FrameReader:
    """Splits a byte stream into frames.

    Every length is checked before bytes are kept for it. An invalid frame ends the stream: the frames before it are
    still returned, `failure` is set, and every later call raises it.
    """

    __slots__ = ("_buffer", "_header_max", "_needed", "_total_max", "failure", "mid_frame")

    def __init__(self, frame_limit: int = FRAME_BYTES_MAX, header_limit: int = HEADER_BYTES_MAX) -> None:
        self._total_max = frame_limit - _LENGTH_SIZE
        self._header_max = header_limit
        self._buffer = bytearray()  # the incomplete frame, from its first byte
        self._needed = _HEAD_SIZE  # size of `_buffer` for the next step: the head, then the whole frame
        self.mid_frame = False
        """Whether a frame is incomplete."""
        self.failure: ProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes kept of an incomplete frame."""
        return len(self._buffer)

    @property
    def allocated_bytes(self) -> int:
        """Memory allocated for the incomplete frame."""
        return sys.getsizeof(self._buffer) if self._buffer else 0

    @property
    def needed_bytes(self) -> int:
        """The size of the incomplete frame as far as known."""
        return self._needed

    def close(self) -> None:
        """Drop the incomplete frame at the end of the stream."""
        self._buffer = bytearray()
        self.mid_frame = False

    def receive_data(self, data: Buffer) -> list[Frame]:
        """Take the next bytes and return the frames that they complete, in order.

        Bodies may be views of `data`: do not change a `bytearray` while they are in use.

        Raises:
            FrameTooLarge, FrameMalformed: the next frame is invalid. If the same read has whole frames before it, these
                are returned, `failure` is set, and the next call raises.
        """
        if self.failure is not None:
            raise self.failure
        frames: list[Frame] = []
        buffer, start = self._buffer, 0
        while start < len(data) and self.failure is None:
            if buffer:
                piece = memoryview(data)[start : start + self._needed - len(buffer)]
                buffer += piece
                start += len(piece)
                found, end, self._needed, fault = cut_frames(
                    buffer, 0, self._total_max, self._header_max, _frame
                )
                if end:
                    buffer = bytearray()  # bodies are views of the one before
            else:
                found, end, self._needed, fault = cut_frames(
                    data, start, self._total_max, self._header_max, _frame
                )
                buffer += memoryview(data)[end:]
                start = len(data)
            frames += found
            if fault is not None:
                self.failure = self._refusal(*fault)
                buffer = bytearray()
        self._buffer = buffer
        self.mid_frame = bool(buffer)
        if self.failure is not None and not frames:
            raise self.failure
        return frames

    def _refusal(self, total: int, header_size: int) -> ProtocolError:
        if total > self._total_max:
            return FrameTooLarge("frame", total + _LENGTH_SIZE, self._total_max + _LENGTH_SIZE)
        if header_size > total - _MARK_SIZE:
            return FrameMalformed(f"frame of {total} bytes cannot hold its header of {header_size} bytes")
        return FrameTooLarge("header", header_size, self._header_max)


def encode_frame_head(header: Header, header_type: int, body_size: int) -> bytes:
    """Encode a frame up to its body, which the caller sends after it, for example from a mapped file.

    Raises:
        FrameTooLarge: the frame would exceed `FRAME_BYTES_MAX`.
        ValueError: as `encode_header`.
    """
    encoded = _ENCODERS[header_type](header)
    header_size = len(encoded)
    total = _MARK_SIZE + header_size + body_size
    if total > FRAME_BYTES_MAX - _LENGTH_SIZE:
        raise FrameTooLarge("frame", total + _LENGTH_SIZE, FRAME_BYTES_MAX)
    return _HEAD.pack(total, header_type << 24 | header_size) + encoded


def encode_frame(header: Header, header_type: int, body: Buffer = b"") -> bytes:
    """Encode a whole frame; raises like `encode_frame_head`."""
    return b"".join((encode_frame_head(header, header_type, len(body)), body))
