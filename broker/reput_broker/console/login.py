"""The logins of browsers: with a user of access control and its secret, or without access control with the token.

A login is a random id in a cookie. It ends after eight hours, when its user logs out, is disabled, deleted or gets
another secret, and with the process.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from reput_broker.access.attempts import Attempts
from reput_broker.access.control import AccessControl
from reput_broker.access.model import Account

LASTS_S: Final = 8 * 3600
_OF_ONE_USER: Final = 8
"""Of access control; without it all browsers have the same token."""
_LOGINS_MAX: Final = 256


class TooManyAttempts(Exception):
    """Too many wrong secrets have come from this address.

    Attributes:
        wait_s: seconds until the next one may be tried.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong secrets; wait {wait_s:.0f} s")
        self.wait_s = wait_s


class _Login(NamedTuple):
    user: str
    secret: bytes
    """The user's, at the login: another one ends it."""
    ends_at: float


class Logins:
    """The logins of this process, by random id.

    Args:
        token: what to log in with if there is no access control; "" permits no login.
        accounts: the users of access control; None if it is off.
    """

    def __init__(
        self, token: str, accounts: AccessControl | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._token = token.encode()
        self._accounts = accounts
        self._clock = clock
        self._attempts = Attempts(clock) if accounts is None else accounts.attempts
        self._logins: dict[str, _Login] = {}

    @property
    def has_users(self) -> bool:
        """Whether a login is that of a user of access control."""
        return self._accounts is not None

    @property
    def is_possible(self) -> bool:
        """Whether there are users, or a token is configured."""
        return self.has_users or bool(self._token)

    def begin(self, user: str, secret: str, host: str) -> str | None:
        """Return the id of a new login, None if the secret is wrong.

        Beyond 8 logins of a user of access control, its oldest one ends; beyond 256 of all, the oldest.

        Args:
            user: ignored without access control.
            host: the address that the request comes from.

        Raises:
            TooManyAttempts: the secret was not looked at.
        """
        user = user if self.has_users else ""
        wait_s = self._attempts.wait_s(host, user)
        if wait_s > 0:
            raise TooManyAttempts(wait_s)
        known = self._secret_of(user, secret, host)
        if known is None:
            self._attempts.wrong(host, user)
            return None
        self._attempts.right(host, user)
        own = [login for login, found in self._logins.items() if self.has_users and found.user == user]
        for login in own[: max(0, len(own) + 1 - _OF_ONE_USER)]:
            del self._logins[login]
        while len(self._logins) >= _LOGINS_MAX:
            del self._logins[next(iter(self._logins))]
        login = secrets.token_urlsafe(32)
        self._logins[login] = _Login(user, known, self._clock() + LASTS_S)
        return login

    def _secret_of(self, user: str, secret: str, host: str) -> bytes | None:
        """Return the secret of a user if it is the one given."""
        if self._accounts is not None:
            account = self._accounts.check_password(user, secret, host)
            return None if account is None else account.secret
        is_right = bool(self._token) and hmac.compare_digest(secret.encode("utf-8", "replace"), self._token)
        return self._token if is_right else None

    def is_valid(self, login: str | None) -> bool:
        """Tell whether this is the id of a login that has not ended."""
        found = None if login is None else self._logins.get(login)
        return found is not None and self._clock() < found.ends_at

    def account(self, login: str | None, host: str) -> Account | None:
        """Return the user of a login with its rights at an address; None if it has ended, or has no user."""
        if login is None or self._accounts is None or not self.is_valid(login):
            return None
        found = self._logins[login]
        account = self._accounts.account(found.user, host)
        if account is None or not hmac.compare_digest(account.secret, found.secret):
            del self._logins[login]
            return None
        return account

    def end(self, login: str | None) -> None:
        """End a login."""
        if login is not None:
            self._logins.pop(login, None)
