"""Listening sockets: which connections are accepted, refused, and closed for silence or for not reading."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client, Handler, Request, Response
from reput_broker.server.handling import RequestHandling
from reput_broker.server.http_server import HttpListenFailed
from reput_broker.server.listener import ListenFailed, Server, bind, listen
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ErrorCode
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType
from support.waiting import until

ECHO, HELD, BIG = RequestCode.GET_MAX_OFFSET, RequestCode.PULL_MESSAGE, RequestCode.GET_MIN_OFFSET
BIG_BYTES = 12 << 20


def frame(code: int) -> bytes:
    return encode_frame(Header(code, 1), HeaderType.JSON)


class Bench:
    """A server on a free port."""

    def __init__(self, tmp_path: Path, connections_max: int = 1000, **limits: Any) -> None:
        self.config = BrokerConfig(data_dir=tmp_path, limits=limits)
        self.counters = Counters()
        self.traffic = self.counters.listeners["main"]
        self.gone: list[Client] = []
        self.held: list[Request] = []
        handlers: dict[int, Handler] = {
            ECHO: lambda _: Response(0),
            HELD: self.held.append,
            BIG: lambda _: Response(0, body=bytes(BIG_BYTES)),
        }
        self.server = Server(
            self.config,
            RequestHandling(handlers),
            self.counters,
            connections_max=connections_max,
            on_gone=self.gone.append,
        )
        self.bound = bind("127.0.0.1", 0)
        self.address: tuple[str, int] = self.bound.getsockname()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.address)


@asynccontextmanager
async def running(tmp_path: Path, **limits: Any) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, **limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.server.run, {"main": bench.bound})
        yield bench
        nursery.cancel_scope.cancel()


async def exchange(stream: trio.SocketStream) -> None:
    await stream.send_all(frame(ECHO))
    assert await stream.receive_some()


@pytest.mark.trio
@pytest.mark.parametrize("limits", [{"connections": 2}, {"connections_max": 2}])
async def test_connections_beyond_the_limit_are_closed_and_the_others_continue(
    tmp_path: Path, limits: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, **limits) as bench:
        streams = [await bench.connect() for _ in range(2)]
        for stream in streams:
            await exchange(stream)
        async with await bench.connect() as refused:
            assert await refused.receive_some() == b""
        assert bench.traffic.closed["limit"] == 1
        hint = "raise ulimit -n" if "connections_max" in limits else "raise limits.connections"
        assert hint in capsys.readouterr().out
        for stream in streams:
            await exchange(stream)
        await streams.pop().aclose()
        await until(lambda: len(bench.gone) == 1)
        async with await bench.connect() as stream:
            await exchange(stream)
        await streams.pop().aclose()


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """The time of day for real sockets, which the test can move on."""
    return trio.testing.MockClock(rate=1.0)


@pytest.mark.trio
async def test_a_silent_connection_is_closed_and_a_waiting_one_is_not(
    tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    async with running(tmp_path, idle_timeout="2m") as bench:
        silent, waiting = await bench.connect(), await bench.connect()
        await exchange(silent)
        await waiting.send_all(frame(HELD))
        await until(lambda: bench.held)
        clock.jump(60)
        await trio.sleep(0.05)
        assert bench.gone == []
        clock.jump(61)
        assert await silent.receive_some() == b""
        assert bench.traffic.closed["idle"] == 1
        bench.held[0].reply(Response(0))
        assert await waiting.receive_some()
        clock.jump(60)
        await trio.sleep(0.05)
        await exchange(waiting)  # its silence began with the answer
        await silent.aclose()
        await waiting.aclose()


@pytest.mark.trio
async def test_a_peer_that_stops_reading_is_closed_and_one_that_reads_slowly_is_not(
    tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    async with running(tmp_path, slow_reader_timeout="30s") as bench:
        slow, stuck = await bench.connect(), await bench.connect()
        for stream in (slow, stuck):
            await stream.send_all(frame(BIG) * 3)
        await until(lambda: bench.counters.buffered_bytes["write"] > BIG_BYTES)
        received = 0
        for _ in range(3):
            wanted = received + (8 << 20)  # more than fits the system's buffers: the broker has to send again
            while received < wanted:
                received += len(await slow.receive_some(1 << 20))
            await trio.sleep(0.05)
            clock.jump(20)
            await trio.sleep(0.05)
        await until(lambda: bench.traffic.closed["slow_reader"] == 1)
        while received < 3 * BIG_BYTES and (data := await slow.receive_some(1 << 20)):
            received += len(data)
        assert bench.traffic.closed["slow_reader"] == 1
        assert len(bench.gone) == 1
        await until(lambda: bench.counters.buffered_bytes["write"] == 0)
        await slow.aclose()
        await stuck.aclose()


@pytest.mark.trio
async def test_a_failing_new_connection_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reput_broker.server.gate._PAUSE_S", 0.001)
    bench = Bench(tmp_path)
    codes = [errno.EMFILE, errno.EPROTO, errno.EPERM, errno.EHOSTUNREACH, errno.ENETDOWN]
    failures = [ConnectionAbortedError(), *(OSError(code, "no") for code in codes)]

    class Bound(socket.socket):
        def accept(self) -> Any:
            if failures:
                raise failures.pop(0)
            return super().accept()

    bound = Bound(fileno=bench.bound.detach())
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.server.run, {"main": bound})
        async with await bench.connect() as stream:
            await exchange(stream)
        nursery.cancel_scope.cancel()
    assert not failures
    logged = capsys.readouterr().out
    assert "ulimit" in logged
    assert "firewall" in logged


@pytest.mark.trio
async def test_without_descriptors_a_connection_is_closed_at_once_and_the_next_one_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reput_broker.server.gate._PAUSE_S", 1000.0)
    bench = Bench(tmp_path)
    spare: list[int] = []
    taken = 3

    class Bound(socket.socket):
        """As if all descriptors were taken, but what is closed is free again."""

        def accept(self) -> Any:
            nonlocal taken
            if taken and not spare:
                taken -= 1
                spare.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            spare.clear()
            return super().accept()

    bound = Bound(fileno=bench.bound.detach())
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.server.run, {"main": bound})
        with trio.fail_after(10):
            for _ in range(3):
                async with await bench.connect() as refused:
                    assert await refused.receive_some() == b""
            async with await bench.connect() as stream:
                await exchange(stream)
        nursery.cancel_scope.cancel()
    assert not taken
    assert "ulimit" in capsys.readouterr().out


@pytest.mark.trio
async def test_when_no_more_are_accepted_open_connections_continue(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        async with await bench.connect() as stream:
            await exchange(stream)
            bench.server.stop_accepting()
            await until(lambda: bench.bound.fileno() < 0)
            with pytest.raises(OSError, match="all attempts to connect"):
                await bench.connect()
            await exchange(stream)
            assert not bench.server.is_busy
            bench.server.close_all()
            assert await stream.receive_some() == b""
        assert bench.traffic.closed["shutdown"] == 1


@pytest.mark.trio
async def test_what_the_system_had_connected_when_the_server_stopped_is_told_so(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        with socket.create_connection(bench.address) as late:
            late.sendall(frame(ECHO))
            bench.server.stop_accepting()  # before the server has accepted it
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bench.server.drain, 1.0)
                answers = await trio.to_thread.run_sync(_read_to_the_end, late)
                late.close()
        ((header_type, header, _),) = FrameReader().receive_data(answers)
        assert decode_header(header_type, header).code == ErrorCode.DRAINING.response_code
        assert bench.traffic.closed["peer"] == 1


def _read_to_the_end(connected: socket.socket) -> bytes:
    received = b""
    while data := connected.recv(1 << 16):
        received += data
    return received


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        with pytest.raises(ListenFailed, match=f"127.0.0.1:{port}: Address already in use; stop what uses it"):
            bind("127.0.0.1", port)


def test_a_port_that_another_process_has_taken_since_it_was_bound_is_named() -> None:
    """The port for slaves is bound long before a slave becomes the master and listens."""
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with bind("127.0.0.1", port) as other:
            other.listen()
            with pytest.raises(ListenFailed, match=f"127.0.0.1:{port}: Address already in use"):
                listen(bound)


@pytest.mark.parametrize(
    ("port", "cause", "remedy"),
    [
        (80, errno.EACCES, "ports below 1024 need CAP_NET_BIND_SERVICE; choose another"),
        (10911, errno.EACCES, "choose another"),
        (10911, errno.EADDRNOTAVAIL, "choose another"),
    ],
)
def test_a_port_that_is_not_taken_needs_another_remedy(port: int, cause: int, remedy: str) -> None:
    error = OSError(cause, os.strerror(cause))
    said = f"cannot listen on h:{port}: {error.strerror}; {remedy} host or port"
    assert str(ListenFailed("h", port, error)) == said
    said = f"cannot listen on h:{port} for HTTP: {error.strerror}; {remedy} http_host or http_port"
    assert str(HttpListenFailed("h", port, error)) == said


def test_an_invalid_host_is_named() -> None:
    with pytest.raises(ListenFailed, match=r"256\.0\.0\.1"):
        bind("256.0.0.1", 10911)


@pytest.mark.trio
async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    host, port = bench.address
    other = bind(host, port)
    other.listen()
    with pytest.raises(BaseExceptionGroup) as refused:
        await bench.server.run({"main": bench.bound})
    failures = refused.value.subgroup(ListenFailed)
    assert failures is not None
    assert f"cannot listen on {host}:{port}: Address already in use" in repr(failures)
    other.close()
