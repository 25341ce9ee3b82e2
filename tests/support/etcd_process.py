"""A real etcd, for tests and measurements of failover."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from support.broker_process import free_port

MISSING = "" if shutil.which("etcd") else "etcd is not installed (apt: etcd-server)"
"""Why there is no etcd; empty if there is one."""
_READY_S: Final = 30.0


class Etcd:
    """A real etcd of one member, on a directory that a restart finds again.

    Args:
        path: for its directory and log.
        address: its URL for clients; by default a free port of loopback.
        options: of its client port.
        wrapper: the start of the command, such as one that enters a network namespace.
    """

    def __init__(
        self, path: Path, address: str = "", *, options: Sequence[str] = (), wrapper: Sequence[str] = ()
    ) -> None:
        self.address = address or f"http://127.0.0.1:{free_port()}"
        peer = f"http://127.0.0.1:{free_port()}"
        self._command = [
            *wrapper, "etcd", "--data-dir", str(path / "etcd"), "--name", "one",
            "--listen-client-urls", self.address, "--advertise-client-urls", self.address,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"one={peer}", "--unsafe-no-fsync",
            "--heartbeat-interval", "20", "--election-timeout", "200", *options,
        ]  # fmt: skip
        self._log = path / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs, and wait until it accepts connections."""
        if self._process is not None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=log)
        host, _, port = self.address.rpartition("//")[2].rpartition(":")
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self._log.read_text()
                assert self._process.poll() is None, self._log.read_text()
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process without ending it: connections stay, and nothing is answered."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
