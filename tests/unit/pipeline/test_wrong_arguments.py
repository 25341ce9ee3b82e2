"""A wrong argument of any job is named, before Spark starts, and nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import ArchiveBatch, ArchiveFile, ArchiveKind
from support.pipeline_jobs import Run, runner
from support.store_samples import fill, hashes


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store S, an archive A of topic T, a directory with something else, and a file."""
    root = tmp_path_factory.mktemp("places")
    fill(root / "S")
    archive = ArchiveDirectory(root / "A")
    with archive:
        archive.begin(ArchiveKind("archive", str(root / "S")))
        archive.complete(ArchiveBatch(0, (), {}), [ArchiveFile("topic=T/x.parquet", "T", 1, 1, None, None)])
    (root / "other").mkdir()
    (root / "other" / "notes.txt").write_text("hello")
    (root / "file").write_text("hello")
    return root


STORE, NEW, OF_ARCHIVE = ["--path", "@S"], ["--to", "@new"], ["--archive", "@A"]
WRONG = [
    (["archive", *STORE], 2, "--to"),
    (["archive", *NEW], 2, "--server"),
    (["archive", *STORE, "--to", "@other"], 2, "--to"),
    (["archive", *STORE, "--to", "@file"], 2, "--to"),
    (["archive", *STORE, "--to", "@file/below"], 2, "--to"),
    (["archive", *STORE, "--to", "ftp://host/a"], 2, "--to"),
    (["archive", *STORE, *NEW, "--since", "10", "--until", "5"], 2, "--until"),
    (["archive", *STORE, *NEW, "--since", "soon"], 2, "--since"),
    (["archive", *STORE, *NEW, "--since", "2026-01-02T00:00:00Z", "--until", "2026-01-01"], 2, "--until"),
    (["archive", *STORE, *NEW, "--topics", "["], 2, "--topics"),
    (["archive", *STORE, *NEW, "--topic", "T", "--topics", "T"], 2, "--topics"),
    (["archive", *STORE, *NEW, "--topic", "nobody"], 5, None),
    (["archive", *STORE, *NEW, "--master", "somewhere"], 2, "--master"),
    (["archive", *STORE, *NEW, "--conf", "nonsense"], 2, "--conf"),
    (["archive", *STORE, *NEW, "extra"], 2, "extra"),
    (["archive", "--path", "@missing", *NEW], 5, None),
    (["archive", *STORE, *NEW, "--partition-by", "colour"], 2, "--partition-by"),
    (["archive", *STORE, *NEW, "--follow"], 2, "--follow"),
    (["archive", *STORE, *NEW, "--server", "127.0.0.1:1"], 2, "--path"),
    (["archive", *STORE, *NEW, "--option", "subscirbe=x"], 2, "--option subscirbe"),
    (["archive", *STORE, *NEW, "--file-messages", "0"], 2, "--file-messages"),
    (["archive", *STORE, *NEW, "-o", 'startingOffsets={"missing":{"0":1}}'], 2, "--option startingOffsets"),
    (["archive", *STORE, *NEW, "-o", 'endingOffsets={"T":{"7":1}}'], 2, "--option endingOffsets"),
    (["archive", *STORE, *NEW, "-o", "select=body"], 2, "--option select"),
    (["archive", *STORE, *NEW, "-o", "columns=kafka"], 2, "--option columns"),
    (["replay", "--archive", "@other"], 5, None),
    (["replay", *OF_ARCHIVE, "--topic", "nobody"], 2, "--topic"),
    (["replay", *OF_ARCHIVE, "--to-topic", "a b"], 2, "--to-topic"),
    (["replay", *OF_ARCHIVE, "--server", "host:port"], 2, "--server"),
    (["replay", *OF_ARCHIVE, "--semantics", "perhaps"], 2, "--semantics"),
    (["replay", *OF_ARCHIVE, "--server", "127.0.0.1:1"], 3, None),
    (["compact", "--archive", "@other", *NEW], 5, None),
    (["compact", *OF_ARCHIVE, "--to", "@other"], 2, "--to"),
    (["compact", *OF_ARCHIVE, "--to", "gs://bucket/a"], 2, "--to"),
    (["report", "--archive", "s3://bucket/a"], 2, "--archive"),
    (["compact", *OF_ARCHIVE, "--to", "@A"], 2, "--to"),
    (["compact", *OF_ARCHIVE, *NEW, "--by", "colour"], 2, "--by"),
    (["compact", *OF_ARCHIVE, *NEW, "--by", "id", "--drop-empty-after", "1"], 2, "--drop-empty-after"),
    (["report", *OF_ARCHIVE, "--server", "127.0.0.1:1"], 2, "--server"),
    (["report", *STORE, "--html", "@missing/page.html"], 2, "--html"),
    (["report", *STORE, "--html", "@other"], 2, "--html"),
    (["report", *STORE, "--top", "0"], 2, "--top"),
    (["report", *STORE, "--master", "none"], 2, "--master"),
    (["lag", *STORE, "--history", "@other"], 2, "--history"),
    (["lag", *STORE, "--now", "5", "--samples", "2"], 2, "--now"),
    (["lag", *STORE, "--group", "nobody"], 5, None),
    (["find", *STORE], 2, "--key"),
    (["find", *STORE, "--regex", "("], 2, "--regex"),
    (["find", *STORE, "--regex", "(?=a)"], 2, "--regex"),
    (["find", *STORE, "--ignore-case", "--key", "k"], 2, "--ignore-case"),
    (["find", *OF_ARCHIVE, "--topic", "nobody", "--key", "k"], 5, None),
    (["audit", "--path", "@other"], 5, None),
    (["audit", *STORE, "--limit", "0"], 2, "--limit"),
    (["audit", *STORE, "--commit-log-dir", "@missing"], 2, "--commit-log-dir"),
    (["audit", *STORE, "--delay-levels", "1 fortnight"], 2, "--delay-levels"),
    (["rebuild", "--path", "@file"], 5, None),
    (["rebuild", *STORE, "--index-slots", "-1"], 2, "--index-slots"),
    (["dlq", *STORE, "--to-server", "127.0.0.1:1"], 2, "--to-server"),
    (["dlq", *STORE, "--replay"], 2, "--to-server"),
    (["dlq", *STORE, "--dry-run"], 2, "--dry-run"),
    (["dlq", *OF_ARCHIVE, "--server", "127.0.0.1:1"], 2, "--server"),
    (["dlq", *STORE, "--group", ""], 2, "--group"),
    (["dlq", *STORE, "--group", "shop", "--topic", "T"], 2, "--group"),
    (["dlq", *STORE, "--rate", "0"], 2, "--rate"),
]


@pytest.mark.parametrize(("arguments", "code", "argument"), WRONG)
def test_it_is_named_and_nothing_changes(
    run: Run, places: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, argument: str | None
) -> None:
    def no_session(*_: object, **__: object) -> None:
        raise AssertionError("Spark is not needed to see that an argument is wrong")

    monkeypatch.setattr("reput_pipeline.jobs.run.make_session", no_session)
    before = hashes(places)
    ran = run(*(f"{places}/{text[1:]}" if text.startswith("@") else text for text in arguments))
    assert (ran.code, ran.result.get("argument")) == (code, argument), ran.result
    assert ran.lines == []
    assert ran.err.startswith("error: ")
    assert hashes(places) == before
    assert not (places / "new").exists()
