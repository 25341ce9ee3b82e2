"""`reput proxy` in its own process, for tests that kill it."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.broker_process import free_port
from support.waiting import wait_until


class ProxyProcess:
    """One process; `log` is what it has written. `command` is what stands before `proxy`, the installed `reput`."""

    def __init__(
        self,
        directory: Path,
        server: str,
        *arguments: str,
        command: Sequence[str] = (sys.executable, "-m", "reput_cli"),
    ) -> None:
        self.port, self.http_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = directory / "proxy.log"
        ports = ["--port", str(self.port), "--http-port", str(self.http_port)]
        self._command = [*command, "proxy", "--server", server, *ports, *arguments]
        self.start()

    def start(self) -> None:
        """Start the process, again after it has ended."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()

    def page(self, path: str) -> tuple[int, str]:
        """Return a page; the status is 0 while the proxy does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def kill(self) -> None:
        """End the process with SIGKILL, in any state."""
        self.process.kill()
        self.process.wait()

    def wait_ready(self) -> None:
        """Wait until the proxy serves, and reaches a broker."""
        wait_until(lambda: self.page("/readyz")[0] == 200, what=lambda: self.log)


@contextmanager
def running_proxy(directory: Path, server: str, *arguments: str, **more: Sequence[str]) -> Iterator[ProxyProcess]:
    """Run a proxy while the block runs; arguments as of `ProxyProcess`."""
    proxy = ProxyProcess(directory, server, *arguments, **more)
    try:
        yield proxy
    finally:
        proxy.kill()
