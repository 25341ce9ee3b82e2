"""`reput store verify`: check all files of a store against each other."""

from __future__ import annotations

import click

from reput_cli.options import Settings
from reput_cli.output import Printer, write_line
from reput_cli.store.directory import StoreDirectory, delay_levels_option, directory_options, examined, locked
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted, printable


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

    Changes nothing. Names each fault by file and byte. Exits with 0 if there is no fault, else with 7.
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
