"""Verify a directory in parts that can run in parallel, with the result of one walk through all of it.

A walk through one file of the log depends on the state of each queue and of the index after the previous file, which is
guessed from the log offsets in them. When the parts are combined, a part is walked again if its guess was wrong, or if
it found something that may depend on earlier files. If everything is valid, every byte of the log is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reput_broker.tools.report import FAULTS_KEPT, Fault, Report
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_index import IndexFindings
from reput_broker.tools.verify_log import LogFindings
from reput_broker.tools.verify_queues import QueuesFindings, QueueState
from reput_protocol.store.layout import Geometry
from reput_protocol.store.log_reader import last_file_with_data
from reput_protocol.store.unit import PRE_BLANK_SIZE
from reput_protocol.store.unit_files import OpenFiles, UnitFiles

_STATELESS = frozenset(("log", "record"))
"""Kinds of faults that are visible in a record alone."""


@dataclass(frozen=True)
class Directory:
    """Arguments of a `Verification`."""

    root: Path
    commit_log_dirs: tuple[Path, ...] = ()
    geometry: Geometry | None = None
    delay_levels_ms: tuple[int, ...] | None = None
    faults_kept: int = FAULTS_KEPT

    def verification(self) -> Verification:
        """Create a verification."""
        return Verification(
            self.root,
            commit_log_dirs=self.commit_log_dirs,
            geometry=self.geometry,
            delay_levels_ms=self.delay_levels_ms,
            faults_kept=self.faults_kept,
        )


class Part(NamedTuple):
    """One file of the log, and the state of queues and index at which its walk begins."""

    directory: Directory
    number: int
    start: int
    """Log offset of its first byte."""
    queues: dict[tuple[str, int], QueueState]
    cursor: int


class PartFindings(NamedTuple):
    """Findings in one file of the log."""

    number: int
    log: LogFindings
    queues: QueuesFindings
    entries: IndexFindings
    faults: list[Fault]
    notes: list[str]
    kinds: dict[str, int]
    figures: dict[str, int]
    is_odd: bool
    """Whether something was found that may depend on earlier files."""


def parts_of(verification: Verification, directory: Directory) -> list[Part]:
    """Return the parts of a log, for a verification that has begun."""
    files = verification.layout.log.files
    count = max(last_file_with_data(verification.layout.log) + 1, min(len(files), 1))
    starts = [file.start for file in files[:count]]
    states: list[dict[tuple[str, int], QueueState]] = [{} for _ in starts]
    handles = OpenFiles()
    try:
        for queue in verification.layout.queues:
            if queue.stream.files:
                units = UnitFiles(queue.stream, handles)
                found = _states(units, verification.layout.log.min_offset, starts)
                for state, part in zip(found, states, strict=True):
                    if state is not None:
                        part[queue.topic, queue.queue_id] = state
    finally:
        handles.close()
    return [
        Part(directory, index, start, states[index], verification.index.cursor_at(start) if index else 0)
        for index, start in enumerate(starts)
    ]


def _states(units: UnitFiles, log_min: int, starts: Sequence[int]) -> list[QueueState | None]:
    first = _search(units, units.first, log_min, is_live=True)
    states: list[QueueState | None] = []
    number = first
    for start in starts:
        number = _search(units, number, start)
        if number <= first:
            states.append(None)
        else:
            states.append(QueueState(number, units.read(number - 1, 1)[0].physical_offset))
    return states


def _search(units: UnitFiles, low: int, offset: int, *, is_live: bool = False) -> int:
    high = units.end
    while low < high:
        middle = (low + high) // 2
        place, size, _ = units.read(middle, 1)[0]
        if place >= offset and not (is_live and size == PRE_BLANK_SIZE):
            high = middle
        else:
            low = middle + 1
    return low


def examine_part(part: Part) -> PartFindings:
    """Walk through one file of the log."""
    verification = part.directory.verification()
    verification.begin()
    report = verification.report
    for seen in (report.faults, report.notes, report.kinds, report.figures):
        seen.clear()  # findings of `begin` concern the whole directory
    if part.number:
        verification.queues.resume(part.queues)
        verification.index.resume(part.cursor, part.start)
    try:
        verification.walk(part.number, part.number + 1)
        return _findings(part.number, verification, report)
    finally:
        verification.queues.close()
        verification.index.close()


def _findings(number: int, verification: Verification, report: Report) -> PartFindings:
    is_odd = verification.queues.is_odd or not _STATELESS.issuperset(report.kinds)
    return PartFindings(
        number,
        verification.log.findings(),
        QueuesFindings({}, {}) if is_odd else verification.queues.findings(),
        verification.index.findings(),
        report.faults,
        report.notes,
        dict(report.kinds),
        dict(report.figures),
        is_odd,
    )


def put_together(verification: Verification, parts: Sequence[Part], findings: Sequence[PartFindings]) -> list[int]:
    """Combine the findings of all parts in a verification that has begun; conclude it afterwards.

    Returns the numbers of the parts that had to be walked again.
    """
    again = []
    for part, found in zip(parts, findings, strict=True):
        if _can_be_taken(verification, part, found):
            report = verification.report
            verification.log.take(found.log)
            verification.queues.take(found.queues)
            verification.index.take(found.entries)
            report.notes += found.notes
            report.figures.update(found.figures)
            for fault in found.faults:
                report.fault(*fault)
            for kind, count in found.kinds.items():
                report.kinds[kind] += count - sum(fault.kind == kind for fault in found.faults)
        else:
            again.append(part.number)
            verification.walk(part.number, part.number + 1)
    return again


def _can_be_taken(verification: Verification, part: Part, found: PartFindings) -> bool:
    if found.is_odd:
        return False
    if not part.number:
        return True
    return (
        all(verification.queues.state_of(key) == part.queues.get(key) for key in found.queues.queues)
        and verification.index.cursor_after(part.start) == part.cursor
    )
