"""The measured processes: a broker with a new directory, and the echo server."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from peers.servers.base import Server

_READY_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process: its memory and processor time."""

    pid: int

    def private_kib(self) -> float:
        """Return the private memory of the process."""
        return self.memory_mib("RssAnon") * 1024

    def memory_mib(self, field: str) -> float:
        """Return a line of /proc/PID/status, such as VmRSS or RssAnon, in MiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise KeyError(field)

    def cpu_s(self) -> float:
        """Return the processor seconds used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100.0


@dataclass(frozen=True, slots=True)
class RunningBroker(RunningProcess):
    """A broker process: its addresses and metrics."""

    address: str
    http: str
    start_s: float
    directory: Path

    def status(self) -> dict[str, object]:
        """Return the broker's `/status` page."""
        with urllib.request.urlopen(f"{self.http}/status", timeout=5.0) as answer:
            page: dict[str, object] = json.load(answer)
            return page

    def metric(self, name: str) -> float:
        """Return the sum of all samples of a metric."""
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=5.0) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def histogram(self, name: str) -> dict[float, float]:
        """Return the number of observations up to each upper bound."""
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=5.0) as answer:
            lines = answer.read().decode().splitlines()
        start = f'{name}_bucket{{le="'
        found = (line.removeprefix(start).split('"} ') for line in lines if line.startswith(start))
        return {float(bound): float(count) for bound, count in found}

    def loop_delays(self) -> dict[float, float]:
        """Return how late the event loop was: the number of observations up to each upper bound, in seconds."""
        return self.histogram("reput_event_loop_delay_seconds")

    def loop_late_s(self, before: Mapping[float, float]) -> float:
        """Return an upper bound of how late the event loop was since `loop_delays` returned `before`."""
        more = {bound: count - before.get(bound, 0.0) for bound, count in self.loop_delays().items()}
        return next(bound for bound in sorted(more) if more[bound] == more[math.inf])

    def descriptors(self) -> int:
        """Return how many file descriptors the process has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def loop_faults(self) -> int:
        """Return the number of major page faults of the event loop's thread, each a wait for the disk."""
        fields = Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[9])


@contextmanager
def broker(flush: str, **options: str) -> Iterator[RunningBroker]:
    """Run `reput serve` on an empty directory until the block ends; `options` as in `LIMITS__CONNECTIONS="9"`."""
    with (
        tempfile.TemporaryDirectory(prefix="reput-bench-") as directory,
        broker_on(Path(directory), flush, **options) as running,
    ):
        yield running


@contextmanager
def broker_on(directory: Path, flush: str, **options: str) -> Iterator[RunningBroker]:
    """Run `reput serve` on a directory that is kept."""
    port, http_port = free_port(), free_port()
    arguments = ["serve", "--data-dir", str(directory), "--port", str(port), "--http-port", str(http_port)]
    started_at = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "reput_cli", *arguments],
        env={
            "PATH": "/usr/bin:/bin",
            "REPUT_STORE__FLUSH": flush,
            **{f"REPUT_{name}": value for name, value in options.items()},
        },
        stderr=subprocess.DEVNULL,
    )
    try:
        http = f"http://127.0.0.1:{http_port}"
        _wait_ready(f"{http}/readyz", process)
        yield RunningBroker(process.pid, f"127.0.0.1:{port}", http, time.perf_counter() - started_at, directory)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def brokers_side_by_side(number: int, flush: str) -> Iterator[Server]:
    """Run `reput serve --brokers NUMBER` until the block ends; its processor time is that of all."""
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as directory:
        address_file = Path(directory, "address")
        arguments = ["serve", "--brokers", str(number), "--data-dir", directory, "--port", "24911"]
        process = subprocess.Popen(
            [sys.executable, "-m", "reput_cli", *arguments, "--address-file", str(address_file)],
            env={"PATH": "/usr/bin:/bin", "REPUT_STORE__FLUSH": flush},
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.perf_counter() + _READY_DEADLINE_S
            while not address_file.exists():
                if process.poll() is not None or time.perf_counter() > deadline:
                    raise SystemExit("the brokers did not become ready; they need the ports from 24909 on")
                time.sleep(0.05)
            yield Server(address_file.read_text().strip(), process.pid)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def echo_server() -> Iterator[str]:
    """Run the echo server until the block ends; yield its address."""
    script = Path(__file__).with_name("echo_server.py")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.perf_counter() + _READY_DEADLINE_S
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the broker ended with {process.returncode} before it was ready")
        with suppress(OSError), urllib.request.urlopen(url, timeout=1.0) as answer:
            if answer.status == 200:
                return
        time.sleep(0.005)
    raise SystemExit("the broker did not become ready")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
