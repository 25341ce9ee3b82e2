"""`reput doctor store`: a store directory without its broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from reput_cli.doctor.findings import Finding, fault, ok, report, warning
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.store.directory import StoreDirectory, directory_options, examined, locked
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted
from reput_protocol.quantities import size_text

_FULL = 0.9


@click.command("store")
@directory_options
def command(directory: StoreDirectory, settings: Settings) -> int:
    """Check the store in DIR: rights, disk, whether a broker has it open, and every file as `reput store verify`."""
    return report(settings, examine(directory, settings))


def examine(directory: StoreDirectory, settings: Settings) -> Iterator[Finding]:
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
