"""The users whose signatures a proxy checks, from the file of the brokers (`reput user --file`).

gRPC clients sign a time with the user's secret and send both in the metadata `authorization` and `x-mq-date-time`:

    MQv2-HMAC-SHA1 Credential=USER, SignedHeaders=x-mq-date-time, Signature=HEX

The signature covers nothing else. With the secret the proxy signs each request to a broker, which checks the rights.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from reput_protocol.errors import ReputError
from reput_proxy.rejections import Code, Rejected

_BYTES_MAX: Final = 64 << 20
_READ_BY_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
_FORM: Final = re.compile(
    r"MQv2-HMAC-SHA1\s+Credential=(?P<user>[^,/\s]{1,64})[^,]*,\s*SignedHeaders=x-mq-date-time\s*,"
    r"\s*Signature=(?P<signature>[0-9A-Fa-f]{40})\s*"
)


class _User(msgspec.Struct):
    secret: str
    enabled: bool = True


class _File(msgspec.Struct):
    users: dict[str, _User]
    version: int = 1


class UsersUnreadable(ReputError):
    """The file with the users cannot be used. The text shows no secret."""


class UserGone(ReputError):
    """The user may not sign any more; messages that its clients have are not renewed."""


class Users:
    """The users of a file, which is read again when it has changed.

    Args:
        path: the file; it may be missing if there are others.
        configured: secrets of further users, by name; one in the file comes first.

    Raises:
        UsersUnreadable: it cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], configured: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        self._configured = {user: _User(secret) for user, secret in (configured or {}).items()}
        self._state: tuple[int, int, int] | None = None
        self._users: dict[str, _User] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the file if it has changed; raises `UsersUnreadable`, and keeps the users that were read before."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                state = (found.st_ino, found.st_size, found.st_mtime_ns)
                if state == self._state:
                    return
                if stat.S_IMODE(found.st_mode) & _READ_BY_OTHERS:
                    raise UsersUnreadable(f"{self.path} has secrets, and others may read it; run chmod 600")
                data = file.read(_BYTES_MAX)
        except FileNotFoundError as error:
            if not self._configured or self._state is not None:
                text = f"{self.path} does not exist; reput user create NAME --file {self.path}"
                raise UsersUnreadable(text) from error
            self._users = dict(self._configured)
            return
        except OSError as error:
            raise UsersUnreadable(f"{self.path} cannot be read: {error.strerror}") from error
        try:
            self._users = {**self._configured, **msgspec.json.decode(data, type=_File).users}
        except msgspec.DecodeError:
            raise UsersUnreadable(f"{self.path} is not a file of users") from None
        self._state = state

    def first(self) -> tuple[str, str] | None:
        """Return a user that may sign, and its secret; None if there is none."""
        enabled = ((name, user.secret) for name, user in self._users.items() if user.enabled and user.secret)
        return next(enabled, None)

    def secret_of(self, name: str) -> str | None:
        """Return the secret of a user that may sign; None if there is no such user."""
        user = self._users.get(name)
        return (user.secret or None) if user is not None and user.enabled else None

    def check(self, authorization: str | None, date_time: str | None) -> tuple[str, str]:
        """Return the user that has signed a request, and its secret.

        Raises:
            Rejected: it is not signed, or not by a user that may sign.
        """
        if not authorization:
            raise Rejected(Code.UNAUTHORIZED, "the request is not signed; give the client a user and its secret")
        found = _FORM.fullmatch(authorization)
        if found is None or not date_time:
            raise Rejected(Code.UNAUTHORIZED, "the signature is not in the form MQv2-HMAC-SHA1")
        secret = self.secret_of(found["user"]) or ""
        expected = hmac.digest(secret.encode(), date_time.encode(), "sha1").hex()
        if not secret or not hmac.compare_digest(expected, found["signature"].lower()):
            raise Rejected(
                Code.UNAUTHORIZED, "there is no such user, or the signature is not its; check user and secret"
            )
        return found["user"], secret
