"""`reput doctor proxy` names each fault of a proxy, and finds none in one that serves."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_cli.doctor.broker import check_proxy
from reput_cli.doctor.findings import State
from reput_cli.root import root
from reput_protocol.exit_codes import ExitCode
from support.broker_process import free_port
from support.grpc_client import client_of, in_asyncio, message, proxy_of
from support.tls_files import make_tls_files


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in {"REPUT_USER", "REPUT_SECRET_FILE", *(name for name in os.environ if name.startswith("REPUT_"))}:
        monkeypatch.setenv(name, "")  # so that what a command sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


async def examine(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the findings by check, while the proxy runs in this event loop."""
    words = ["doctor", "proxy", "--timeout", "20s", *arguments, "-O", "json"]
    run: Callable[[], Any] = lambda: CliRunner().invoke(  # noqa: E731
        root, words, catch_exceptions=False, standalone_mode=False
    )
    done = await asyncio.to_thread(run)
    return done.return_value, {finding["check"]: finding for finding in json.loads(done.stdout)}


def states(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {check: finding["state"] for check, finding in found.items()}


@in_asyncio
async def test_a_proxy_that_serves_has_no_fault(address: str, topic: str) -> None:
    async with proxy_of(address) as proxy, client_of(proxy.address) as client:
        await client.send(message(topic, b"x", "ID"))
        code, found = await examine(proxy.address, "--topic", topic)
        assert states(found) == dict.fromkeys(["connection", "users", "brokers", "addresses"], "ok")
        assert proxy.address in found["addresses"]["found"]
        assert code == ExitCode.DONE
        code, found = await examine(proxy.address)
        assert (code, found["brokers"]["state"]) == (ExitCode.DONE, "ok")


def test_nothing_listens() -> None:
    code, found = asyncio.run(examine(f"127.0.0.1:{free_port()}", "--timeout", "1s"))
    assert code == ExitCode.CANNOT_CONNECT
    assert "nothing listens" in found["connection"]["found"]


def test_a_host_without_a_port() -> None:
    """The broker's port was checked, where no proxy is."""
    _, found = asyncio.run(examine("127.0.0.254", "--timeout", "1s"))
    assert "127.0.0.254:8081" in found["connection"]["found"]


def test_a_topic_that_does_not_exist(tmp_path: Path) -> None:
    """A mistake in its name was no finding."""
    config = BrokerConfig.model_validate(
        {"data_dir": tmp_path, "port": 0, "http_port": None, "topics": {"auto_create": False}}
    )

    async def work(address: str) -> None:
        async with proxy_of(address) as proxy:
            for arguments, state in (((), "ok"), (("--topic", "ordrs"), "warning")):
                _, found = await examine(proxy.address, *arguments)
                assert found["brokers"]["state"] == state
            assert "ordrs" in found["brokers"]["found"]

    with BackgroundBroker(config) as broker:
        asyncio.run(work(broker.address))


def test_another_server_at_the_port(address: str) -> None:
    """The broker itself: a usual mistake."""
    code, found = asyncio.run(examine(address, "--timeout", "2s"))
    assert code == ExitCode.CANNOT_CONNECT
    assert "takes no gRPC calls" in found["connection"]["found"]


@in_asyncio
async def test_a_proxy_without_a_broker() -> None:
    async with proxy_of(f"127.0.0.1:{free_port()}") as proxy:
        code, found = await examine(proxy.address)
        assert code == ExitCode.FAILED
        assert "does not reach a broker" in found["brokers"]["found"]


@in_asyncio
async def test_an_advertised_address_that_no_client_reaches(address: str, topic: str) -> None:
    async with proxy_of(address, advertise=f"127.0.0.1:{free_port()}") as proxy:
        code, found = await examine(proxy.address)
        assert code == ExitCode.FAILED
        assert "--advertise" in found["addresses"]["next"]


@in_asyncio
async def test_users(address: str, tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"users": {"alice": {"secret": "the-secret-of-alice"}}}))
    users.chmod(0o600)
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("the-secret-of-alice")
    wrong.write_text("another-secret-of-hers")
    async with proxy_of(address, users=users) as proxy:
        code, found = await examine(proxy.address)
        assert code == ExitCode.NOT_AUTHORISED
        assert found["users"]["state"] == "fault"
        for file, expected in ((wrong, ExitCode.NOT_AUTHORISED), (secret, ExitCode.DONE)):
            code, found = await examine(proxy.address, "--user", "alice", "--secret-file", str(file))
            assert code == expected, found
        assert found["users"]["found"] == "requests need a user"


@in_asyncio
async def test_tls(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_tls_files(tmp_path)
    async with proxy_of(address, tls_cert=files.broker) as proxy:
        code, found = await examine(proxy.address, "--tls-ca", str(files.ca))
        assert code == ExitCode.DONE, found
        code, found = await examine(proxy.address, "--timeout", "2s")
        assert code == ExitCode.CANNOT_CONNECT
        assert "--tls-ca" in found["connection"]["next"]
        monkeypatch.setenv("SSL_CERT_FILE", str(files.other_ca))
        code, found = await examine(proxy.address, "--tls", "--timeout", "2s")
        assert code == ExitCode.CANNOT_CONNECT
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))  # as an authority of the system
        code, found = await examine(proxy.address, "--tls")
        assert code == ExitCode.DONE, found


def test_the_state_of_the_proxy_of_a_broker() -> None:
    def finding(**proxy: Any) -> list[tuple[State, str]]:
        return [(each.state, each.found) for each in check_proxy({"proxy": {"port": 8081, **proxy}})]

    assert [*check_proxy({})] == []
    assert finding(ready=False, starts=1) == [], "the check of the broker's health says it"
    assert finding(ready=True, starts=1) == [(State.OK, "serves gRPC clients at port 8081")]
    [(state, text)] = finding(ready=True, starts=3)
    assert (state, text) == (State.WARNING, "its process has ended 2 times since the broker's start")
