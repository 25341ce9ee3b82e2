"""The routes of the console, and what guards them.

Reading needs no login unless the configuration says so; a change needs one. A page of another site can neither read
nor change anything: no answer permits it, a change needs a header that such a page cannot send, and the Host of every
browser's request is checked by the server (`is_own_host`). The page loads nothing but its own files.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
import trio

from reput_broker.access.model import OPERATOR
from reput_broker.access.pages import USER
from reput_broker.console import dead_letters, messages, pages
from reput_broker.console.figures import LiveFigures
from reput_broker.console.login import COOKIE, LASTS_S, Logins
from reput_broker.console.shared_answers import SharedAnswers
from reput_broker.console.source import InvalidQuery, Query, Source
from reput_broker.observe.metrics import MetricsSources
from reput_protocol.errors import BrokerError, ErrorCode, ReputError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    from reput_broker.console.own_client import Ask
    from reput_broker.server.local_requests import LocalRequests
    from reput_client.admin import Admin

log = structlog.get_logger(__name__)

PATH: Final = "/console/"
CHANGE_HEADER: Final = "x-reput-console"
_STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_TIMEOUT_S: Final = 30.0
_LOOK_UPS_AT_ONCE: Final = 4
"""Each may hold some mebibytes of messages."""
_DOWNLOADS_AT_ONCE: Final = 2
"""Each may hold a body that was decompressed, until the browser has it."""
_WATCHERS_MAX: Final = 32
"""Pages with live numbers: half of the connections of the port."""
_WRONG_TOKEN_S: Final = 1.0
_LOGGED_MAX: Final = 80
"""Characters of a name in the log."""
_STATUS_OF: Final = {
    ErrorCode.NO_TOPIC: 404,
    ErrorCode.NO_GROUP: 404,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.NO_PERMISSION: 403,
    ErrorCode.INTERNAL: 500,
    ErrorCode.BUSY: 503,
    ErrorCode.NOT_READY: 503,
    ErrorCode.DRAINING: 503,
    ErrorCode.NOT_MASTER: 503,
    ErrorCode.READ_ONLY: 503,
    ErrorCode.DISK_FULL: 503,
}

Page = Callable[[Source, Query], Awaitable[dict[str, Any]]]

# Polled by open pages, so that their answers are shared.
_PAGES: Final[Mapping[str, Page]] = {
    "topics": pages.list_topics,
    "topic": pages.show_topic,
    "groups": pages.list_groups,
    "group": pages.show_group,
    "dead-letters": dead_letters.list_dead_letters,
    "clients": pages.list_clients,
    "store": pages.show_store,
    "cluster": pages.show_cluster,
    "delayed": pages.list_delayed,
}
# Asked for once.
_LOOK_UPS: Final[Mapping[str, Page]] = {
    "message": messages.show_message,
    "find": messages.find_messages,
    "browse": messages.browse_messages,
    "letters": dead_letters.show_dead_letters,
}
_CHANGES: Final[Mapping[str, Page]] = {
    "replay": dead_letters.replay,
    "cancel": pages.cancel,
}


def asks_as_its_user(path: str) -> bool:
    """Tell whether a path shows nothing of itself: what it asks the broker for is checked as its user's request."""
    return path in ("/", PATH.rstrip("/")) or (path.startswith(PATH) and path != f"{PATH}events")


class Console:
    """The console of one broker.

    Args:
        figures: the sources of the metrics, for the live numbers; their configuration is the console's too.
        serving: makes requests to the present tenure; returns None while there is none.
    """

    def __init__(self, figures: MetricsSources, serving: Callable[[], LocalRequests | None]) -> None:
        self.live = LiveFigures(figures)
        self._figures = figures
        self._serving = serving
        self._options = figures.config.console
        self._logins = Logins(self._options.token)
        self._failures = figures.counters.auth_failures
        self._shared = SharedAnswers()
        self._look_ups = trio.CapacityLimiter(_LOOK_UPS_AT_ONCE)
        self._downloads = trio.CapacityLimiter(_DOWNLOADS_AT_ONCE)
        self._changes = trio.Lock()

    def routes(self) -> list[BaseRoute]:
        """Return the routes. Starlette is imported here, not by brokers without an HTTP port."""
        from starlette.responses import RedirectResponse
        from starlette.routing import Route

        async def to_console(_request: Request) -> Response:
            return RedirectResponse(PATH, 307)

        api = f"{PATH}api/"
        gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
            f"{api}session": self._session,
            f"{api}body": self._body,
            f"{PATH}events": self._events,
            **{f"{api}{name}": partial(self._page, page) for name, page in _PAGES.items()},
            **{f"{api}{name}": partial(self._look_up, page) for name, page in _LOOK_UPS.items()},
        }
        posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
            f"{api}login": self._log_in,
            f"{api}logout": self._log_out,
            **{f"{api}{name}": partial(self._change, page) for name, page in _CHANGES.items()},
        }
        return [
            Route("/", to_console, methods=["GET"]),
            Route(PATH.rstrip("/"), to_console, methods=["GET"]),
            *(
                Route(path, partial(_guarded, self._check_reader, get), methods=["GET"])
                for path, get in gets.items()
            ),
            *(
                Route(path, partial(_guarded, _check_change, post), methods=["POST"])
                for path, post in posts.items()
            ),
            Route(f"{PATH}{{name:path}}", partial(_guarded, _nothing_to_check, _file), methods=["GET"]),
        ]

    # What guards

    def _is_logged_in(self, request: Request) -> bool:
        if USER in request.scope:  # whose rights the broker checks
            return True
        return self._logins.is_valid(request.cookies.get(COOKIE))

    def _check_reader(self, request: Request) -> None:
        _check_site(request)
        if request.url.path.endswith("/session"):
            return
        if not self._options.read_without_login and not self._is_logged_in(request):
            raise self._not_logged_in(request, "log in to see this", "the token is that of console.token")

    def _not_logged_in(self, request: Request, error: str, remedy: str) -> _Refused:
        """Count a request without a login, and return its refusal."""
        self._failures["expired" if COOKIE in request.cookies else "forbidden"] += 1
        return _Refused(401, error, remedy)

    # Answers

    async def _source(self, request: Request) -> Source:
        """Return what a page is made from. Raises BrokerError (NOT_READY) while the broker does not serve."""
        requests, figures = self._serving(), self._figures
        if requests is None or figures.store is None:
            state = figures.health.state
            raise BrokerError(
                ErrorCode.NOT_READY, f"the broker is {state}; this page shows its data once it serves"
            )
        peer = "console" if request.client is None else f"{request.client.host}:{request.client.port}"
        ask = partial(requests.ask, principal=request.scope.get(USER, OPERATOR), peer=peer)
        own_admin = await trio.to_thread.run_sync(_own_admin)
        return Source(own_admin(ask, figures.config.broker_name), figures.clock_ms())

    async def _page(self, page: Page, request: Request) -> Response:
        async def compute() -> bytes:
            return _encoded(await page(await self._source(request), Query(request.query_params)))

        key = (request.scope.get(USER), request.url.path, request.url.query)
        return _json(await self._shared.get(key, compute))

    async def _look_up(self, page: Page, request: Request) -> Response:
        async with self._look_ups:
            return _json(_encoded(await page(await self._source(request), Query(request.query_params))))

    async def _change(self, page: Page, request: Request) -> Response:
        if not self._is_logged_in(request):
            raise self._not_logged_in(request, "log in to change something", self._how_to_log_in)
        client, members = request.client, await _members(request)
        log.info(
            "console_change",
            user=request.scope[USER].name if USER in request.scope else None,
            path=request.url.path,
            **{
                name: str(members[name])[:_LOGGED_MAX]
                for name in ("group", "topic", "key")
                if members.get(name)
            },
            peer="" if client is None else client.host,
        )
        query = Query(members)
        async with self._changes:  # two replays of one group would send its dead letters twice
            return _json(_encoded(await page(await self._source(request), query)))

    async def _body(self, request: Request) -> Response:
        from starlette.responses import Response

        console = self

        class Download(Response):
            """Holds its turn until the browser has the body."""

            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async with console._downloads:
                    response = await _guarded(_nothing_to_check, console._downloaded, request)
                    await response(scope, receive, send)

        return Download()

    async def _downloaded(self, request: Request) -> Response:
        from starlette.responses import Response

        name, body = await messages.download_body(await self._source(request), Query(request.query_params))
        disposition = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(body, media_type="application/octet-stream", headers=disposition)

    async def _events(self, request: Request) -> Response:
        from starlette.responses import Response, StreamingResponse

        live = self.live

        class Events(StreamingResponse):
            """Streams until the browser is gone."""

            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                with live.watched() as watcher:
                    self.body_iterator = watcher
                    await super().__call__(scope, receive, send)

        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if live.watchers >= _WATCHERS_MAX:
            raise _Refused(
                503,
                f"{_WATCHERS_MAX} pages are open already",
                "close some; this one works without live numbers",
            )
        return Events((), media_type="text/event-stream")

    async def _session(self, request: Request) -> Response:
        members = {
            "can_log_in": self._logins.is_possible and USER not in request.scope,
            "is_logged_in": self._is_logged_in(request),
            "read_without_login": self._options.read_without_login,
            "how": self._how_to_log_in,
            "broker": self._figures.config.broker_name,
            "cluster": self._figures.config.cluster,
        }
        return _json(_encoded(members))

    async def _log_in(self, request: Request) -> Response:
        token = Query(await _members(request)).text("token", size_max=1024)
        login = self._logins.begin(token)
        if login is None:
            client = request.client
            log.warning("console_login_failed", peer="" if client is None else client.host)
            self._failures["bad_credentials"] += 1
            await trio.sleep(_WRONG_TOKEN_S)
            raise _Refused(401, "this is not the token", self._how_to_log_in)
        response = _json(b"{}")
        response.set_cookie(
            COOKIE,
            login,
            max_age=LASTS_S,
            path=PATH,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        self._logins.end(request.cookies.get(COOKIE))
        response = _json(b"{}")
        response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="strict")
        return response

    @property
    def _how_to_log_in(self) -> str:
        if self._logins.is_possible:
            return "the token is that of console.token"
        return (
            "no login is possible until console.token is set: REPUT_CONSOLE__TOKEN_FILE names a file with it"
        )


class _Refused(Exception):
    def __init__(self, status: int, error: str, remedy: str = "") -> None:
        super().__init__(error)
        self.status = status
        self.remedy = remedy


async def _guarded(
    check: Callable[[Request], None], handle: Callable[[Request], Awaitable[Response]], request: Request
) -> Response:
    """Answer with what `handle` returns if `check` permits it, and with JSON for every error."""
    try:
        check(request)
        with trio.fail_after(_TIMEOUT_S):
            response = await handle(request)
    except _Refused as error:
        response = _refusal(error.status, str(error), error.remedy)
    except InvalidQuery as error:
        response = _refusal(400, str(error))
    except trio.TooSlowError:
        response = _refusal(504, f"this took more than {_TIMEOUT_S:g} s", "ask for less, or again later")
    except BrokerError as error:
        text = (error.remark or str(error)).removeprefix(f"{error.error.name}: ")
        response = _refusal(_STATUS_OF.get(error.error, 400), text)
    except ReputError as error:
        response = _refusal(400, str(error))
    response.headers.update(_HEADERS)
    return response


def _check_site(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise _Refused(403, "this request comes from a page of another site")


def _check_change(request: Request) -> None:
    _check_site(request)
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise _Refused(403, "this request comes from a page of another site")
    if request.headers.get(CHANGE_HEADER) != "1":
        raise _Refused(
            403, "only the console's page changes something", f"send the header {CHANGE_HEADER}: 1"
        )


def _nothing_to_check(_request: Request) -> None:
    """Permit everything."""


async def _members(request: Request) -> Mapping[str, Any]:
    try:
        members = json.loads(await request.body())
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise InvalidQuery("the body is not a JSON object")
    return members


async def _file(request: Request) -> Response:
    """Answer with a file of the page. Only names in the directory are looked up."""
    from starlette.responses import Response

    name = request.path_params["name"] or "index.html"
    found = _files().get(name)
    if found is None:
        raise _Refused(404, f"there is no page {name[:80]!r} here", f"the console is at {PATH}")
    return Response(found, headers={"content-type": _TYPES[Path(name).suffix]})


_kept_files: dict[str, bytes] = {}


def _files() -> Mapping[str, bytes]:
    """Return the files by name, read once: they are small, and a request must not touch the disk."""
    if not _kept_files:
        for path in _STATIC.iterdir():
            if path.suffix in _TYPES:
                _kept_files[path.name] = path.read_bytes()
    return _kept_files


def _json(body: bytes) -> Response:
    from starlette.responses import Response

    return Response(body, media_type="application/json")


def _own_admin() -> Callable[[Ask, str], Admin]:
    """Import the client, which takes a moment."""
    from reput_broker.console.own_client import own_admin

    return own_admin


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value)


def _refusal(status: int, error: str, remedy: str = "") -> Response:
    response = _json(_encoded({"error": error, "remedy": remedy}))
    response.status_code = status
    return response
