"""A store directory that jobs and readers only read, and jobs without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipeline_jobs import Run, runner
from support.store_samples import fill


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the messages of `store_samples`, for all tests of a module."""
    path = tmp_path_factory.mktemp("store") / "s"
    fill(path)
    return path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a job in this process; it is an error if a session is started."""

    def no_session(*_given: object, **_more: object) -> None:
        raise AssertionError("a session was started")

    monkeypatch.setattr("reput_pipeline.jobs.run.make_session", no_session)
    return runner(capfd)
