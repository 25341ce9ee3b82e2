"""Connections without a user, under access control: what they may hold, how long they stay, what they delay."""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio
import trio.testing

from reput_broker.access.control import Access, AccessControl
from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import AccessConfig
from reput_broker.observe.counters import Counters
from reput_broker.server.connection_limits import HEADER_BYTES_MAX, ConnectionRefusals, Crowd, Penalties, network_of
from reput_broker.server.gate import Gate
from reput_broker.server.handling import RequestHandling
from reput_broker.server.listener import Server, address_of, bind
from reput_protocol.codes import RequestCode
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType, Value
from reput_protocol.wire.signature import Credentials, signed_by
from support.connection_bench import ECHO, Bench, Peer, ask, settled

ALICE: Final = Credentials("alice", "the-secret-of-alice")
NO_PERMISSION: Final = 16
MIB: Final = 1 << 20


@pytest.fixture
def access(tmp_path: Path) -> AccessControl:
    file = UserFile(tmp_path / "users.json")
    users = Users().with_user(User("alice", ALICE.secret, is_admin=True))
    return AccessControl(file, users, file.state(), AccessConfig(), Counters())


@asynccontextmanager
async def served(access: Access, beside: Bench | None = None) -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        bench = Bench(Peer(), nursery, beside, access, buffer_total="16MiB")
        nursery.start_soon(bench.connection.run)
        yield bench
        nursery.cancel_scope.cancel()


def signed(opaque: int, ext: Mapping[str, Value] | None = None, body: bytes = b"") -> bytes:
    header = Header(ECHO, opaque, ext=signed_by(ALICE, ext or {}, body, version=0))
    return encode_frame(header, HeaderType.JSON, body)


@pytest.mark.trio
async def test_a_connection_has_little_time_for_its_first_valid_signature(access: AccessControl) -> None:
    async with served(access) as stranger, served(access, stranger) as user:
        user.peer.says(signed(1))
        stranger.peer.says(ask(ECHO, 1))
        await settled()
        for bench in (stranger, user):
            bench.connection.look_after(trio.current_time() + 9.9)
            assert not bench.connection.is_closed
            bench.connection.look_after(trio.current_time() + 10.1)
        assert (stranger.connection.is_closed, user.connection.is_closed) == (True, False)
        assert stranger.traffic.closed["auth"] == 1
        assert "access" not in str(stranger.peer.answers[-1][0].remark), "the hint is for the log"


@pytest.mark.trio
async def test_a_stranger_sends_small_headers_and_frames_and_a_user_large_ones(access: AccessControl) -> None:
    large = {"i": "x" * (HEADER_BYTES_MAX + 1)}
    async with served(access) as stranger:
        stranger.peer.says(signed(1, large))
        await settled()
        assert "header before the first valid signature" in str(stranger.peer.answers[-1][0].remark)
        assert stranger.connection.is_closed
    async with served(access) as stranger:
        stranger.peer.says(struct.pack(">II", 8 * MIB, 100))
        await settled()
        assert "frame before the first valid signature" in str(stranger.peer.answers[-1][0].remark)
        assert stranger.connection.is_closed
    async with served(access) as user:
        user.peer.says(signed(1), signed(2, large), signed(3, body=bytes(8 * MIB))[:MIB])
        await settled()
        assert user.peer.answered == [(1, 0), (2, 0)]
        assert not user.connection.is_closed


@pytest.mark.trio
async def test_unfinished_frames_of_strangers_take_nothing_from_users(access: AccessControl) -> None:
    async with trio.open_nursery() as nursery, served(access) as user:
        user.peer.says(signed(1))
        await settled()
        before = user.connection.share
        strangers = [Bench(Peer(), nursery, user, access) for _ in range(40)]
        for stranger in strangers:
            nursery.start_soon(stranger.connection.run)
            stranger.peer.says(struct.pack(">II", 4 * MIB, 100) + bytes(300_000))
        await settled()
        assert user.strangers is not None
        assert 0 < user.strangers.memory.total <= 16 * MIB // 5
        assert user.connection.share == before
        assert user.memory.total == 0
        nursery.cancel_scope.cancel()
    assert user.strangers.memory.total == 0


@pytest.mark.trio
async def test_a_client_of_rocketmq_may_begin_with_the_largest_message(access: AccessControl) -> None:
    """With the default limits: a sixteenth of them is less than such a message."""
    async with trio.open_nursery() as nursery:
        user = Bench(Peer(), nursery, None, access)
        nursery.start_soon(user.connection.run)
        frame = signed(1, body=bytes(4 * MIB))
        for at in range(0, len(frame), 1 << 16):
            user.peer.says(frame[at : at + (1 << 16)])
            await settled()
        assert [opaque for opaque, _ in user.peer.answered] == [1]
        assert not user.connection.is_closed
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_what_is_held_for_a_stranger_is_held_for_the_user_that_it_becomes(access: AccessControl) -> None:
    async with served(access) as bench:
        frame = signed(1)
        bench.peer.says(frame[:20])
        await settled()
        assert bench.strangers is not None
        assert (bench.strangers.memory.total > 0, bench.memory.total) == (True, 0)
        bench.peer.says(frame[20:] + signed(2)[:20])
        await settled()
        assert (bench.strangers.memory.total, bench.memory.total > 0) == (0, True)
        bench.peer.says(signed(2)[20:])
        await settled()
        assert bench.memory.total == 0
        assert bench.peer.answered == [(1, 0), (2, 0)]


@pytest.mark.trio
async def test_requests_without_a_valid_signature_end_the_connection(
    access: AccessControl, autojump_clock: trio.testing.MockClock
) -> None:
    async with served(access) as bench:
        bench.peer.says(*(ask(ECHO, opaque) for opaque in range(7)))
        await trio.sleep(2)
        bench.peer.says(signed(7))
        await trio.sleep(2)
        assert bench.peer.answered == [*((opaque, NO_PERMISSION) for opaque in range(7)), (7, 0)]
        bench.peer.says(*(ask(ECHO, opaque) for opaque in range(100)))
        await trio.sleep(2)
        assert bench.peer.answered[8:16] == [(opaque, NO_PERMISSION) for opaque in range(8)]
        assert len(bench.peer.answered) == 17, "the last says why"
        assert bench.connection.is_closed
        assert bench.traffic.closed["auth"] == 1


@pytest.mark.trio
@pytest.mark.parametrize(
    ("code", "flag"), [(RequestCode.SIGNATURE_CHALLENGE, 0), (ECHO, RESPONSE_FLAG)], ids=["challenges", "answers"]
)
async def test_what_needs_no_signature_ends_the_connection_if_it_is_repeated(
    access: AccessControl, autojump_clock: trio.testing.MockClock, code: int, flag: int
) -> None:
    async with served(access) as bench:
        bench.peer.says(ask(code, 0, flag))
        await trio.sleep(1)
        assert not bench.connection.is_closed
        bench.peer.says(*(ask(code, opaque, flag) for opaque in range(100)))
        await trio.sleep(2)
        assert bench.traffic.closed["auth"] == 1
        assert len(bench.peer.answers) < 20


def test_an_address_that_fails_waits_longer_and_others_do_not() -> None:
    now = 0.0
    penalties = Penalties(lambda: now)
    penalties.failed("10.0.0.1", 8)
    assert penalties.pause_s("10.0.0.1") == 0.0, "a few are free"
    penalties.failed("10.0.0.1", 10)
    few = penalties.pause_s("10.0.0.1")
    penalties.failed("10.0.0.1", 1000)
    assert 0 < few < penalties.pause_s("10.0.0.1") == 1.0
    assert penalties.pause_s("10.0.0.2") == 0.0
    now = 120.0
    assert penalties.pause_s("10.0.0.1") == 0.0, "it is forgotten in time"
    penalties.failed("2001:db8::1", 1000)
    assert penalties.pause_s("[2001:db8::2]") == 1.0, "one client has a whole network"
    for number in range(5000):
        penalties.failed(f"10.1.{number >> 8}.{number & 255}", 1000)
    assert penalties.pause_s("10.1.0.1") == 0.0, "the table is bounded"


BROKEN_FRAMES: Final = {
    "wrong length": struct.pack(">II", 3, 100) + b"abc",
    "bad header": struct.pack(">II", 8, 4) + b"]]]]",
    "unknown header type": struct.pack(">II", 8, 0x77 << 24 | 4) + b"]]]]",
    "too large": struct.pack(">II", 1 << 30, 100),
}


@pytest.mark.trio
@pytest.mark.parametrize("frame", BROKEN_FRAMES.values(), ids=BROKEN_FRAMES)
async def test_malformed_frames_of_strangers_are_penalized_and_logged_now_and_then(
    access: AccessControl, autojump_clock: trio.testing.MockClock, frame: bytes
) -> None:
    async with trio.open_nursery() as nursery, served(access) as user:
        user.peer.says(signed(1))
        assert user.strangers is not None
        with structlog.testing.capture_logs() as lines:
            for _ in range(200):
                stranger = Bench(Peer(), nursery, user, access)
                nursery.start_soon(stranger.connection.run)
                stranger.peer.says(frame)
            await trio.sleep(1.5)
        assert user.strangers.penalties.pause_s("10.0.0.1") > 0.5
        assert 20 <= len(lines) <= 22, "the others are left out"
        user.peer.says(frame)
        before = user.strangers.penalties.pause_s("10.0.0.1")
        await settled()
        assert user.connection.is_closed
        assert user.strangers.penalties.pause_s("10.0.0.1") == before, "a user's connection is no stranger's"
        nursery.cancel_scope.cancel()


def test_a_line_says_how_many_were_left_out() -> None:
    now = 0.0
    refusals = ConnectionRefusals(clock=lambda: now)
    with structlog.testing.capture_logs() as lines:
        for _ in range(100):
            refusals.refused("10.0.0.1:5", "malformed")
        refusals.refused("10.0.0.2:5", "auth")
        now = 1.0
        refusals.refused("10.0.0.3:5", "malformed", detail="x")
    assert len(lines) == 22
    assert [line["peer"] for line in lines[20:]] == ["10.0.0.2:5", "10.0.0.3:5"]
    assert (lines[-1]["omitted"], lines[-1]["detail"]) == (80, "x")


# -- when connections run out ------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(
    tmp_path: Path, access: Access | None, connections: int, **more: Any
) -> AsyncIterator[tuple[Server, Clients]]:
    config = BrokerConfig(
        data_dir=tmp_path,
        limits={"connections": connections},
        access={"enabled": access is not None, "admin_secret": ALICE.secret},
        **more,
    )
    counters = Counters()
    server = Server(
        config,
        RequestHandling({ECHO: lambda _: 0}, access=access),  # type: ignore[dict-item, return-value]
        counters,
        connections_max=1000,
        on_gone=lambda _: None,
        gate=Gate(config, None),
    )
    bound = bind("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, {"main": bound})
        clients = Clients(bound.getsockname()[1])
        yield server, clients
        await clients.close()
        nursery.cancel_scope.cancel()


class Clients:
    """Connections from several addresses to one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: list[trio.SocketStream] = []

    async def connect(self, source: str = "127.0.0.1") -> trio.SocketStream:
        sock = trio.socket.socket()
        await sock.bind((source, 0))
        await sock.connect(("127.0.0.1", self._port))
        self._streams.append(trio.SocketStream(sock))
        return self._streams[-1]

    async def close(self) -> None:
        for stream in self._streams:
            await stream.aclose()


async def is_served(stream: trio.SocketStream) -> bool:
    challenge = encode_frame(Header(RequestCode.SIGNATURE_CHALLENGE, 1), HeaderType.JSON)
    try:
        await stream.send_all(challenge)
        return bool(await stream.receive_some())
    except trio.BrokenResourceError:
        return False


async def until_closed(stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass


@pytest.mark.trio
async def test_silent_strangers_make_room_for_others(tmp_path: Path, access: AccessControl) -> None:
    async with listening(tmp_path, access, 4) as (server, clients):
        modest = await clients.connect("127.0.0.2")
        silent = [await clients.connect("127.0.0.3") for _ in range(3)]
        with trio.fail_after(20):
            while len(server.connections) < 4:
                await trio.sleep(0.001)
            assert await is_served(await clients.connect("127.0.0.4"))
            await until_closed(silent[0])
            assert await is_served(modest)
            assert await is_served(silent[1])


@pytest.mark.trio
async def test_all_addresses_of_one_ipv6_client_count_together(
    tmp_path: Path, access: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(end: socket.socket, *, peer: bool = False) -> tuple[str, int]:
        host, port = address_of(end, peer=peer)
        return (f"2001:db8::{host[-1]}" if peer and host != "127.0.0.1" else host), port

    monkeypatch.setattr("reput_broker.server.listener.address_of", elsewhere)
    async with listening(tmp_path, access, 5) as (server, clients):
        modest = [await clients.connect() for _ in range(2)]
        greedy = [await clients.connect(f"127.0.0.{number}") for number in range(2, 5)]
        with trio.fail_after(20):
            while len(server.connections) < 5:
                await trio.sleep(0.001)
            assert await is_served(await clients.connect())
            await until_closed(greedy[0])
            assert await is_served(modest[0])


def test_the_oldest_of_the_largest_network_gives_way() -> None:
    """As by counting all members each time."""
    chance, crowd, members = random.Random(7), Crowd[int](), dict[int, str]()
    for number in range(3000):
        step = chance.random()
        if step < 0.55:
            members[number] = chance.choice(("10.0.0.1", "10.0.0.2", "::ffff:1:2", "2001:db8::1", "2001:db8::2%x"))
            crowd.add(number, members[number])
        elif step < 0.75 and members:
            gone = chance.choice([*members])
            del members[gone]
            assert crowd.discard(gone)
        elif members:
            sizes = Counter(map(network_of, members.values()))
            found = crowd.pop_greediest()
            assert found is not None
            member, network, size = found
            assert (size, sizes[network]) == (max(sizes.values()), size)
            of_network = [other for other, host in members.items() if network_of(host) == network]
            assert member == of_network[0]
            del members[member]
        assert len(crowd) == len(members)
        assert not crowd.discard(-1)
    while members:
        found = crowd.pop_greediest()
        assert found is not None
        del members[found[0]]
    assert crowd.pop_greediest() is None


@pytest.mark.trio
async def test_without_strangers_the_last_connections_are_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput_broker.server.listener.is_loopback", lambda host: host == "127.0.0.1")
    async with listening(tmp_path, None, 40) as (_, clients):
        others = [await clients.connect("127.0.0.2") for _ in range(38)]
        with trio.fail_after(20):
            assert await is_served(others[-1])
            assert not await is_served(await clients.connect("127.0.0.2"))
            assert await is_served(await clients.connect())


@pytest.mark.trio
async def test_who_waits_at_the_gate_makes_room_for_others(tmp_path: Path, access: AccessControl) -> None:
    """Before its first byte, a connection has sent neither a proxy's header nor TLS."""
    async with listening(tmp_path, access, 4, proxy_protocol_from=["127.0.0.0/8"]) as (_, clients):
        modest = await clients.connect("127.0.0.2")
        silent = [await clients.connect("127.0.0.3") for _ in range(3)]
        header = b"PROXY TCP4 10.0.0.1 10.0.0.2 1000 2000\r\n"
        with trio.fail_after(20):
            other = await clients.connect("127.0.0.4")
            await other.send_all(header)
            assert await is_served(other)
            await until_closed(silent[0])
            for waiting in (modest, silent[2]):
                await waiting.send_all(header)
                assert await is_served(waiting)
