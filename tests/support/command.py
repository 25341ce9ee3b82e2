"""`reput ...` in this process: what its caller sees of it, without the start of another Python.

Signals, terminals, closed pipes and `serve` need a process of their own: `[sys.executable, "-m", "reput_cli", ...]`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import patch

from reput_cli.main import main


def reput(*arguments: object, server: str | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with `text` as its standard input, 200 columns wide; `server` is passed as --server."""
    command = ["reput", *map(str, arguments), *(["--server", server] if server else [])]
    with ExitStack() as stack:
        stdin, stdout, stderr = (
            stack.enter_context(TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(3)
        )
        stdin.write(text)
        stdin.seek(0)
        with (
            patch.dict(os.environ, COLUMNS="200"),
            patch.object(sys, "argv", command),
            patch.object(sys, "stdin", stdin),
            patch.object(sys, "stdout", stdout),
            patch.object(sys, "stderr", stderr),
        ):
            try:
                main()
            except SystemExit as ended:
                status = ended.code
        assert isinstance(status, int)
        said = []
        for stream in (stdout, stderr):
            stream.seek(0)
            said.append(stream.read())
    return subprocess.CompletedProcess(command, status, *said)


class Cli:
    """Runs commands against a broker, and checks their exit codes.

    Args:
        server: the broker's address.
        words: what all commands begin with, such as `group`.
    """

    def __init__(self, server: str, *words: str) -> None:
        self.server = server
        self._words = words

    def __call__(self, *arguments: str, text: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command with `text` as its standard input."""
        done = reput(*self._words, *arguments, "--timeout", "30s", server=self.server, text=text)
        assert done.returncode == code, done
        return done

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the rows that a command prints."""
        rows: list[dict[str, Any]] = json.loads(self(*arguments, "-O", "json").stdout)
        return rows
