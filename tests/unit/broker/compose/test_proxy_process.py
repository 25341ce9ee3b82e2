"""The process of a broker's proxy: its task, restarts and end. Small programs are run in place of proxies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs

from reput_broker import BrokerConfig
from reput_broker.compose import proxy_process
from reput_broker.compose.proxy_process import COMMAND, ProxyProcess, proxy_task
from reput_broker.config.errors import ConfigError
from reput_broker.observe.counters import ProxyCounters
from reput_broker.observe.health import Health
from reput_protocol.codes import AckLevel
from reput_protocol.proxy_process import ProxyTask

TASK = ProxyTask(server="127.0.0.1:10911", host="127.0.0.1", port=8081, drain_s=1.0)
READY = """
import sys
task = sys.stdin.readline()
print('{"type":"ready","address":"127.0.0.1:8081"}', flush=True)
print('{"type":"figures","sent":7,"requests":[["SendMessage","OK",7]],"reaches_broker":true}', flush=True)
"""
DRAINS = READY + "sys.exit(0 if sys.stdin.readline() == 'drain\\n' else 1)"
STAYS = READY + "import time; time.sleep(600)"


class Watched:
    """A proxy process and what it has reported."""

    def __init__(self, program: str, task: ProxyTask) -> None:
        self.counters, self.health = ProxyCounters(), Health()
        command = [sys.executable, "-c", program]
        self.process = ProxyProcess(task, self.counters, self.health, command=command)

    @property
    def check(self) -> tuple[bool, str]:
        found = self.health.checks["proxy"]
        return found.ok, found.detail

    async def tell(self, line: bytes) -> None:
        process = self.process._process
        assert process is not None
        assert process.stdin is not None
        await process.stdin.send_all(line)

    async def wait_ready(self) -> None:
        with trio.fail_after(60):
            while not self.counters.figures.sent:
                await trio.sleep(0.01)


@asynccontextmanager
async def running(program: str, task: ProxyTask = TASK) -> AsyncIterator[Watched]:
    watched = Watched(program, task)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.process.run)
        yield watched
        nursery.cancel_scope.cancel()


def test_no_module_of_the_working_directory_is_imported(tmp_path: Path) -> None:
    (tmp_path / "reput_proxy.py").write_text("print('imported')")
    ended = subprocess.run([*COMMAND], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "imported" not in ended.stdout
    assert "DecodeError" in ended.stderr, "it is the proxy, which has got no task"


def task_of(**options: Any) -> ProxyTask:
    return proxy_task(BrokerConfig.model_validate({"proxy_port": 8081, **options}), "127.0.0.1:10911", 8081)


@pytest.mark.trio
async def test_it_shows_what_the_process_reports_and_ends_it_by_its_drain() -> None:
    async with running(DRAINS) as watched:
        assert watched.check == (False, "starting")
        await watched.wait_ready()
        assert watched.check == (True, "127.0.0.1:8081")
        assert watched.counters.is_ready
        assert watched.counters.figures.requests == [("SendMessage", "OK", 7)]
        await watched.process.stop()
        assert watched.counters.starts == 1
        assert not watched.counters.is_ready


@pytest.mark.trio
async def test_its_check_fails_while_the_proxy_reaches_no_broker() -> None:
    away = """print('{"type":"figures","sent":7,"broker_error":"nothing listens"}', flush=True)\n"""
    back = """print('{"type":"figures","sent":8,"reaches_broker":true}', flush=True)\n"""
    async with running(f"{READY}import time\n{away}sys.stdin.readline()\n{back}time.sleep(600)") as watched:
        await watched.wait_ready()
        with trio.fail_after(60):
            while watched.counters.is_ready:
                await trio.sleep(0.01)
        assert watched.check == (False, "no broker: nothing listens")
        await watched.tell(b"\n")
        with trio.fail_after(60):
            while not watched.counters.is_ready:
                await trio.sleep(0.01)
        assert watched.check == (True, "127.0.0.1:8081")


@pytest.mark.trio
async def test_a_process_that_does_not_drain_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_process, "_END_S", 0.0)
    async with running(STAYS, msgspec.structs.replace(TASK, drain_s=0.0)) as watched:
        await watched.wait_ready()
        with trio.fail_after(60):
            await watched.process.stop()
        assert watched.process.status()["pid"] is None


@pytest.mark.trio
async def test_a_stop_while_the_task_is_written_drains_the_process_too() -> None:
    """The process reads nothing until the stop has begun, so that a large task fills its pipe."""
    slow = "import time; time.sleep(0.5)" + DRAINS
    task = msgspec.structs.replace(TASK, server="x" * 1_000_000)
    with capture_logs() as logged:
        async with running(slow, task) as watched:
            with trio.fail_after(60):
                while watched.process.status()["pid"] is None:
                    await trio.sleep(0.001)
                await watched.process.stop()
    assert not [event for event in logged if event["event"] == "proxy_killed"]


@pytest.mark.trio
async def test_a_process_that_hangs_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_process, "_SILENT_S", 0.2)
    monkeypatch.setattr(proxy_process, "_END_S", 0.0)
    monkeypatch.setattr(proxy_process, "PAUSE_S", 0.0)
    async with running(STAYS) as watched:
        with trio.fail_after(60):
            while watched.counters.starts < 3:
                await trio.sleep(0.01)


@pytest.mark.trio
async def test_a_stop_between_two_processes_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_process, "PAUSE_S", 600.0)
    async with running("import sys; sys.exit(3)") as watched:
        with trio.fail_after(60):
            while watched.check[1] != "it ended with 3; the log says why":
                await trio.sleep(0.01)
        with trio.fail_after(10):
            await watched.process.stop()


def test_it_connects_to_its_broker_or_to_the_name_servers() -> None:
    assert task_of().server == "127.0.0.1:10911"
    assert task_of(name_servers=["names1:9876", "names2:9876"], advertise="a:10911").server == (
        "names1:9876,names2:9876"
    )


def test_messages_are_copied_where_the_broker_has_copies() -> None:
    assert task_of().ack is AckLevel.FLUSHED
    assert task_of(ha={"in_sync_replicas": 2}).ack is AckLevel.REPLICATED
    assert task_of(ha={"role": "SYNC_MASTER"}).ack is AckLevel.REPLICATED


def test_tls_to_the_broker_follows_the_broker(tmp_path: Path) -> None:
    cert, ca = str(tmp_path / "cert.pem"), str(tmp_path / "ca.pem")
    plain = task_of()
    assert (plain.server_tls, plain.tls_cert) == (False, "")
    permissive = task_of(tls={"mode": "permissive", "cert": cert})
    assert (permissive.server_tls, permissive.tls_cert, permissive.tls_client_ca) == (False, cert, "")
    alone = task_of(tls={"mode": "required", "cert": cert, "ca": ca, "client_cert": "required"})
    assert (alone.server_tls, alone.server_pin, alone.server_ca, alone.tls_client_ca) == (True, cert, "", ca)
    cluster = task_of(advertise="a:10911", tls={"mode": "required", "cert": cert, "ca": ca, "connect": True})
    assert (cluster.server, cluster.server_tls) == ("a:10911", True)
    assert (cluster.server_pin, cluster.server_ca) == ("", ca)


def test_names_are_asked_with_the_tls_that_the_broker_has_for_them(tmp_path: Path) -> None:
    """A certificate that is pinned is that of the broker alone: name servers are not asked then."""
    cert, ca = str(tmp_path / "cert.pem"), str(tmp_path / "ca.pem")
    names = {"name_servers": ["names:9876"], "advertise": "a:10911"}

    def reached(**tls: Any) -> tuple[str, bool, str, str]:
        task = task_of(**names, tls={"cert": cert, **tls})
        return task.server, task.server_tls, task.server_pin, task.server_ca

    assert reached(mode="off") == ("names:9876", False, "", "")
    assert reached(mode="permissive") == ("names:9876", False, "", "")
    assert reached(mode="required") == ("127.0.0.1:10911", True, cert, "")
    for mode in ("permissive", "required"):
        assert reached(mode=mode, connect=True, ca=ca) == ("names:9876", True, "", ca)


def test_a_proxy_cannot_connect_with_tls_to_a_broker_without(tmp_path: Path) -> None:
    tls = {"mode": "off", "connect": True, "ca": str(tmp_path / "ca.pem")}
    assert BrokerConfig(tls=tls).proxy_port == "off"
    with pytest.raises(ConfigError, match=r"tls\.connect.*proxy_port"):
        BrokerConfig(tls=tls, proxy_port=8081)


def test_its_drain_is_within_the_grace_of_the_broker() -> None:
    assert task_of().drain_s == 10.0
    assert task_of(shutdown_grace="4s").drain_s == 4.0


@pytest.mark.parametrize("port", ["auto", "8081", -1, 65536, True])
def test_other_ports_are_refused(port: object) -> None:
    with pytest.raises(ConfigError, match="proxy_port"):
        BrokerConfig(proxy_port=port)


def test_its_routes_name_an_address_only_if_one_is_set() -> None:
    assert task_of().advertise is None
    assert task_of(proxy_advertise="").advertise is None
    assert task_of(proxy_advertise="proxy.example:443").advertise == "proxy.example:443"


@pytest.mark.parametrize("address", ["proxy.example", "proxy.example:0", ":8081"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="proxy_advertise"):
        BrokerConfig(proxy_port=8081, proxy_advertise=address)


def test_an_address_of_a_proxy_that_is_off_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"proxy_advertise.*proxy_port"):
        BrokerConfig(proxy_advertise="proxy.example:443")


def test_its_port_is_no_other_listeners() -> None:
    with pytest.raises(ConfigError, match="proxy_port"):
        BrokerConfig(proxy_port=10911)
