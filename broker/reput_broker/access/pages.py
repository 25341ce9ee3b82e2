"""The users of access control on the HTTP port, by Basic authentication, or by a login of the console.

The pages of a container's health checks are open, without details, and so are the files of the console and its login,
which show nothing of the broker. Every other page needs a user.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import trio
from msgspec import json

from reput_broker.access.control import AccessControl, Attempts
from reput_broker.access.model import Account, Need
from reput_broker.observe.pages import IS_OPEN
from reput_protocol.rights import Kind, Right

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

OPEN_PAGES: Final = frozenset({"/livez", "/readyz"})
USER: Final = "reput.user"
"""Set in the scope of a request whose user is known: its `Account`, with its rights at its address."""
_WRONG_PASSWORD_S: Final = 1.0
_SEE: Final = Need(Right.DESCRIBE, Kind.CLUSTER)
LASTS_S: Final = 8 * 3600
_OF_ONE_USER: Final = 8
"""Of access control; without it all browsers have the same token."""
_LOGINS_MAX: Final = 256


class PagesWithLogin(Protocol):
    """Pages that have a login of their own: the console."""

    def covers(self, path: str) -> bool:
        """Tell whether a path is one of these pages, whose login replaces the browser's dialog for Basic."""

    def is_open(self, path: str) -> bool:
        """Tell whether a page shows nothing of the broker, so that it needs no user: its files, its login."""

    def asks_as_its_user(self, path: str) -> bool:
        """Tell whether a page only asks the broker, with the rights of its user."""

    def account(self, scope: Any, host: str) -> Account | None:
        """Return the user of a request's login, with its rights at an address."""


@dataclass(eq=False, repr=False)
class GuardedPages:
    """An ASGI application that answers for another one until it knows that the user may see the page.

    Pages that ask the broker as their user show what that user may see; others need the right to describe the cluster.

    Args:
        with_login: the pages with a login of their own, if there are any.
    """

    _app: App
    _access: AccessControl
    _with_login: PagesWithLogin | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        path = scope["path"]
        if path in OPEN_PAGES:
            await self._app({**scope, IS_OPEN: True}, receive, send)
            return
        host, port = scope.get("client") or ("", 0)
        peer = f"{host}:{port}"
        given, pages = _basic(scope["headers"]), self._with_login
        is_page = pages is not None and pages.covers(path)
        if given is not None:
            wait_s = self._access.attempts.wait_s(host, given[0])
            if wait_s > 0:
                self._access.note_page_refused(given[0], path[:80], peer, None)
                await _refuse(send, 429, f"too many wrong secrets; wait {wait_s:.0f} s\n")
                return
            account = self._access.check_password(*given, host)
            note = self._access.attempts.wrong if account is None else self._access.attempts.right
            note(host, given[0])
        else:
            account = pages.account(scope, host) if pages is not None and is_page else None
        if account is None and given is None and pages is not None and pages.is_open(path):
            await self._app(scope, receive, send)
            return
        if account is None:
            self._access.note_page_refused("" if given is None else given[0], path[:80], peer, None)
            if given is not None:
                await trio.sleep(_WRONG_PASSWORD_S)
            text = "this page needs a user of the broker and its secret, as Basic authentication"
            await (_refuse_page(send) if is_page else _refuse(send, 401, f"{text}\n"))
            return
        asks = pages is not None and (pages.is_open(path) or pages.asks_as_its_user(path))
        if not asks and not account.may(_SEE):
            self._access.note_page_refused(account.name, path[:80], peer, _SEE)
            await _refuse(send, 403, f"user {account.name!r} lacks the right {_SEE}\n")
            return
        await self._app({**scope, USER: account}, receive, send)


def _basic(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str] | None:
    """Return the user and password of a request, or None."""
    given = [value for name, value in headers if name.lower() == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, coded = given[0].partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = b64decode(coded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon else None


async def _refuse_page(send: Any) -> None:
    """Refuse a page with a login of its own. Without a challenge, which would open the browser's dialog."""
    body = json.encode({"error": "log in to see this", "remedy": "with a user of the broker and its secret"})
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="reput", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


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
    """The logins of this process: with a user of access control and its secret, or without access control with the
    token.

    A login is a random id in a cookie. It ends after eight hours, when its user logs out, is disabled, deleted or gets
    another secret, and with the process.

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
