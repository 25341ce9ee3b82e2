"""Signatures of requests, in two forms. A signed request names its user in the header field `AccessKey`.

RocketMQ's form (AclClientRPCHook, AclUtils, AclSigner): `Signature` is the Base64 form of HMAC-SHA1, with the user's
secret as its key, over the values of all other fields, sorted by the name of the field and without separators, followed
by the body. It does not cover code, names and lengths of fields, time or connection.

Reput's form: the broker gives each connection a challenge (SIGNATURE_CHALLENGE). `ReputSignature` is the Base64 form of
a number, a time and HMAC-SHA256 over the request's code, flag, version, the names and values of all fields with their
lengths, the number, the time and the body. Its key is derived from secret and challenge, and a number counts once, so
that a signature is valid for one request on one connection. docs/protocol.md has the bytes.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION
from reput_protocol.errors import ErrorCode, ReputError, error_from_response
from reput_protocol.wire.header import Header, Value, value_text

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
REPUT_SIGNATURE: Final = "ReputSignature"
REPUT_SIGNATURE_LENGTH: Final = 64
"""Of every signature in Reput's form: 8 bytes of number, 8 of time and 32 of HMAC in Base64."""
CHALLENGE_SIZE: Final = 16
NAME_LENGTH_MAX: Final = 64
SECRET_LENGTH_MIN: Final = 16
_OLD_SECRET_LENGTH_MIN: Final = 8
SECRET_LENGTH_MAX: Final = 256

_UNSIGNED_BY_OLD_CLIENTS: Final = "_UNIQUE_KEY_QUERY"
_LAST_OLD_VERSION: Final = 399  # V4_9_3
_NAME_MARKS: Final = frozenset("._-@+")
_OF_OLD_SERVERS: Final = (ErrorCode.UNSUPPORTED_REQUEST, ErrorCode.UNAUTHENTICATED, ErrorCode.NO_PERMISSION)
_MARK: Final = Struct(">QQ")
_MARK_LENGTH: Final = 16
_NUMBERS_KEPT: Final = 1024
_EVERY_NUMBER: Final = (1 << _NUMBERS_KEPT) - 1


def signed_content(ext: Mapping[str, Value], version: int = PROTOCOL_VERSION, *, without: str | None = None) -> bytes:
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
        rocketmq_signatures: whether a server that does not know Reput's form of signatures gets RocketMQ's. Without
            that, connecting to such a server fails.

    Raises:
        ValueError: the user or the secret is empty.
    """

    user: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    rocketmq_signatures: bool = True

    def __post_init__(self) -> None:
        if not self.user or not self.secret:
            raise ValueError("credentials need a user and its secret")


def user_fields(user: Credentials) -> dict[str, Value]:
    """Return the header fields that name a user."""
    named: dict[str, Value] = {ACCESS_KEY: user.user}
    if user.token:
        named[SECURITY_TOKEN] = user.token
    return named


def signed_by(user: Credentials, ext: Mapping[str, Value], *body: Buffer, version: int) -> dict[str, Value]:
    """Return header fields with a user and its signature in RocketMQ's form, `Signature` last."""
    named = {**ext, **user_fields(user)}
    named[SIGNATURE] = signature_of(user.secret.encode(), signed_content(named, version), *body)
    return named


def sign_for_rocketmq(user: Credentials, header: Header, *body: Buffer) -> None:
    """Add a user and its signature to a header."""
    header.ext = signed_by(user, header.ext, *body, version=header.version)


def knows_no_challenge(code: int, remark: str | None) -> bool:
    """Return whether a refusal of SIGNATURE_CHALLENGE is that of a server that does not know the request.

    RocketMQ's servers and older ones of Reput do not. With users they refuse it because it is not signed.
    """
    error = error_from_response(code, remark, {}).error
    return error in _OF_OLD_SERVERS or "AclException" in (remark or "")


def derived_key(secret: bytes, purpose: str, *parts: bytes) -> bytes:
    """Return the key that a secret has for one purpose, of 32 bytes.

    It is HMAC-SHA256, with the secret as its key, over `purpose` and `parts`, each with its length before it. Keys of
    other purposes or parts tell nothing about it.
    """
    content = b"".join(b"%d:%b" % (len(part), part) for part in (purpose.encode(), *parts))
    return hmac.digest(secret, content, "sha256")


def connection_key(secret: bytes, challenge: bytes) -> bytes:
    """Return the key for the requests of the connection that has a challenge."""
    return derived_key(secret, "reput request", challenge)


def request_content(code: int, flag: int, version: int, ext: Mapping[str, Value]) -> bytes:
    """Return what Reput's form signs of a header; `ReputSignature` and fields that are None are left out.

    Raises:
        ValueError: a field is not text.
    """
    parts = []
    for name in sorted(ext):
        value = ext[name]
        if value is None or name == REPUT_SIGNATURE:
            continue
        text = value if type(value) is str else value_text(value)
        parts.append(f"{len(name)}:{name}{len(text)}:{text}")
    fields = "".join(parts)
    if not fields.isascii():  # lengths are those of the bytes
        fields = _fields_with_byte_lengths(ext)
    return f"{code} {flag} {version} {len(parts)} {fields}".encode()


def _fields_with_byte_lengths(ext: Mapping[str, Value]) -> str:
    parts = []
    for name in sorted(ext):
        value = ext[name]
        if value is None or name == REPUT_SIGNATURE:
            continue
        text = value_text(value)
        parts.append(f"{len(name.encode())}:{name}{len(text.encode())}:{text}")
    return "".join(parts)


class RequestSigner:
    """Signs the requests of one connection in Reput's form.

    Args:
        challenge: of the connection, from the broker.
        clock_ms: returns the broker's time in ms, approximately.
    """

    __slots__ = ("_clock_ms", "_key", "_number", "credentials")

    def __init__(self, credentials: Credentials, challenge: bytes, clock_ms: Callable[[], int]) -> None:
        self.credentials = credentials
        self._key = connection_key(credentials.secret.encode(), challenge)
        self._clock_ms = clock_ms
        self._number = 0

    def signature(self, content: bytes, *body: Buffer) -> str:
        """Return the signature over `request_content`, followed by the pieces of the body.

        Each call takes the next number. The broker accepts the numbers of the last 1024 in any order.
        """
        self._number += 1
        mark = _MARK.pack(self._number, self._clock_ms())
        code = hmac.digest(self._key, b"".join((content, mark, *body)), "sha256")
        return b64encode(mark + code).decode("ascii")

    def sign(self, header: Header, *body: Buffer) -> None:
        """Add the user and its signature to a header."""
        named = {**header.ext, **user_fields(self.credentials)}
        content = request_content(header.code, header.flag, header.version, named)
        header.ext = {**named, REPUT_SIGNATURE: self.signature(content, *body)}


class SignatureInvalid(ReputError):
    """A request is not signed in Reput's form by its user, or is late, or a repetition."""


class SignatureChecker:
    """Checks the signatures of one connection in Reput's form.

    Args:
        challenge: random bytes that no other connection gets.
    """

    __slots__ = ("_key", "_key_of", "_last", "_seen", "challenge")

    def __init__(self, challenge: bytes) -> None:
        self.challenge = challenge
        self._key_of = b""
        self._key = b""
        self._last = 0
        self._seen = 0  # bit n: whether the number `_last - n` was used

    def check(self, secret: bytes, header: Header, body: Buffer, now_ms: int, tolerance_ms: int) -> None:
        """Check the signature of a request. Its number cannot be used again afterwards.

        Args:
            tolerance_ms: by how much the time of the request may differ from `now_ms`.

        Raises:
            SignatureInvalid: the text says why.
        """
        text = header.ext.get(REPUT_SIGNATURE)
        try:
            if type(text) is not str or len(text) != REPUT_SIGNATURE_LENGTH:
                raise ValueError("not a signature")
            given = b64decode(text, validate=True)
            content = request_content(header.code, header.flag, header.version, header.ext)
        except ValueError:  # a field that is not text cannot have been signed
            raise SignatureInvalid(_NOT_ITS) from None
        key = self._key if secret == self._key_of else connection_key(secret, self.challenge)
        mark = given[:_MARK_LENGTH]
        expected = hmac.digest(key, b"".join((content, mark, body)), "sha256")
        if not hmac.compare_digest(given[_MARK_LENGTH:], expected):
            raise SignatureInvalid(_NOT_ITS)
        self._key, self._key_of = key, secret  # most connections have one user
        number, time_ms = _MARK.unpack(mark)
        if abs(now_ms - time_ms) > tolerance_ms:
            raise SignatureInvalid(
                f"this request was signed {(now_ms - time_ms) / 1000:.0f} s ago, and {tolerance_ms / 1000:g} s are "
                "accepted (access.signature_tolerance); send it again"
            )
        if not self._take(number):
            raise SignatureInvalid("this request has been received before, or long after later ones")

    def _take(self, number: int) -> bool:
        """Note the use of a number; False if it was used before, or is too far behind to know that."""
        ahead = number - self._last
        if ahead > 0:
            kept = self._seen << ahead if ahead < _NUMBERS_KEPT else 0
            self._seen = (kept | 1) & _EVERY_NUMBER
            self._last = number
            return True
        bit = 1 << -ahead if -ahead < _NUMBERS_KEPT else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True


_NOT_ITS: Final = "the signature of this request is not that of the user it names; check the client's user and secret"


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
    return _check_secret(secret, _OLD_SECRET_LENGTH_MIN)


def check_new_secret(secret: str) -> str:
    """Like `check_secret`, for a secret that is set: it has 16 or more characters."""
    return _check_secret(secret, SECRET_LENGTH_MIN)


def _check_secret(secret: str, least: int) -> str:
    is_plain = secret.isascii() and secret.isprintable() and " " not in secret
    if not least <= len(secret) <= SECRET_LENGTH_MAX or not is_plain:
        raise ValueError(
            f"a secret has {least} to {SECRET_LENGTH_MAX} printable ASCII characters without spaces; "
            "`openssl rand -hex 32` makes one"
        )
    return secret
