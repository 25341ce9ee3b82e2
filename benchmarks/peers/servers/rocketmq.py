"""Apache RocketMQ: a name server and a broker, with the options of their own start scripts for smaller machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from peers import fetch
from peers.servers.base import Security, Server, running
from peers.workloads import Durability
from servers import free_port

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
    role = "".join(f"{name}={value}, " for name, value in _of_a_master(durability).items())
    return f"{role}flushDiskType={_flush(durability)}, heap 2 GiB"


def version() -> str:
    """Return the version.

    Raises:
        Missing: its jars are not available.
    """
    return next(fetch.jars("rocketmq").glob("rocketmq-broker-*.jar")).stem.rsplit("-", 1)[1]


@contextmanager
def start(directory: Path, durability: Durability, security: Security | None = None) -> Iterator[tuple[Server, Server]]:
    """Run NamesrvStartup and BrokerStartup, with a slave if replicated; yields name server and (master) broker.

    Raises:
        Missing: on entering; they are not available, or do not start.
    """
    with ExitStack() as stack:
        name_port = free_port()
        config = _written(directory / "namesrv.properties", {"listenPort": name_port})
        tls = _tls(security)
        names = _program(directory / "name", (*_NAME_SERVER, *tls), "namesrv.NamesrvStartup", config)
        environment = _environment(directory)
        name_server = stack.enter_context(running(names, directory / "name", name_port, environment))
        brokers = {"broker": _of_a_master(durability)}
        if durability == "replicated":
            brokers["slave"] = {"brokerRole": "SLAVE", "brokerId": 1}
        servers = []
        for part, own in brokers.items():
            port = free_port()
            settings = {
                "listenPort": port,
                "haListenPort": free_port(),
                "brokerIP1": "127.0.0.1",
                "storePathRootDir": directory / part / "store",
                "storePathCommitLog": directory / part / "store/commitlog",
                "flushDiskType": _flush(durability),
                **own,
                **_access(security),
            }
            config = _written(directory / f"{part}.properties", settings)
            program = _program(directory / part, (*_BROKER, *tls), "broker.BrokerStartup", config)
            program += ["-n", name_server.address]
            servers.append(stack.enter_context(running(program, directory / part, port, environment)))
        yield name_server, servers[0]


def _of_a_master(durability: Durability) -> dict[str, object]:
    return {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2} if durability == "replicated" else {}


def _tls(security: Security | None) -> tuple[str, ...]:
    """Return the options of a server whose clients choose between TLS and plain connections."""
    if security is None:
        return ()
    return (
        "-Dtls.server.mode=permissive",
        "-Dtls.test.mode.enable=false",
        f"-Dtls.server.certPath={security.certificate}",
        f"-Dtls.server.keyPath={security.key}",
    )


def _access(security: Security | None) -> dict[str, object]:
    """Return the settings of a broker (ACL 2.0) that checks signature and rights of every request."""
    if security is None or security.user is None:
        return {}
    name, secret, package = security.user.user, security.user.secret, "org.apache.rocketmq.auth"
    settings: dict[str, object] = {
        "initAuthenticationUser": json.dumps({"username": name, "password": secret}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": name, "secretKey": secret}),
    }
    for part in ("authentication", "authorization"):
        settings[f"{part}Enabled"] = "true"
        settings[f"{part}Provider"] = f"{package}.{part}.provider.Default{part.capitalize()}Provider"
        settings[f"{part}MetadataProvider"] = f"{package}.{part}.provider.Local{part.capitalize()}MetadataProvider"
    return settings


def _program(directory: Path, options: tuple[str, ...], entry: str, config: Path) -> list[str | Path]:
    directory.mkdir()
    java = [fetch.java(), "-cp", f"{fetch.jars('rocketmq')}/*", *_OPENED, f"-Duser.home={directory}"]
    return [*java, *options, f"org.apache.rocketmq.{entry}", "-c", config]


def _environment(directory: Path) -> dict[str, str]:
    return {"ROCKETMQ_HOME": str(directory), "PATH": os.environ["PATH"]}


def _flush(durability: Durability) -> str:
    return "ASYNC_FLUSH" if durability == "page_cache" else "SYNC_FLUSH"


def _written(path: Path, lines: dict[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path
