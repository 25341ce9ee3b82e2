"""`reput pipeline report`, `find` and `lag`: they read, and change nothing."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_jobs import Run, runner
from support.store_samples import MESSAGES, hashes


@pytest.fixture
def run(spark: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture(scope="module")
def archive(spark: Any, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from reput_pipeline.jobs.run import run_job

    path = tmp_path_factory.mktemp("archive") / "a"
    assert (
        run_job("archive", ["--path", str(root), "--to", str(path), "--partition-by", "tags"], stop_session=False) == 0
    )
    return path


def test_a_report_of_a_store_and_of_its_archive_agree(run: Run, root: Path, archive: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ran = run("report", "--path", root, "--html", page, "--top", 3)
    assert ran.code == 0, ran.err
    (topic,) = ran.result["topics"]
    assert (topic["topic"], topic["messages"], topic["bytes"], topic["tags"]) == ("T", MESSAGES, 9 * MESSAGES, 3)
    assert (topic["size_p50"], topic["size_max"]) == (9, 9)
    assert topic["messages_per_s"] == pytest.approx(60 / 41.3, abs=0.01)
    assert sum(row["messages"] for row in ran.result["hours"]) == MESSAGES
    assert [(row["name"], row["messages"]) for row in ran.result["keys"]] == [("k0", 3), ("k1", 3), ("k10", 3)]
    assert ran.lines[0].startswith("TOPIC")
    assert "  540 B  " in ran.lines[1]
    text = page.read_text()
    assert 'aria-label="messages by second"' in text
    # Names of SVG, not addresses.
    assert set(re.findall(r'https?://[^"]+', text)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    of_archive = run("report", "--archive", archive, "--top", 3).result
    assert {name: of_archive[name] for name in ("topics", "tags", "hours", "keys")} == {
        name: ran.result[name] for name in ("topics", "tags", "hours", "keys")
    }
    part = run("report", "--archive", archive, "--tag", "tag1", "--since", 1_700_000_035_000).result
    whole = run("report", "--path", root, "--tag", "tag1", "--since", 1_700_000_035_000).result
    assert part["messages"] == whole["messages"] > 0


def test_sizes_in_a_report_are_exact_and_empty_bodies_are_of_size_0(spark: Any) -> None:
    from reput_pipeline.jobs.report import COLUMNS, figures_of, page_of

    sizes = [0] * 5 + [1, 2, 3, 4, 7, 8] + [5245] * 89
    frame = spark.createDataFrame(
        [("T", None, None, b"x" * size, datetime(2026, 1, 1, tzinfo=UTC)) for size in sizes],
        "topic string, tags string, keys string, body binary, storeTimestamp timestamp",
    ).select(*COLUMNS)
    figures = figures_of(frame, top=3)
    (topic,) = figures.topics
    assert (topic["size_p50"], topic["size_p90"], topic["size_p99"], topic["size_max"]) == (5245,) * 4
    assert [(row["from_bytes"], row["messages"]) for row in figures.sizes] == [
        (0, 5),
        (1, 1),
        (2, 2),
        (4, 2),
        (8, 1),
        (4096, 89),
    ]
    assert "<svg" in page_of(figures, "here").html()


FOUND = [
    (["--key", "k7"], ["body-0007", "body-0027", "body-0047"]),
    (["--id", "U000012"], ["body-0012"]),
    (["--text", "BODY-005", "--ignore-case", "--limit", "3"], ["body-0050", "body-0051", "body-0052"]),
    (["--regex", "-00[12]7$", "--tag", "tag2"], ["body-0017"]),
    (["--key", "k7", "--text", "body-0027"], ["body-0027"]),
    (["--key", "nobody"], []),
]


@pytest.mark.parametrize(("arguments", "bodies"), FOUND)
@pytest.mark.parametrize("place", ["store", "archive"])
def test_messages_are_found(
    run: Run, root: Path, archive: Path, arguments: list[str], bodies: list[str], place: str
) -> None:
    where = ["--path", root] if place == "store" else ["--archive", archive]
    ran = run("find", *where, *arguments)
    assert ran.code == (0 if bodies else 5), ran.err
    rows = [json.loads(line) for line in ran.lines]
    assert [row["body"] for row in rows] == bodies
    assert ran.result["found"] == len(bodies)
    for row in rows:
        assert (row["topic"], row["properties"]["colour"]) == ("T", "blue")


WRONG = [
    (["find", "--text", "a", "--regex", "b"], "--regex"),
    (["find"], "--key"),
    (["find", "--key", "a b"], "--key"),
    (["find", "--regex", "("], "--regex"),
    (["report", "--top", "0"], "--top"),
    (["report", "--html", "/nowhere/at/all.html"], "--html"),
    (["report", "--archive", "."], None),
    (["report", "--conf", "nonsense"], "--conf"),
    (["lag", "--every", "-1"], "--every"),
]


@pytest.mark.parametrize(("arguments", "argument"), WRONG)
def test_wrong_arguments_are_named(run: Run, root: Path, arguments: list[str], argument: str | None) -> None:
    before = hashes(root)
    name, *rest = arguments
    ran = run(name, "--path", root, *rest)
    assert ran.code in (2, 5)
    assert argument is None or ran.result["argument"] == argument
    assert hashes(root) == before


def test_lag_of_a_store_directory(run: Run, root: Path, tmp_path: Path) -> None:
    now = 1_700_000_100_000
    ran = run("lag", "--path", root, "--now", now, "--history", tmp_path / "h")
    assert ran.code == 0, ran.err
    (group,) = ran.result["groups"]
    assert (group["group"], group["topic"], group["lag"], group["unread_gone"]) == ("billing", "T", 23, 0)
    # Message 7 of queue 0 is the 15th of all, stored 15 * 700 ms after the beginning.
    assert group["lag_ms"] == now - (1_700_000_000_000 + 15 * 700) + 0
    ran = run("lag", "--path", root, "--now", now + 60_000, "--history", tmp_path / "h")
    (group,) = ran.result["history"]
    assert (group["samples"], group["lag_first"], group["lag_last"], group["is_stalled"]) == (2, 23, 23, True)
    assert group["lag_ms_last"] - group["lag_ms_first"] == 60_000
