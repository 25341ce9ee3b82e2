"""Header type 0: a JSON object, the default of RocketMQ's clients.

Parsed strictly (RFC 8259), except that unknown members are ignored, and `extFields` may be missing or have bare numbers
and booleans. Written as Java writes it: sorted keys, no blanks, no absent members, and only strings in `extFields`,
because the Go client rejects anything else.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct
from msgspec.json import Decoder, Encoder

from reput_protocol.buffers import Buffer
from reput_protocol.codes import LanguageCode
from reput_protocol.errors import HeaderMalformed
from reput_protocol.wire.header import FIELDS_MAX, Header, Value, text_ext

_I32: TypeAlias = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
_TEXT = frozenset((str,))


class _Members(Struct):
    code: _I32 | None
    opaque: _I32 | None = None
    flag: _I32 | None = None
    remark: str | None = None
    extFields: dict[str, Any] | None = None  # noqa: N815 - its name on the wire
    language: Any = None
    version: _I32 | None = None


# Fractions remain text: they may occur only in extFields.
_decode = Decoder(_Members, float_hook=str).decode
_encode = Encoder().encode
_LANGUAGE_NAMES = {language.value: language.name.encode() for language in LanguageCode}
_OTHER = LanguageCode.OTHER.value
_LANGUAGE_CODES = {language.name: language.value for language in LanguageCode}


def decode_json_header(data: Buffer) -> Header:
    """Decode a JSON header.

    Raises:
        HeaderMalformed: not UTF-8, strict JSON or an object, nested too deeply, or a member has a wrong type.
    """
    try:
        members = _decode(str(data, "utf-8"))  # in bytes, ignored members would not be validated
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


def _ext(fields: dict[str, Any] | None) -> dict[str, Value]:
    if fields is None:
        return {}
    if len(fields) > FIELDS_MAX:
        raise HeaderMalformed(
            f"JSON header: extFields has {len(fields)} members; at most {FIELDS_MAX} are read"
        )
    if _TEXT.issuperset(map(type, fields.values())):
        return fields
    ext: dict[str, Value] = {}
    for name, value in fields.items():
        if type(value) is str:
            ext[name] = value
        elif type(value) is bool:
            ext[name] = "true" if value else "false"
        elif type(value) is int:
            ext[name] = str(value)
        elif value is not None:
            raise HeaderMalformed(
                f"JSON header: extFields member {name[:80]!r} is neither text, number nor boolean"
            )
    return ext
