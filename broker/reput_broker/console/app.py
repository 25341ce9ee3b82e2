"""The routes of the console, and what guards them.

With access control every page but the login needs a user; without it, reading needs no login unless the configuration
says so, and a change needs one. A page of another site can neither read
nor change anything: no answer permits it, a change needs a header that such a page cannot send, and the Host of every
browser's request is checked by the server (`is_own_host`). The page loads nothing but its own files.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.model import OPERATOR, Account, Need
from reput_broker.access.pages import LASTS_S, USER, Logins, TooManyAttempts
from reput_broker.console import dead_letters, messages, pages, reading
from reput_broker.console.actions import ACTIONS, Action, offered
from reput_broker.console.figures import LiveFigures, SharedAnswers
from reput_broker.console.members import AskedCluster, Members
from reput_broker.console.source import Bodies, InvalidQuery, Query, Source
from reput_broker.observe.history.recorder import History
from reput_broker.observe.metrics import MetricsSources
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import ClusterInfo
from reput_protocol.errors import BrokerError, ErrorCode, ReputError
from reput_protocol.rights import Kind, Right

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    from reput_broker.server.local_requests import LocalRequests

log = structlog.get_logger(__name__)

PATH: Final = "/console/"
CHANGE_HEADER: Final = "x-reput-console"
MEMBER: Final = "member"
"""The parameter with the address of the broker that a page is about; without it, it is this one."""
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
_OTHERS_AT_ONCE: Final = 16
"""Pages of other brokers that are computed at the same time: mostly they wait."""
_WATCHERS_MAX: Final = 32
"""Pages with live numbers: half of the connections of the port."""
_WRONG_TOKEN_S: Final = 1.0
_LOGGED_MAX: Final = 80
"""Characters of a name in the log."""
_OUTCOME_MAX: Final = 200
_OF_ANOTHER_SITE: Final = "this request comes from a page of another site"
_UNKNOWN: Final = "unknown"
"""Of a change that took too long, or failed unexpectedly: it may have been made."""
_GRANT: Final = "an administrator can grant it: reput acl allow"
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
    "brokers": pages.show_brokers,
    "history": pages.show_history,
    "delayed": pages.list_delayed,
    "transactions": pages.list_transactions,
    "users": pages.list_users,
    "schedules": pages.list_schedules,
}
# Asked for once.
_LOOK_UPS: Final[Mapping[str, Page]] = {
    "message": messages.show_message,
    "find": messages.find_messages,
    "browse": reading.browse_messages,
    "message-history": messages.show_history,
    "letters": dead_letters.show_dead_letters,
}
_API: Final = f"{PATH}api/"
_EVENTS: Final = f"{PATH}events"
_SEE: Final = Need(Right.DESCRIBE, Kind.CLUSTER)
_OPEN: Final = frozenset({"/", PATH.rstrip("/"), f"{_API}session", f"{_API}login", f"{_API}logout"})
_DOWNLOADS_AT_ONCE: Final = 2
"""Each may decompress a body."""
_HELD_BYTES_MAX: Final = 256 << 20
_PIECE_BYTES: Final = 256 << 10
"""What a browser reads within the time that the HTTP server gives it for one part of an answer."""
_NAMES_MAX: Final = 200
"""Of one question for the actions that are offered."""


class Console:
    """The console of one broker.

    Args:
        figures: the sources of the metrics; their configuration is the console's too.
        history: the figures of the past days, with the live numbers.
        serving: makes requests to the present tenure; returns None while there is none.
        accounts: the users of access control; None if it is off.
    """

    def __init__(
        self,
        figures: MetricsSources,
        history: History,
        serving: Callable[[], LocalRequests | None],
        accounts: AccessControl | None = None,
    ) -> None:
        self.live = LiveFigures(figures, history)
        self.members = Members(figures.config, self._list_own, self._own_addresses, figures.clock_ms)
        self._figures = figures
        self._serving = serving
        self._options = figures.config.console
        self._logins = Logins(self._options.token, accounts)
        self._failures = figures.counters.auth_failures
        self._bodies = Bodies(self._options.decoders)
        self._shared = SharedAnswers()
        self._shared_of_others = SharedAnswers(at_once=_OTHERS_AT_ONCE)
        self._look_ups = trio.CapacityLimiter(_LOOK_UPS_AT_ONCE)
        self._look_ups_at_others = trio.CapacityLimiter(_LOOK_UPS_AT_ONCE)
        self._downloads = Downloads()

    def routes(self) -> list[BaseRoute]:
        """Return the routes. Starlette is imported here, not by brokers without an HTTP port."""
        from starlette.responses import RedirectResponse
        from starlette.routing import Route

        async def to_console(_request: Request) -> Response:
            return RedirectResponse(PATH, 307)

        gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
            f"{_API}session": self._session,
            f"{_API}body": self._whole_body,
            f"{_API}export": self._export,
            f"{_API}actions": self._describe_actions,
            f"{_API}offered": self._offered,
            _EVENTS: self._events,
            **{f"{_API}{name}": partial(self._page, page) for name, page in _PAGES.items()},
            **{f"{_API}{name}": partial(self._look_up, page) for name, page in _LOOK_UPS.items()},
        }
        posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
            f"{_API}login": self._log_in,
            f"{_API}logout": self._log_out,
            **{f"{_API}actions/{name}": partial(self._act, action) for name, action in ACTIONS.items()},
        }
        return [
            Route("/", to_console, methods=["GET"]),
            Route(PATH.rstrip("/"), to_console, methods=["GET"]),
            *(Route(path, partial(_guarded, self._check_reader, get), methods=["GET"]) for path, get in gets.items()),
            *(Route(path, partial(_guarded, _check_change, post), methods=["POST"]) for path, post in posts.items()),
            Route(f"{PATH}{{name:path}}", partial(_guarded, _nothing_to_check, _file), methods=["GET"]),
        ]

    # What guards

    def covers(self, path: str) -> bool:
        """See `access.pages.PagesWithLogin`, as for the next three."""
        return path in _OPEN or path.startswith(PATH)

    def is_open(self, path: str) -> bool:
        """The files and the login show nothing of the broker."""
        return path in _OPEN or (path.startswith(PATH) and path != _EVENTS and not path.startswith(_API))

    def asks_as_its_user(self, path: str) -> bool:
        """What a page asks the broker for is checked as its user's request; live numbers are no request."""
        return path.startswith(_API)

    def account(self, scope: Scope, host: str) -> Account | None:
        """The user is that of the cookie."""
        from starlette.requests import HTTPConnection

        return self._logins.account(HTTPConnection(scope).cookies.get(_cookie_of(scope)), host)

    def _is_logged_in(self, request: Request) -> bool:
        if self._logins.has_users:
            return USER in request.scope  # whose rights the broker checks
        return self._logins.is_valid(request.cookies.get(_cookie_of(request.scope)))

    def _user(self, request: Request) -> Account:
        """Return whose rights count; without access control everything is permitted, once there is a login."""
        if not self._logins.has_users:
            return OPERATOR
        user = request.scope[USER]
        assert isinstance(user, Account), "`GuardedPages` sets it"
        return user

    def _check_reader(self, request: Request) -> None:
        _check_site(request)
        if request.url.path in _OPEN:
            return
        needs_login = self._logins.has_users or not self._options.read_without_login
        if needs_login and not self._is_logged_in(request):
            raise self._not_logged_in(request, "log in to see this", self._how_to_log_in)

    def _not_logged_in(self, request: Request, error: str, remedy: str) -> _Refused:
        """Count a request without a login, and return its refusal."""
        self._failures["expired" if _cookie_of(request.scope) in request.cookies else "forbidden"] += 1
        return _Refused(401, error, remedy)

    # Answers

    @asynccontextmanager
    async def _source(self, request: Request) -> AsyncIterator[Source]:
        """Yield what a page is made from.

        Raises BrokerError: NOT_READY while this broker does not serve, or another one is away; NOT_FOUND: there is no
        broker with the address `member`.
        """
        requests, figures = self._serving(), self._figures
        if requests is None or figures.store is None:
            state = figures.health.state
            raise BrokerError(ErrorCode.NOT_READY, f"the broker is {state}; this page shows its data once it serves")
        ask = partial(requests.ask, principal=self._user(request), peer=_peer_of(request))
        clients = await trio.to_thread.run_sync(_clients)
        own = clients.own_admin(ask, figures.config.broker_name)
        brokers = AskedCluster(self.members, figures.config, request.scope.get(USER))
        settings = self._bodies, figures.config.filters.sql
        address = request.query_params.get(MEMBER, "")
        member = await self.members.at(address) if address else None
        if member is None or member.is_own:
            yield Source(own, figures.clock_ms(), own, brokers, *settings)
            return
        with self.members.noting(member):
            async with await brokers.admin(member) as admin:
                yield Source(admin, figures.clock_ms(), own, brokers, *settings)

    async def _list_own(self) -> ClusterInfo:
        requests = self._serving()
        if requests is None:
            raise BrokerError(ErrorCode.NOT_READY, "the broker does not serve yet")
        answer = await requests.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        return ClusterInfo.from_json(answer.body, is_trusted=True)

    def _own_addresses(self) -> Iterable[str]:
        requests, advertise = self._serving(), self._figures.config.advertise
        return [*filter(None, (None if requests is None else requests.address, advertise))]

    async def _page(self, page: Page, request: Request) -> Response:
        async def compute() -> bytes:
            async with self._source(request) as source:
                return _encoded(await page(source, Query(request.query_params)))

        shared = self._shared_of_others if _asks_others(request) else self._shared
        key = (request.scope.get(USER), request.url.path, request.url.query)
        return _json(await shared.get(key, compute))

    async def _look_up(self, page: Page, request: Request) -> Response:
        limiter = self._look_ups_at_others if _asks_others(request) else self._look_ups
        async with limiter, self._source(request) as source:
            return _json(_encoded(await page(source, Query(request.query_params))))

    # Actions

    async def _describe_actions(self, _request: Request) -> Response:
        return _json(_encoded({"actions": [action.described() for action in ACTIONS.values()]}))

    async def _offered(self, request: Request) -> Response:
        """Answer with the actions whose buttons the user sees at a place; without a login there are none."""
        query = Query(request.query_params)
        place, names = query.needed("place"), request.query_params.getlist("name")
        if len(names) > _NAMES_MAX:
            raise InvalidQuery(f"{len(names)} names, and at most {_NAMES_MAX} are accepted")
        found: Mapping[str, list[str]] = {}
        if self._is_logged_in(request):
            found = offered(self._user(request), place, names, has_users=self._logins.has_users)
        return _json(_encoded({"offered": found}))

    async def _act(self, action: Action, request: Request) -> Response:
        """Say what an action would do, or do it.

        Members of the body: `values` by field, `dry_run`, `force`, and `typed`, what was typed to confirm it.
        """
        if not self._is_logged_in(request):
            raise self._not_logged_in(request, "log in to change something", self._how_to_log_in)
        members = Query(await _members(request))
        values = action.read(members.members("values"))
        is_dry_run, is_forced = members.flag("dry_run"), members.flag("force")
        user, outcome = self._user(request), _UNKNOWN
        try:
            lacking = action.lacking(user, values)
            if lacking is not None:
                self._failures["forbidden"] += 1
                raise _Refused(403, f"user {user.name!r} lacks the right {lacking}", _GRANT)
            if action.is_of_users and not self._logins.has_users:
                raise _Refused(
                    400, "this broker has no users", "access control is off: docs/security.md (access.enabled)"
                )
            async with self._source(request) as source:
                preview = await action.preview(source.admin, values)
                if is_dry_run:
                    outcome = ""
                    return _json(_encoded({"preview": asdict(preview), "typed": action.typed}))
                if preview.obstacle is not None and not (preview.can_force and is_forced):
                    raise _Refused(409, preview.obstacle, preview.remedy or "")
                if not preview.is_change:
                    outcome = "nothing to change"
                    return _json(_encoded({"done": False, "text": preview.text}))
                if action.typed and members.text("typed") != str(values[action.typed]):
                    raise _Refused(
                        409,
                        f"the {action.typed} was not typed; nothing was changed",
                        f"type it to {action.title.lower()}",
                    )
                try:
                    text = await action.perform(source.admin, values)
                finally:  # an action that failed may have changed something too
                    self._shared.expire()
                    self._shared_of_others.expire()
                outcome = "done"
                return _json(_encoded({"done": True, "text": text}))
        except (_Refused, InvalidQuery, ReputError) as error:
            outcome = str(error)[:_OUTCOME_MAX]
            raise
        finally:
            if not is_dry_run:
                self._note_change(request, action.name, action.logged(values), outcome)

    def _note_change(self, request: Request, name: str, facts: Mapping[str, str], outcome: str) -> None:
        """Write the line of the audit: who has changed what, from where, and how it ended."""
        elsewhere = request.query_params.get(MEMBER, "")
        log.info(
            "console_change",
            user=request.scope[USER].name if USER in request.scope else None,
            action=name,
            **({MEMBER: elsewhere[:_LOGGED_MAX]} if elsewhere else {}),
            **facts,
            peer=_peer_of(request).rpartition(":")[0],
            outcome=outcome,
        )

    async def _export(self, request: Request) -> Response:
        ids = messages.exported_ids(Query(request.query_params))
        ends = AsyncExitStack()
        source = await ends.enter_async_context(self._source(request))
        lines = messages.export_messages(source, ids, self._downloads.making)
        return self._downloads.answer(lines, {"content-type": "application/x-ndjson"}, ends)

    async def _whole_body(self, request: Request) -> Response:
        async with self._downloads.making, self._source(request) as source:
            name, body = await messages.download_body(source, Query(request.query_params))
        headers = {
            "content-type": "application/octet-stream",
            "content-disposition": f'attachment; filename="{name}"',
            "content-length": str(len(body)),
        }
        return self._downloads.answer(one_part(body), headers)

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
                503, f"{_WATCHERS_MAX} pages are open already", "close some; this one works without live numbers"
            )
        return Events((), media_type="text/event-stream")

    async def _session(self, request: Request) -> Response:
        is_logged_in, has_users = self._is_logged_in(request), self._logins.has_users
        members = {
            "has_users": has_users,
            "can_log_in": self._logins.is_possible,
            "is_logged_in": is_logged_in,
            "user": request.scope[USER].name if USER in request.scope else None,
            "is_admin": has_users and is_logged_in and self._user(request).is_admin,
            "read_without_login": self._options.read_without_login and not has_users,
            "may_watch": self._user(request).may(_SEE) if is_logged_in or not has_users else False,
            "how": self._how_to_log_in,
            "broker": self._figures.config.broker_name,
            "cluster": self._figures.config.cluster,
            "address": next(iter(self._own_addresses()), ""),
        }
        return _json(_encoded(members))

    async def _log_in(self, request: Request) -> Response:
        members = Query(await _members(request))
        user = members.text("user", size_max=256)
        secret = members.text("secret", size_max=1024, keeps_spaces=True)
        peer = _peer_of(request).rpartition(":")[0]
        try:
            login = self._logins.begin(user, secret, peer)
        except TooManyAttempts as error:
            self._failures["bad_credentials"] += 1
            raise _Refused(429, str(error), "someone tries secrets, or a program has a wrong one") from None
        if login is None:
            log.warning("console_login_failed", user=user[:_LOGGED_MAX] or None, peer=peer)
            self._failures["bad_credentials"] += 1
            await trio.sleep(_WRONG_TOKEN_S)
            what = "this is not the user's secret, or there is no such user" if user else "this is not the token"
            raise _Refused(401, what, self._how_to_log_in)
        log.info("console_login", user=user[:_LOGGED_MAX] or None, peer=peer)
        response = _json(b"{}")
        response.set_cookie(
            _cookie_of(request.scope),
            login,
            max_age=LASTS_S,
            path=PATH,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        self._logins.end(request.cookies.get(_cookie_of(request.scope)))
        response = _json(b"{}")
        response.delete_cookie(_cookie_of(request.scope), path=PATH, httponly=True, samesite="strict")
        return response

    @property
    def _how_to_log_in(self) -> str:
        if self._logins.has_users:
            return "log in with a user of the broker and its secret"
        if self._logins.is_possible:
            return "the token is that of console.token"
        return "no login is possible until console.token is set: REPUT_CONSOLE__TOKEN_FILE names a file with it"


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


def _cookie_of(scope: Scope) -> str:
    """Return the name of the login's cookie: browsers send it to all ports of a host, and each has its broker."""
    _, port = scope.get("server") or ("", 0)
    return f"reput_console_{port}"


def _peer_of(request: Request) -> str:
    return "console:0" if request.client is None else f"{request.client.host}:{request.client.port}"


def _check_site(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise _Refused(403, _OF_ANOTHER_SITE, "open the console at its own address")


def _check_change(request: Request) -> None:
    _check_site(request)
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise _Refused(
            403, _OF_ANOTHER_SITE, "open the console at its own address, or have the proxy pass Host unchanged"
        )
    if request.headers.get(CHANGE_HEADER) != "1":
        raise _Refused(403, "only the console's page changes something", f"send the header {CHANGE_HEADER}: 1")


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


def _clients() -> ModuleType:
    """Import the client, which takes a moment."""
    from reput_broker.console import own_client

    return own_client


def _asks_others(request: Request) -> bool:
    return MEMBER in request.query_params or request.url.path.endswith("/brokers")


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value)


def _refusal(status: int, error: str, remedy: str = "") -> Response:
    response = _json(_encoded({"error": error, "remedy": remedy}))
    response.status_code = status
    return response


class Downloads:
    """Makes and sends downloads, a few at the same time, of which it holds a bounded part in memory until browsers have
    read it. A browser that reads slowly delays no other one.

    Args:
        held_bytes_max: of all that is being sent. What is beyond ends the downloads that have been sent for the longest
            time: their browsers report that they are not complete.
    """

    def __init__(self, *, held_bytes_max: int = _HELD_BYTES_MAX) -> None:
        self.making = trio.CapacityLimiter(_DOWNLOADS_AT_ONCE)
        """Held while a part is made, and not while it is sent."""
        self._held_bytes_max = held_bytes_max
        self._sent: dict[trio.CancelScope, int] = {}

    def answer(
        self, parts: AsyncGenerator[bytes], headers: Mapping[str, str], ends: AsyncExitStack | None = None
    ) -> Response:
        """Return an answer of these parts.

        Args:
            parts: one after the other; the next one is asked for once the browser has the one before.
            ends: closed afterwards, also if the browser is gone before the first part.
        """
        from starlette.responses import Response

        downloads = self

        class Download(Response):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                del scope, receive
                async with ends or AsyncExitStack(), aclosing(parts):
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    async for part in parts:
                        if not await downloads._send(part, send):
                            return
                    await send({"type": "http.response.body"})

        answer = Download(headers=headers)
        if "content-length" not in headers:
            del answer.headers["content-length"]  # of no content, which it has here
        return answer

    async def _send(self, part: bytes, send: Send) -> bool:
        """Send a part; return False if it was ended."""
        with self._sending(len(part)) as scope:
            for at in range(0, len(part), _PIECE_BYTES):
                piece = part[at : at + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        return not scope.cancelled_caught

    @contextmanager
    def _sending(self, size: int) -> Iterator[trio.CancelScope]:
        while self._sent and sum(self._sent.values()) + size > self._held_bytes_max:
            oldest = next(iter(self._sent))
            del self._sent[oldest]
            oldest.cancel()
        with trio.CancelScope() as scope:
            self._sent[scope] = size
            try:
                yield scope
            finally:
                self._sent.pop(scope, None)


async def one_part(part: bytes) -> AsyncGenerator[bytes]:
    """Yield a download that is made at once."""
    yield part
