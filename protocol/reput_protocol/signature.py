"""Signatures of requests (RocketMQ: AclClientRPCHook, AclUtils, AclSigner).

A signed request names its user in the header field `AccessKey`. `Signature` is the Base64 form of HMAC-SHA1, with the
user's secret as its key, over the values of all other fields, sorted by the name of the field and without separators,
followed by the body. The request's code and number are not part of it.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION
from reput_protocol.wire.header import Value, value_text

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE_LENGTH: Final = 28
"""Of every signature: 20 bytes in Base64."""
NAME_LENGTH_MAX: Final = 64
SECRET_LENGTH_MIN: Final = 8
SECRET_LENGTH_MAX: Final = 256

_UNSIGNED_BY_OLD_CLIENTS: Final = "_UNIQUE_KEY_QUERY"
_LAST_OLD_VERSION: Final = 399  # V4_9_3
_NAME_MARKS: Final = frozenset("._-@+")


def signed_content(
    ext: Mapping[str, Value], version: int = PROTOCOL_VERSION, *, without: str | None = None
) -> bytes:
    """Return what is signed of a header.

    Args:
        ext: the fields; `Signature` and fields that are None are left out.
        version: of the header. Clients of RocketMQ up to 4.9.3 do not sign `_UNIQUE_KEY_QUERY`.
        without: one more field to leave out.

    Raises:
        ValueError: a field has bytes that are not UTF-8.
    """
    if PROTOCOL_VERSION < version <= _LAST_OLD_VERSION and _UNSIGNED_BY_OLD_CLIENTS in ext:
        ext = {name: value for name, value in ext.items() if name != _UNSIGNED_BY_OLD_CLIENTS}
    parts = []
    for name in sorted(ext):
        value = ext[name]
        if value is None or name in (SIGNATURE, without):
            continue
        parts.append(value if type(value) is str else value_text(value))
    return "".join(parts).encode("utf-8", "replace")


def signature_of(secret: bytes, content: bytes, *body: Buffer) -> str:
    """Return the signature over a header's signed content, followed by the pieces of the body."""
    message = b"".join((content, *body)) if body else content
    return b64encode(hmac.digest(secret, message, "sha1")).decode("ascii")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and its secret. Neither `repr` nor `str` shows the secret.

    Attributes:
        user: the user's name, RocketMQ's access key.
        secret: what requests are signed with, RocketMQ's secret key.
        token: RocketMQ's security token, which is sent and signed if it is not empty.

    Raises:
        ValueError: the user or the secret is empty.
    """

    user: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.user or not self.secret:
            raise ValueError("credentials need a user and its secret")

    def fields(self) -> dict[str, Value]:
        """Return the header fields that name the user."""
        named: dict[str, Value] = {ACCESS_KEY: self.user}
        if self.token:
            named[SECURITY_TOKEN] = self.token
        return named

    def signature(self, content: bytes, *body: Buffer) -> str:
        """Return the user's signature; see `signature_of`."""
        return signature_of(self.secret.encode(), content, *body)

    def signed(self, ext: Mapping[str, Value], *body: Buffer, version: int) -> dict[str, Value]:
        """Return header fields with the user and its signature, `Signature` last."""
        named = {**ext, **self.fields()}
        named[SIGNATURE] = self.signature(signed_content(named, version), *body)
        return named


def check_user_name(name: str) -> str:
    """Return `name` if it is a valid name of a user or of a group of rights.

    Raises:
        ValueError: it is empty, longer than 64 characters, or has other characters than ASCII letters, digits and
            `. _ - @ +`.
    """
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValueError(f"a name has 1 to {NAME_LENGTH_MAX} characters, not {len(name)}")
    for char in name:
        if not (char.isascii() and char.isalnum()) and char not in _NAME_MARKS:
            raise ValueError(f"{name!r} has the character {char!r}; use ASCII letters, digits and . _ - @ +")
    return name


def check_secret(secret: str) -> str:
    """Return `secret` if it can be a user's secret.

    Raises:
        ValueError: it has fewer than 8 or more than 256 characters, or others than printable ASCII without spaces. The
            text does not show it.
    """
    is_plain = secret.isascii() and secret.isprintable() and " " not in secret
    if not SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX or not is_plain:
        raise ValueError(
            f"a secret has {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX} printable ASCII characters without spaces; "
            "`openssl rand -hex 32` makes one"
        )
    return secret
