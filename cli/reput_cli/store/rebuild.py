"""`reput store rebuild`: make queues anew from the log."""

from __future__ import annotations

from typing import Any

import click

from reput_cli.exit_codes import ExitCode
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer
from reput_cli.store.directory import StoreDirectory, directory_options, examined, locked, progress


@click.command()
@directory_options
@click.option("--queues", is_flag=True, help="The ConsumeQueues. Without any of these options: everything.")
def rebuild(directory: StoreDirectory, settings: Settings, **chosen: Any) -> int:
    """Make what is derived from the log in DIR anew, and put it in the place of what is there.

    The log is checked first, and may have no holes. Sizes are those of the files that are there: for
    queues that are gone, say --consume-queue-entries if they are not RocketMQ's 300000.
    """
    from reput_broker.store.errors import ForeignFile
    from reput_broker.store_tools.rebuild import REBUILDERS, refuse_other_queues
    from reput_broker.store_tools.rebuild import rebuild as make_anew

    wanted = [name for name in REBUILDERS if chosen.get(name)] or list(REBUILDERS)
    printer = Printer(settings)
    with locked(directory, to_write=True):
        try:
            refuse_other_queues(directory.root)
        except ForeignFile as error:
            raise CommandFailed(f"{directory.root} cannot be rebuilt", reason=str(error)) from error
        verification = examined(directory, settings, "checking the log")
        if verification.log.holes:
            first = verification.log.holes[0]
            raise CommandFailed(
                f"the log is damaged: {first.file.path} at byte {first.position}",
                reason=first.reason,
                remedy=f"reput store repair {directory.root}",
                code=ExitCode.DAMAGE,
            )
        if verification.is_out_of_order:
            raise CommandFailed(
                "the log is out of order: message numbers do not follow each other",
                reason=next(str(fault) for fault in verification.report.faults if fault.kind == "order"),
                remedy=f"reput store repair {directory.root}",
                code=ExitCode.DAMAGE,
            )
        if verification.log.damages:
            printer.note(
                f"{len(verification.log.damages)} records have a wrong checksum; what is known of them is kept: "
                f"reput store verify {directory.root}"
            )
        with progress(settings, "rebuilding") as report_progress:
            words = make_anew(
                verification.layout,
                verification.log.kept_end,
                [REBUILDERS[name] for name in wanted],
                progress=report_progress,
            )
    for name, text in zip(wanted, words, strict=True):
        printer.note(f"{name}: {text}")
    return ExitCode.DONE
