"""Frames: the units of requests and responses on a connection (RocketMQ: NettyDecoder, NettyEncoder).

The layout is in docs/protocol.md. `FrameReader` splits a byte stream into frames. Bodies are views of a read that has
whole frames, the usual case. Only a frame that spans reads is copied, once, into a buffer that grows with the bytes
received, not with the announced size.

A frame's header has one of three types:

- 0, a JSON object, the default of RocketMQ's clients. Parsed strictly (RFC 8259), except that unknown members are
  ignored, and `extFields` may be missing or have bare numbers and booleans. Written as Java writes it: sorted keys, no
  blanks, no absent members, and only strings in `extFields`, because the Go client rejects anything else.
- 1, RocketMQ's binary form (RocketMQSerializable). All numbers are big-endian and signed. A code beyond 16 bits raises
  here; RocketMQ truncates it silently.
- 0x4D, Reput's: a msgpack array of seven elements. Values keep their types, so that the hot path parses no text.
  Elements after the seventh are reserved: checked against the limits and otherwise ignored.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgpack  # type: ignore[import-untyped]
from msgspec import Meta, Raw, Struct, ValidationError
from msgspec.json import Decoder, Encoder

from reput_protocol.buffers import Buffer
from reput_protocol.codes import LanguageCode
from reput_protocol.errors import FrameMalformed, FrameTooLarge, HeaderMalformed, ProtocolError, UnknownHeaderType
from reput_protocol.kernel.frames import cut_frames, text_fields
from reput_protocol.wire.header import FIELDS_MAX, Header, HeaderType, Value, text_ext

T = TypeVar("T")

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
        fixed = _FIXED.pack(header.code, header.language, header.version, header.opaque, header.flag, len(remark))
    except struct.error as error:
        raise ValueError(f"header with code {header.code} does not fit the binary form: {error}") from None
    return b"".join((fixed, remark, _I32.pack(len(fields)), fields))


def _end(data: bytes, start: int, size: int, what: str) -> int:
    """Return where a text of `size` bytes ends, which must be inside the header."""
    if size < 0 or size > len(data) - start:
        raise HeaderMalformed(f"binary header: {what} of {size} bytes, but {len(data) - start} are left")
    return start + size


_Int32: TypeAlias = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]


_Scalar: TypeAlias = str | bool | int | None


class _Members(Struct, gc=False):
    """The members of a header. All have types, so that a container ends the decoding where it begins."""

    code: _Int32 | None
    opaque: _Int32 | None = None
    flag: _Int32 | None = None
    remark: str | None = None
    extFields: dict[str, _Scalar] | None = None  # noqa: N815 - its name on the wire
    language: _Scalar = None
    version: _Int32 | None = None


class _RawMembers(_Members, gc=False):
    """For headers with fractions, which remain the text that they are, or with a strange language."""

    extFields: dict[str, Raw] | None = None  # type: ignore[assignment]  # noqa: N815
    language: Raw = Raw(b"null")  # type: ignore[assignment]


_decode = Decoder(_Members).decode
_decode_raw = Decoder(_RawMembers).decode
_decode_value = Decoder(_Scalar).decode
_encode = Encoder().encode
_SMALL_JSON_BYTES = 16_384
_STRINGS_MAX = 2 * FIELDS_MAX + 32
"""Names and texts in a header above `_SMALL_JSON_BYTES`, which are counted before any is decoded."""
_FRACTION = frozenset(b".eE")
_LANGUAGE_NAMES = {language.value: language.name.encode() for language in LanguageCode}
_OTHER = LanguageCode.OTHER.value
_LANGUAGE_CODES = {language.name: language.value for language in LanguageCode}


def decode_json_header(data: Buffer) -> Header:
    """Decode a JSON header.

    Raises:
        HeaderMalformed: not UTF-8, strict JSON or an object, nested too deeply, or a member has a wrong type.
    """
    if len(data) > _SMALL_JSON_BYTES and _quotes(bytes(data)) > 2 * _STRINGS_MAX:
        raise HeaderMalformed(f"JSON header: it has more than {_STRINGS_MAX} names and texts")
    try:
        text = str(data, "utf-8")  # in bytes, ignored members would not be validated
        try:
            members = _decode(text)
        except ValidationError:
            members = _decode_unusual(text)
    except (ValueError, RecursionError) as error:
        raise HeaderMalformed(f"JSON header cannot be read: {error}") from None
    return Header(
        members.code or 0,
        members.opaque or 0,
        members.flag or 0,
        members.remark,
        _ext(members.extFields),
        _language(members.language),
        members.version or 0,
    )


def _quotes(data: bytes) -> int:
    """Return how many quotation marks have no backslash before them: one or two for each name and text.

    It takes time in proportion to the length, whatever the bytes are.
    """
    return data.count(b'"') - data.count(b'\\"')


def _decode_unusual(text: str) -> _Members:
    """Decode a header that may have fractions in its fields. Raises ValueError, which names a field that has not."""
    members = _decode_raw(text)
    try:
        language = _decode_value(members.language)
    except ValidationError:
        language = None
    fields = {name: _value(name, bytes(raw)) for name, raw in (members.extFields or {}).items()}
    return _Members(members.code, members.opaque, members.flag, members.remark, fields, language, members.version)


def _value(name: str, raw: bytes) -> _Scalar:
    try:
        value: _Scalar = _decode_value(raw)
    except ValidationError:
        if raw[:1] in b"-0123456789" and not _FRACTION.isdisjoint(raw):
            return raw.decode()
        raise ValueError(f"extFields member {name[:80]!r} is neither text, number nor boolean") from None
    return value


def encode_json_header(header: Header) -> bytes:
    """Encode as compact JSON with sorted keys; `ext` keeps its order."""
    ext = text_ext(header.ext)
    ext_part = b'"extFields":%b,' % _encode(ext) if ext else b""
    remark_part = b"" if header.remark is None else b'"remark":%b,' % _encode(header.remark)
    language = _LANGUAGE_NAMES.get(header.language, b"OTHER")
    return b'{"code":%d,%b"flag":%d,"language":"%b","opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}' % (
        header.code, ext_part, header.flag, language, header.opaque, remark_part, header.version,
    )  # fmt: skip


def _language(value: object) -> int:
    """Return the language's number; unknown ones are served too."""
    if type(value) is int and 0 <= value <= 255:
        return value
    return _LANGUAGE_CODES.get(value, _OTHER) if type(value) is str else _OTHER


def _ext(fields: dict[str, _Scalar] | None) -> dict[str, Value]:
    if fields is None:
        return {}
    if len(fields) > FIELDS_MAX:
        raise HeaderMalformed(f"JSON header: extFields has {len(fields)} members; at most {FIELDS_MAX} are read")
    return text_ext(fields)  # type: ignore[return-value]


_ELEMENTS = 7
_CONTAINER_LENGTH_MAX = 1024
_DEPTH_MAX = 4
_SMALL_MSGPACK_BYTES = 2048
_CONTAINERS_MAX = 64
"""Arrays and maps in a header above `_SMALL_MSGPACK_BYTES`: each takes a byte, and up to a microsecond."""
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
        elements = msgpack.unpackb(data) if len(data) <= _SMALL_MSGPACK_BYTES else _unpack_large(data)
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
        raise HeaderMalformed("msgpack header: a field has no text as name, or holds a container or extension type")
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
        data, list_hook=count, object_hook=count, max_array_len=_CONTAINER_LENGTH_MAX, max_map_len=_CONTAINER_LENGTH_MAX
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
                found, end, self._needed, fault = cut_frames(buffer, 0, self._total_max, self._header_max, _frame)
                if end:
                    buffer = bytearray()  # bodies are views of the one before
            else:
                found, end, self._needed, fault = cut_frames(data, start, self._total_max, self._header_max, _frame)
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
