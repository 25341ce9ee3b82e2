"""Requests to other servers: answers in any order, connections that end, peers that are silent or send garbage."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_protocol.wire.header import Header
from support.remote_peers import Network
from support.waiting import until

pytestmark = pytest.mark.trio

ADDRESS = "names.example:9876"


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


async def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(RemoteUnreachable) as raised:
        await call()
    return str(raised.value)


async def test_two_open_requests_share_a_connection_and_are_answered_in_any_order(network: Network) -> None:
    client = RemotingClient(ADDRESS)
    answers: dict[int, Any] = {}

    async def ask(code: int) -> None:
        answers[code] = await client.call(code, {"n": code}, b"body %d" % code, timeout_s=5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 103)
        nursery.start_soon(ask, 904)
        await until(lambda: network.peers)
        asked = await network.peers[0].requests(2)
        assert {header.code: (header.ext, body) for header, body in asked} == {
            103: ({"n": "103"}, b"body 103"),
            904: ({"n": "904"}, b"body 904"),
        }
        for header, body in reversed(asked):
            await network.peers[0].answer(header, body.upper(), code=header.code % 7)
    assert network.dialled == [("names.example", 9876)]
    assert {code: (a.code, a.remark, a.ext, a.body) for code, a in answers.items()} == {
        code: (code % 7, "said", {"a": "b"}, b"BODY %d" % code) for code in (103, 904)
    }


async def test_answers_to_no_request_and_requests_of_the_peer_are_dropped(network: Network) -> None:
    client = RemotingClient(ADDRESS)
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await until(lambda: network.peers)
            ((header, _),) = await network.peers[0].requests(1)
            await network.peers[0].answer(Header(0, header.opaque + 1))
            await network.peers[0].answer(header, b"a request", flag=0)
            await network.peers[0].answer(header, b"the answer")

        nursery.start_soon(serve)
        assert (await client.call(1, {}, timeout_s=5)).body == b"the answer"


async def test_a_closed_connection_ends_open_requests_and_the_next_request_connects_again(network: Network) -> None:
    client = RemotingClient(ADDRESS)
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await until(lambda: network.peers)
            await network.peers[0].requests(1)
            await network.peers[0].stream.aclose()

        nursery.start_soon(serve)
        assert await refused(lambda: client.call(1, {}, timeout_s=5)) == f"{ADDRESS}: closed the connection"
    async with trio.open_nursery() as nursery:

        async def serve_again() -> None:
            await until(lambda: len(network.peers) == 2)
            ((header, _),) = await network.peers[1].requests(1)
            await network.peers[1].answer(header)
            await network.peers[1].stream.aclose()  # while idle: noticed before the next request

        nursery.start_soon(serve_again)
        await client.call(2, {}, timeout_s=5)
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:

        async def serve_last() -> None:
            await until(lambda: len(network.peers) == 3)
            ((header, _),) = await network.peers[2].requests(1)
            await network.peers[2].answer(header)

        nursery.start_soon(serve_last)
        await client.call(3, {}, timeout_s=5)


async def test_a_silent_peer_costs_the_timeout_and_the_next_request_connects_again(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    client = RemotingClient(ADDRESS)
    answered = []

    async def ask_patiently() -> None:
        answered.append(await client.call(38, {}, timeout_s=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_patiently)
        await until(lambda: network.peers)
        first = network.peers[0]
        began = trio.current_time()
        reason = await refused(lambda: client.call(904, {}, timeout_s=3))
        assert reason == f"{ADDRESS}: has not responded to request 904 within 3 s"
        assert trio.current_time() - began == pytest.approx(3)
        # Another request that waits on the old connection still gets its answer there; then that connection ends.
        (patient, _), (_, _) = await first.requests(2)
        assert await refused(lambda: client.call(904, {}, timeout_s=3))
        assert len(network.peers) == 2
        await first.answer(patient)
        await until(lambda: answered)
        assert await first.stream.receive_some() == b""


async def test_a_peer_that_does_not_accept_costs_the_timeout(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def never(host: str, port: int) -> trio.abc.Stream:
        del host, port
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    client = RemotingClient(ADDRESS)
    reason = await refused(lambda: client.call(1, {}, timeout_s=2.5))
    assert reason == f"{ADDRESS}: has not accepted a connection within 2.5 s"


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x06\x00\x00\x00\x02{]"], ids=repr
)
async def test_garbage_ends_the_connection_and_is_named(network: Network, garbage: bytes) -> None:
    client = RemotingClient(ADDRESS)
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await until(lambda: network.peers)
            await network.peers[0].requests(1)
            await network.peers[0].stream.send_all(garbage)

        nursery.start_soon(serve)
        reason = await refused(lambda: client.call(1, {}, timeout_s=5))
    assert reason.startswith(f"{ADDRESS}: sent bytes that are not a response: ")
    assert await network.peers[0].stream.receive_some() == b""


async def test_a_refused_connection_names_address_and_reason() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        reason = await refused(lambda: RemotingClient(address).call(1, {}, timeout_s=5))
    assert reason == f"{address}: cannot connect: Connection refused"


@pytest.mark.parametrize(
    "address",
    ["", "names", "names:", ":9876", "names:0", "names:port", "names:65536", "a..b:9876", f"{'x' * 70}:1", "a\0b:1"],
)
async def test_a_wrong_address_is_named(address: str) -> None:
    reason = await refused(lambda: RemotingClient(address).call(1, {}, timeout_s=5))
    assert reason.startswith(f"{address}: cannot connect: ")


async def test_close_ends_open_requests_and_refuses_later_ones(network: Network) -> None:
    client = RemotingClient(ADDRESS)
    async with trio.open_nursery() as nursery:

        async def close() -> None:
            await until(lambda: network.peers)
            await network.peers[0].requests(1)
            client.close()

        nursery.start_soon(close)
        reason = await refused(lambda: client.call(1, {}, timeout_s=5))
    assert reason == f"{ADDRESS}: the connection was closed by this broker"
    assert await network.peers[0].stream.receive_some() == b""
    assert await refused(lambda: client.call(1, {}, timeout_s=5)) == reason


async def test_a_request_that_was_sent_in_part_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next frame would be read as the rest of it."""
    streams = []

    async def narrow(host: str, port: int) -> trio.abc.Stream:
        del host, port
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.lockstep_stream_pair()
        streams.append(theirs)
        return ours

    monkeypatch.setattr(trio, "open_tcp_stream", narrow)
    client = RemotingClient(ADDRESS)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as given_up:
            nursery.start_soon(lambda: client.call(1, {}, bytes(1000), timeout_s=5))
            await until(lambda: streams)
            assert await streams[0].receive_some(100)
            given_up.cancel()
        nursery.cancel_scope.cancel()
    with trio.fail_after(10):
        while await streams[0].receive_some(4096):
            pass
    assert await streams[0].receive_some() == b""
