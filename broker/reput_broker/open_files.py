"""How many files this process may have open, and what they are for: connections, queue files, log files."""

from __future__ import annotations

import resource
from typing import NamedTuple

import structlog

log = structlog.get_logger(__name__)

_QUEUE_FILES = 512
_OTHERS = 512  # log files, tables, listeners; more of them leave less room for connections


class OpenFiles(NamedTuple):
    """The shares of what may be open. Together they stay below the limit, so that one never starves another."""

    connections: int
    queue_files: int


def raise_limit() -> int:
    """Use as many open files as the system lets this process have; return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("open_files_limit_kept", limit=soft, detail=str(error))
            return soft
    return hard


def shares_of(limit: int) -> OpenFiles:
    """Divide `limit` open files."""
    queue_files = max(1, min(_QUEUE_FILES, limit // 4))
    others = min(_OTHERS, limit // 4)
    return OpenFiles(max(1, limit - queue_files - others), queue_files)
