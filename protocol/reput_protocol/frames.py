"""Frames: how requests and responses follow each other on a connection (RocketMQ: NettyDecoder, NettyEncoder).

```text
offset 0   u32  total         4 + header size + body size; does not count itself
offset 4   u32  mark          header type << 24 | header size
offset 8   ...  header        header size bytes
           ...  body          total - 4 - header size bytes
```

`FrameReader` cuts a byte stream into frames, however it was chunked. A read that holds whole frames, the common case,
is never copied: bodies are views of it. Only a frame that straddles reads is put together in a buffer of its own, every
byte once, and that buffer grows with what has come and not with what was announced.
"""

from __future__ import annotations

import struct
import sys
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.errors import FrameMalformed, FrameTooLarge, ProtocolError
from reput_protocol.header import Header, encode_header

FRAME_BYTES_MAX: Final = 16_777_216
"""The longest frame, its length field included."""

HEADER_BYTES_MAX: Final = 65_536
"""The longest header that a `FrameReader` takes unless it is told otherwise."""

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">II")
_LENGTH_SIZE: Final = _LENGTH.size
_HEAD_SIZE: Final = _HEAD.size
_HEADER_SIZE_MASK: Final = 0xFF_FFFF
_MARK_SIZE: Final = 4
_new_tuple = tuple.__new__  # skips the Python-level constructor of a named tuple


class Frame(NamedTuple):
    """One frame. `body` may be a view of the read that brought it, and keeps that read in memory."""

    header_type: int
    header: bytes
    body: memoryview


class FrameReader:
    """Cut a byte stream into frames.

    Every length is checked before a byte is kept for it. A frame that breaks the rules ends the stream: the frames
    before it are still returned, `failure` says what happened, and every later call raises it.
    """

    __slots__ = ("_buffer", "_header_limit", "_needed", "_total_limit", "failure")

    def __init__(self, frame_limit: int = FRAME_BYTES_MAX, header_limit: int = HEADER_BYTES_MAX) -> None:
        self._total_limit = frame_limit - _LENGTH_SIZE
        self._header_limit = header_limit
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
        if type(data) is bytes and not self._buffer and len(data) >= _HEAD_SIZE:
            # One whole frame and nothing else, nearly always where one is in flight; all others are for `_cut`.
            total, mark = _HEAD.unpack_from(data)
            end = _HEAD_SIZE + (mark & _HEADER_SIZE_MASK)
            if (
                total == len(data) - _LENGTH_SIZE <= self._total_limit
                and end <= len(data)
                and end - _HEAD_SIZE <= self._header_limit
            ):
                return [_new_tuple(Frame, (mark >> 24, data[_HEAD_SIZE:end], memoryview(data)[end:]))]
        frames: list[Frame] = []
        try:
            start = self._complete(data, frames) if self._buffer else 0
            self._cut(data, start, frames)
        except ProtocolError as error:
            self.failure = error
            self._buffer = bytearray()
            if not frames:
                raise
        return frames

    def _cut(self, data: Buffer, start: int, frames: list[Frame]) -> None:
        """Append all whole frames of `data` from `start` on and keep the rest."""
        size = len(data)
        view = memoryview(data)
        source = data if type(data) is bytes else None  # whose slices are bytes; those of others are copied
        total_limit = self._total_limit
        header_limit = self._header_limit
        unpack_head = _HEAD.unpack_from
        append = frames.append
        last_head = size - _HEAD_SIZE
        while start <= last_head:
            total, mark = unpack_head(view, start)
            header_size = mark & _HEADER_SIZE_MASK
            if total > total_limit or header_size > header_limit or header_size > total - _MARK_SIZE:
                self._refuse(total, header_size)
            end = start + total + _LENGTH_SIZE
            if end > size:
                self._needed = end - start
                break
            header_start = start + _HEAD_SIZE
            body_start = header_start + header_size
            header = (
                bytes(view[header_start:body_start]) if source is None else source[header_start:body_start]
            )
            append(_new_tuple(Frame, (mark >> 24, header, view[body_start:end])))
            start = end
        if start < size:
            self._buffer += view[start:]
            self._check_short_head()

    def _complete(self, data: Buffer, frames: list[Frame]) -> int:
        """Fill the incomplete frame from `data`; return where in `data` the next frame starts."""
        start = 0
        buffer = self._buffer
        view = memoryview(data)
        while True:
            take = min(self._needed - len(buffer), len(data) - start)
            buffer += view[start : start + take]
            start += take
            if len(buffer) < self._needed:
                self._check_short_head()
                return start
            total, mark = _HEAD.unpack_from(buffer)
            header_size = mark & _HEADER_SIZE_MASK
            if (
                total > self._total_limit
                or header_size > self._header_limit
                or header_size > total - _MARK_SIZE
            ):
                self._refuse(total, header_size)
            self._needed = _LENGTH_SIZE + total
            if len(buffer) == self._needed:
                break
        self._buffer = bytearray()
        self._needed = _HEAD_SIZE
        whole = memoryview(buffer)
        body_start = _HEAD_SIZE + header_size
        frames.append(Frame(mark >> 24, bytes(whole[_HEAD_SIZE:body_start]), whole[body_start:]))
        return start

    def _check_short_head(self) -> None:
        """Refuse a bad total as soon as it is there, although the mark is still missing."""
        if _LENGTH_SIZE <= len(self._buffer) < _HEAD_SIZE:
            (total,) = _LENGTH.unpack_from(self._buffer)
            if total > self._total_limit or total < _MARK_SIZE:
                self._refuse(total, 0)

    def _refuse(self, total: int, header_size: int) -> None:
        if total > self._total_limit:
            raise FrameTooLarge("frame", total + _LENGTH_SIZE, self._total_limit + _LENGTH_SIZE)
        if total < _MARK_SIZE or header_size > total - _MARK_SIZE:
            raise FrameMalformed(f"frame of {total} bytes cannot hold its header of {header_size} bytes")
        raise FrameTooLarge("header", header_size, self._header_limit)


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
