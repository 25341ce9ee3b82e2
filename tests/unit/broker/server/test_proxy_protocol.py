"""The header that a proxy puts before a connection: whose address it has, and who may send it."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from reput_broker import Broker, BrokerConfig
from reput_broker.config.errors import ConfigError
from reput_broker.observe.counters import Counters
from reput_broker.server.gate import Gate, ProxyHeaderWrong, is_trusted, read_header
from reput_client import Admin, Message, Producer, PullConsumer

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V4 = bytes([10, 1, 2, 3, 10, 0, 0, 9]) + b"\x1f\x90\x2a\x9f"
V6 = ipaddress.ip_address("2001:db8::7").packed * 2 + b"\x1f\x90\x2a\x9f"
MAPPED = ipaddress.ip_address("::ffff:10.1.2.3").packed * 2 + b"\x1f\x90\x2a\x9f"


def v2(command: int, family: int, more: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(more).to_bytes(2) + more


async def read(data: bytes) -> tuple[tuple[str, int] | None, bytes]:
    """Return what is read from a connection that begins with `data`, and what is left."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        ours.send(data + b"rest")
        ours.shutdown(socket.SHUT_WR)
        return await read_header(theirs), theirs.recv(100)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("data", "source"),
    [
        (b"PROXY TCP4 10.1.2.3 10.0.0.9 8080 10911\r\n", ("10.1.2.3", 8080)),
        (b"PROXY TCP6 2001:db8::7 ::1 8080 10911\r\n", ("2001:db8::7", 8080)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (v2(0x21, 0x11, V4), ("10.1.2.3", 8080)),
        (v2(0x21, 0x11, V4 + b"\x03\0\x04more"), ("10.1.2.3", 8080)),
        (v2(0x21, 0x21, V6), ("2001:db8::7", 8080)),
        (v2(0x21, 0x21, MAPPED), ("10.1.2.3", 8080)),
        (v2(0x20, 0x00, b""), None),
        (v2(0x21, 0x31, bytes(216)), None),
    ],
)
async def test_the_header_is_read_and_no_more(data: bytes, source: tuple[str, int] | None) -> None:
    assert await read(data) == (source, b"rest")


@pytest.mark.trio
@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x10\0\0\0\x0c{}",
        b"PROXX TCP4 ",
        b"PROXY TCP4 10.1.2.3 10.0.0.9 99999 1\r\n",
        b"PROXY TCP4 host 10.0.0.9 1 1\r\n",
        b"PROXY TCP4 10.1.2.3\r\n",
        b"PROXY \xff\r\n",
        b"PROXY " + b"x" * 200,
        SIGNATURE[:-1] + b"x" + bytes(4),
        v2(0x11, 0x11, V4),
        v2(0x21, 0x11, V4[:8]),
        v2(0x21, 0x11, bytes(5000)),
    ],
)
async def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderWrong):
        await read(data)


def test_who_is_trusted() -> None:
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("::1")]
    assert [is_trusted(host, networks) for host in ("10.1.9.9", "::1", "10.2.0.1", "odd")] == [True, True, False, False]
    with pytest.raises(ConfigError, match=r"proxy_protocol_from.*10\.0\.0\.300"):
        BrokerConfig(proxy_protocol_from=["10.0.0.300"])


@pytest.mark.trio
@pytest.mark.parametrize("begin", [b"", b"PROXY TCP4 ", SIGNATURE])
async def test_half_a_header_ends_in_time(autojump_clock: MockClock, begin: bytes) -> None:
    config = BrokerConfig(proxy_protocol_from="10.0.0.7", tls={"handshake_timeout": "2s"})
    counters = Counters()
    traffic = counters.listeners["main"]
    ours, theirs = socket.socketpair()
    with ours, structlog.testing.capture_logs() as logs:
        ours.send(begin)
        traffic.connection_opened()
        assert await Gate(config, None).admit(theirs, "10.0.0.7:1", traffic) is None
    assert (logs[0]["reason"], traffic.closed["malformed"]) == ("proxy", 1)


async def through_proxy(broker: Broker, header: bytes, nursery: trio.Nursery) -> str:
    """Start a proxy that sends a header before each connection; return its address."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream, await trio.open_tcp_stream(*address_of(broker)) as onward:
            await onward.send_all(header)
            async with trio.open_nursery() as copying:
                copying.start_soon(copy, stream, onward)
                copying.start_soon(copy, onward, stream)

    async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
        try:
            async for data in source:
                await target.send_all(data)
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    return f"127.0.0.1:{listener.socket.getsockname()[1]}"


def address_of(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.address.rpartition(":")
    return host, int(port)


@pytest.mark.trio
async def test_the_address_behind_a_proxy_is_that_of_the_client(tmp_path: Path) -> None:
    config = BrokerConfig(
        data_dir=tmp_path,
        port=0,
        store={"commit_log_file_size": "1MiB", "index": False},
        proxy_protocol_from=["127.0.0.1"],
    )
    async with Broker(config) as broker, trio.open_nursery() as nursery:
        address = await through_proxy(broker, v2(0x21, 0x11, V4), nursery)
        async with Producer(address) as producer, PullConsumer(address, group="g") as consumer, Admin(address) as admin:
            receipt = await producer.send(Message("t", b"x"))
            result = await consumer.pull("t", queue_id=receipt.queue_id, offset=receipt.queue_offset)
            assert result.messages[0].born_host == "10.1.2.3:8080"
            assert {client.address for client in await admin.list_clients()} == {"10.1.2.3:8080"}
        nursery.cancel_scope.cancel()
