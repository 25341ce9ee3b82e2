"""What the exit code of every `reput` command and of every job means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes; a command that changed nothing because the state already held ends with `DONE`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    NOT_AUTHORISED = 4
    NOT_FOUND = 5
    TIMEOUT = 6
    DAMAGE = 7
    PARTIAL = 8
    """A part of what was asked for was done."""
    INTERRUPTED = 130
