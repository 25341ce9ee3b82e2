"""The job `audit`: does everything in a store directory agree with everything else?"""

from __future__ import annotations

from dataclasses import replace

import click

from reput_broker.tools.verify_parts import Directory
from reput_pipeline.jobs.audited_parts import audit
from reput_pipeline.jobs.directories import directory_arguments, locked
from reput_pipeline.jobs.frame import job, main
from reput_pipeline.jobs.outcomes import Outcome
from reput_pipeline.jobs.run import JobRun
from reput_protocol.exit_codes import ExitCode


@job
@directory_arguments
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Faults to name of each kind."
)
def command(run: JobRun, directory: Directory, limit: int) -> Outcome:
    """Check every record, checksum, queue unit, index entry, checkpoint and table of DIR against each other.

    One task for each file of the log and of the index; what is found, and in which words, is what `reput store verify`
    finds. Nothing is changed. Exit code 0 if all is sound, 7 if there is damage.
    """
    with locked(directory):
        verification, again = audit(run, replace(directory, faults_kept=limit))
    report = verification.report
    for fault in report.faults:
        run.write(f"{fault.kind}: {fault}")
    if report.fault_count > len(report.faults):
        run.write(f"... and {report.fault_count - len(report.faults)} more")
    for note in report.notes:
        run.note(f"note: {note}")
    figures = {
        **report.figures,
        "log_start": verification.layout.log.min_offset,
        "log_end": verification.log.end_offset,
        "files_read_again": len(again),
    }
    return Outcome(
        {
            "directory": str(directory.root),
            "clean": report.is_clean,
            "fault_count": report.fault_count,
            "faults_by_kind": dict(report.kinds),
            "faults": [
                {
                    "kind": fault.kind,
                    "file": str(fault.file),
                    "position": fault.position,
                    "reason": fault.reason,
                }
                for fault in report.faults
            ],
            "notes": report.notes,
            "figures": figures,
        },
        ExitCode.DONE if report.is_clean else ExitCode.DAMAGE,
    )


if __name__ == "__main__":
    main("audit")
