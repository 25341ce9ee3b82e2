"""`reput store verify | repair | rebuild`: check a store, repair damage, rebuild queues and index from the log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer, write_line
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
from reput_protocol.printable import counted, printable

if TYPE_CHECKING:
    from reput_broker.tools.repair_plan import RepairPlan
    from reput_broker.tools.verify import Verification


@click.command()
@directory_options
@delay_levels_option
@click.option("--yes", is_flag=True, help="Repair it. Without --yes the command only shows what it would do.")
def repair(
    directory: StoreDirectory, settings: Settings, delay_levels_ms: tuple[int, ...] | None, yes: bool
) -> int:
    """Show what a repair of DIR would correct and truncate; with --yes, do it.

    A damaged field of a record is corrected if the other fields determine its value. The log is truncated at the
    first record that cannot be corrected: all later messages are removed. Everything that is changed or truncated
    is first copied to DIR/repair-N and synced. Then the queues are rebuilt from the log. Exits with 7 if the store
    needs repair and --yes was not given.
    """
    printer = Printer(settings)
    with locked(directory, to_write=yes) as lock:
        verification = examined(directory, settings, delay_levels_ms=delay_levels_ms)
        plan = _plan(verification, directory)
        if plan.is_empty:
            printer.note(f"{directory.root}: nothing to repair")
            return ExitCode.DONE
        if not yes:
            if printer.is_json:
                printer.json_line({"directory": str(directory.root), "plan": plan.lines()})
            else:
                for line in plan.lines():
                    write_line(line)
            printer.note(f"nothing was changed; to do it: reput store repair {directory.root} --yes")
            return ExitCode.DAMAGE
        from reput_broker.tools.repair import apply_repair

        lock.acquire()
        with progress(settings, "repairing") as report_progress:
            result = apply_repair(verification, plan, report_progress)
    if printer.is_json:
        printer.json_line(
            {
                "directory": str(directory.root),
                "plan": plan.lines(),
                "done": result.lines,
                "side_directory": str(result.side_directory),
                "log_end": result.end_offset,
            }
        )
        return ExitCode.DONE
    for line in (*plan.lines(), *result.lines):
        write_line(line)
    write_line(f"copies of the changed bytes: {result.side_directory}")
    printer.note(
        f"the log ends at offset {result.end_offset}; the next start of the broker completes the recovery"
    )
    return ExitCode.DONE


def _plan(verification: Verification, directory: StoreDirectory) -> RepairPlan:
    from reput_broker.store.base.errors import ForeignFile
    from reput_broker.tools.repair_plan import plan_repair

    try:
        return plan_repair(verification)
    except ForeignFile as error:
        raise CommandFailed(f"{directory.root} cannot be repaired", reason=str(error)) from error


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
    from reput_broker.store.base.errors import ForeignFile
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


@click.command()
@directory_options
@delay_levels_option
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Faults to print of each kind."
)
def verify(
    directory: StoreDirectory, settings: Settings, delay_levels_ms: tuple[int, ...] | None, limit: int
) -> int:
    """Check every record, queue unit, index entry, checkpoint and table in DIR against each other.

    Changes nothing. Names each fault by file and byte. Exits with 0 if there is no fault, otherwise with 7.
    """
    with locked(directory):
        verification = examined(directory, settings, delay_levels_ms=delay_levels_ms, faults_kept=limit)
    report = verification.report
    printer = Printer(settings)
    figures = {
        **report.figures,
        "log_start": verification.layout.log.min_offset,
        "log_end": verification.log.end_offset,
    }
    if printer.is_json:
        faults = [
            {"kind": f.kind, "file": str(f.file), "position": f.position, "reason": f.reason}
            for f in report.faults
        ]
        printer.json_line(
            {
                "directory": str(directory.root),
                "clean": report.is_clean,
                "fault_count": report.fault_count,
                "faults_by_kind": dict(report.kinds),
                "faults": faults,
                "notes": report.notes,
                "figures": figures,
            }
        )
    else:
        for fault in report.faults:
            write_line(printable(f"{fault.kind}: {fault}"))
        if report.fault_count > len(report.faults):
            write_line(f"... and {report.fault_count - len(report.faults)} more")
        for note in report.notes:
            printer.note(f"note: {note}")
        verdict = "clean" if report.is_clean else counted(report.fault_count, "fault")
        write_line(
            f"{directory.root}: {verdict}; {counted(figures['records'], 'record')} in "
            f"{counted(figures['log_files'], 'file')} [{figures['log_start']}, {figures['log_end']}), "
            f"{counted(figures['units'], 'unit')}, {counted(figures['index_entries'], 'key')} in the index, "
            f"{counted(report.figures['offsets'], 'offset')}"
        )
        if not report.is_clean and (report.kinds["log"] or report.kinds["record"] or report.kinds["file"]):
            printer.note(f"to see what a repair would truncate: reput store repair {directory.root}")
        elif report.kinds["queue"] or report.kinds["index"]:
            printer.note(
                f"the log is undamaged; to rebuild queues and index from it: reput store rebuild {directory.root}"
            )
    return ExitCode.DONE if report.is_clean else ExitCode.DAMAGE
