"""`reput store repair`: repair a damaged store so that a broker starts on it."""

from __future__ import annotations

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
    locked,
    progress,
)
from reput_protocol.exit_codes import ExitCode

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
    from reput_broker.store.errors import ForeignFile
    from reput_broker.tools.repair_plan import plan_repair

    try:
        return plan_repair(verification)
    except ForeignFile as error:
        raise CommandFailed(f"{directory.root} cannot be repaired", reason=str(error)) from error
