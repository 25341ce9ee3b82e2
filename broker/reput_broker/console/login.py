"""Access to changes: a client must log in with the configured token."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

COOKIE: Final = "reput_console"
LASTS_S: Final = 8 * 3600
_LOGINS_MAX: Final = 64


class Logins:
    """The logins of this process, by random id. A restart ends them.

    Args:
        token: what to log in with; "" permits no login.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token.encode()
        self._clock = clock
        self._ends_at: dict[str, float] = {}

    @property
    def is_possible(self) -> bool:
        """Whether a token is configured."""
        return bool(self._token)

    def begin(self, token: str) -> str | None:
        """Return the id of a new login, None if the token is wrong. Beyond 64 logins, the oldest one ends."""
        given = token.encode("utf-8", "replace")
        if not self._token or not hmac.compare_digest(given, self._token):
            return None
        while len(self._ends_at) >= _LOGINS_MAX:
            del self._ends_at[next(iter(self._ends_at))]
        login = secrets.token_urlsafe(32)
        self._ends_at[login] = self._clock() + LASTS_S
        return login

    def is_valid(self, login: str | None) -> bool:
        """Tell whether this is the id of a login that has not ended."""
        ends_at = None if login is None else self._ends_at.get(login)
        return ends_at is not None and self._clock() < ends_at

    def end(self, login: str | None) -> None:
        """End a login."""
        if login is not None:
            self._ends_at.pop(login, None)
