"""A real broker in its own process, for tests that kill it.

`BrokerProcess` starts `reput serve` (or a stand-in module with the same arguments) on a given data directory, waits
until its health page says ready, and can kill it at any moment. Its log goes to a file that `log_tail` quotes when
something goes wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

READY_DEADLINE_S = 30.0
SMALL_INDEX = {"REPUT_STORE__INDEX_SLOTS": "5000", "REPUT_STORE__INDEX_ENTRIES": "20000"}
HOWEVER_FULL_THE_DISK = {"REPUT_STORE__DISK_CLEAN_FORCIBLY_RATIO": "1.0", "REPUT_STORE__DISK_WARNING_RATIO": "1.0"}


def _candidates() -> Iterator[int]:
    """Yield ports without end, below those of outgoing connections; each test worker has its own.

    One in sixteen, so that none is where a broker on another one listens as well (its port - 1035, - 2, + 1, + 2). A
    port comes again only after all others: until a process has taken it, a probe cannot see that it was given away.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = range(12_000 + 16 * worker, 32_000, 16 * workers)
    first = secrets.randbelow(len(own))
    return itertools.cycle([*own[first:], *own[:first]])


_ports = _candidates()


def free_port() -> int:
    """Return a loopback port that was free a moment ago and that no other test is about to take."""
    while True:
        port = next(_ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class BrokerProcess:
    """One broker process; also a context manager that ends it with SIGTERM, or SIGKILL if that does not help.

    Args:
        data_dir: the store directory, kept when the process ends.
        port, http_port: fixed ports, so that a restarted broker is found at the same address.
        environment: additional variables, mostly `REPUT_...` options.
        command: what stands before the arguments of `serve`; the installed `reput` by default.
        arguments: more of them.
        verb: `namesrv` starts a name server instead.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        http_port: int | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "reput_cli"),
        arguments: Sequence[str] = (),
        verb: str = "serve",
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.http_port = http_port or free_port()
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        store = {**SMALL_INDEX, **HOWEVER_FULL_THE_DISK} if verb == "serve" else {}
        self._environment = {**os.environ, **store, **(environment or {})}
        self._command = [*command, verb]
        self._arguments = [*arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """What clients dial."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; does not wait for it to become ready."""
        assert self._process is None, "already started"
        arguments = ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        arguments += ["--http-port", str(self.http_port), *self._arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *arguments], stdout=log, stderr=log, env=self._environment
            )

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> float:
        """Wait until `/readyz` answers 200 and return the seconds it took; raise if the process ends first."""
        assert self._process is not None
        started_at = time.monotonic()
        while time.monotonic() - started_at < deadline_s:
            status = self._process.poll()
            if status is not None:
                raise AssertionError(f"the broker ended with {status} before it was ready:\n{self.log_tail()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=1.0) as answer:
                    if answer.status == 200:
                        return time.monotonic() - started_at
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.01)
        raise AssertionError(f"the broker was not ready within {deadline_s} s:\n{self.log_tail()}")

    def trouble(self) -> str | None:
        """Return what the health page says if the broker is not running (any more), None if it is."""
        try:
            url = f"http://127.0.0.1:{self.http_port}/readyz?verbose"
            with urllib.request.urlopen(url, timeout=10.0) as answer:
                page = json.load(answer)
        except OSError as error:
            return str(error)
        return None if page["state"] == "running" else str(page)

    def kill(self) -> None:
        """End the process with SIGKILL, in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self, deadline_s: float = 30.0) -> int:
        """Ask the process to drain and end; return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise AssertionError(f"the broker did not end on SIGTERM:\n{self.log_tail()}") from error
        self._process = None
        return status

    def wait(self, deadline_s: float) -> int:
        """Wait for the process to end by itself and return its exit code."""
        assert self._process is not None
        status = self._process.wait(deadline_s)
        self._process = None
        return status

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log, for error messages."""
        return tail_of(self.log_path, lines)

    def __enter__(self) -> BrokerProcess:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            if kind is None:
                self.terminate()
            else:
                self.kill()


def tail_of(log: Path, lines: int) -> str:
    """Return the last lines of a log, for error messages."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"
