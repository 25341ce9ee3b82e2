"""The job `audit`: check all files of a store directory against each other, as `reput store verify` does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from reput_broker.tools.index_raw import RawIndex
from reput_broker.tools.report import Report
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_index import verify_index_file
from reput_broker.tools.verify_parts import Directory, Part, PartFindings, examine_part, parts_of, put_together
from reput_pipeline.jobs.directories import directory_arguments, locked
from reput_pipeline.jobs.run import JobRun, Outcome, in_process_job, main
from reput_protocol.exit_codes import ExitCode


@in_process_job
@directory_arguments
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Faults to print of each kind.")
def command(run: JobRun, directory: Directory, limit: int) -> Outcome:
    """Check every record, checksum, queue unit, index entry, checkpoint and table of DIR against each other.

    Runs one task for each file of log and index, with the faults of `reput store verify`. Changes nothing. Exits with
    0 if there is no fault, else with 7.
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
                {"kind": fault.kind, "file": str(fault.file), "position": fault.position, "reason": fault.reason}
                for fault in report.faults
            ],
            "notes": report.notes,
            "figures": figures,
        },
        ExitCode.DONE if report.is_clean else ExitCode.DAMAGE,
    )


class IndexPart(NamedTuple):
    """An index file to check."""

    path: Path
    slots: int


class _IndexFindings(NamedTuple):
    report: Report


def audit(run: JobRun, directory: Directory, what: str = "audit") -> tuple[Verification, list[int]]:
    """Verify a directory whose lock the caller holds; `what` is the text of the progress line.

    Returns the findings, and the numbers of the log files that were read twice.
    """
    verification = directory.verification()
    verification.begin()
    parts = parts_of(verification, directory)
    index_parts = [IndexPart(raw.path, raw.slot_count) for raw in verification.index.files]
    every: list[IndexPart | Part] = [*index_parts, *parts]
    found = run.each(what, every, examine)
    verification.index.take_files([each.report for each in found if isinstance(each, _IndexFindings)])
    findings = [each for each in found if isinstance(each, PartFindings)]
    again = put_together(verification, parts, findings)
    verification.conclude()
    return verification, again


def examine(part: IndexPart | Part) -> Iterator[_IndexFindings | PartFindings]:
    """Verify one part, in a worker."""
    if isinstance(part, Part):
        yield examine_part(part)
        return
    report = Report()
    raw = RawIndex(part.path)
    try:
        raw.set_slots(part.slots)
        verify_index_file(raw, report)
    finally:
        raw.close()
    yield _IndexFindings(report)


if __name__ == "__main__":
    main("audit")
