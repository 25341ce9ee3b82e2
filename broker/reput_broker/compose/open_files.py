"""The limit of open files of this process, and its shares: connections, queue, log and index files, HTTP."""

from __future__ import annotations

import resource
from typing import NamedTuple

import structlog

from reput_broker.server.http_server import CONNECTIONS_MAX

log = structlog.get_logger(__name__)

_QUEUE_FILES = 512
_MAPPED_FILES = 512  # half of them of the log, half of the index; each uses two descriptors
_OTHERS = 512
_OTHERS_MIN = 64  # open without any client: files being written, tables, listeners, those of the event loop


class OpenFiles(NamedTuple):
    """The shares of open files. Together they are below the limit, so that none starves another."""

    limit: int
    connections: int
    queue_files: int
    log_files: int
    index_files: int
    http_connections: int


def raise_limit() -> int:
    """Raise the limit of open files to the maximum of this process; return it."""
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
    queue_files = max(1, min(_QUEUE_FILES, limit // 8))
    mapped_each = max(1, min(_MAPPED_FILES // 2, limit // 32))
    others = max(_OTHERS_MIN, min(_OTHERS, limit // 8))
    http = max(1, min(CONNECTIONS_MAX, limit // 16))
    connections = max(1, limit - queue_files - 4 * mapped_each - others - http)
    return OpenFiles(limit, connections, queue_files, mapped_each, mapped_each, http)


def warn_if_few(files: OpenFiles, connections: int) -> None:
    """Log how many open files are needed, if there are not enough for so many connections."""
    if files.connections < connections:
        log.warning(
            "open_files_limit_low",
            limit=files.limit,
            connections_max=files.connections,
            hint=f"raise the limit of open files (ulimit -n, LimitNOFILE) to {_needed_for(connections)}, or lower "
            "limits.connections",
        )


def _needed_for(connections: int) -> int:
    limit = connections + _OTHERS_MIN
    while shares_of(limit).connections < connections:
        limit += connections - shares_of(limit).connections
    return limit
