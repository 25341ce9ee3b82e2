"""TLS on a broker's ports: its files, the gate before the first request, and the transport."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

import pytest
import structlog
import trio
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from trio.testing import MockClock

from reput_broker.compose.live_config import LiveConfig
from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.catalogue import METRICS
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import Health
from reput_broker.observe.metrics import MetricsSources, Scrape
from reput_broker.remoting.tls import ServerTls, TlsFilesUnusable, ends_of_validity, file_problems
from reput_broker.server import gate as gates
from reput_broker.server.gate import Admitted, Gate
from reput_broker.server.transport import TlsTransport
from reput_client.security import TLS
from reput_client.transport.tls_socket import TlsSocket
from reput_protocol.wire.tls import CHUNK_BYTES
from support.tls_files import TlsFiles, make_tls_files, server_context

HOST = "10.0.0.7"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("tls"))


# Files


def test_the_end_of_a_certificate_is_read(files: TlsFiles) -> None:
    assert ends_of_validity(files.expired.read_text()) == [1588748889.0]
    both = files.expired.read_text() + files.ca.read_text()
    assert ends_of_validity(both)[0] == 1588748889.0
    assert len(ends_of_validity(both)) == 2
    assert ends_of_validity("nothing") == []


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIB",
    ],
)
def test_a_broken_certificate_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several modules
        ends_of_validity(text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "required"}, 'tls.mode = "required" needs the certificate'),
        ({"http_mode": "required"}, 'tls.http_mode = "required" needs the certificate'),
        ({"key": "k"}, "it is the key of tls.cert"),
        ({"mode": "required", "cert": "c", "client_cert": "required"}, "needs the authorities"),
        ({"cert": "c", "ca": "c", "client_cert": "required"}, 'while tls.mode is "off"'),
        ({"server_name": "x"}, "for tls.connect"),
    ],
)
def test_options_that_do_not_fit_together(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BrokerConfig(tls=options)


AT_S = 1_600_000_000.0
"""After the end of the certificate that has ended."""


@pytest.mark.parametrize(
    ("cert", "key", "ca", "says"),
    [
        ("broker", "", "ca", []),
        (
            "nope",
            "none",
            "nothing",
            [
                "key {none}: there is no such file; correct the path",
                "cert {nope}: there is no such file; correct the path",
                "ca {nothing}: there is no such file; correct the path",
            ],
        ),
        ("ca", "", "", ["cert {ca}: the key is not there, or not in PEM; both certificate and key are needed"]),
        ("broker", "client", "", ["key {client}: the key is not that of the certificate in {broker}; give its own"]),
        ("key", "", "key", [
            "cert {key}: there is no certificate in PEM; give a file with one",
            "ca {key}: there is no certificate in PEM; give a file with one",
        ]),
        ("expired", "", "expired", [
            "cert {expired}: the certificate ended at 2020-05-06 07:08 UTC; renew it",
            "ca {expired}: the certificate ended at 2020-05-06 07:08 UTC; renew it",
        ]),
        ("broker", "locked", "", [
            "key {locked}: the key is encrypted; give one without a passphrase, which only the broker's user may read"
        ]),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_named(
    files: TlsFiles, tmp_path: Path, cert: str, key: str, ca: str, says: list[str]
) -> None:
    (tmp_path / "key.pem").write_text(files.broker.read_text().partition("-----BEGIN CERT")[0])
    encryption = BestAvailableEncryption(b"passphrase")
    private = load_pem_private_key(files.broker.read_bytes(), None)
    (tmp_path / "locked.pem").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("nope", "none", "nothing", "key", "locked")}
    paths |= {name: str(getattr(files, name)) for name in ("broker", "client", "ca", "expired")}
    names = {"cert": cert, "key": key, "ca": ca}
    options = {option: paths[name] for option, name in names.items() if name}
    config = BrokerConfig(tls={"mode": "required", "client_cert": "optional" if ca else "none", **options})
    found = [str(problem) for problem in file_problems(config.tls, AT_S)]
    assert found == ["tls." + text.format(**paths) for text in says]
    if says and "ended" not in says[0]:
        with pytest.raises(TlsFilesUnusable):  # a start refuses them, too
            ServerTls(config.tls)


class Live:
    """Certificates in use, with copies of the files that a test may change."""

    def __init__(self, files: TlsFiles, directory: Path) -> None:
        self.cert = directory / "cert.pem"
        self.cert.write_bytes(files.broker.read_bytes())
        self.config = BrokerConfig(tls=files.server_options(cert=str(self.cert)))
        self.tls = ServerTls(self.config.tls)
        self.sources = MetricsSources(self.config, Counters(), Health(), tls=self.tls)

    @property
    def end_s(self) -> float:
        found = self.shown("reput_tls_certificate_end_time_seconds")
        assert isinstance(found, dict)
        return float(found["cert"])

    def shown(self, name: str) -> object:
        return METRICS[name].read(Scrape(self.sources))


def test_a_reload_reads_the_files_again_or_keeps_the_old(files: TlsFiles, tmp_path: Path) -> None:
    live = Live(files, tmp_path)
    config = LiveConfig(live.config, lambda: live.config, live.sources)
    before, end_s = live.tls.context, live.end_s
    live.cert.write_text("half a file")
    with structlog.testing.capture_logs() as logs, pytest.raises(ConfigError, match="cert"):
        config.reload()
    assert [line["event"] for line in logs] == ["tls_reload_failed", "config_reload_failed"]
    assert (live.tls.context, live.end_s) == (before, end_s)
    assert live.shown("reput_tls_reload_success") == 0
    live.cert.write_bytes(files.expired.read_bytes())
    config.reload()
    assert live.tls.context is not before
    assert live.end_s == 1588748889.0
    assert live.shown("reput_tls_reload_success") == 1


def test_a_changed_file_is_read_without_a_signal(files: TlsFiles, tmp_path: Path) -> None:
    live = Live(files, tmp_path)
    before = live.tls.context
    live.tls.look()
    assert live.tls.context is before
    live.cert.write_text("")
    live.tls.look()
    assert (live.tls.reload_ok, live.tls.context) == (False, before)
    live.cert.write_bytes(files.expired.read_bytes())
    live.tls.look()
    assert (live.tls.reload_ok, live.end_s) == (True, 1588748889.0)


# The gate


class Bench:
    """A gate, and connections to it."""

    def __init__(self, files: TlsFiles, nursery: trio.Nursery, **tls: object) -> None:
        self.config = BrokerConfig(tls=files.server_options(**tls))
        self.counters = Counters()
        self.traffic = self.counters.listeners["main"]
        self.gate = Gate(self.config, ServerTls(self.config.tls))
        self.admitted: list[Admitted | None] = []
        self._nursery = nursery
        self._connected: list[socket.socket] = []

    def connect(self, host: str = HOST) -> socket.socket:
        """Connect; what the gate returns comes into `admitted`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._connected.append(ours)
        self.traffic.connection_opened()

        async def admit() -> None:
            self.admitted.append(await self.gate.admit(theirs, f"{host}:1", self.traffic))

        self._nursery.start_soon(admit)
        return ours

    def secured(self, tls: TLS) -> TlsSocket:
        return TlsSocket(self.connect(), tls.context(), "127.0.0.1", "the broker")

    def close(self) -> None:
        for ours in self._connected:
            ours.close()
        for admitted in self.admitted:
            if admitted is not None:
                admitted.transport.close()


@asynccontextmanager
async def bench(files: TlsFiles, **tls: object) -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        made = Bench(files, nursery, **tls)
        yield made
        made.close()
        nursery.cancel_scope.cancel()


async def finish(wire: TlsSocket) -> None:
    with trio.fail_after(60):
        while not wire.handshake():
            await trio.sleep(0.001)


async def settle(made: Bench, count: int) -> None:
    with trio.fail_after(600):
        while len(made.admitted) < count:
            await trio.sleep(0.001)


@pytest.mark.trio
async def test_a_client_with_tls_is_admitted_with_a_certificate_and_without(files: TlsFiles) -> None:
    async with bench(files, client_cert="optional") as made:
        for tls in (TLS(ca=files.ca, cert=files.client), TLS(ca=files.ca)):
            await finish(made.secured(tls))
        await settle(made, 2)
        assert None not in made.admitted
        assert made.traffic.handshakes == {"ok": 2, "failed": 0, "plain": 0}


@pytest.mark.trio
async def test_plain_bytes_on_a_port_that_needs_tls_are_answered_and_logged(files: TlsFiles) -> None:
    async with bench(files) as made:
        with structlog.testing.capture_logs() as logs:
            ours = made.connect()
            ours.send(b"\0\0\0\x10\0\0\0\x0c{}")
            await settle(made, 1)
        assert made.admitted == [None]
        assert b"TLS_REQUIRED" in ours.recv(4096)
        assert ours.recv(1) == b""
        (line,) = logs
        assert (line["event"], line["reason"], line["peer"]) == ("connection_refused", "tls", f"{HOST}:1")
        assert "does not use TLS" in line["detail"]
        assert made.traffic.closed["tls"] == 1
        assert made.traffic.open == 0


@pytest.mark.trio
@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\0\x01"])
async def test_half_a_handshake_ends_in_time(files: TlsFiles, autojump_clock: MockClock, begin: bytes) -> None:
    async with bench(files, handshake_timeout="4s") as made:
        with structlog.testing.capture_logs() as logs:
            ours = made.connect()
            ours.send(begin)
            await trio.sleep(3.9)
            assert made.admitted == []
            await trio.sleep(0.2)
        assert made.admitted == [None]
        assert ours.recv(1) == b""
        assert "within 4 s" in logs[0]["detail"]


@pytest.mark.trio
@pytest.mark.parametrize("http", [False, True])
async def test_half_a_handshake_of_a_slave_or_a_browser_ends_in_time(
    files: TlsFiles, autojump_clock: MockClock, http: bool
) -> None:
    config = BrokerConfig(tls=files.server_options(handshake_timeout="4s"))
    gate = Gate(config, ServerTls(config.tls))
    for begin, says in ((b"", "within 4 s"), (b"\x16\x03", "within 4 s"), (b"GET / HTTP/1.1", "does not use TLS")):
        ours, theirs = socket.socketpair()
        ours.send(begin)
        started_at = trio.current_time()
        with ours, structlog.testing.capture_logs() as logs:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
            assert await gate.admit_stream(stream, (HOST, 1), http=http) is None
        assert trio.current_time() - started_at < 5.0
        assert says in logs[0]["detail"]


@pytest.mark.trio
async def test_permissive_serves_both_and_lets_the_silent_wait(files: TlsFiles, autojump_clock: MockClock) -> None:
    async with bench(files, mode="permissive", handshake_timeout="4s") as made:
        silent = made.connect()
        await trio.sleep(100.0)
        assert made.admitted == [], "an idle connection, which limits.idle_timeout ends"
        silent.send(b"\0")
        await finish(made.secured(TLS(ca=files.ca)))
        await settle(made, 2)
        assert [isinstance(found.transport, TlsTransport) for found in made.admitted if found] == [False, True]
        assert made.traffic.handshakes == {"ok": 1, "failed": 0, "plain": 1}
        made.connect().send(b"\x16")
        await trio.sleep(4.1)
        assert made.admitted[2:] == [None]
        quiet = made.connect()
        await trio.sleep(made.config.limits.idle_timeout + 1.0)
        assert made.admitted[3:] == [None]
        assert quiet.recv(1) == b""


@pytest.mark.trio
async def test_the_number_of_handshakes_is_limited(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "HANDSHAKES_MAX", 3)
    async with bench(files) as made:
        others = [made.connect(host) for host in ("10.0.0.1", "10.0.0.9", "10.0.0.9")]
        await trio.testing.wait_all_tasks_blocked()
        with structlog.testing.capture_logs() as logs:
            await finish(made.secured(TLS(ca=files.ca)))
            await settle(made, 2)
        assert [found is not None for found in made.admitted].count(True) == 1
        assert "more than 3 clients were in the handshake at the same time: the TLS handshake" in logs[0]["detail"]
        closed = []
        for other in others:
            try:
                closed.append(other.recv(1) == b"")
            except BlockingIOError:
                closed.append(False)
        assert sorted(closed[1:]) == [False, True], "one of the address with the most of them"
        assert not closed[0]


# The transport


@pytest.mark.trio
async def test_much_goes_through_small_buffers_in_both_directions(files: TlsFiles) -> None:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport = TlsTransport(theirs, server_context(files.broker))
    wire = TlsSocket(ours, TLS(ca=files.ca).context(), "127.0.0.1", "the broker")
    body = bytes(range(256)) * 8192
    got, answered = bytearray(), bytearray()

    async def serve() -> None:
        await transport.handshake()
        while len(got) < len(body):
            got.extend(await transport.receive())
        buffers = [memoryview(body)[:100], memoryview(body)[100:200_000], memoryview(body)[200_000:]]
        sent = transport.try_send(buffers)
        assert sent < len(body)
        while sent < len(body):
            # As the outbox, which may offer less than before.
            sent += await transport.send(memoryview(body)[sent : sent + 3000])
        transport.close()

    async def send() -> None:
        await finish(wire)
        rest = memoryview(body)
        while len(rest) or wire.has_unsent:
            if wire.flush():
                rest = rest[wire.send(rest) :] if len(rest) else rest
            else:
                await trio.lowlevel.wait_writable(ours)
        while True:
            try:
                data = wire.recv(1 << 16)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(ours)
                continue
            if not data:
                break
            answered.extend(data)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(send)
    ours.close()
    assert got == body
    assert answered == body


@pytest.mark.trio
async def test_buffers_of_any_size_arrive_in_order(files: TlsFiles) -> None:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    transport = TlsTransport(theirs, server_context(files.broker))
    ours.setblocking(False)
    wire = TlsSocket(ours, TLS(ca=files.ca).context(), "127.0.0.1", "the broker")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.handshake)
        await finish(wire)
    body = random.Random(1).randbytes(4 * CHUNK_BYTES)
    received = bytearray()
    # Short of a chunk, up to its end, beyond it, several in one buffer, whole ones, and a rest.
    sizes = (10, CHUNK_BYTES - 10, 0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES - 2, 1)
    ends = [*accumulate(sizes)]

    async def send() -> None:
        sent = transport.try_send([body[end - size : end] for size, end in zip(sizes, ends, strict=True)])
        assert sent > CHUNK_BYTES
        while sent < len(body):  # the system's buffers are smaller
            sent += await transport.send(memoryview(body)[sent:])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while len(received) < len(body):
                try:
                    received.extend(wire.recv(1 << 16))
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(ours)
    assert received == body
    transport.close()
    ours.close()
