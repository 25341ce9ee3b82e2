"""Apache Kafka in KRaft mode, one process as broker and controller, with the options of its own start script."""

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

_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


def settings(durability: Durability) -> str:
    """Return the settings that differ from the defaults."""
    flush = "" if durability == "page_cache" else ", log.flush.interval.messages=1"
    return f"KRaft, heap 1 GiB (its script's){flush}"


def version() -> str:
    """Return the version."""
    return next(fetch.jars("kafka").glob("kafka-clients-*.jar")).stem.rsplit("-", 1)[1]


@contextmanager
def start(directory: Path, durability: Durability) -> Iterator[Server]:
    """Format the directory and run kafka.Kafka."""
    libs = fetch.jars("kafka")
    port, controller_port = free_port(), free_port()
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.segment.delete.delay.ms": "1000",
    }
    if durability == "flushed":
        lines["log.flush.interval.messages"] = "1"
    config = directory / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    java = [fetch.java(), "-cp", f"{libs}/*", "-Dlog4j2.level=ERROR"]
    formatted = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", config],
        capture_output=True,
        text=True,
        check=False,
    )
    if formatted.returncode:
        raise Missing(f"its directory could not be formatted: {formatted.stderr[-300:]}")
    environment = {"PATH": os.environ["PATH"]}
    with running([*java, *_JVM, "kafka.Kafka", config], directory, port, environment) as server:
        yield server
