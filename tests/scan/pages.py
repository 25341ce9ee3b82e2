"""Every page of the HTTP port, by every method, without a user and with wrong ones."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import reput_broker.console
from reput_broker.console.actions import ACTIONS
from reput_broker.console.app import _LOOK_UPS, _PAGES, PATH
from scan.findings import Finding
from scan.requests import Connect

HEALTH: Final = ("/livez", "/readyz", "/readyz?verbose")
"""The health page: all of the broker that a client without a user may see."""
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")
_STATIC: Final = Path(reput_broker.console.__file__).parent / "static"
_LOGIN: Final = (
    "/", "/console", PATH, f"{PATH}api/session", *(f"{PATH}{path.name}" for path in sorted(_STATIC.iterdir())),
)  # fmt: skip
"""The files of the console and its login, which show nothing of the broker."""
_PLACES: Final = (
    "/metrics", "/metrics/rocketmq", "/status", f"{PATH}events",
    *(f"{PATH}api/{name}" for name in ("body", "export", "login", "logout", "actions", "offered")),
    *(f"{PATH}api/{name}" for name in (*_PAGES, *_LOOK_UPS)),
    *(f"{PATH}api/actions/{name}" for name in ACTIONS),
    "/docs", "/openapi.json", "/admin", "/config", "/debug/pprof", "/favicon.ico", "/robots.txt", "/.git/config",
)  # fmt: skip
_DISGUISED: Final = (
    "//metrics", "/./metrics", "/livez/../metrics", "/livez/%2e%2e/status", "/livez/..%2fstatus",
    "/livez%2f..%2fmetrics",
    "/livez/", "/livez/metrics", "/livez;/status", "/livez%00/status", "/LIVEZ/../status", "/readyz/..;/metrics",
    "/%6detrics", "/metrics%20", "/metrics/", "\\metrics", "http://127.0.0.1/metrics", "*",
    f"{PATH}../metrics", f"{PATH}..%2f..%2fapp.py", f"{PATH}%2e%2e/app.py", f"{PATH}/etc/passwd",
    f"{PATH}api/../api/topics",
)  # fmt: skip
_AT_ONCE: Final = 24
_BODY: Final = b'{"topic":"orders","group":"billing","token":"x"}'


class _Attempt(NamedTuple):
    method: str
    path: str
    authorization: str = ""
    more: str = ""


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


_WRONG: Final = (
    _basic("admin", "not-its-secret"),
    _basic("admin", ""),
    _basic("nobody-here", "some-secret"),
    "Bearer abc",
    "Basic \xff\xfe",
    "Basic " + base64.b64encode(b"admin").decode(),
)


def scan_pages(port: int, connect: Connect, host: str, how: str = "", *, quick: bool = False) -> Iterator[Finding]:
    """Ask for all of it; only the health page may answer, and the files of the console, with its login.

    Args:
        quick: try wrong secrets, whose answers come after a second, with a few paths only.
    """
    guarded = _PLACES[:: 10 if quick else 1]
    health = [_Attempt("GET", path) for path in HEALTH] + [_Attempt("HEAD", path) for path in HEALTH]
    yield _ask(port, connect, host, f"the health page{how}", health, may_answer=True)
    login = [_Attempt(method, path) for path in _LOGIN for method in ("GET", "HEAD")]
    yield _ask(port, connect, host, f"the console's files and login{how}", login, may_answer=True)
    others = [
        _Attempt(method, path) for path in (*HEALTH, *_LOGIN) for method in _METHODS if method not in ("GET", "HEAD")
    ]
    yield _ask(port, connect, host, f"the open pages by other methods{how}", others)
    attempts = [_Attempt(method, path) for path in _PLACES for method in _METHODS]
    yield _ask(port, connect, host, f"{len(_PLACES)} other paths, {len(_METHODS)} methods{how}", attempts)
    attempts = [_Attempt(method, path) for path in _DISGUISED for method in ("GET", "POST")]
    yield _ask(port, connect, host, f"{len(_DISGUISED)} disguised paths{how}", attempts)
    attempts = [_Attempt("GET", path, authorization) for path in guarded for authorization in _WRONG]
    yield _ask(port, connect, host, f"{len(guarded)} paths with {len(_WRONG)} wrong credentials{how}", attempts)
    tricks = [
        _Attempt("GET", "/metrics", more="X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n"),
        _Attempt("POST", "/livez", more="X-Original-URL: /metrics\r\nX-Rewrite-URL: /metrics\r\n"),
        _Attempt("GET", "/metrics", more=f"Authorization: {_basic('a', 'b')}\r\nAuthorization: Basic\r\n"),
        _Attempt("GET", f"{PATH}api/topics", more="Cookie: reput=1; reput_console=1\r\n"),
        _Attempt(
            "POST",
            f"{PATH}api/actions/replay-dead-letters",
            more="X-HTTP-Method-Override: GET\r\nX-Reput-Console: 1\r\n",
        ),
    ]
    yield _ask(port, connect, host, f"headers that some servers trust{how}", tricks)


def _ask(
    port: int, connect: Connect, host: str, what: str, attempts: list[_Attempt], *, may_answer: bool = False
) -> Finding:
    finding = Finding(port, f"HTTP: {what}")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for attempt, answer in zip(
            attempts, threads.map(lambda each: _answer(connect, host, each), attempts), strict=True
        ):
            status, _, text = answer.partition("\r\n\r\n")
            line = status.partition("\r\n")[0]
            code = line.split(" ")[1] if line.count(" ") > 1 else ""
            if may_answer and code in ("200", "307"):
                is_health = attempt.path in HEALTH
                finding.note(f"200 {text}".strip() if is_health else code)
            elif code.startswith("4"):
                finding.note(code)
            else:
                finding.note(f"{line or 'no answer'} to {attempt.method} {attempt.path}", wrong=True)
    return finding


def _answer(connect: Connect, host: str, attempt: _Attempt) -> str:
    """Return what comes until the end of the answer; empty if the connection is closed without one."""
    body = _BODY if attempt.method in ("POST", "PUT", "PATCH", "DELETE") else b""
    lines = [f"{attempt.method} {attempt.path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    if attempt.authorization:
        lines.append(f"Authorization: {attempt.authorization}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    data = ("\r\n".join(lines) + "\r\n" + attempt.more + "\r\n").encode("latin-1") + body
    got = b""
    with suppress(OSError), connect() as end:
        end.sendall(data)
        with suppress(TimeoutError, OSError):
            while part := end.recv(1 << 16):
                got += part
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    return got.decode("utf-8", "replace")
