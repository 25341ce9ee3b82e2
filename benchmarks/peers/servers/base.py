"""Start a server process and measure it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from reput_protocol.wire.signature import Credentials

READY_DEADLINE_S = 60.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """A system is not available here; the text has what is missing."""


@dataclass(frozen=True, slots=True)
class Security:
    """What a server has besides plain connections: TLS for clients that begin with it, and users."""

    certificate: Path
    key: Path
    user: Credentials | None = None
    """The administrator. Every request must then be signed; without one, none needs a user."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    address: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor seconds used so far, including those of its children."""
        ticks = 0
        for pid in (self.pid, *_children(self.pid)):
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / _CLOCK_TICKS

    def memory_mib(self, field: str) -> float:
        """Return a line of `/proc/PID/status`, such as VmRSS or RssAnon, in MiB, with the children's."""
        total = 0.0
        for pid in (self.pid, *_children(self.pid)):
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith(f"{field}:"):
                        total += int(line.split()[1]) / 1024
        return total


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children + [grandchild for child in children for grandchild in _children(child)]


@contextmanager
def running(
    arguments: Sequence[str | Path], directory: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a program until the block ends; it is ready when its port accepts connections. Its output is `server.log`.

    Raises:
        Missing: it ended at once or does not accept connections; the text has the last lines of its output.
    """
    log_path = directory / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            arguments,
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(directory), **(environment or {})},
        )
    try:
        _wait_for_port(port, process, log_path)
        yield Server(f"127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.perf_counter() + READY_DEADLINE_S
    while time.perf_counter() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    tail = log_path.read_text(errors="replace")[-400:].strip()
    raise Missing(f"it did not answer on port {port}: {tail}")
