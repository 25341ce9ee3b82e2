"""Check a store directory on Spark: the log file by file, and beside it the index files.

The rules are those of `reput store verify`, whose findings come out word for word (`tools/verify_parts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reput_broker.tools.index_raw import RawIndex
from reput_broker.tools.report import Report
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_index import verify_index_file
from reput_broker.tools.verify_parts import (
    Directory,
    Part,
    PartFindings,
    examine_part,
    parts_of,
    put_together,
)
from reput_pipeline.jobs.run import JobRun


class IndexPart(NamedTuple):
    """One index file to check against itself."""

    path: Path
    slots: int


class _IndexFindings(NamedTuple):
    report: Report


def audit(run: JobRun, directory: Directory, what: str = "audit") -> tuple[Verification, list[int]]:
    """Check everything in a directory that is locked already.

    Returns what was found, and the numbers of the log files that had to be read a second time.
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
    """Check one part, in a worker."""
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
