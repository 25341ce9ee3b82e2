"""NATS with JetStream, the server's binary from PyPI (Debian's is older than `sync_interval: always`)."""

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
    return "file storage, sync_interval " + ("2m (default)" if durability == "page_cache" else "always")


def version() -> str:
    """Return the version."""
    said = subprocess.run([_program(), "--version"], capture_output=True, text=True, check=True).stdout
    return said.rsplit("v", 1)[1].strip()


@contextmanager
def start(directory: Path, durability: Durability) -> Iterator[Server]:
    """Run nats-server."""
    port = free_port()
    sync = "" if durability == "page_cache" else "sync_interval: always"
    config = directory / "nats.conf"
    config.write_text(f"listen: 127.0.0.1:{port}\nmax_payload: 8MB\njetstream {{ store_dir: {directory}\n{sync} }}\n")
    with running([_program(), "-c", config], directory, port) as server:
        yield server


def _program() -> Path:
    return fetch.clients() / "bin/nats-server"
