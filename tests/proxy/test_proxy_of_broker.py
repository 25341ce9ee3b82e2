"""The proxy that a broker starts because of `proxy_port`, in real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from reput_proxy import messaging_pb2 as pb
from support.broker_process import BrokerProcess, free_port
from support.grpc_client import Code, client_of, message, signed_by
from support.tls_files import make_tls_files
from support.waiting import wait_until

pytestmark = pytest.mark.process


class BrokerWithProxy(BrokerProcess):
    """A broker and its proxy; what the broker says about it."""

    def __init__(self, data_dir: Path, options: Mapping[str, str] | None = None) -> None:
        self.proxy_port = free_port()
        self.proxy_address = f"127.0.0.1:{self.proxy_port}"
        super().__init__(data_dir, environment={"REPUT_PROXY_PORT": str(self.proxy_port), **(options or {})})

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of the log by this name."""
        found = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    def check(self) -> dict[str, Any]:
        """Return the check of the proxy in the health page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz?verbose", timeout=10) as page:
            found: dict[str, Any] = json.load(page)["checks"]["proxy"]
        return found

    def metric(self, name: str) -> float:
        """Return a metric without labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=10) as page:
            lines = [line.split() for line in page.read().decode().splitlines()]
        return next(float(line[1]) for line in lines if line[:1] == [name])

    def wait_proxy(self, starts: int = 1) -> int:
        """Wait until the proxy serves after so many starts, and return its process id.

        By the log: the pages may need a user.
        """
        self.wait_ready()
        wait_until(lambda: len(self.events("proxy_ready")) == starts, what=lambda: self.log)
        return int(self.events("proxy_started")[-1]["pid"])


@contextmanager
def running(directory: Path, options: Mapping[str, str] | None = None) -> Iterator[BrokerWithProxy]:
    broker = BrokerWithProxy(directory / "data", options)
    with broker:
        yield broker


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and whose parent is gone, does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def send_and_receive(address: str, **more: Any) -> None:
    async with client_of(address, **more) as client:
        await client.send(message("orders", b"x", "ID"))
        [got] = await client.receive_all("orders", "billing", 1)
        await client.ack("billing", got)


def test_it_serves_and_the_broker_shows_its_state(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        pid = broker.wait_proxy()
        asyncio.run(send_and_receive(broker.proxy_address))
        wait_until(lambda: broker.check()["detail"] == broker.proxy_address)
        assert not broker.check()["gates_readiness"]
        assert broker.metric("reput_proxy_ready") == 1
        assert broker.metric("reput_proxy_starts_total") == 1
        wait_until(lambda: broker.metric("reput_proxy_acknowledged_messages_total") == 1)
        assert broker.metric("reput_proxy_sent_messages_total") == 1
        assert os.getpgid(pid) == pid, "Ctrl-C at a terminal must not reach it"
        assert [event["address"] for event in broker.events("proxy_ready")] == [broker.proxy_address]


def test_its_routes_name_the_address_of_the_configuration(tmp_path: Path) -> None:
    async def routed(broker: BrokerWithProxy) -> pb.Endpoints:
        async with client_of(broker.proxy_address) as client:
            await client.send(message("orders", b"x", "ID"))
            answer = await client.call("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
        endpoints: pb.Endpoints = answer.message_queues[0].broker.endpoints
        return endpoints

    with running(tmp_path, {"REPUT_PROXY_ADVERTISE": "proxy.example:443"}) as broker:
        broker.wait_proxy()
        [address] = asyncio.run(routed(broker)).addresses
        assert (address.host, address.port) == ("proxy.example", 443)


def test_it_is_started_again_when_it_ends(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        pid = broker.wait_proxy()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: bool(broker.events("proxy_ended")))
        assert broker.events("proxy_ended")[0]["exit_code"] == -signal.SIGKILL
        assert not broker.check()["ok"]
        assert broker.wait_proxy(2) != pid
        asyncio.run(send_and_receive(broker.proxy_address))
        assert broker.metric("reput_proxy_starts_total") == 2


def test_a_stop_of_the_broker_drains_it_first(tmp_path: Path) -> None:
    """A receive that waits ends with its status, and the process with 0."""

    async def work(broker: BrokerWithProxy) -> None:
        async with client_of(broker.proxy_address) as client:
            await client.send(message("orders", b"x", "ID"))
            [got] = await client.receive_all("orders", "billing", 1)
            await client.ack("billing", got)
            waiting = asyncio.ensure_future(client.receive("orders", "billing", wait_s=20))
            waits = "reput_proxy_waiting_receives"
            await asyncio.to_thread(wait_until, lambda: broker.metric(waits) == 1)
            os.kill(broker.pid, signal.SIGTERM)
            status, _ = await waiting
            assert status.code == Code.MESSAGE_NOT_FOUND

    with running(tmp_path) as broker:
        pid = broker.wait_proxy()
        asyncio.run(work(broker))
        wait_until(lambda: not broker.running)
        assert not is_there(pid)
        assert not broker.events("proxy_ended"), broker.log
        assert not broker.events("proxy_killed"), broker.log
        assert "Traceback" not in broker.log


def test_a_killed_broker_leaves_no_proxy_behind(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        for starts in range(1, 4):
            pid = broker.wait_proxy(starts)
            broker.kill()
            wait_until(lambda: not is_there(pid), within_s=3.0)  # noqa: B023 - called at once
            broker.start()
        broker.wait_proxy(4)
        asyncio.run(send_and_receive(broker.proxy_address))


def test_it_has_the_tls_of_the_broker(tmp_path: Path) -> None:
    """Also after the certificate was renewed by another authority: its connection trusts what the broker's file has."""
    files = make_tls_files(tmp_path)
    options = {"REPUT_TLS__MODE": "required", "REPUT_TLS__HTTP_MODE": "off", "REPUT_TLS__CERT": str(files.broker)}
    with running(tmp_path, options) as broker:
        broker.wait_proxy()
        trusted = grpc.ssl_channel_credentials(files.ca.read_bytes())
        asyncio.run(send_and_receive(broker.proxy_address, credentials=trusted))

        files.broker.write_bytes(files.foreign.read_bytes())  # renewed, by another authority
        wait_until(lambda: bool(broker.events("tls_reloaded")))
        trusted = grpc.ssl_channel_credentials(files.other_ca.read_bytes())
        asyncio.run(send_and_receive(broker.proxy_address, credentials=trusted))


def test_clients_show_a_certificate_where_the_broker_wants_one(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    options = {
        "REPUT_TLS__MODE": "required",
        "REPUT_TLS__HTTP_MODE": "off",
        "REPUT_TLS__CERT": str(files.broker),
        "REPUT_TLS__CA": str(files.ca),
        "REPUT_TLS__CLIENT_CERT": "required",
    }
    with running(tmp_path, options) as broker:
        broker.wait_proxy()
        ca, client = files.ca.read_bytes(), files.client.read_bytes()
        with pytest.raises(grpc.aio.AioRpcError):
            asyncio.run(send_and_receive(broker.proxy_address, credentials=grpc.ssl_channel_credentials(ca)))
        own = grpc.ssl_channel_credentials(ca, private_key=client, certificate_chain=client)
        asyncio.run(send_and_receive(broker.proxy_address, credentials=own))


def test_it_has_the_users_of_the_broker(tmp_path: Path) -> None:
    """Also the administrator of the configuration, who is in no file; secrets are in no argument."""
    secret = "a-secret-of-the-administrator"
    options = {"REPUT_ACCESS__ENABLED": "true", "REPUT_ACCESS__ADMIN_SECRET": secret}
    with running(tmp_path, options) as broker:
        pid = broker.wait_proxy()
        asyncio.run(send_and_receive(broker.proxy_address, metadata=signed_by("admin", secret)))
        for metadata in ({}, signed_by("admin", "another-secret")):
            with pytest.raises(AssertionError, match="UNAUTHORIZED"):
                asyncio.run(send_and_receive(broker.proxy_address, metadata=metadata))
        assert secret not in Path(f"/proc/{pid}/cmdline").read_text()
        assert secret not in Path(f"/proc/{pid}/environ").read_text()


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
def test_without_the_extra_the_broker_does_not_start_and_says_why(tmp_path: Path, missing: str) -> None:
    program = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *a: None if name == {missing!r} else find(name, *a)\n"
        "from reput_cli.main import main; sys.argv[0] = 'reput'; sys.exit(main())"
    )
    options = {"REPUT_PROXY_PORT": str(free_port()), "REPUT_PORT": "0"}
    for arguments in (["serve"], ["serve", "--check"]):
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments, "--data-dir", str(tmp_path / "data")],
            env={**os.environ, **options},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode != 0
        assert "pip install 'reput[grpc]'" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_is_reported_at_the_start(tmp_path: Path) -> None:
    broker = BrokerWithProxy(tmp_path / "data")
    with socket.socket() as other:
        other.bind(("127.0.0.1", broker.proxy_port))
        other.listen()
        broker.start()
        assert broker.wait(60) != 0
    assert str(broker.proxy_port) in broker.events("broker_failed")[0]["detail"]
