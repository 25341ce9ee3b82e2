"""Apache RocketMQ: a name server and a broker, with the options of their own start scripts for smaller machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers import fetch
from peers.servers.base import Server, free_port, running
from peers.workloads import Durability

# Those of `runbroker.sh` with a quarter of its 8 GiB of heap and a fifth of its direct memory, and without touching all
# pages of the heap at the start.
_BROKER = (
    *("-server", "-Xms2g", "-Xmx2g", "-Xmn1g", "-XX:MaxDirectMemorySize=3g"),
    *("-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25"),
    *("-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0"),
    *("-XX:-OmitStackTraceInFastThrow", "-XX:-UseLargePages"),
)
_NAME_SERVER = ("-server", "-Xms256m", "-Xmx256m")
_OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


def settings(durability: Durability) -> str:
    """Return the settings that differ from the defaults."""
    return f"flushDiskType={_flush(durability)}, heap 2 GiB"


def version() -> str:
    """Return the version.

    Raises:
        Missing: its jars are not available.
    """
    return next(fetch.jars("rocketmq").glob("rocketmq-broker-*.jar")).stem.rsplit("-", 1)[1]


@contextmanager
def start(directory: Path, durability: Durability) -> Iterator[tuple[Server, Server]]:
    """Run NamesrvStartup and BrokerStartup; the name server comes first.

    Raises:
        Missing: on entering; they are not available, or do not start.
    """
    name_port, port = free_port(), free_port()
    for part in ("name", "broker"):
        (directory / part).mkdir()
    name_config = _written(directory / "namesrv.properties", {"listenPort": name_port})
    broker_config = _written(
        directory / "broker.properties",
        {
            "listenPort": port,
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": directory / "store",
            "storePathCommitLog": directory / "store/commitlog",
            "flushDiskType": _flush(durability),
        },
    )
    java = [fetch.java(), "-cp", f"{fetch.jars('rocketmq')}/*", *_OPENED]
    environment = {"ROCKETMQ_HOME": str(directory), "PATH": os.environ["PATH"]}

    def program(part: str, options: tuple[str, ...], entry: str, config: Path) -> list[str | Path]:
        home = f"-Duser.home={directory / part}"
        return [*java, home, *options, f"org.apache.rocketmq.{entry}", "-c", config]

    names = program("name", _NAME_SERVER, "namesrv.NamesrvStartup", name_config)
    with running(names, directory / "name", name_port, environment) as name_server:
        broker = [
            *program("broker", _BROKER, "broker.BrokerStartup", broker_config),
            "-n",
            name_server.address,
        ]
        with running(broker, directory / "broker", port, environment) as server:
            yield name_server, server


def _flush(durability: Durability) -> str:
    return "ASYNC_FLUSH" if durability == "page_cache" else "SYNC_FLUSH"


def _written(path: Path, lines: dict[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path
