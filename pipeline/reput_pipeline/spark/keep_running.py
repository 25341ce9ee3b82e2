"""Run a streaming query through faults that pass: it is started again from its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from reput_pipeline.spark.errors import cause_in
from reput_pipeline.spark.notes import note

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STEADY_S: Final = 60.0
"""A query that ran so long has overcome what ended the one before."""


def keep_running(
    start: Callable[[], StreamingQuery],
    *,
    first_pause_s: float = 1.0,
    most_pause_s: float = 60.0,
    attempts: int | None = None,
) -> None:
    """Start a query and wait until it is stopped; start it again whenever an error that may pass has ended it.

    Such errors are those of the source, the sink and the client whose class is `retryable`: a broker that was away for
    longer than the options allow, or a master that was replaced between the end of a task and the commit of its batch.
    Any other error is raised: damage, lost data, wrong options, and the program's own. Each start is noted in stderr
    with its cause. What the query writes is written once if its sink is exactly once, because a start repeats the
    batch that was not committed.

    Args:
        start: starts the query, with the same checkpoint each time, such as `writer.start`.
        first_pause_s: before the next start; it doubles with each failure within a minute of a start.
        most_pause_s: the longest pause.
        attempts: most failures in a row, each within a minute of a start, before the error is raised; None: any number.

    Raises:
        StreamingQueryException: the query has ended by an error that a new start does not cure.
    """
    failures = 0
    while True:
        started_at = time.monotonic()
        try:
            start().awaitTermination()
        except Exception as error:
            cause = cause_in(error)
            failures = 1 if time.monotonic() - started_at >= _STEADY_S else failures + 1
            if cause is None or not cause.retryable or failures == attempts:
                raise
            pause_s = min(first_pause_s * 2.0 ** (failures - 1), most_pause_s)
            note(f"the query starts again in {pause_s:g} s: {cause.name}: {cause.text}")
            time.sleep(pause_s)
        else:
            return
