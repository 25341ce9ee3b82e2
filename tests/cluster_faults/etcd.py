"""etcd as a process on a machine of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Final

from cluster_faults.network import ETCD, address_of, inside

_READY_S: Final = 30.0


class Etcd:
    """One etcd on `directory`, which a restart finds again."""

    url = f"http://{address_of(ETCD)}:2379"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        options = {
            "data-dir": self._directory / "etcd",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": "http://127.0.0.1:2380",
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with (self._directory / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen([*inside(ETCD), "etcd", *arguments], stdout=log, stderr=log)
        until = time.monotonic() + _READY_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1.0) as answer:
                    if json.load(answer)["health"] == "true":
                        return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"etcd has not become healthy; see {self._directory / 'etcd.log'}")

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it stand still: it accepts connections, and answers nothing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
