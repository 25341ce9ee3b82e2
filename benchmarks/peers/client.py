"""Controls a client process."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from types import TracebackType
from typing import Self

from peers import fetch
from peers.job import Job, Result
from peers.systems import System


class Client:
    """A client process for one system, which runs all jobs of that system."""

    def __init__(self, system: System) -> None:
        self._process = subprocess.Popen(
            [fetch.clients() / "bin/python", "-m", "peers.worker", *system.driver],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=fetch.clients_environment(),
        )
        self._answered: Result | None = None

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def prepare(self, job: Job) -> None:
        """Send a job to the process; return when it is ready to start, or has already failed."""
        self._answered = None
        self._write(json.dumps(asdict(job)))
        line = self._read()
        if line != "ready\n":
            self._answered = Result.of_line(line) if line else Result(fault="its client process ended")

    def go(self) -> None:
        """Start the job; one that tails the log has already started."""
        if self._answered is None:
            self._write("go")

    def result(self) -> Result:
        """Wait for the job's end."""
        if self._answered is None:
            line = self._read()
            self._answered = Result.of_line(line) if line else Result(fault="its client process ended")
        return self._answered

    def do(self, job: Job) -> Result:
        """Run a job at once: `create`, `drop` or `consume`."""
        self.prepare(job)
        self.go()
        return self.result()
