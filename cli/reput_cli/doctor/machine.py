"""`reput doctor store | container`: a store directory without its broker, and what a broker would start with here."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reput_cli.doctor.findings import Finding, fault, ok, report, warning
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, output_options
from reput_cli.store_directory import StoreDirectory, directory_options, examined, locked
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted
from reput_protocol.quantities import size_text

if TYPE_CHECKING:
    from reput_broker.config.model import BrokerConfig

_FULL = 0.9
_CONFIG = Path("/etc/reput/broker.toml")
"""Where the image has it."""


@click.command("store")
@directory_options
def store(directory: StoreDirectory, settings: Settings) -> int:
    """Check the store in DIR: rights, disk, whether a broker has it open, and every file as `reput store verify`."""
    return report(settings, _examine_store(directory, settings))


def _examine_store(directory: StoreDirectory, settings: Settings) -> Iterator[Finding]:
    """Yield the findings about a directory."""
    yield check_rights(directory.root)
    yield _check_disk(directory.root)
    try:
        with locked(directory):
            yield ok("lock", "no broker has it open")
            if (directory.root / "abort").exists():
                yield warning(
                    "last stop",
                    "the broker did not stop orderly",
                    "it was killed, or the machine went down",
                    "start it: the start recovers it",
                )
            else:
                yield ok("last stop", "orderly")
            yield _check_files(directory, settings)
    except CommandFailed as error:
        yield fault("lock", error.what, error.reason or "", error.remedy or "")


def check_rights(root: Path) -> Finding:
    """Check that this user may read and write a directory and what is in it."""
    places = sorted(root.iterdir()) if _may_use(root) else [root]
    wrong = next((path for path in places if not _may_use(path)), None)
    if wrong is None:
        return ok("rights", f"user id {os.geteuid()} may read and write {root}")
    owner = wrong.stat()
    return fault(
        "rights",
        f"user id {os.geteuid()} may not read and write {wrong}",
        f"it belongs to {owner.st_uid}:{owner.st_gid}",
        f"chown -R {os.geteuid()}:{os.getegid()} {root}",
    )


def _may_use(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0))


def _check_disk(root: Path) -> Finding:
    from reput_broker.store.retention import disk_used_ratio

    disk = os.statvfs(root)
    used, free = disk_used_ratio(root), size_text(disk.f_bavail * disk.f_frsize)
    if used > _FULL:
        return fault(
            "disk",
            f"used {100 * used:.0f} %, {free} free",
            "a broker rejects messages beyond store.disk_warning_ratio, 90 % by default",
            f"df -h {root}; free space",
        )
    return ok("disk", f"used {100 * used:.0f} %, {free} free")


def _check_files(directory: StoreDirectory, settings: Settings) -> Finding:
    verification = examined(directory, settings, delay_levels_ms=None)
    faults = verification.report
    if faults.is_clean:
        return ok("files", f"clean: {counted(faults.figures['records'], 'record')}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.kinds.items()))
    is_log = any(faults.kinds[kind] for kind in ("log", "record", "file"))
    return fault(
        "files",
        f"{counted(faults.fault_count, 'fault')} ({kinds}); {faults.faults[0]}",
        "the log is damaged" if is_log else "queues or index do not agree with the log, which is undamaged",
        f"reput store {'repair' if is_log else 'rebuild'} {directory.root}"
        + (" shows what a repair would truncate" if is_log else ""),
        ExitCode.DAMAGE,
    )


@click.command("container")
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help=f"The broker's file.  [default: {_CONFIG} if it exists]",
)
@output_options
def container(settings: Settings, config_path: Path | None) -> int:
    """Check configuration, data directory, volume, announced address and limits, without starting a broker.

    Inside a container: docker compose exec reput reput doctor container.
    """
    return report(settings, _examine_container(config_path or (_CONFIG if _CONFIG.exists() else None)))


def _examine_container(config_path: Path | None) -> Iterator[Finding]:
    """Yield the findings."""
    from reput_broker.config.errors import ConfigError
    from reput_broker.config.loading import load_config

    try:
        config = load_config(config_path, os.environ)
    except ConfigError as error:
        for problem in error.problems:
            yield fault(
                "configuration",
                f"{problem.key or problem.origin}: {problem.problem}",
                f"set in {problem.origin}",
                f'use "{problem.nearest}"' if problem.nearest else "correct it: reput generate config",
                ExitCode.USAGE,
            )
        return
    yield ok("configuration", f"valid ({config_path or 'defaults'} and the environment)")
    yield check_user()
    yield from check_directory(config.data_dir)
    yield check_announced(config)
    yield check_open_files(config)


def check_user() -> Finding:
    """Check that this is not the superuser."""
    if os.geteuid() == 0:
        return warning(
            "user",
            "runs as root",
            "the image runs as 10001; a broker needs no rights",
            "remove `user: root`, and chown the volume to 10001:10001",
        )
    return ok("user", f"user id {os.geteuid()}")


def check_directory(root: Path) -> Iterator[Finding]:
    """Check that the data directory can be used, and that it outlives a container."""
    parent = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    if root.is_dir():
        yield check_rights(root)
    elif os.access(parent, os.W_OK | os.X_OK):
        yield ok("rights", f"{root} can be created")
    else:
        yield fault(
            "rights",
            f"{root} cannot be created",
            f"user id {os.geteuid()} may not write {parent}",
            f"mkdir -p {root} && chown {os.geteuid()}:{os.getegid()} {root}",
        )
    if _is_container() and _is_on_root_disk(parent):
        yield fault(
            "volume",
            f"{root} is in the container's own file system",
            "its messages are deleted with the container",
            f"mount a volume: docker run -v reput-data:{root}",
        )
    else:
        yield ok("volume", f"{root} is outside of the container" if _is_container() else "not in a container")


def _is_container() -> bool:
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()


def _is_on_root_disk(path: Path) -> bool:
    return os.stat(path).st_dev == os.stat("/").st_dev


def check_announced(config: BrokerConfig) -> Finding:
    """Check that routes can name an address that clients reach."""
    if config.host in ("0.0.0.0", "::") and not config.advertise:
        return warning(
            "announced address",
            "advertise is empty: routes name the address that the client dialled",
            "behind a published port that is an address of the container, which clients outside do not reach",
            "REPUT_ADVERTISE=HOST:PORT, at which clients reach it",
        )
    return ok("announced address", config.advertise or "the address that the client dialled")


def check_open_files(config: BrokerConfig) -> Finding:
    """Check the limit of open files against the connections that are allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.connections
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return warning(
            "open files",
            f"at most {hard}, and limits.connections is {wanted}",
            "each connection is an open file; later ones are rejected",
            "ulimit -n, LimitNOFILE of systemd, or `ulimits` of compose; or lower limits.connections",
        )
    return ok("open files", f"at most {'any number' if hard == resource.RLIM_INFINITY else hard}")
