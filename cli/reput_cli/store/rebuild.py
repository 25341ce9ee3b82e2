"""`reput store rebuild`: rebuild ConsumeQueues and key index from the log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer
from reput_cli.store.directory import (
    StoreDirectory,
    delay_levels_option,
    directory_options,
    examined,
    layout_of,
    locked,
    progress,
)
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from reput_broker.tools.verify import Verification

_SIZES = "--index-slots and --index-entries; RocketMQ's are 5000000 and 20000000"


@click.command()
@directory_options
@delay_levels_option
@click.option("--queues", is_flag=True, help="The ConsumeQueues. Without --queues and --index: both.")
@click.option("--index", is_flag=True, help="The key index.")
@click.option(
    "--index-entries",
    type=click.IntRange(0),
    default=0,
    help="Entries in an index file.  [default: what fits the files]",
)
def rebuild(
    directory: StoreDirectory,
    settings: Settings,
    delay_levels_ms: tuple[int, ...] | None,
    queues: bool,
    index: bool,
    index_entries: int,
) -> int:
    """Rebuild the ConsumeQueues and the key index in DIR from the log, and replace the existing ones.

    The log is verified first and must have no holes. File sizes are those of the existing files. Without existing
    files, give --consume-queue-entries unless it is RocketMQ's 300000, and --index-slots and --index-entries: without
    these only the queues are rebuilt, and the exit code is 8.
    """
    from reput_broker.store.errors import ForeignFile
    from reput_broker.tools.index_raw import index_sizes
    from reput_broker.tools.rebuild import REBUILDERS, refuse_other_delays, refuse_other_queues
    from reput_broker.tools.rebuild import rebuild as rebuild_files

    directory = replace(directory, index_entries=index_entries)
    wanted = [name for name, chosen in (("queues", queues), ("index", index)) if chosen] or list(REBUILDERS)
    printer = Printer(settings)
    code = ExitCode.DONE
    with locked(directory, to_write=True) as lock:
        if "index" in wanted and index_sizes(layout_of(directory)) is None:
            if index:
                raise CommandFailed(
                    f"no file in {directory.root / 'index'} has its numbers of slots and entries",
                    remedy=_SIZES,
                    code=ExitCode.USAGE,
                )
            wanted.remove("index")
            code = ExitCode.PARTIAL
            printer.note(f"index: not rebuilt; no file has its numbers of slots and entries; give {_SIZES}")
        try:
            if "queues" in wanted:
                refuse_other_queues(directory.root)
            verification = examined(directory, settings, "checking the log", delay_levels_ms=delay_levels_ms)
            _refuse_damage(verification)
            if "queues" in wanted:
                refuse_other_delays(verification)
            if verification.log.damages:
                printer.note(
                    f"{counted(len(verification.log.damages), 'wrong checksum')} of records; their entries are "
                    f"kept: reput store verify {directory.root}"
                )
            lock.acquire()
            with progress(settings, "rebuilding") as report_progress:
                words = rebuild_files(
                    verification.layout,
                    verification.log.kept_end,
                    [REBUILDERS[name] for name in wanted],
                    delay_levels_ms=verification.delay_levels_ms,
                    progress=report_progress,
                )
        except ForeignFile as error:
            raise CommandFailed(f"{directory.root} cannot be rebuilt", reason=str(error)) from error
    for name, text in zip(wanted, words, strict=True):
        printer.note(f"{name}: {text}")
    return code


def _refuse_damage(verification: Verification) -> None:
    """Refuse a log whose damage hides which messages it holds."""
    remedy = f"reput store repair {verification.root}"
    faults = verification.report.faults
    if verification.log.holes:
        first = verification.log.holes[0]
        place, reason = f"{first.file.path} at byte {first.position}", first.reason
    elif (lost := next((fault for fault in faults if fault.kind == "log"), None)) is not None:
        place, reason = f"{lost.file} at byte {lost.position}", lost.reason
    elif verification.is_out_of_order:
        raise CommandFailed(
            "the log is out of order: message numbers do not follow each other",
            reason=next(str(fault) for fault in faults if fault.kind == "order"),
            remedy=remedy,
            code=ExitCode.DAMAGE,
        )
    else:
        return
    raise CommandFailed(f"the log is damaged: {place}", reason=reason, remedy=remedy, code=ExitCode.DAMAGE)
