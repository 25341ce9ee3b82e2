"""Jobs that read a store directory in a bucket, and that archive to one: S3, as moto serves it, without Spark."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore, from_url

from docs.blocks import BLOCKS
from reput_client.arrow import read_arrow
from reput_client.arrow.queues import QueueKey, QueueRange
from reput_pipeline.archives.bucket import BucketArchive
from reput_pipeline.archives.manifests import ArchiveFile, ArchiveKind
from reput_pipeline.source.offline import OfflineStore, SegmentPartition, plan
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.source.ranges import NOTHING_NARROWED, Narrowing
from reput_pipeline.source.tasks import read_task
from reput_pipeline.spark.errors import ArchiveInUse, NotAnArchive
from reput_protocol.exit_codes import ExitCode
from support import pipeline_jobs
from support.broker_process import free_port
from support.lossy_proxy import LossyProxy
from support.object_store import BUCKET, ObjectStore, object_store
from support.pipeline_jobs import Run
from support.store_samples import MESSAGES

MASTER = ("--master", "none")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="module")
def uploaded(server: ObjectStore, root: Path) -> str:
    return server.upload(root, "store")


@pytest.fixture(autouse=True)
def environment(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment(server.port).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """Where an archive is in the bucket."""
    return f"archives/{request.node.name}"


def places_of(table: Any) -> list[tuple[int, int]]:
    return sorted(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))


def stored(root: Path) -> list[tuple[int, int]]:
    return places_of(read_arrow(root, "T").read_all())


def archived(server: ObjectStore, place: str) -> list[tuple[int, int]]:
    """The messages of all Parquet files below a place, as any reader finds them."""
    found: list[tuple[int, int]] = []
    for name in server.names(place):
        if name.endswith(".parquet"):
            found += places_of(pq.read_table(f"{BUCKET}/{place}/{name}", filesystem=server.files, partitioning=None))
    return sorted(found)


@pytest.mark.parametrize("narrowing", [NOTHING_NARROWED, Narrowing(keys=frozenset(["k3"]))])
def test_the_source_of_spark_reads_a_bucket_in_the_order_of_its_log(uploaded: str, narrowing: Narrowing) -> None:
    options = parse_source_options({"path": uploaded, "subscribe": "T", "minPartitions": "3"}, streaming=False)
    with OfflineStore(uploaded) as store:
        partitions = plan(store, options, narrowing)
    assert len(partitions) == 3
    assert all(isinstance(partition, SegmentPartition) for partition in partitions)
    schema = pipeline_jobs.arrow_schema_of(options)
    rows = [
        row
        for partition in partitions
        for batch in read_task(partition, options, schema, narrowing)
        for row in batch.to_pylist()
    ]
    assert sorted((row["queueId"], row["queueOffset"]) for row in rows) == [
        (queue, offset) for queue in range(2) for offset in range(MESSAGES // 2)
    ]


def test_a_directory_in_a_bucket_is_archived_and_found_in(run: Run, uploaded: str, root: Path, tmp_path: Path) -> None:
    arguments = ("archive", "--path", uploaded, "--to", tmp_path / "a", "--batch-messages", 25, *MASTER)
    assert run(*arguments, "--batches", 1).code == 0
    rest = run(*arguments)
    assert (rest.code, rest.result["rows_in_archive"], rest.result["source"]) == (0, MESSAGES, uploaded)
    moved = run("archive", "--path", root, "--to", tmp_path / "a", *MASTER)
    assert (moved.code, moved.result["argument"]) == (ExitCode.USAGE, "--to")
    found = run("find", "--path", uploaded, "--text", "body-0007", *MASTER)
    assert "body-0007" in "".join(found.lines)
    lag = run("lag", "--path", uploaded, *MASTER)
    assert (lag.code, "only local directories" in lag.err) == (ExitCode.NOT_FOUND, True)


def test_an_archive_in_a_bucket_continues_where_it_stopped(
    run: Run, server: ObjectStore, root: Path, place: str
) -> None:
    to = f"s3://{BUCKET}/{place}"
    arguments = ("archive", "--path", root, "--to", to, "--batch-messages", 25, "--partition-by", "tags", *MASTER)
    first = run(*arguments, "--batches", 1)
    assert (first.code, first.result["batches"], first.result["archive"]) == (0, 1, to), first.err
    rest = run(*arguments)
    assert (rest.result["rows"] + first.result["rows"], rest.result["rows_in_archive"]) == (MESSAGES, MESSAGES)
    assert run(*arguments).result["rows"] == 0
    assert archived(server, place) == stored(root)
    names = server.names(place)
    assert len([name for name in names if name.startswith("_reput/")]) == 2 + rest.result["batches"]
    assert not [name for name in names if "plan" in name]


def test_the_commands_of_the_documentation(run: Run, uploaded: str) -> None:
    (text,) = (block.text for block in BLOCKS if block.page == "docs/lakehouse.md" and "s3://lake/files" in block.text)
    for line in text.splitlines():
        reput, pipeline, name, *arguments = shlex.split(line)
        assert (reput, pipeline) == ("reput", "pipeline")
        known = {"s3://backup/store": uploaded, "orders": "T"}
        places = [known.get(word, word).replace("s3://lake/", f"s3://{BUCKET}/docs/") for word in arguments]
        ran = run(name, *places)
        assert (ran.code, ran.result["rows"]) == (0, MESSAGES), ran.err


def test_tables_in_a_bucket(run: Run, server: ObjectStore, uploaded: str, place: str, tmp_path: Path) -> None:
    import polars as pl

    wanted = [(queue, offset) for queue in range(2) for offset in range(MESSAGES // 2)]
    to = f"s3://{BUCKET}/{place}"
    arguments = ("archive", "--path", uploaded, "--to", to, "--format", "delta", "--batch-messages", 25)
    assert run(*arguments, "--batches", 1).code == 0
    assert run(*arguments).code == 0
    rows = pl.scan_delta(to).select("queueId", "queueOffset").collect().rows()
    assert sorted(rows) == wanted


class Killed(BaseException):
    """What ends a job in the middle here."""


def dying_at(point: int) -> Callable[..., Any]:
    """Return a `_asked` that dies before or after one of its requests, by number."""
    asked, left = BucketArchive._asked, point

    def reached() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    def dying(self: BucketArchive, ask: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        reached()
        found = asked(self, ask, *arguments, **named)
        reached()
        return found

    return dying


def test_a_job_that_dies_at_any_request_continues(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("archive", "--path", root, "--to", "s3://b/a", "--batch-messages", 35, "--file-messages", 20, *MASTER)
    wanted, died, point = stored(root), True, 0
    while died:
        point += 1
        store = MemoryStore()
        monkeypatch.setattr("reput_pipeline.archives.bucket.from_url", lambda *_, store=store, **__: store)
        with monkeypatch.context() as patched:
            patched.setattr(BucketArchive, "_asked", dying_at(point))
            try:
                died = run(*arguments).code != 0
            except Killed:
                died = True
        assert run(*arguments).code == 0
        found: list[tuple[int, int]] = []
        for page in store.list():
            for entry in page:
                if entry["path"].endswith(".parquet"):
                    data = pa.BufferReader(bytes(store.get(entry["path"]).bytes()))
                    found += places_of(pq.read_table(data))
        assert sorted(found) == wanted, point
        assert run(*arguments).result["rows"] == 0
    assert point > 30


@pytest.mark.process
@pytest.mark.parametrize("answers", [7, 14, 21])
def test_a_job_that_is_killed_continues(server: ObjectStore, run: Run, root: Path, place: str, answers: int) -> None:
    to, seen = f"s3://{BUCKET}/{place}", 0
    arguments = ["archive", "--path", str(root), "--to", to, "--batch-messages", "35", *MASTER]

    def kill(_: bytes) -> bool:
        nonlocal seen
        seen += 1
        if seen == answers:
            job.kill()
        return seen >= answers

    with LossyProxy(server.port, kill) as proxy:
        environment = {**os.environ, **server.environment(proxy.port)}
        command = [sys.executable, "-m", "reput_cli", "pipeline", *arguments]
        job = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
        _, err = job.communicate(timeout=100)
    assert job.returncode == -signal.SIGKILL, err.decode()
    assert run(*arguments).code == 0
    assert archived(server, place) == stored(root)


def test_answers_that_are_lost_change_nothing(
    server: ObjectStore, run: Run, root: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def loses(_: bytes) -> bool:
        nonlocal seen
        seen += 1
        return seen % 4 == 0

    with LossyProxy(server.port, loses) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        to = f"s3://{BUCKET}/{place}"
        ran = run("archive", "--path", root, "--to", to, "--batch-messages", 35, *MASTER)
        assert (ran.code, ran.result.get("rows_in_archive")) == (0, MESSAGES), ran.err
        assert proxy.lost > 5
    assert archived(server, place) == stored(root)


def test_of_two_jobs_one_completes_a_batch(server: ObjectStore, place: str) -> None:
    first, second = (BucketArchive(f"s3://{BUCKET}/{place}", {}) for _ in range(2))
    part, more = (QueueRange(QueueKey("T", "", 0), 0, end) for end in (9, 12))
    first.begin(ArchiveKind("archive", "s"))
    with pytest.raises(NotAnArchive, match="is neither empty nor an archive"):
        BucketArchive(f"s3://{BUCKET}", {}).check_new()
    batch = first.plan([[part]], {})
    assert second.unfinished() == batch
    with pytest.raises(ArchiveInUse, match=r"another job has written 0+\.plan\.json of s3://"):
        second.plan([[more]], {})
    file = ArchiveFile("topic=T/x.parquet", "T", 9, 1, 1, 2)
    second.complete(batch, [file])
    with pytest.raises(ArchiveInUse, match=r"another job has written 0+\.json of s3://.*one job at a time"):
        first.complete(batch, [ArchiveFile("topic=T/y.parquet", "T", 9, 1, 1, 2)])
    assert (first.files(), first.next_number(), first.unfinished()) == ([file], 1, None)


def test_files_of_a_job_that_was_too_late_are_removed(server: ObjectStore, run: Run, root: Path, place: str) -> None:
    arguments = ("archive", "--path", root, "--to", f"s3://{BUCKET}/{place}", *MASTER)
    assert run(*arguments).code == 0
    before = server.names(place)
    late = [f"topic=T/0-{0:020d}-{7:020d}.parquet", f"_reput/{0:020d}.plan.json"]
    kept = [f"topic=T/0-{MESSAGES:020d}-{MESSAGES + 1:020d}.parquet", "topic=T/mine.parquet"]
    for name in late + kept:
        with server.files.open_output_stream(f"{BUCKET}/{place}/{name}") as stream:
            stream.write(b"...")
    again = run(*arguments)
    assert (again.code, "removed 1 file of batches that were not completed" in again.err) == (0, True)
    assert server.names(place) == sorted(before + kept)


def test_a_thousand_open_files_of_a_bucket_need_little_memory() -> None:
    """Each kept up to 8 MiB."""
    file = BucketArchive("memory:///a", {}).new_file(PurePosixPath("topic=T/x.parquet"))
    before = len(os.listdir("/proc/self/fd"))
    file.content.write(bytes(1 << 20))
    assert len(os.listdir("/proc/self/fd")) == before + 1, "it is on the disk"
    file.discard()


def test_an_object_store_without_conditional_requests_is_refused(
    run: Run, root: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = BucketArchive._asked

    def overwriting(self: BucketArchive, ask: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return asked(self, ask, *arguments, **{name: value for name, value in named.items() if name != "mode"})

    monkeypatch.setattr(BucketArchive, "_asked", overwriting)
    refused = run("archive", "--path", root, "--to", f"s3://{BUCKET}/{place}", *MASTER)
    assert refused.code == ExitCode.NOT_FOUND
    assert "the object store overwrites an object that was to be created only if it is new" in refused.err


def test_places_that_cannot_be_written_to_are_named(
    server: ObjectStore, run: Run, root: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("archive", "--path", root, *MASTER, "--to")
    with server.checked_credentials():
        refused = run(*arguments, f"s3://{BUCKET}/{place}")
    assert (refused.code, "set AWS_ACCESS_KEY_ID" in refused.err) == (ExitCode.NOT_AUTHORISED, True)
    missing = run(*arguments, "s3://elsewhere/a")
    assert missing.code != 0
    assert "s3://elsewhere/a" in missing.err
    unknown = run(*arguments, f"s3://{BUCKET}/{place}", "--to-option", "colour=red")
    assert (unknown.code, "colour" in unknown.err) == (ExitCode.USAGE, True)
    local = run(*arguments, root.parent / "a", "--to-option", "colour=red")
    assert (local.code, local.result["argument"]) == (ExitCode.USAGE, "--to-option")
    once = partial(from_url, retry_config={"max_retries": 0})
    monkeypatch.setattr("reput_pipeline.archives.bucket.from_url", once)
    away = run(*arguments, f"s3://{BUCKET}/{place}", "--to-option", f"AWS_ENDPOINT_URL=http://127.0.0.1:{free_port()}")
    assert (away.code, "cannot be reached" in away.err) == (ExitCode.CANNOT_CONNECT, True)
    assert server.names(place) == []
