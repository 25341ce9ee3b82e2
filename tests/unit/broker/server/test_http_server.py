"""The HTTP server: what one connection may do, without effect on others."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from reput_broker import Broker, BrokerConfig
from reput_broker.server.http_server import HttpServer, is_own_host
from support.tasks import run_by_the_clock

by_the_clock = pytest.mark.trio(run=run_by_the_clock)

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
H2C = (
    b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABk\r\n\r\n"
)
WEBSOCKET = (
    b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

# One connection over memory, with time that passes only when all wait.


async def page(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


APP = Starlette(routes=[Route("/livez", page, methods=["GET", "POST"])])


@asynccontextmanager
async def connected(app: Any = APP, **options: Any) -> AsyncIterator[tuple[trio.abc.HalfCloseableStream, list[Any]]]:
    """A client's stream, and what the server logs."""
    server = HttpServer(app, options.get("allowed_hosts", ()), ("127.0.0.1", 80))
    ours, theirs = trio.testing.memory_stream_pair()
    with structlog.testing.capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, theirs, ("127.0.0.1", 1))
            yield ours, logged
            nursery.cancel_scope.cancel()


def answer_to(*parts: bytes, ends: bool = True, **options: Any) -> bytes:
    """What the server writes in answer to these bytes, until it closes."""

    async def ask() -> bytes:
        async with connected(**options) as (stream, logged):
            with suppress(trio.BrokenResourceError):
                for part in parts:
                    await stream.send_all(part)
                if ends:
                    await stream.send_eof()
            answer = b"".join([bytes(data) async for data in stream])
            assert not logged
            return answer

    return bytes(run_by_the_clock(ask))


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (H2C, 200),
        (WEBSOCKET, 200),
        (PREFACE, 505),
        (b"GET http://evil.example/livez HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n", 413),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", 411),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 100 + b"\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000, 431),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 400),
    ],
)
def test_a_request_gets_one_answer_of_http_1_1(request_bytes: bytes, status: int) -> None:
    assert statuses(answer_to(request_bytes)) == [status]


def test_a_refused_head_request_gets_no_body() -> None:
    answer = answer_to(b"HEAD /livez HTTP/1.1\r\nHost: evil.example\r\nOrigin: null\r\n\r\n")
    assert statuses(answer) == [421]
    assert answer.endswith(b"\r\n\r\n")


def test_a_body_of_a_known_size_is_taken() -> None:
    head = b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n"
    assert statuses(answer_to(head, b"x" * 65_536)) == [200]


def test_requests_are_answered_in_order_and_none_after_the_last() -> None:
    keep = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
    assert statuses(answer_to(keep % b"livez", keep % b"none", LIVEZ, LIVEZ)) == [200, 404, 200]


@by_the_clock
async def test_expect_100_continue() -> None:
    head = b"POST /livez HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"

    async with connected() as (stream, _):
        await stream.send_all(head)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"ab")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(b"", []), (b"GET /li", [408]), (b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\na", [408])],
)
def test_a_request_that_does_not_end_times_out(sent: bytes, expected: list[int]) -> None:
    """The client keeps its side open; the clock jumps."""
    assert statuses(answer_to(sent, ends=False)) == expected


@by_the_clock
async def test_a_head_that_trickles_times_out_as_a_whole() -> None:
    async with connected() as (stream, _):
        started_at = trio.current_time()

        async def trickle() -> None:
            with suppress(trio.BrokenResourceError):
                for byte in b"GET /livez HTTP/1.1\r\nX: " + b"a" * 100:
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 408 ")
            assert 19 < trio.current_time() - started_at < 21
            nursery.cancel_scope.cancel()


def request_to(host: str, *fields: str) -> bytes:
    """A request with this Host and further header fields."""
    lines = ("GET /livez HTTP/1.1", f"Host: {host}", "Connection: close", *fields)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("127.0.0.1:10913", True),
        ("[::1]:10913", True),
        ("10.1.2.3", True),
        ("localhost", True),
        ("LOCALHOST.:10913", True),
        ("reput:10913", True),
        ("reput.messaging.svc:10913", True),
        ("reput.messaging.svc.cluster.local", True),
        ("ip-10-0-0-1.ec2.internal", True),
        ("metrics.example.com:443", True),
        ("evil.example", False),
        ("evil.example:10913", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("metrics.example.com.evil.example", False),
        ("evil.local", False),
    ],
)
def test_host_names_this_broker(host: str, passes: bool) -> None:
    assert is_own_host(host, {"metrics.example.com"}) is passes
    answer = answer_to(request_to(host, "Sec-Fetch-Mode: cors"), allowed_hosts=("Metrics.Example.com",))
    assert statuses(answer) == ([200] if passes else [421])
    if not passes:
        assert b"by a name in http_allowed_hosts" in answer


@pytest.mark.parametrize(
    "host", ["broker.example.com:10913", "reput.default", "mq1.lan", "mq.local", "network.container", "a_b.example."]
)
@pytest.mark.parametrize("agent", ["Prometheus/3.1.0", "curl/8.5.0", "kube-probe/1.31"])
def test_a_client_that_is_not_a_browser_may_use_any_name(host: str, agent: str) -> None:
    assert statuses(answer_to(request_to(host, f"User-Agent: {agent}"))) == [200]


@pytest.mark.parametrize(
    "field",
    [
        "Origin: http://evil.example",
        "referer: http://evil.example/",
        "SEC-FETCH-SITE: same-origin",
        "Accept-Language: en",
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0",
    ],
)
def test_a_browser_is_known_by_what_it_sends(field: str) -> None:
    assert statuses(answer_to(request_to("evil.example", field))) == [421]
    assert statuses(answer_to(request_to("localhost", field))) == [200]


@pytest.mark.parametrize("host", ["a@b:c", "[evil.example]", "a b", "x, y", "[", "a:b", "\xff"])
def test_an_invalid_host_is_refused(host: str) -> None:
    assert statuses(answer_to(request_to(host))) == [400]


def test_the_names_of_the_configuration_pass(tmp_path: Path) -> None:
    config = BrokerConfig(
        data_dir=tmp_path, advertise="broker.example:10911", http_allowed_hosts="a.example, b.example"
    )
    names = Broker(config)._own_names()
    for host in ("broker.example:10913", "a.example", "b.example", socket.gethostname()):
        assert is_own_host(host, names)
    assert not is_own_host("c.example", names)


@by_the_clock
async def test_a_page_that_fails_ends_only_its_request() -> None:
    async def fails(_request: Request) -> Response:
        raise ExceptionGroup("several", [RuntimeError("a defect"), ValueError("another")])

    answer = bytearray()

    app = Starlette(routes=[Route("/fails", fails), Route("/livez", page)])
    async with connected(app) as (stream, logged):
        await stream.send_all(b"GET /fails HTTP/1.1\r\nHost: x\r\n\r\n" + LIVEZ.replace(b"close", b"keep-alive"))
        with trio.move_on_after(1):
            async for data in stream:
                answer.extend(data)
    assert statuses(bytes(answer)) == [500, 200]
    assert [entry["event"] for entry in logged] == ["http_page_failed"]


@pytest.mark.parametrize("begun", [False, True])
@by_the_clock
async def test_an_application_that_breaks_the_rules_ends_only_its_connection(begun: bool) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"far too long"})

    async with connected(app) as (stream, logged):
        await stream.send_all(LIVEZ)
        answer = b"".join([bytes(data) async for data in stream])
        assert statuses(answer) == ([200] if begun else [500])
    assert [entry["event"] for entry in logged] == (["http_page_failed"] if begun else [])


@by_the_clock
async def test_a_stream_of_events_flows_until_the_client_goes() -> None:
    cancelled = trio.Event()
    sent = 0

    async def events(_request: Request) -> Response:
        async def lines() -> Any:
            nonlocal sent
            try:
                while True:
                    sent += 1
                    yield f"data: {sent}\n\n"
                    await trio.sleep(1 if sent < 3 else 1000)
            finally:
                cancelled.set()

        return StreamingResponse(lines(), media_type="text/event-stream")

    async with connected(Starlette(routes=[Route("/events", events)])) as (stream, logged):
        await stream.send_all(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        seen = b""
        while b"data: 3" not in seen:
            seen += await stream.receive_some()
        at = trio.current_time()
        await stream.aclose()
        await cancelled.wait()
        assert trio.current_time() - at < 1
    assert not logged


def test_a_client_that_does_not_read_is_left() -> None:
    """The stream takes nothing; the page is not waited for beyond the limit."""

    class Stuck(trio.abc.Stream):
        def __init__(self) -> None:
            self.requests = [LIVEZ]

        async def send_all(self, data: object) -> None:
            await trio.sleep_forever()

        async def wait_send_all_might_not_block(self) -> None: ...

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            return self.requests.pop()

        async def aclose(self) -> None: ...

    async def main() -> float:
        server = HttpServer(APP, (), ("127.0.0.1", 80))
        await server.serve(Stuck(), ("127.0.0.1", 1))
        return trio.current_time()

    clock = trio.testing.MockClock(autojump_threshold=0)
    with structlog.testing.capture_logs() as logged:
        started_at = clock.current_time()
        assert 9 < trio.run(main, clock=clock) - started_at < 11
    assert not logged


def test_too_many_connections_cost_the_address_that_has_most() -> None:
    async def main() -> None:
        server = HttpServer(APP, (), ("127.0.0.1", 80))
        async with trio.open_nursery() as nursery:

            async def connect(host: str) -> trio.abc.HalfCloseableStream:
                ours, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(server.serve, theirs, (host, 1))
                await trio.testing.wait_all_tasks_blocked()
                return ours

            modest = await connect("10.0.0.1")
            greedy = [await connect("10.0.0.2") for _ in range(80)]
            late = await connect("10.0.0.3")
            for stream in (modest, late, greedy[-1]):
                await stream.send_all(LIVEZ)
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            assert await greedy[0].receive_some() == b""
            nursery.cancel_scope.cancel()

    with structlog.testing.capture_logs() as logged:
        trio.run(main)
    assert {entry["event"] for entry in logged} == {"http_connection_refused"}


def test_http_clients_get_one_turn_of_the_loop_together() -> None:
    """10 clients with 30 pipelined requests each: in a turn of the loop, one of them is parsed."""
    clients, requests = 10, 30
    turns = 0

    async def main() -> None:
        nonlocal turns
        server = HttpServer(APP, (), ("127.0.0.1", 80))

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async def client() -> None:
            ours, theirs = trio.testing.memory_stream_pair()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, theirs, ("127.0.0.1", 1))
                await ours.send_all(LIVEZ.replace(b"Connection: close\r\n", b"") * (requests - 1) + LIVEZ)
                answer = b"".join([bytes(data) async for data in ours])
                assert len(statuses(answer)) == requests
                await ours.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            async with trio.open_nursery() as asking:
                for _ in range(clients):
                    asking.start_soon(client)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns >= clients * requests
