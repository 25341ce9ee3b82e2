"""A query is started again while what ended it may pass."""

from __future__ import annotations

import threading

import pytest

from reput_client.errors import ConnectFailed
from reput_pipeline.spark.errors import BatchNotWritten, cause_in
from reput_pipeline.spark.keep_running import keep_running
from reput_protocol.errors import ErrorCode, NotMaster, ReputError, TopicNotFound, refusal_remark

AWAY = NotMaster(ErrorCode.NOT_MASTER, refusal_remark(ErrorCode.NOT_MASTER, "a slave"))
GONE = TopicNotFound(ErrorCode.NO_TOPIC, refusal_remark(ErrorCode.NO_TOPIC, "no topic"))
UNWRITTEN = BatchNotWritten(7, "rows are gone")


class Pauses(threading.Event):
    """Waits for nothing, and notes for how long it would; is set after some waits."""

    def __init__(self, most: int = 10_000) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        if len(self.waits) >= self._most:
            self.set()
        return self.is_set()


def text_of(error: ReputError) -> str:
    kind = type(error)
    return f"Traceback:\n{kind.__module__}.{kind.__qualname__}: {error} SQLSTATE: XXKST\n"


class Query:
    """Ends after some batches, with an error as Spark has it, or stopped."""

    def __init__(self, error: ReputError | None, batches: int = 0) -> None:
        self._error = error
        self.recentProgress: list[object] = [{}] * batches

    def awaitTermination(self) -> None:  # noqa: N802 (Spark's name)
        if self._error is not None:
            raise RuntimeError(f"[STREAM_FAILED] a query failed\n{text_of(self._error)}=== Plan ===")


def test_it_starts_again_with_growing_pauses_until_it_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    pauses = Pauses()
    queries = iter([Query(AWAY), Query(UNWRITTEN), Query(AWAY), Query(None)])
    keep_running(lambda: next(queries), most_pause_s=3.0, stop=pauses)  # type: ignore[arg-type,return-value]
    assert pauses.waits == [1.0, 2.0, 3.0]
    assert "batch 7 is not published: rows are gone" in capsys.readouterr().err


class Late(Query):
    """Ends after some batches, because a Python process has not started."""

    def __init__(self, batches: int = 0) -> None:
        super().__init__(None, batches)

    def awaitTermination(self) -> None:  # noqa: N802 (Spark's name)
        raise RuntimeError("[STREAM_FAILED] Query terminated: Python worker failed to connect back.\n=== Plan")


def test_it_starts_again_after_a_python_process_that_was_late(capsys: pytest.CaptureFixture[str]) -> None:
    pauses = Pauses()
    queries = iter([Late(), Query(None)])
    keep_running(lambda: next(queries), stop=pauses)  # type: ignore[arg-type,return-value]
    assert pauses.waits == [1.0]
    assert "SparkException: Python worker failed to connect back" in capsys.readouterr().err


def test_a_python_process_that_never_starts_is_raised() -> None:
    pauses = Pauses(100)
    with pytest.raises(RuntimeError, match="failed to connect back"):
        keep_running(Late, stop=pauses)  # type: ignore[arg-type]
    assert pauses.waits == [1.0, 2.0, 4.0, 8.0]
    some = [Late()] * 4
    queries = iter([*some, Query(AWAY), *some, Late(batches=1), *some[1:], Query(None)])
    pauses = Pauses(100)
    keep_running(lambda: next(queries), stop=pauses)  # type: ignore[arg-type,return-value]
    assert len(pauses.waits) == 13


def test_a_query_that_ended_a_batch_counts_from_the_beginning() -> None:
    pauses = Pauses()
    queries = iter([Query(AWAY), Query(AWAY), Query(AWAY, 1), Query(AWAY), Query(None)])
    keep_running(lambda: next(queries), attempts=3, stop=pauses)  # type: ignore[arg-type,return-value]
    assert pauses.waits == [1.0, 2.0, 1.0, 2.0]


def test_it_gives_up_after_the_given_number_of_failures_in_a_row() -> None:
    pauses = Pauses()
    with pytest.raises(RuntimeError, match="a slave"):
        keep_running(lambda: Query(AWAY), attempts=3, stop=pauses)  # type: ignore[arg-type,return-value]
    assert pauses.waits == [1.0, 2.0]


def test_brokers_may_be_away_for_days() -> None:
    pauses = Pauses(3000)
    keep_running(lambda: Query(AWAY), stop=pauses)  # type: ignore[arg-type,return-value]
    assert pauses.waits[-1] == 60.0


def test_it_can_be_stopped_in_a_pause() -> None:
    pauses = Pauses(1)
    started: list[Query] = []

    def start() -> Query:
        started.append(Query(AWAY))
        return started[-1]

    keep_running(start, stop=pauses)  # type: ignore[arg-type]
    assert len(started) == 1


def test_an_error_that_stays_is_raised_at_once() -> None:
    pauses = Pauses()
    with pytest.raises(RuntimeError, match="no topic"):
        keep_running(lambda: Query(GONE), stop=pauses)  # type: ignore[arg-type,return-value]
    with pytest.raises(ZeroDivisionError):
        keep_running(lambda: 1 // 0, stop=pauses)  # type: ignore[arg-type,return-value]
    assert not pauses.waits


def test_the_programs_own_error_is_the_cause_even_after_one_of_ours() -> None:
    ours = text_of(ConnectFailed("h:1", "refused"))
    assert cause_in(RuntimeError(ours)) is not None
    chained = f"{ours}\nDuring handling of the above exception, another exception occurred:\n\nTraceback:\n"
    assert cause_in(RuntimeError(f"{chained}ValueError: no such order")) is None
    wrapped = "org.apache.spark.SparkException: Job aborted\nCaused by: java.io.IOException: x\n"
    assert cause_in(RuntimeError(ours + wrapped)) is not None
    spark_s = "pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] it failed\n"
    assert cause_in(RuntimeError(ours + spark_s)) is not None
    assert cause_in(RuntimeError("reput_pipeline.spark.errors.re: not a class")) is not None
