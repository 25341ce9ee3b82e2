"""`reput store snapshot`: copy a store directory, also while its broker runs."""

from __future__ import annotations

from pathlib import Path

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, output_options
from reput_cli.output import Printer
from reput_cli.store.directory import (
    StoreDirectory,
    commit_log_dir_option,
    directory_argument,
    progress,
    require_store,
)
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted


@click.command()
@directory_argument
@commit_log_dir_option
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="Directory to create.")
@output_options
def snapshot(root: Path, commit_log_dirs: tuple[Path, ...], target: Path, settings: Settings) -> int:
    """Copy the store in DIR to a new directory; its broker may be running.

    The copy holds every message acknowledged before the command began. Its state is that of a
    killed broker's directory, so the next start on it runs recovery. It contains the users of access control with their
    secrets, if their file is in DIR. While the copy is made its name ends with .partial, and no broker starts on it.
    """
    require_store(StoreDirectory(root, commit_log_dirs))
    from reput_broker.tools.snapshot import SnapshotFailed, take_snapshot

    try:
        with progress(settings, "copying") as report_progress:
            made = take_snapshot(root, target, commit_log_dirs, report_progress)
    except SnapshotFailed as error:
        raise CommandFailed(error.what, reason=error.reason, remedy=error.remedy) from error
    printer = Printer(settings)
    if printer.is_json:
        printer.json_line(
            {
                "directory": str(root),
                "snapshot": str(target),
                "broker": made.state.value,
                "log_start": made.log_start,
                "log_end": made.log_end,
                "files": made.files,
                "bytes": made.bytes,
            }
        )
    else:
        printer.note(
            f"{target}: log [{made.log_start}, {made.log_end}), {counted(made.files, 'file')}, {made.bytes} bytes; "
            f"the broker was {made.state.value}"
        )
        printer.note(f"to check it: reput store verify {target}")
    return ExitCode.DONE
