"""Redis from Debian, with its append-only file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers import fetch
from peers.servers.base import Server, running
from peers.workloads import Durability
from servers import free_port


def settings(durability: Durability) -> str:
    """Return the settings that differ from the defaults."""
    return f"appendonly yes, appendfsync {_fsync(durability)}, save ''"


def version() -> str:
    """Return the version."""
    root = fetch.debian()
    said = subprocess.run(
        [root / "usr/bin/redis-server", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=fetch.debian_environment(),
    ).stdout
    return said.split("v=")[1].split()[0]


@contextmanager
def start(directory: Path, durability: Durability) -> Iterator[Server]:
    """Run redis-server."""
    port = free_port()
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": _fsync(durability),
        "save": "",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    program = fetch.debian() / "usr/bin/redis-server"
    with running([program, *arguments], directory, port, fetch.debian_environment()) as server:
        yield server


def _fsync(durability: Durability) -> str:
    return "everysec" if durability == "page_cache" else "always"
