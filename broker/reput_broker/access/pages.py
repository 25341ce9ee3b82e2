"""The users of access control on the HTTP port, by Basic authentication.

The pages of a container's health checks are open, without details; every other page needs a user.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.model import Need
from reput_broker.observe.pages import IS_OPEN
from reput_protocol.rights import Kind, Right

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

OPEN_PAGES: Final = frozenset({"/livez", "/readyz"})
USER: Final = "reput.user"
"""Set in the scope of a request whose user is known: its `Account`, with its rights at its address."""
_WRONG_PASSWORD_S: Final = 1.0
_SEE: Final = Need(Right.DESCRIBE, Kind.CLUSTER)


class GuardedPages:
    """An ASGI application that answers for another one until it knows that the user may see the page.

    Args:
        asks_as_its_user: tells whether a page only asks the broker, with the rights of its user; others need the right
            to describe the cluster.
    """

    def __init__(
        self, app: App, access: AccessControl, asks_as_its_user: Callable[[str], bool] = lambda _path: False
    ) -> None:
        self._app = app
        self._access = access
        self._asks_as_its_user = asks_as_its_user

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        path = scope["path"]
        if path in OPEN_PAGES:
            await self._app({**scope, IS_OPEN: True}, receive, send)
            return
        host, port = scope.get("client") or ("", 0)
        peer = f"{host}:{port}"
        given = _basic(scope["headers"])
        account = None if given is None else self._access.check_password(*given, host)
        if account is None:
            self._access.note_page_refused("" if given is None else given[0], path[:80], peer, None)
            if given is not None:
                await trio.sleep(_WRONG_PASSWORD_S)
            await _refuse(
                send, 401, "this page needs a user of the broker and its secret, as Basic authentication\n"
            )
            return
        if not self._asks_as_its_user(path) and not account.may(_SEE):
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


async def _refuse(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="reput", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
