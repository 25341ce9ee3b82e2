"""Header type 0: a JSON object, the default of RocketMQ's clients.

Parsed strictly (RFC 8259), except that unknown members are ignored, and `extFields` may be missing or have bare numbers
and booleans. Written as Java writes it: sorted keys, no blanks, no absent members, and only strings in `extFields`,
because the Go client rejects anything else.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Raw, Struct, ValidationError
from msgspec.json import Decoder, Encoder

from reput_protocol.buffers import Buffer
from reput_protocol.codes import LanguageCode
from reput_protocol.errors import HeaderMalformed
from reput_protocol.wire.header import FIELDS_MAX, Header, Value, text_ext

_I32: TypeAlias = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]


_Scalar: TypeAlias = str | bool | int | None


class _Members(Struct, gc=False):
    """The members of a header. All have types, so that a container ends the decoding where it begins."""

    code: _I32 | None
    opaque: _I32 | None = None
    flag: _I32 | None = None
    remark: str | None = None
    extFields: dict[str, _Scalar] | None = None  # noqa: N815 - its name on the wire
    language: _Scalar = None
    version: _I32 | None = None


class _RawMembers(_Members, gc=False):
    """For headers with fractions, which remain the text that they are, or with a strange language."""

    extFields: dict[str, Raw] | None = None  # type: ignore[assignment]  # noqa: N815
    language: Raw = Raw(b"null")  # type: ignore[assignment]


_decode = Decoder(_Members).decode
_decode_raw = Decoder(_RawMembers).decode
_decode_value = Decoder(_Scalar).decode
_encode = Encoder().encode
_SMALL_BYTES = 16_384
_STRINGS_MAX = 2 * FIELDS_MAX + 32
"""Names and texts in a header above `_SMALL_BYTES`, which are counted before any is decoded."""
_FRACTION = frozenset(b".eE")
_LANGUAGE_NAMES = {language.value: language.name.encode() for language in LanguageCode}
_OTHER = LanguageCode.OTHER.value
_LANGUAGE_CODES = {language.name: language.value for language in LanguageCode}


def decode_json_header(data: Buffer) -> Header:
    """Decode a JSON header.

    Raises:
        HeaderMalformed: not UTF-8, strict JSON or an object, nested too deeply, or a member has a wrong type.
    """
    if len(data) > _SMALL_BYTES and _quotes(bytes(data)) > 2 * _STRINGS_MAX:
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
    return _Members(
        members.code, members.opaque, members.flag, members.remark, fields, language, members.version
    )


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
        raise HeaderMalformed(
            f"JSON header: extFields has {len(fields)} members; at most {FIELDS_MAX} are read"
        )
    return text_ext(fields)  # type: ignore[return-value]
