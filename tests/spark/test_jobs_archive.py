"""`reput pipeline archive`: exactly once, after any interruption."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.read import DISCOVERY, read_archive
from support.pipeline_jobs import Run, runner
from support.store_samples import MESSAGES, fill, hashes, records_of
from support.stores import flip_bit


@pytest.fixture
def run(spark: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


def rows_of(spark: Any, archive: Path) -> list[tuple[int, int, bytes]]:
    return sorted((row.queueId, row.queueOffset, bytes(row.body)) for row in read_archive(spark, archive).collect())


EXPECTED = sorted((number % 2, number // 2, b"body-%04d" % number) for number in range(MESSAGES))


def test_a_store_becomes_an_archive_once(spark: Any, run: Run, root: Path, tmp_path: Path) -> None:
    before = hashes(root)
    ran = run("archive", "--path", root, "--to", tmp_path / "a", "--batch-messages", 25, "--partition-by", "tags,date")
    assert ran.code == 0, ran.err
    assert ran.result["rows"] == MESSAGES
    assert ran.result["batches"] == 3
    assert rows_of(spark, tmp_path / "a") == EXPECTED
    assert hashes(root) == before
    row = read_archive(spark, tmp_path / "a").where("queueOffset = 3 AND queueId = 1").first()
    assert row is not None
    assert (row.topic, row.tags, row.keys, row.date, row.properties["colour"]) == (
        "T",
        "tag1",
        "k7",
        "2023-11-14",
        "blue",
    )
    assert row.storeTimestamp.isoformat() == "2023-11-14T22:13:25.600000"
    assert spark.read.parquet(str(tmp_path / "a")).groupBy("tags").count().collect()[0]["count"] == MESSAGES // 3
    again = run("archive", "--path", root, "--to", tmp_path / "a")
    assert (again.code, again.result["rows"], again.result["batches"]) == (0, 0, 0)


def test_tags_that_are_no_names_are_read_from_the_messages(spark: Any, run: Run, tmp_path: Path) -> None:
    tags = ["a\0b", "é" * 300, "é" * 300 + "x", "%~", "short"]
    fill(tmp_path / "s", tags=tags)
    ran = run("archive", "--path", tmp_path / "s", "--to", tmp_path / "a", "--partition-by", "tags")
    assert (ran.code, ran.result["rows"]) == (0, MESSAGES), ran.err
    frame = read_archive(spark, tmp_path / "a")
    assert rows_of(spark, tmp_path / "a") == EXPECTED
    counted = {row.tags: row["count"] for row in frame.groupBy("tags").count().collect()}
    assert counted == dict.fromkeys(tags, MESSAGES // len(tags))
    found = run("find", "--archive", tmp_path / "a", "--key", "k2")
    assert {json.loads(line)["tags"] for line in found.lines} == {tags[2]}


def test_an_archive_of_many_files_is_opened_without_a_job_of_spark(
    spark: Any, run: Run, root: Path, tmp_path: Path
) -> None:
    """Spark lists more than 32 paths in a job with a task for each: 2,164 files took a minute."""
    arguments = ("archive", "--path", root, "--to", tmp_path / "a", "--file-messages", 1)
    assert run(*arguments).result["files"] == MESSAGES
    before = spark.conf.get(DISCOVERY)
    assert int(before) < MESSAGES
    spark.sparkContext.setJobGroup("opening", "an archive is opened")
    try:
        frame = read_archive(spark, tmp_path / "a")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("opening")) == []
    assert spark.conf.get(DISCOVERY) == before
    assert frame.count() == MESSAGES


def test_a_batch_that_was_cut_short_is_written_again(spark: Any, run: Run, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "a"
    run("archive", "--path", root, "--to", target, "--batch-messages", 25, "--batches", 2)
    directory = target / "_reput"
    manifest = directory / f"{1:020d}.json"
    found = json.loads(manifest.read_text())
    # As a kill leaves it between the last file and the manifest, with a file of an attempt that had failed.
    plan = {"version": 1, "batch": 1, "tasks": [[part] for part in found["ranges"]]}
    (directory / f"{1:020d}.plan.json").write_text(json.dumps(plan))
    manifest.unlink()
    stray = target / "topic=T" / f".0-{0:020d}-{5:020d}.parquet.abc"
    stray.write_bytes(b"half")
    assert len(rows_of(spark, target)) < MESSAGES  # whole batches only
    ran = run("archive", "--path", root, "--to", target)
    assert ran.code == 0, ran.err
    assert "batch 1 was interrupted" in ran.err
    assert not stray.exists()
    assert rows_of(spark, target) == EXPECTED
    assert spark.read.parquet(str(target)).count() == MESSAGES


def test_a_topic_is_archived_as_it_grows(
    spark: Any, run: Run, tmp_path: Path, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin, Producer(broker.address, group="p") as producer:
        admin.create_topic("a-b", queues=2)
        arguments = ("archive", "--server", broker.address, "--topic", "a-b", "--to", tmp_path / "a")
        for first in (0, 100):
            for queue_id in (0, 1):
                producer.send_batch([Message("a-b", b"%d" % n) for n in range(first, first + 100)], queue_id=queue_id)
            ran = run(*arguments)
            assert (ran.code, ran.result["rows"]) == (0, 200), ran.err
        files = ArchiveDirectory(tmp_path / "a").files()
        assert files[0].path == f"topic=a-b/broker-a-0-{0:020d}-{100:020d}.parquet"
        producer.send_batch([Message("a-b", b"more")], queue_id=0)
        followed = run(*arguments, "--follow", "--every", 0, "--batches", 1)
        assert (followed.code, followed.result["rows"]) == (0, 1)
        admin.delete_topic("a-b")
        admin.create_topic("a-b", queues=2)
        ran = run(*arguments)
        assert ran.code == 1
        assert "its topic was deleted and created again" in ran.result["error"]
    assert read_archive(spark, tmp_path / "a").select("body", "queueId").distinct().count() == 401


def test_damage_stops_an_archive_or_is_left_out(spark: Any, run: Run, tmp_path: Path) -> None:
    fill(tmp_path / "s")
    place = records_of(tmp_path / "s")[17]
    flip_bit(place.path, place.body)
    ran = run("archive", "--path", tmp_path / "s", "--to", tmp_path / "a")
    assert ran.code == 7
    assert f"{place.path} at byte {place.position}: BODYCRC is" in ran.result["error"]
    ran = run("archive", "--path", tmp_path / "s", "--to", tmp_path / "a", "-o", "onDamage=skip")
    assert (ran.code, ran.result["rows"]) == (0, MESSAGES - 1)
    assert len(rows_of(spark, tmp_path / "a")) == MESSAGES - 1
