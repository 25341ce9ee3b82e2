"""Check docker-compose.yml against our rules, without Docker; with conf/docker-compose.tls.yml too.

The rules are: the services and their dependencies, read-only roots without capabilities, ports on loopback only, data
in named volumes, etcd on a network of its own with the members, exact versions of images, and every mounted file in the
repository. `docker compose config` checks the syntax only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

MEMBERS = ("reput-0", "reput-1", "reput-2")
CLUSTER = ("etcd", "namesrv", *MEMBERS)
SERVICES = ("reput", "proxy", "spark", *CLUSTER, "prometheus", "grafana")
SERVICE_KEYS = frozenset(
    {"build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "init"}
    | {"networks", "ports", "profiles", "read_only", "restart", "security_opt", "stop_grace_period"}
    | {"tmpfs", "volumes"}
)
TOP_KEYS = frozenset({"name", "networks", "services", "volumes"})
EXACT_VERSION = re.compile(r":v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.-]+)?$|@sha256:[0-9a-f]{64}$")
# The volume with the data of each service.
DATA_VOLUMES = {
    "reput": "/var/lib/reput",
    "spark": "/archive",
    "etcd": "/var/lib/etcd",
    "namesrv": "/var/lib/reput",
    **dict.fromkeys(MEMBERS, "/var/lib/reput"),
    "prometheus": "/prometheus",
    "grafana": "/var/lib/grafana",
}
DEPENDENCIES = {
    "spark": ("reput",),
    "proxy": ("reput",),
    **dict.fromkeys(MEMBERS, ("etcd", "namesrv")),
    "prometheus": ("reput",),
    "grafana": ("prometheus",),
}
PROFILES = {
    "spark": ["spark"],
    "proxy": ["proxy"],
    "prometheus": ["monitoring"],
    "grafana": ["monitoring"],
    **{name: ["cluster"] for name in CLUSTER},
}
"""The profile of each service that does not start by default."""
BUILD_KEYS = frozenset({"context", "target"})


SECRETS = "./secure"
"""What docs/security.md makes on the machine that runs the compose file with TLS."""


def compose_problems(path: Path, override: Path | None = None) -> list[str]:
    """Return the violations of a compose file, a line each; empty if there are none.

    Args:
        path: the compose file.
        override: a second file, which Compose merges into it.
    """
    document = yaml.safe_load(path.read_text())
    if not isinstance(document, dict):
        return [f"{path.name} is not a mapping"]
    if override is not None:
        document = merged(document, yaml.safe_load(override.read_text()))
    services = document.get("services") or {}
    volumes = document.get("volumes") or {}
    keys = [key for key in document if not key.startswith("x-")]
    problems = [f"unknown top-level key {key!r}" for key in keys if key not in TOP_KEYS]
    problems += [f"service {name!r} is missing" for name in SERVICES if name not in services]
    for name, service in services.items():
        found = [*_service_problems(name, service, volumes, path.parent), *_dependency_problems(service, services)]
        problems += [f"{name}: {problem}" for problem in found]
    problems += _engine_problems(document, services)
    published = Counter(str(port).rpartition(":")[0] for one in services.values() for port in one.get("ports", []))
    problems += [f"{port} is published twice" for port, count in published.items() if count > 1]
    return problems


def _engine_problems(document: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[str]:
    """What could let others than the members reach etcd, which has no users."""
    network = (document.get("networks") or {}).get("engine") or {}
    mode = (network.get("driver_opts") or {}).get("com.docker.network.bridge.gateway_mode_ipv4")
    if network.get("internal") is not True or mode != "isolated":
        yield "network 'engine' is reached from this machine"
    there = {name for name, service in services.items() if "engine" in service.get("networks", ())}
    if there != {"etcd", *MEMBERS} or services.get("etcd", {}).get("networks") != ["engine"]:
        yield f"network 'engine' is for etcd and the members alone, and has {sorted(there)}"


def merged(document: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return a compose file with an override, as Compose merges them, as far as ours need it.

    Variables are added or replaced, volumes are added, and other keys of a service are replaced.

    Raises:
        ValueError: the override has a service that the file does not have, or a key that is merged differently.
    """
    services = {name: dict(service) for name, service in document["services"].items()}
    for name, changes in override["services"].items():
        if name not in services:
            raise ValueError(f"there is no service {name!r} to override")
        for key, value in changes.items():
            if key == "environment":
                services[name][key] = {**services[name].get(key, {}), **value}
            elif key == "volumes":
                services[name][key] = [*services[name].get(key, []), *value]
            elif key == "command":
                services[name][key] = value
            else:
                raise ValueError(f"{name}: {key} is not one of environment, volumes and command")
    return {**document, "services": services}


def _service_problems(
    name: str, service: Mapping[str, Any], volumes: Mapping[str, Any], directory: Path
) -> Iterator[str]:
    yield from (f"unknown key {key!r}" for key in service if key not in SERVICE_KEYS)
    if service.get("init") is not True:
        yield "init is not true"
    if service.get("read_only") is not True:
        yield "its root file system is writable"
    if service.get("cap_drop") != ["ALL"]:
        yield "it keeps capabilities"
    if "/tmp" not in [str(mount).partition(":")[0] for mount in service.get("tmpfs", [])]:
        yield "it has no tmpfs on /tmp"
    if not EXACT_VERSION.search(str(service.get("image", ""))):
        yield "its image has no exact version"
    if service.get("profiles") != PROFILES.get(name):
        yield f"its profiles are {service.get('profiles')}, not {PROFILES.get(name)}"
    yield from _build_problems(service.get("build", "."), directory)
    for port in service.get("ports", []):
        if not str(port).startswith("127.0.0.1:"):
            yield f"port {port} is published beyond loopback"
    yield from _mount_problems(name, service, volumes, directory)
    for dependency in DEPENDENCIES.get(name, ()):
        if service.get("depends_on", {}).get(dependency) != {"condition": "service_healthy"}:
            yield f"it does not wait until {dependency} is healthy"
    if any(name in needed for needed in DEPENDENCIES.values()) and not service.get("healthcheck", {}).get("test"):
        yield "others wait for its health, which nothing checks"


def _dependency_problems(service: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[str]:
    """Compose refuses a profile if a service of it waits for one that the profile does not start."""
    own = service.get("profiles")
    for needed in service.get("depends_on", {}):
        profiles = services.get(needed, {}).get("profiles")
        if needed not in services or (profiles is not None and (own is None or not set(own) <= set(profiles))):
            yield f"it waits for {needed}, which its profile does not start"


def _build_problems(build: object, directory: Path) -> Iterator[str]:
    given: Mapping[str, Any] = build if isinstance(build, dict) else {"context": build}
    yield from (f"unknown key {key!r} of build" for key in given if key not in BUILD_KEYS)
    if given.get("context") != ".":
        yield f"it is built from {given.get('context')}, not from the repository"
    target = given.get("target")
    stages = re.findall(r"^FROM \S+ AS (\S+)", (directory / "Dockerfile").read_text(), re.MULTILINE)
    if target is not None and target not in stages:
        yield f"the Dockerfile has no stage {target!r}"


def _mount_problems(
    name: str, service: Mapping[str, Any], volumes: Mapping[str, Any], directory: Path
) -> Iterator[str]:
    kept = set()
    for mount in service.get("volumes", []):
        source, target, *mode = str(mount).split(":")
        if source.startswith("."):
            if source != SECRETS and not (directory / source).exists():
                yield f"{source} is mounted but does not exist"
            if mode != ["ro"]:
                yield f"{source} is mounted writable"
        elif source not in volumes:
            yield f"volume {source!r} is not declared"
        else:
            kept.add(target)
    if name in DATA_VOLUMES and DATA_VOLUMES[name] not in kept:
        yield f"{DATA_VOLUMES[name]} is in no named volume"
