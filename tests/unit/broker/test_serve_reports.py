"""Reports to systemd: what is sent, when, and when the watchdog is not fed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from reput_broker.observe.health import BrokerState, Health, StoreHealth
from reput_broker.serve import ServiceManager
from support.broker_process import BrokerProcess

UNIT = Path(__file__).parents[3] / "conf" / "systemd" / "reput.service"


@pytest.fixture
def manager_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(30)
        yield bound


def reports(bound: socket.socket) -> list[str]:
    """Return what has been received so far."""
    bound.setblocking(False)
    found = []
    try:
        while True:
            found.append(bound.recv(4096).decode())
    except BlockingIOError:
        return found


def received(bound: socket.socket, first_line: str) -> dict[str, str]:
    """Wait for a report that begins with a line; return its values."""
    while True:
        lines = bound.recv(4096).decode().splitlines()
        if lines[0] == first_line:
            return dict(line.split("=", 1) for line in lines)


async def run_for(manager: ServiceManager, health: Health, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await manager.run(health)


def test_a_long_start_asks_for_more_time_until_it_is_done(
    manager_socket: socket.socket, autojump_clock: MockClock
) -> None:
    async def start() -> None:
        with ServiceManager({"NOTIFY_SOCKET": manager_socket.getsockname()}) as manager:
            await run_for(manager, Health(), 25)
            assert reports(manager_socket) == 3 * ["EXTEND_TIMEOUT_USEC=30000000\nSTATUS=recovering the store"]
            manager.reloading()  # a SIGHUP meanwhile makes no server ready
            manager.reloaded("")
            manager.ready("serving")
            await run_for(manager, Health(), 25)
            manager.stopping()
            manager.reloading()
        assert reports(manager_socket) == ["READY=1\nSTATUS=serving", "STOPPING=1\nSTATUS=stopping"]

    trio.run(start, clock=autojump_clock)


def test_the_watchdog_is_fed_twice_an_interval_until_the_log_cannot_be_written(
    manager_socket: socket.socket, autojump_clock: MockClock
) -> None:
    environment = {"NOTIFY_SOCKET": manager_socket.getsockname(), "WATCHDOG_USEC": "4000000"}

    async def serve() -> None:
        health = Health()
        health.state = BrokerState.RUNNING
        with ServiceManager(environment) as manager:
            manager.ready("")
            reports(manager_socket)
            await run_for(manager, health, 5)
            assert reports(manager_socket) == 3 * ["WATCHDOG=1"]
            health.state = BrokerState.DRAINING
            await run_for(manager, health, 1)
            assert reports(manager_socket) == ["WATCHDOG=1"]
            health.state = BrokerState.READONLY
            await run_for(manager, health, 60)
            assert reports(manager_socket) == []
            # Its open files may be the only copy, which a restart would lose.
            StoreHealth(health).note("store_directory_lost", {"reason": "it was deleted"})
            await run_for(manager, health, 1)
            assert reports(manager_socket) == ["WATCHDOG=1"]
        with ServiceManager({**environment, "WATCHDOG_PID": str(os.getpid() + 1)}) as other:
            other.ready("")
            reports(manager_socket)
            await run_for(other, health, 60)
            assert reports(manager_socket) == []

    trio.run(serve, clock=autojump_clock)


@pytest.mark.parametrize("address", ["", "vsock:2:1", "/nowhere/notify"])
def test_a_server_without_a_manager_that_can_be_reached_serves(address: str, autojump_clock: MockClock) -> None:
    with ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "x"}) as manager:
        manager.ready("")
        trio.run(run_for, manager, Health(), 30, clock=autojump_clock)


def test_an_abstract_address() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        name = f"reput-test-{os.getpid()}"
        bound.bind(f"\0{name}")
        with ServiceManager({"NOTIFY_SOCKET": f"@{name}"}) as manager:
            manager.ready("serving")
        assert reports(bound) == ["READY=1\nSTATUS=serving"]


def test_a_broker_reports_its_start_reloads_and_stop(manager_socket: socket.socket, tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": manager_socket.getsockname(), "WATCHDOG_USEC": "200000"}
    broker = BrokerProcess(tmp_path / "data", environment=environment)
    broker.start()
    try:
        assert broker.address in received(manager_socket, "READY=1")["STATUS"]
        received(manager_socket, "WATCHDOG=1")
        before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        os.kill(broker.pid, signal.SIGHUP)
        assert int(received(manager_socket, "RELOADING=1")["MONOTONIC_USEC"]) >= before_us
        assert received(manager_socket, "READY=1")["STATUS"] == "serving; the configuration was read again"
        assert broker.terminate() == 0
        received(manager_socket, "STOPPING=1")
    finally:
        broker.kill()


def test_the_unit_starts_the_broker_with_options_that_it_has() -> None:
    unit = UNIT.read_text(encoding="utf-8")
    start = re.search(r"^ExecStart=/\S+/reput (.*)$", unit, re.MULTILINE)
    assert start is not None
    assert start[1] == "serve --config /etc/reput/broker.toml --data-dir /var/lib/reput"
    grace_s, stop_s = 20, int(re.findall(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)[0])
    assert stop_s > grace_s + 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "reput.service"
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    unit.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    # Before version 253 systemd does not know the type.
    lines = [line for line in done.stderr.splitlines() if "reput.service" in line and "notify-reload" not in line]
    assert lines == []
