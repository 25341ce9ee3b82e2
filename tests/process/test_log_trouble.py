"""A broker whose log cannot be written, or is not read: it serves, reloads and stops orderly."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.broker_process import SMALL_INDEX, free_port
from support.waiting import wait_until

pytestmark = pytest.mark.process

DEADLINE_S = 30.0


def _full() -> tuple[int, Callable[[], None]]:
    return os.open("/dev/full", os.O_WRONLY), lambda: None


def _closed_pipe() -> tuple[int, Callable[[], None]]:
    reading, writing = os.pipe()
    return writing, lambda: os.close(reading)


def _unread_pipe() -> tuple[int, Callable[[], None]]:
    _, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    return writing, lambda: None


def _closed_terminal() -> tuple[int, Callable[[], None]]:
    master, slave = pty.openpty()
    return slave, lambda: os.close(master)


@pytest.mark.parametrize("trouble", [_full, _closed_pipe, _unread_pipe, _closed_terminal])
def test_trouble_with_the_log_is_not_the_broker_s(
    trouble: Callable[[], tuple[int, Callable[[], None]]], tmp_path: Path
) -> None:
    log, begin = trouble()
    http_port = free_port()
    command = [sys.executable, "-m", "reput_cli", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--port", "0", "--http-port", str(http_port)]
    broker = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **SMALL_INDEX}
    )
    os.close(log)
    try:
        _wait_until(broker, lambda: _page(http_port, "/readyz") == "ok\n")
        begin()
        for _ in range(30):  # a line of the log each, unless two are one
            broker.send_signal(signal.SIGHUP)
            assert _page(http_port, "/livez") == "ok\n"
        page = _page(http_port, "/metrics")
        assert "reput_config_reload_success 1" in page
        if trouble is not _unread_pipe:  # there the lines still wait
            _wait_until(broker, lambda: "log_events_dropped_total 0\n" not in _page(http_port, "/metrics"))
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(DEADLINE_S) == 0
    finally:
        broker.kill()
        broker.wait()


def test_no_file_of_the_store_takes_the_place_of_a_closed_stderr(tmp_path: Path) -> None:
    http_port = free_port()
    command = [sys.executable, "-m", "reput_cli", "serve", "--data-dir", str(tmp_path / "data")]
    shell = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *command, "--port", "0", "--http-port", str(http_port)]
    broker = subprocess.Popen(shell, env={**os.environ, **SMALL_INDEX})
    try:
        _wait_until(broker, lambda: _page(http_port, "/readyz") == "ok\n")
        places = [os.readlink(f"/proc/{broker.pid}/fd/{number}") for number in range(3)]
        assert places == [os.devnull] * 3
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(DEADLINE_S) == 0
    finally:
        broker.kill()
        broker.wait()


def _page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as answer:
        text: str = answer.read().decode()
    return text


def _wait_until(broker: subprocess.Popen[bytes], is_so: Callable[[], bool]) -> None:
    def holds() -> bool:
        assert broker.poll() is None, "the broker has ended"
        with suppress(OSError):
            return is_so()
        return False

    wait_until(holds, DEADLINE_S)
