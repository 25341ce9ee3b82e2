"""One broker on a machine of its own: a namespace, a small disk, a clock that can be set, a process."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cluster_faults.network import USER, Unavailable, address_of, inside
from support.broker_process import tail_of
from support.mounts import try_to_mount, unmount

PORT: Final = 10911
HTTP_PORT: Final = 10913
_DISK: Final = 320 << 20
_BALLAST: Final = "ballast"
_ENTRY: Final = Path(__file__).with_name("broker_entry.py")
_READY_S: Final = 60.0


class Machine:
    """A machine `b0`, `b1`, ... with a broker.

    Args:
        name: of its namespace, which exists.
        directory: gets `NAME/`, a file system of its own, and `NAME.log`.
        events: where the broker's history goes.
        environment: `REPUT_...` options.
    """

    def __init__(self, name: str, directory: Path, events: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.number = int(name[1:])
        self.address = f"{address_of(name)}:{PORT}"
        self.log_path = directory / f"{name}.log"
        self.is_frozen = False
        self._events = events / f"{name}.jsonl"
        self._disk = directory / name
        self._disk.mkdir()
        if not try_to_mount(self._disk, _DISK):
            raise Unavailable(f"a tmpfs cannot be mounted on {self._disk}")
        self._clock = directory / f"{name}.clock"
        self._clock.write_bytes(bytes(8))
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> Path:
        """The broker's directory."""
        return self._disk / "store"

    @property
    def is_up(self) -> bool:
        """Whether its process runs, frozen or not."""
        return self._process is not None

    def start(self) -> None:
        """Start the broker; does not wait for it."""
        assert self._process is None, "already started"
        entry = [sys.executable, str(_ENTRY), "--name", self.name, "--history", str(self._events)]
        entry += ["--clock", str(self._clock), "serve", "--data-dir", str(self.store)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*inside(self.name), *entry], stdout=log, stderr=log, env=self._environment
            )

    def wait_ready(self, deadline_s: float = _READY_S) -> None:
        """Wait until it serves, in whatever role. The way from the runner must not be cut."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            if self.died() is not None:
                break
            if self.page("readyz?verbose").get("state") in ("running", "readonly"):
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.name} is not ready within {deadline_s:g} s:\n{self.log_tail()}")

    def page(self, name: str) -> dict[str, Any]:
        """Return a JSON page of its HTTP port; empty if it does not answer."""
        url = f"http://{address_of(self.name)}:{HTTP_PORT}/{name}"
        user = base64.b64encode(":".join(USER.values()).encode()).decode()
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {user}"})
        with suppress(OSError, ValueError):
            try:
                with urllib.request.urlopen(request, timeout=1.0) as answer:
                    page: dict[str, Any] = json.load(answer)
            except urllib.error.HTTPError as error:  # 503 with a body
                page = json.load(error)
            return page
        return {}

    def died(self) -> int | None:
        """Return the exit code of a process that has ended by itself."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """End the process with SIGKILL, in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, self.is_frozen = None, False

    def end(self, *, keep_store: bool) -> None:
        """End the process and unmount the disk; what it had stays as `NAME.store` if it is to be kept."""
        self.kill()
        if keep_store and self.store.exists():
            shutil.copytree(self.store, self._disk.with_name(f"{self.name}.store"))
        unmount(self._disk)

    def stop(self, deadline_s: float = 40.0) -> int | None:
        """Ask the process to drain and to end; return its exit code, None if it had to be killed."""
        assert self._process is not None
        self._process.terminate()
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(deadline_s)
        self.kill()
        return code

    def freeze(self) -> None:
        """Let it stand still."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.is_frozen = True

    def thaw(self) -> None:
        """Resume it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def fill_disk(self) -> None:
        """Leave no byte of its disk."""
        with (self._disk / _BALLAST).open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def empty_disk(self) -> None:
        """Give the room back."""
        (self._disk / _BALLAST).unlink(missing_ok=True)

    def set_clock(self, offset_s: float) -> None:
        """Let the broker's wall clock differ from that of the machine, from now on."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("<q", int(offset_s * 1e9)))

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of its log."""
        return tail_of(self.log_path, lines)
