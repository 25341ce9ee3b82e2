"""A query is started again while what ended it may pass."""

from __future__ import annotations

import time

import pytest

from reput_pipeline.spark.errors import StagedRowsGone
from reput_pipeline.spark.keep_running import keep_running
from reput_protocol.errors import ErrorCode, NotMaster, ReputError, TopicNotFound, refusal_remark

AWAY = NotMaster(ErrorCode.NOT_MASTER, refusal_remark(ErrorCode.NOT_MASTER, "a slave"))
GONE = TopicNotFound(ErrorCode.NO_TOPIC, refusal_remark(ErrorCode.NO_TOPIC, "no topic"))
STAGED = StagedRowsGone(7, "broker-a", NotMaster(ErrorCode.NOT_FOUND))


class Clock:
    """The time of a program whose queries take some each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.pauses.append)


class Query:
    """Ends after some time, with an error as Spark has it, or stopped."""

    def __init__(self, clock: Clock, seconds: float, error: ReputError | None) -> None:
        self._clock, self._seconds, self._error = clock, seconds, error

    def awaitTermination(self) -> None:  # noqa: N802 (Spark's name)
        self._clock.now += self._seconds
        if self._error is not None:
            kind = type(self._error)
            text = f"{kind.__module__}.{kind.__qualname__}: {self._error}"
            raise RuntimeError(
                f"[STREAM_FAILED] a query failed\nTraceback:\n{text} SQLSTATE: XXKST\n=== Plan ==="
            )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_it_starts_again_with_growing_pauses_until_it_is_stopped(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = iter([AWAY, STAGED, AWAY, None])
    keep_running(lambda: Query(clock, 5.0, next(errors)), most_pause_s=3.0)  # type: ignore[arg-type,return-value]
    assert clock.pauses == [1.0, 2.0, 3.0]
    assert "batch 7 is not published, because broker-a lacks rows" in capsys.readouterr().err


def test_a_query_that_ran_for_a_while_begins_anew(clock: Clock) -> None:
    ends = iter([(1.0, AWAY), (1.0, AWAY), (60.0, AWAY), (1.0, AWAY), (1.0, None)])
    keep_running(lambda: Query(clock, *next(ends)), attempts=3)  # type: ignore[arg-type,return-value]
    assert clock.pauses == [1.0, 2.0, 1.0, 2.0]


def test_it_gives_up_after_the_given_number_of_failures_in_a_row(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="a slave"):
        keep_running(lambda: Query(clock, 1.0, AWAY), attempts=3)  # type: ignore[arg-type,return-value]
    assert clock.pauses == [1.0, 2.0]


def test_an_error_that_stays_is_raised_at_once(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="no topic"):
        keep_running(lambda: Query(clock, 1.0, GONE))  # type: ignore[arg-type,return-value]
    with pytest.raises(ZeroDivisionError):
        keep_running(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert not clock.pauses
