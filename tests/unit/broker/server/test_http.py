"""The HTTP port: health and metrics over sockets, for any number of slow clients."""

import errno
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.pages import make_app
from reput_broker.server.http_server import HttpListenFailed, HttpServer, serve_http


def make_sources() -> MetricsSources:
    return MetricsSources(BrokerConfig(), Counters(), Health())


async def ask(address: tuple[str, int], request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send one request and read the answer until the server closes."""
    stream = await trio.open_tcp_stream(*address)
    async with stream:
        await stream.send_all(request)
        answer = b""
        with trio.fail_after(30):
            async for data in stream:
                answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def request(path: str, method: str = "GET", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def serving(sources: MetricsSources, **options: Any) -> AsyncIterator[tuple[str, int]]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_http, make_app(sources, **options), "127.0.0.1", 0)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_port_0_gets_a_port_and_tells_it() -> None:
    async with serving(make_sources()) as address:
        assert address[0] == "127.0.0.1"
        assert address[1] > 0
        assert (await ask(address, request("/livez")))[0] == 200


@pytest.mark.trio
async def test_alive_while_recovering_and_ready_afterwards() -> None:
    sources = make_sources()

    async with serving(sources) as address:
        assert (await ask(address, request("/livez")))[0] == 200
        status, _, body = await ask(address, request("/readyz"))
        assert status == 503
        assert json.loads(body)["failing"] == ["recovered"]
        sources.health.state = BrokerState.RUNNING
        assert (await ask(address, request("/readyz")))[0] == 200
        status, _, body = await ask(address, request("/readyz?verbose"))
        assert status == 200
        assert json.loads(body)["checks"]["recovered"]["ok"] is True
        sources.health.state = BrokerState.DRAINING
        assert (await ask(address, request("/readyz?verbose")))[0] == 503
        assert (await ask(address, request("/livez")))[0] == 200


@pytest.mark.trio
async def test_metrics_in_the_requested_format() -> None:
    async with serving(make_sources()) as address:
        status, headers, body = await ask(address, request("/metrics"))
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"reput_ready 0\n" in body
        accept = "Accept: application/openmetrics-text; version=1.0.0"
        _, headers, body = await ask(address, request("/metrics", "GET", accept))
        assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=abc",
        "application/openmetrics-text; version=0.0.1",
        "application/openmetrics-text; version=99.0.0",
        "text/plain; version=x",
        "text/plain; version=1.0.0; escaping=allow-utf-8",
    ],
)
@pytest.mark.trio
async def test_other_versions_of_the_formats_get_the_usual_one(accept: str) -> None:
    async with serving(make_sources()) as address:
        status, headers, _ = await ask(address, request("/metrics", "GET", f"Accept: {accept}"))
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")


class Unread(trio.abc.Stream):
    """A connection whose client asks for /metrics and reads nothing of the answer."""

    def __init__(self, accept: str) -> None:
        self.requests = [request("/metrics", "GET", f"Accept: {accept}")]
        self.pages: list[int] = []

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.requests.pop()

    async def send_all(self, data: object) -> None:
        if isinstance(data, bytes) and not data.startswith(b"HTTP/1.1"):
            self.pages.append(id(data))
            await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None: ...

    async def aclose(self) -> None: ...


def test_pages_that_clients_do_not_read_are_few_however_many_the_clients() -> None:
    """They share them; a client that reads gets an answer, and a new page once the others have been given up."""
    sources = make_sources()

    async def main() -> None:
        server = HttpServer(make_app(sources), (), ("127.0.0.1", 80))
        streams = [
            Unread(f"application/openmetrics-text; version=1.0.{number % 3}; escaping=values") for number in range(60)
        ]
        async with trio.open_nursery() as nursery:

            async def scrape() -> bytes:
                ours, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(server.serve, theirs, ("127.0.0.2", 1))
                await ours.send_all(request("/metrics"))
                return b"".join([bytes(data) async for data in ours])

            for stream in streams:
                nursery.start_soon(server.serve, stream, ("127.0.0.1", 1))
            await trio.sleep(1)
            pages = [page for stream in streams for page in stream.pages]
            assert len(pages) == 60
            assert len(set(pages)) <= 4
            assert (await scrape()).startswith(b"HTTP/1.1 200 ")
            sources.health.state = BrokerState.RUNNING
            await trio.sleep(10)
            assert b"reput_ready 1\n" in await scrape()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.trio
async def test_status_tells_state_and_what_the_broker_adds() -> None:
    async with serving(make_sources(), status=lambda: {"listeners": {"main": "127.0.0.1:1"}}) as address:
        _, headers, body = await ask(address, request("/status"))
        members = json.loads(body)
        assert headers["content-type"] == "application/json"
        assert members["state"] == "recovering"
        assert members["store"] is None
        assert members["listeners"] == {"main": "127.0.0.1:1"}
        assert len(members["config_digest"]) == 12


@pytest.mark.trio
async def test_only_get_and_head() -> None:
    async with serving(make_sources()) as address:
        status, headers, body = await ask(address, request("/livez", "HEAD"))
        assert (status, headers["content-length"], body) == (200, "3", b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            status, headers, _ = await ask(address, request("/livez", method, "Content-Length: 0"))
            assert status == 405
            assert set(headers["allow"].split(", ")) == {"get", "head"}
        assert (await ask(address, request("/admin")))[0] == 404


@pytest.mark.trio
async def test_a_head_that_does_not_end_is_refused() -> None:
    async with serving(make_sources()) as address:
        status, _, _ = await ask(address, b"GET /livez HTTP/1.1\r\nX: " + b"a" * 40_000)
        assert status in (400, 431)


@pytest.mark.trio
async def test_a_failing_page_answers_500_and_the_others_continue() -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("a defect of ours")

    async with serving(make_sources(), status=broken) as address:
        status, _, body = await ask(address, request("/status"))
        assert status == 500
        assert b"defect" not in body
        assert (await ask(address, request("/livez")))[0] == 200


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_http, make_app(make_sources()), "127.0.0.1", port)

        with pytest.raises(BaseExceptionGroup) as failed:
            trio.run(main)
    error = failed.value.exceptions[0]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, HttpListenFailed)
    assert str(error).startswith(
        f"cannot listen on 127.0.0.1:{port} for HTTP: Address already in use; stop what uses it"
    )


def test_a_silent_client_does_not_delay_the_end() -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                app = make_app(make_sources())
                address = await nursery.start(serve_http, app, "127.0.0.1", 0)
                silent = await trio.open_tcp_stream(*address)
                halfway = await trio.open_tcp_stream(*address)
                await halfway.send_all(b"GET /metrics HT")
                assert (await ask(address, request("/livez")))[0] == 200
                nursery.cancel_scope.cancel()
        # Over, although both clients are still there.
        await silent.aclose()
        await halfway.aclose()

    trio.run(main)


@pytest.mark.trio
async def test_without_descriptors_a_connection_is_closed_at_once_and_the_next_one_served(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reput_broker.server.gate._PAUSE_S", 1000.0)
    taken = 3
    real_accept = socket.socket.accept

    def accept(listening: socket.socket) -> Any:
        nonlocal taken
        taken -= 1
        if taken >= 0 and taken % 2 == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return real_accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept)

    async with serving(make_sources()) as address:
        with trio.fail_after(10):
            for _ in range(2):
                async with await trio.open_tcp_stream(*address) as refused:
                    assert await refused.receive_some() == b""
            assert (await ask(address, request("/livez")))[0] == 200
    assert "ulimit" in capsys.readouterr().out


def test_as_many_connections_as_there_are_descriptors_for() -> None:
    async def main() -> None:
        app = make_app(make_sources())
        serve = partial(serve_http, connections_max=2)
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve, app, "127.0.0.1", 0)
            streams = [await trio.open_tcp_stream(*address) for _ in range(3)]
            with trio.fail_after(10):
                assert await streams[0].receive_some() == b""
                for stream in streams[1:]:
                    await stream.send_all(request("/livez"))
                    assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            for stream in streams:
                await stream.aclose()
            nursery.cancel_scope.cancel()

    trio.run(main)
