"""The job `compact` without Spark: the remains of a stopped run, and what the next one does with them."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import ArchiveFile, ArchiveKind
from reput_pipeline.jobs.run import JobRun
from support.pipeline_jobs import Run, runner


class Stopped(BaseException):
    """As a kill."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(JobRun, "spark", None)
    monkeypatch.setattr(JobRun, "progress", lambda *_: nullcontext())
    monkeypatch.setattr("reput_pipeline.jobs.compact.read_archive", lambda *_: None)
    monkeypatch.setattr("reput_pipeline.jobs.compact.chosen", lambda *_, **__: None)
    return runner(capfd)


def write_one(name: str, *, stop: bool) -> Any:
    def write_frame(run: JobRun, frame: Any, archive: ArchiveDirectory) -> list[ArchiveFile]:
        del run, frame
        path = archive.root / "topic=T" / name
        for place in (path, archive.directory / f"writing-{name}" / name):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        if stop:
            raise Stopped
        return [ArchiveFile(f"topic=T/{name}", "T", 1, 0, None, None)]

    return write_frame


@pytest.mark.parametrize("stopped_at", ["write_frame", "begin", "complete"])
def test_files_of_a_stopped_run_are_removed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: str
) -> None:
    with ArchiveDirectory(tmp_path / "a") as source:
        source.begin(ArchiveKind("archive", "s"))
        source.complete(source.plan([], {}), [])
    arguments = ("compact", "--archive", tmp_path / "a", "--to", tmp_path / "k")

    def stop(*_: object, **__: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(
            "reput_pipeline.jobs.compact.write_frame",
            write_one("part-0-old.zstd.parquet", stop=stopped_at == "write_frame"),
        )
        if stopped_at == "begin":
            patched.setattr(ArchiveDirectory, "begin", stop)
        elif stopped_at == "complete":
            patched.setattr(ArchiveDirectory, "complete", stop)
        with pytest.raises(Stopped):
            run(*arguments)
    monkeypatch.setattr("reput_pipeline.jobs.compact.write_frame", write_one("part-0-new.zstd.parquet", stop=False))
    ran = run(*arguments)
    assert ran.code == 0, ran.err
    assert "removed 1 file of an interrupted job" in ran.err
    made = ArchiveDirectory(tmp_path / "k")
    assert made.existing().kind == "compact"
    assert [path.name for path in made.root.glob("topic=*/*")] == ["part-0-new.zstd.parquet"]
    assert [file.path for file in made.files()] == ["topic=T/part-0-new.zstd.parquet"]
    assert made.unfinished() is None
    assert run(*arguments).result["argument"] == "--to"


@pytest.mark.parametrize(("hours", "kept_s"), [("24", 86_400), ("0.5", 1800), ("0", 0)])
def test_deleted_keys_are_kept_for_hours(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: str, kept_s: int
) -> None:
    with ArchiveDirectory(tmp_path / "a") as source:
        source.begin(ArchiveKind("archive", "s"))
        source.complete(source.plan([], {}), [])
    until: list[datetime] = []
    monkeypatch.setattr("reput_pipeline.jobs.compact.chosen", lambda *_, **given: until.append(given["empty_until"]))
    monkeypatch.setattr("reput_pipeline.jobs.compact.write_frame", lambda *_: [])
    began = datetime.now(UTC)
    ran = run("compact", "--archive", tmp_path / "a", "--to", tmp_path / "k", "--drop-empty-after", hours)
    assert ran.code == 0, ran.err
    assert began <= until[0] + timedelta(seconds=kept_s) <= datetime.now(UTC)
