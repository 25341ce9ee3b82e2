"""RabbitMQ from Debian: streams by its plugin, or queues by AMQP."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers import fetch
from peers.servers.base import Missing, Server, running
from peers.workloads import Durability
from servers import free_port


def settings(durability: Durability) -> str:
    """Return the settings that differ from the defaults.

    Raises:
        Missing: streams cannot be had with a sync before the confirm.
    """
    if durability == "flushed":
        raise Missing("a stream confirms before it is synced; there is no option for it")
    return "plugin rabbitmq_stream"


def version() -> str:
    """Return the version."""
    return _home().name.rsplit("-", 1)[1]


@contextmanager
def start(directory: Path, durability: Durability) -> Iterator[Server]:
    """Run epmd and rabbitmq-server; the address is that of streams."""
    settings(durability)
    with _started(directory, free_port(), port := free_port(), ready=port) as server:
        yield server


@contextmanager
def start_queues(directory: Path, _durability: Durability) -> Iterator[Server]:
    """Run the same; the address is that of AMQP, whose clients choose the durability, by confirms."""
    with _started(directory, port := free_port(), free_port(), ready=port) as server:
        yield server


@contextmanager
def _started(directory: Path, amqp_port: int, port: int, ready: int) -> Iterator[Server]:
    root = fetch.debian()
    epmd_port, dist_port = free_port(), free_port()
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp_port}\n"
        f"stream.listeners.tcp.1 = 127.0.0.1:{port}\n"
        "stream.advertised_host = 127.0.0.1\n"
        f"stream.advertised_port = {port}\n"
    )
    (directory / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    erlang = root / "usr/lib/erlang"
    environment = {
        **fetch.debian_environment(),
        "PATH": f"{erlang}/bin:{os.environ['PATH']}",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
    }
    epmd = subprocess.Popen([erlang / "bin/epmd", "-port", str(epmd_port), "-address", "127.0.0.1"], env=environment)
    try:
        with running([_home() / "sbin/rabbitmq-server"], directory, ready, environment) as server:
            yield server
    finally:
        epmd.kill()
        epmd.wait()


def _home() -> Path:
    return next((fetch.debian() / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
