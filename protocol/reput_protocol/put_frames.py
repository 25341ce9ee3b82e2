"""PutMessage frames at full speed: request headers that repeat, and answers of one fixed shape.

A producer sends one header over and over, with nothing but the opaque changed, and gets answers that differ in three
numbers. Both are recognised and made here, for broker and producer, without going through a map of named fields; what
does not fit is left to `decode_header` and `encode_frame`, which tests hold these to.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from reput_protocol.codes import PROTOCOL_VERSION, AckLevel, LanguageCode, RequestCode
from reput_protocol.commands_send import PutMessageHeader, PutMessageResult
from reput_protocol.errors import HeaderFieldError, HeaderMalformed
from reput_protocol.header_model import RESPONSE_FLAG, Header, HeaderType
from reput_protocol.header_msgpack import decode_msgpack_header, encode_msgpack_header

_U32: Final = struct.Struct(">I")
_PUT_CODE: Final = int(RequestCode.PUT_MESSAGE)
# The start of every header that this module knows: an array of seven, the code in five bytes, language and version in
# one each, then the mark of a four-byte opaque.
_START: Final = b"\x97\xce" + _U32.pack(_PUT_CODE)
_OPAQUE_MARK_AT: Final = 8
_OPAQUE_AT: Final = 9
_OPAQUE_END: Final = 13
_FRAME_HEAD_BYTES: Final = 8
# An answer: parts that repeat, and between them the opaque, queue offset, physical offset and store timestamp.
_LAYOUT: Final = ">{}sI{}sQ{}sQ{}sQ{}s"
_I64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_CACHED_MAX: Final = 256
_CACHED_BYTES_MAX: Final = 512


class PutHeaderCache:
    """The put headers that one connection has sent so far, without their opaques. Bounded."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, PutMessageHeader] = {}

    def find(self, data: bytes) -> PutMessageHeader | None:
        """Return what a msgpack header asks for if it is a sound PutMessage request in the form that producers use.

        None says nothing: the header may be sound in another form, of another request, or broken. The value is shared
        by all requests with such a header and must not be changed.
        """
        if data[:6] != _START or data[_OPAQUE_MARK_AT : _OPAQUE_MARK_AT + 1] != b"\xce":
            return None
        key = data[:_OPAQUE_AT] + data[_OPAQUE_END:]
        header = self._known.get(key)
        return self._learn(key, data) if header is None else header

    def _learn(self, key: bytes, data: bytes) -> PutMessageHeader | None:
        if len(data) > _CACHED_BYTES_MAX or data[6] > 0x7F or data[7] > 0x7F:
            return None
        try:
            header = decode_msgpack_header(data)
            put = PutMessageHeader.from_ext(header.ext)
        except (HeaderMalformed, HeaderFieldError):
            return None
        if header.flag:
            return None  # an answer, or a request that wants none
        if len(self._known) >= _CACHED_MAX:
            self._known.clear()
        self._known[key] = put
        return put


def opaque_of(data: bytes) -> int:
    """Return the opaque of a header that `PutHeaderCache.find` knew."""
    opaque: int = _U32.unpack_from(data, _OPAQUE_AT)[0]
    return opaque


class PutAnswerCache:
    """The answers to puts that one connection has brought so far, without their opaques and numbers. Bounded."""

    __slots__ = ("_known", "_layouts")

    def __init__(self) -> None:
        self._layouts: dict[int, struct.Struct] = {}
        self._known: dict[tuple[bytes, ...], tuple[int, str, AckLevel]] = {}

    def find(self, data: bytes) -> tuple[int, PutMessageResult] | None:
        """Return opaque and result if a msgpack header says that a put succeeded, in the form of `encode_put_answer`.

        None says nothing: the header may be another answer, in another form, or broken.
        """
        layout = self._layouts.get(len(data))
        if layout is None:
            return self._learn(data)
        start, opaque, to_queue, queue_offset, to_physical, physical_offset, to_time, time_ms, end = (
            layout.unpack(data)
        )
        known = self._known.get((start, to_queue, to_physical, to_time, end))
        if known is None:
            return self._learn(data)
        if queue_offset > _I64_MAX or physical_offset > _I64_MAX or time_ms > _I64_MAX:
            return None
        queue_id, store_host, ack = known
        return opaque, PutMessageResult(queue_id, queue_offset, physical_offset, time_ms, store_host, ack)

    def _learn(self, data: bytes) -> tuple[int, PutMessageResult] | None:
        if len(data) > _CACHED_BYTES_MAX:
            return None
        try:
            header = decode_msgpack_header(data)
            if header.code or header.flag != RESPONSE_FLAG or "storeHost" not in header.ext:
                return None
            result = PutMessageResult.from_ext(header.ext)
        except (HeaderMalformed, HeaderFieldError):
            return None
        if min(result.queue_id, result.queue_offset, result.physical_offset, result.store_timestamp) < 0:
            return None  # nothing that `encode_put_answer` writes
        frame = encode_put_answer(
            header.opaque,
            result.queue_id,
            result.queue_offset,
            result.physical_offset,
            result.store_timestamp,
            result.store_host,
            result.ack,
        )
        if frame[_FRAME_HEAD_BYTES:] != data:
            return None
        if len(self._known) >= _CACHED_MAX:
            self._known.clear()
            self._layouts.clear()
        start, *others = _answer_shape(result.queue_id, result.store_host, result.ack).parts
        key = (start[_FRAME_HEAD_BYTES:], *others)
        self._layouts[len(data)] = struct.Struct(_LAYOUT.format(*map(len, key)))
        self._known[key] = (result.queue_id, result.store_host, result.ack)
        return header.opaque, result


class _AnswerShape:
    """Answers to puts into one queue: everything but the opaque and three numbers."""

    __slots__ = ("pack", "parts")

    def __init__(self, queue_id: int, store_host: str, ack: str) -> None:
        # Numbers that msgpack writes in their longest form and that are found nowhere else, to be cut out again.
        marks = (0x7E5A_A5E7, 0x7E5A_A5E7_0000_0001, 0x7E5A_A5E7_0000_0002, 0x7E5A_A5E7_0000_0003)
        result = PutMessageResult(queue_id, marks[1], marks[2], marks[3], store_host, ack)  # type: ignore[arg-type]
        encoded = encode_msgpack_header(
            Header(
                0,
                marks[0],
                RESPONSE_FLAG,
                None,
                result.to_ext(HeaderType.MSGPACK),
                LanguageCode.PYTHON.value,
                PROTOCOL_VERSION,
            )
        )
        head = struct.pack(">II", 4 + len(encoded), HeaderType.MSGPACK << 24 | len(encoded))
        rest = head + encoded
        parts: list[bytes] = []
        for mark in (_U32.pack(marks[0]), *(struct.pack(">Q", number) for number in marks[1:])):
            before, _, rest = rest.partition(mark)
            parts.append(before)
        parts.append(rest)
        self.parts = tuple(parts)
        self.pack = struct.Struct(_LAYOUT.format(*map(len, parts))).pack


@lru_cache(maxsize=4096)
def _answer_shape(queue_id: int, store_host: str, ack: str) -> _AnswerShape:
    return _AnswerShape(queue_id, store_host, ack)


def encode_put_answer(
    opaque: int,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: str,
    ack: str,
) -> bytes:
    """Return the whole frame of a successful answer: what `encode_frame` makes of a `PutMessageResult`.

    The numbers stand in their longest msgpack form, whatever their size; a reader sees the same values.
    """
    shape = _answer_shape(queue_id, store_host, ack)
    start, to_queue, to_physical, to_time, end = shape.parts
    return shape.pack(
        start, opaque, to_queue, queue_offset, to_physical, physical_offset, to_time, store_timestamp_ms, end
    )
