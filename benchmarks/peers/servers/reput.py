"""Reput's broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from peers.servers.base import Security, Server, running
from peers.workloads import Durability
from servers import free_port


def settings(durability: Durability) -> str:
    """Return the settings that differ from the defaults."""
    role = ", ha.role=SYNC_MASTER, ha.in_sync_replicas=2" if durability == "replicated" else ""
    return f"store.flush={_flush(durability)}{role}"


def version() -> str:
    """Return the version."""
    return metadata.version("reput")


@contextmanager
def start(directory: Path, durability: Durability, security: Security | None = None) -> Iterator[Server]:
    """Run `reput serve`, with a slave if replicated; yields the (master) broker."""
    ha_port = str(free_port())
    master = {"REPUT_HA_PORT": ha_port, **_of_a_master(durability), **_of_security(security)}
    with _broker(directory / "data", durability, master) as server:
        if durability != "replicated":
            yield server
            return
        slave = {
            "REPUT_BROKER_ID": "1",
            "REPUT_HA__ROLE": "SLAVE",
            "REPUT_HA__MASTER": server.address,
            "REPUT_HA__MASTER_HA_ADDRESS": f"127.0.0.1:{ha_port}",
        }
        with _broker(directory / "slave", durability, slave):
            yield server


@contextmanager
def _broker(directory: Path, durability: Durability, own: dict[str, str]) -> Iterator[Server]:
    directory.mkdir()
    port, http_port = free_port(), free_port()
    ports = ["--port", str(port), "--http-port", str(http_port)]
    program = [sys.executable, "-m", "reput_cli", "serve", "--data-dir", str(directory / "store"), *ports]
    environment = {"REPUT_STORE__FLUSH": _flush(durability), "PYTHONPATH": ":".join(sys.path), **own}
    with running(program, directory, port, environment) as server:
        yield server


def _of_a_master(durability: Durability) -> dict[str, str]:
    if durability != "replicated":
        return {}
    return {"REPUT_HA__ROLE": "SYNC_MASTER", "REPUT_HA__IN_SYNC_REPLICAS": "2"}


def _of_security(security: Security | None) -> dict[str, str]:
    if security is None:
        return {}
    settings = {
        "REPUT_TLS__MODE": "permissive",
        "REPUT_TLS__HTTP_MODE": "off",
        "REPUT_TLS__CERT": str(security.certificate),
        "REPUT_TLS__KEY": str(security.key),
    }
    if security.user is not None:
        settings["REPUT_ACCESS__ENABLED"] = "true"
        settings["REPUT_ACCESS__ADMIN_USER"] = security.user.user
        settings["REPUT_ACCESS__ADMIN_SECRET"] = security.user.secret
    return settings


def _flush(durability: Durability) -> str:
    return "async" if durability == "page_cache" else "sync"
