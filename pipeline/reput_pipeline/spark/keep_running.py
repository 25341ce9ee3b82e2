"""Run a streaming query through faults that pass: it is started again from its checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from reput_client.transport.backoff import Backoff
from reput_pipeline.spark.errors import Cause, cause_in, note

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LATE_WORKER: Final = "Python worker failed to connect back"
"""Spark's error for a Python process that has not started within ten seconds, such as on a busy machine."""
LATE_WORKERS_MAX: Final = 5
"""So many in a row: a process that never starts, because its environment is broken, looks the same."""


def keep_running(
    start: Callable[[], StreamingQuery],
    *,
    first_pause_s: float = 1.0,
    most_pause_s: float = 60.0,
    attempts: int | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Start a query and wait until it is stopped; start it again whenever an error that may pass has ended it.

    Such errors are those of the source, the sink and the client that are `retryable`: a broker that was away for longer
    than the options allow, or a master that was replaced between the end of a task and the commit of its batch. So is
    Spark's for a Python process that started too slowly, until the fifth in a row (`LATE_WORKERS_MAX`): a batch, or an
    error of ours, between them shows that it does start. Any other error is raised: damage, lost data, wrong options,
    and the program's own. Each start is noted in stderr with its cause. A start repeats the batch that was not
    committed, so a sink that writes exactly once has each row once.

    Args:
        start: starts the query, with the same checkpoint each time, such as `writer.start`.
        first_pause_s: before the next start; it doubles with each failure, until a query has ended a batch.
        most_pause_s: the longest pause.
        attempts: most failures in a row, without a batch between them, before the error is raised; None: any number.
        stop: once it is set, no query is started again, also not after a pause that has begun. The one that runs is
            stopped by its own `stop()`.

    Raises:
        StreamingQueryException: the query has ended by an error that a new start does not cure, or has not cured.
    """
    backoff = Backoff(first_pause_s, most_pause_s, jitter=0.0)
    stopped = stop or threading.Event()
    failures = late = 0
    while not stopped.is_set():
        query: StreamingQuery | None = None
        try:
            query = start()
            query.awaitTermination()
        except Exception as error:
            if query is not None and query.recentProgress:
                failures = late = 0
                backoff.reset()
            failures += 1
            cause = cause_in(error)
            if cause is not None:
                late = 0
            elif LATE_WORKER in str(error) and late + 1 < LATE_WORKERS_MAX:
                late += 1
                cause = Cause("SparkException", LATE_WORKER, retryable=True)
            if cause is None or not cause.retryable or failures == attempts:
                raise
            pause_s = backoff.next_delay_s()
            note(f"the query starts again in {pause_s:g} s: {cause.name}: {cause.text}")
            stopped.wait(pause_s)
        else:
            return
