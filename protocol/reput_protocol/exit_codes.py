"""The exit codes of all `reput` commands and jobs."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes. `DONE` also if there was nothing to change."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    NOT_AUTHORISED = 4
    NOT_FOUND = 5
    TIMEOUT = 6
    DAMAGE = 7
    PARTIAL = 8
    """Only part of the work was done."""
    INTERRUPTED = 130
