"""What a job does while a broker is away: it ends with the error or, with `--follow`, waits for the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from reput_pipeline.jobs.outcomes import failure_of
from reput_pipeline.jobs.run import JobRun
from reput_protocol.errors import ReputError
from reput_protocol.exit_codes import ExitCode

T = TypeVar("T")
_AWAY_S: Final = 1.0
"""Shortest wait before a broker that is away is tried again."""


class BrokerWait:
    """Whether a broker is away, which the job prints once, and once when it is back.

    Args:
        run: of the job.
        waits: whether the job waits.
    """

    def __init__(self, run: JobRun, *, waits: bool) -> None:
        self._run = run
        self._waits = waits
        self._is_away = False

    def attempt(self, ask: Callable[[], T]) -> T | None:
        """Return what `ask` returns; None if a broker is away and the job waits.

        Raises:
            Exception: as `ask`.
        """
        try:
            found = ask()
        except Exception as error:  # an error of a task arrives as one of Py4J or PySpark
            if not self._waits or not _is_broker_away(error):
                raise
            if not self._is_away:
                self._run.note(f"waits for the broker: {failure_of(error).text}")
            self._is_away = True
            return None
        if self._is_away:
            self._run.note("the broker is back")
        self._is_away = False
        return found

    def pause_s(self, every_s: float) -> float:
        """Return how long to wait before the next attempt, with so many seconds between batches."""
        return max(every_s, _AWAY_S) if self._is_away else every_s


def _is_broker_away(error: Exception) -> bool:
    """Return whether an error, of this process or a task, means that a broker is away or starting."""
    if isinstance(error, ReputError):
        return error.retryable
    return failure_of(error).code in (ExitCode.CANNOT_CONNECT, ExitCode.TIMEOUT)
