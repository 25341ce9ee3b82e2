"""Reput's broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from peers.servers.base import Server, free_port, running
from peers.workloads import Durability


def settings(durability: Durability) -> str:
    """Return the settings that differ from the defaults."""
    return f"store.flush={_flush(durability)}"


def version() -> str:
    """Return the version."""
    return metadata.version("reput")


@contextmanager
def start(directory: Path, durability: Durability) -> Iterator[Server]:
    """Run `reput serve`."""
    port, http_port = free_port(), free_port()
    ports = ["--port", str(port), "--http-port", str(http_port)]
    program = [sys.executable, "-m", "reput_cli", "serve", "--data-dir", str(directory / "data"), *ports]
    environment = {"REPUT_STORE__FLUSH": _flush(durability), "PYTHONPATH": ":".join(sys.path)}
    with running(program, directory, port, environment) as server:
        yield server


def _flush(durability: Durability) -> str:
    return "async" if durability == "page_cache" else "sync"
