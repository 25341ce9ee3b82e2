"""A real etcd on loopback, for tests and measurements of failover."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

MISSING = "" if shutil.which("etcd") else "etcd is not installed (apt: etcd-server)"
"""Why there is no etcd; empty if there is one."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Etcd:
    """A real etcd of one member.

    Args:
        path: for its directory and log.
        scheme, options: of its client port.
    """

    def __init__(self, path: Path, *, scheme: str = "http", options: Sequence[str] = ()) -> None:
        self.path = path
        self._options = options
        self.address = f"{scheme}://127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"
        self._log = path / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = self._popen(log)
        self._wait()

    def _popen(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                "etcd", "--data-dir", str(self.path / "etcd"), "--name", "one",
                "--listen-client-urls", self.address, "--advertise-client-urls", self.address,
                "--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer,
                "--initial-cluster", f"one={self._peer}", "--unsafe-no-fsync",
                "--heartbeat-interval", "20", "--election-timeout", "200", *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )  # fmt: skip

    def _wait(self) -> None:
        port = int(self.address.rpartition(":")[2])
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stop the process without ending it: connections stay, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
