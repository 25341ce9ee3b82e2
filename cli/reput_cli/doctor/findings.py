"""What a check found, and how findings are printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reput_cli.failures import worded
from reput_cli.options import Settings
from reput_cli.output import Printer, write_line
from reput_protocol.errors import ReputError
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted, printable

CLOCK_S = 2.0
"""Clocks that differ by more are a fault: delays, retention and @TIME follow the broker's."""


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    """Nothing fails yet."""
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was found, why it is so, and the next command or step."""

    check: str
    state: State
    found: str
    cause: str | None = None
    next: str | None = None
    code: ExitCode = ExitCode.FAILED
    """Of the command, if this is the first fault."""


def ok(check: str, found: str) -> Finding:
    """Return a finding that is as it should be."""
    return Finding(check, State.OK, found)


def warning(check: str, found: str, cause: str, next_step: str) -> Finding:
    """Return a finding that will become a fault."""
    return Finding(check, State.WARNING, found, cause, next_step)


def fault(check: str, found: str, cause: str, next_step: str, code: ExitCode = ExitCode.FAILED) -> Finding:
    """Return a fault."""
    return Finding(check, State.FAULT, found, cause, next_step, code)


def report(settings: Settings, findings: Iterable[Finding]) -> int:
    """Print findings as they come, numbered; return the exit code."""
    printer = Printer(settings)
    all_findings: list[Finding] = []
    rows: list[dict[str, Any]] = []
    for number, finding in enumerate(findings, start=1):
        all_findings.append(finding)
        row = {
            "number": number,
            "check": finding.check,
            "state": str(finding.state),
            "found": finding.found,
            "cause": finding.cause,
            "next": finding.next,
        }
        rows.append(row)
        if printer.form == "jsonl":
            printer.json_line(row)
        elif not printer.is_json:
            _print(number, finding)
    if printer.form == "json":
        printer.rows(list(rows[0]), [list(row.values()) for row in rows])
    faults = [finding for finding in all_findings if finding.state is State.FAULT]
    warnings = sum(finding.state is State.WARNING for finding in all_findings)
    said = f"{counted(len(faults), 'fault')}, {counted(warnings, 'warning')}"
    printer.note(f"{counted(len(all_findings), 'check')}: {said if faults or warnings else 'no fault'}")
    return faults[0].code if faults else ExitCode.DONE


def _print(number: int, finding: Finding) -> None:
    state = finding.state.upper() if finding.state is State.FAULT else str(finding.state)
    write_line(f"{number:>2} {state:<7} {finding.check}: {printable(finding.found)}")
    if finding.cause:
        write_line(f"           cause: {printable(finding.cause)}")
    if finding.next:
        write_line(f"           try:   {printable(finding.next)}")


def unreachable(server: str, error: ReputError) -> Finding:
    """Return the finding that a broker does not answer."""
    failure = worded(error)
    if failure.code is ExitCode.CANNOT_CONNECT:
        return fault(
            "connection",
            f"no broker responds at {server}",
            failure.what,
            "start it: reput serve; is it another machine or port: reput context list",
            ExitCode.CANNOT_CONNECT,
        )
    if failure.code is ExitCode.NOT_AUTHORISED:
        return fault(
            "connection",
            f"{server} does not permit showing its state",
            failure.what,
            failure.remedy or "--user and --secret-file of a user with describe on the cluster",
            failure.code,
        )
    return fault(
        "connection",
        f"{server} does not respond as a Reput broker",
        failure.what,
        failure.remedy or "reput health, and the broker's log",
        failure.code,
    )
