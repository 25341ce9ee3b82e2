"""Archives without Spark: names, plans, manifests, and the writing of ranges."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_client.arrow.queues import QueueKey, QueueRange
from reput_pipeline.archives.batches import (
    ArchiveTask,
    catalog_of,
    gone,
    gone_lines,
    next_tasks,
    open_ranges,
    write_task,
)
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.layout import (
    NULL_VALUE,
    file_path,
    is_cut,
    is_data_file,
    partition_name,
    partition_values,
    read_schema,
    split,
)
from reput_pipeline.archives.manifests import ArchiveFile, ArchiveKind
from reput_pipeline.source.options import SourceOptions, parse_source_options
from reput_pipeline.spark.errors import DataLost, NotAnArchive, NotArchived, RemadeTopic
from support.store_samples import MESSAGES, fill

QUEUE = QueueKey("T", "", 0)


def options_of(root: Path, **more: str) -> SourceOptions:
    return parse_source_options({"path": str(root), "subscribe": "T", **more}, streaming=False)


def test_names_are_those_that_spark_understands() -> None:
    part = QueueRange(QueueKey("%RETRY%g", "broker-a", 3), 5, 12)
    assert file_path(part, {"tags": "a/b=c", "date": None}).as_posix() == (
        f"topic=%25RETRY%25g/tags=a%2Fb%3Dc/date={NULL_VALUE}/broker-a-3-{5:020d}-{12:020d}.parquet"
    )
    assert partition_name("tags", "") == f"tags={NULL_VALUE}"
    assert is_data_file(file_path(part, {}).name)
    assert is_data_file(f"0-{0:020d}-{1:020d}.parquet")
    assert not is_data_file("part-00000-abc.snappy.parquet")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400))
def test_every_value_has_a_name_of_its_own_that_a_file_system_takes(value: str) -> None:
    name = partition_name("tags", value)
    assert len(name.encode()) <= 255
    assert not set(name) & {"/", "\0"}
    found = partition_values(f"{name}/x.parquet")
    if value == NULL_VALUE:
        assert found == {"tags": None}
    elif found != {"tags": value}:
        assert is_cut(name)
        assert is_cut(found["tags"] or "")
        assert 3 * len(value.encode()) > 250, "it is long"
        assert partition_name("tags", value + "x") != name
    else:
        assert not is_cut(name)


def archived_with_tags(tmp_path: Path, *tags: str) -> list[ArchiveFile]:
    fill(tmp_path / "s", tags=tags)
    return list(write_task(task_of(tmp_path, "tags")))


def test_a_tag_that_cannot_be_a_name_is_archived(tmp_path: Path) -> None:
    """One such message stopped the job at every start."""
    long = "é" * 300
    tags = ["a\0b", long, long + "x", "%~"]
    files = archived_with_tags(tmp_path, *tags)
    assert sum(file.rows for file in files) == 19
    assert len({file.path for file in files}) == len(files)
    names = {Path(file.path).parts[1] for file in files}
    assert {"tags=a%00b", "tags=%25~"} < names
    for file in files:
        kept = dict(pq.ParquetFile(tmp_path / "a" / file.path).read()["properties"][0].as_py())
        assert Path(file.path).parts[1] == partition_name("tags", kept["TAGS"])


def test_messages_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    (tmp_path / "a").touch()
    with pytest.raises(NotArchived, match=r"queue T/0: messages 3 to 19 are .* after offset 3, ") as found:
        list(write_task(task_of(tmp_path, "tags")))
    assert isinstance(found.value.__cause__, OSError)


def test_a_plan_without_a_manifest_is_an_unfinished_batch(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "a")
    with pytest.raises(NotAnArchive, match="is not an archive"):
        archive.existing()
    with archive:
        archive.begin(ArchiveKind("archive", "broker", ("tags",)))
        batch = archive.plan([[QueueRange(QUEUE, 0, 7)], [QueueRange(QUEUE, 7, 9)]], {("T", ""): "5f3c"})
        assert archive.unfinished() == batch
        assert (archive.ends(), archive.generations()) == ({}, {})
        file = ArchiveFile("topic=T/x.parquet", "T", 9, 100, 1, 2)
        archive.complete(batch, [file])
        assert archive.unfinished() is None
        assert archive.generations() == {("T", ""): "5f3c"}
        assert (archive.ends(), archive.files(), archive.next_number()) == ({QUEUE: 9}, [file], 1)
        with pytest.raises(NotAnArchive, match="another job writes"), ArchiveDirectory(tmp_path / "a"):
            pass
    assert ArchiveDirectory(tmp_path / "a").existing().partition_by == ("tags",)


def test_only_strays_of_our_own_are_removed(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    names = [
        f"topic=T/0-{0:020d}-{1:020d}.parquet",
        f"topic=T/0-{1:020d}-{2:020d}.parquet",
        f"topic=T/tags=a/.0-{1:020d}-{2:020d}.parquet.ab12",
        "topic=T/mine.parquet",
        "notes.txt",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with archive:
        archive.begin(ArchiveKind("archive", "broker"))
        archive.complete(archive.plan([], {}), [ArchiveFile(names[0], "T", 1, 1, 1, 1)])
        assert sorted(archive.remove_strays()) == sorted(names[1:3])
    assert [(tmp_path / name).exists() for name in names] == [True, False, False, True, True]


def test_a_directory_with_other_files_is_refused_for_an_archive(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotAnArchive, match="is neither empty nor an archive"):
        ArchiveDirectory(tmp_path).check_new()


def test_batches_cover_each_message_once(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    options = options_of(tmp_path / "s")
    done: dict[QueueKey, int] = {}
    seen: list[tuple[int, int]] = []
    with catalog_of(options) as catalog:
        while True:
            start, end = open_ranges(catalog, options, done, {})
            tasks = next_tasks(start, end, most=13, file_messages=4, parts=3)
            if not tasks:
                break
            for part in (part for task in tasks for part in task):
                assert part.size <= 4
                seen += [(part.queue.queue_id, number) for number in range(part.start, part.end)]
                done[part.queue] = part.end
        assert sorted(seen) == sorted((queue, number) for queue in (0, 1) for number in range(MESSAGES // 2))
        with pytest.raises(DataLost, match="its topic was created again"):
            open_ranges(catalog, options, {QUEUE: MESSAGES}, {})


def test_a_topic_that_was_created_again_is_not_archived_on_top_of_the_old_one(tmp_path: Path) -> None:
    """Its messages have the offsets of others in the archive, however many there are of either."""
    fill(tmp_path / "s")
    options = options_of(tmp_path / "s", failOnDataLoss="false")
    done = {QUEUE: 3}
    with catalog_of(options) as catalog:
        assert open_ranges(catalog, options, done, {})[0][QUEUE] == 3
        now = catalog.generations
        assert len(now["T", ""]) == 16
        assert open_ranges(catalog, options, done, now)[0][QUEUE] == 3
        with pytest.raises(RemadeTopic, match="deleted and created again since messages up to 3 were archived"):
            open_ranges(catalog, options, done, {("T", ""): "another"})


def test_losses_of_many_queues_are_a_few_lines() -> None:
    queues = [QueueKey("T", "", number) for number in range(25)]
    start = {queue: 10 + queue.queue_id for queue in queues}
    lost = gone(dict.fromkeys(queues[1:], 10), start)
    assert lost == [QueueRange(queue, 10, start[queue]) for queue in queues[1:]]
    lines = gone_lines(lost)
    assert lines[0] == "queue T/1: messages 10 to 10 are gone and not in the archive"
    assert lines[20:] == ["4 other queues: 90 messages are gone and not in the archive"]


def task_of(tmp_path: Path, *partition_by: str) -> ArchiveTask:
    ranges = (QueueRange(QUEUE, 3, 20), QueueRange(QueueKey("T", "", 1), 0, 2))
    return ArchiveTask(str(tmp_path / "a"), ranges, options_of(tmp_path / "s"), {}, partition_by, "zstd")


def test_the_files_of_a_range_hold_it_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    for _ in range(2):  # again writes the same
        whole, small = write_task(task_of(tmp_path))
        table = pq.ParquetFile(tmp_path / "a" / whole.path).read()
        assert table.schema.equals(read_schema())
        assert table["queueOffset"].to_pylist() == list(range(3, 20))
        assert (whole.rows, small.rows) == (17, 2)
        assert whole.first_ms == table["storeTimestamp"][0].as_py().timestamp() * 1000
    by_tag = list(write_task(task_of(tmp_path, "tags")))
    assert sum(file.rows for file in by_tag) == 19
    assert by_tag[0].path == f"topic=T/tags=tag0/0-{3:020d}-{20:020d}.parquet"
    assert "tags" not in pq.ParquetFile(tmp_path / "a" / by_tag[0].path).schema_arrow.names
    assert not list((tmp_path / "a").rglob(".*"))


def test_values_that_share_a_directory_share_a_file() -> None:
    tags = [None, "", NULL_VALUE, "a", ""]
    rows = {name: [None] * len(tags) for name in read_schema().names}
    batch = pa.RecordBatch.from_pydict({**rows, "tags": tags, "queueId": [*range(5)]}, read_schema())
    found = {values: rows["queueId"].to_pylist() for values, rows in split(batch, ("tags",))}
    assert found == {(None,): [0, 1, 2, 4], ("a",): [3]}


def test_a_manifest_does_not_name_a_file_twice(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "a")
    archive.begin(ArchiveKind("archive", "s"))
    file = ArchiveFile("topic=T/x.parquet", "T", 1, 1, None, None)
    with pytest.raises(AssertionError, match="batch 0 has written a file twice"):
        archive.complete(archive.plan([], {}), [file, file])
    assert archive.files() == []


def test_a_manifest_comes_after_all_of_its_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "s")
    done: list[tuple[str, Path]] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(fd: int) -> None:
        done.append(("synced", Path(os.readlink(f"/proc/self/fd/{fd}"))))
        fsync(fd)

    def noted_replace(old: Path, new: Path) -> None:
        assert done.index(("synced", Path(old))) >= 0, "what gets its name is on the disk"
        done.append(("named", Path(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    task = task_of(tmp_path, "tags")
    archive = ArchiveDirectory(tmp_path / "a")
    archive.begin(ArchiveKind("archive", "s", ("tags",)))
    batch = archive.plan([task.ranges], {})
    files = list(write_task(task))
    archive.complete(batch, files)
    (manifest,) = (at for at, (what, path) in enumerate(done) if what == "named" and path.stem == f"{0:020d}")
    for file in files:
        path = archive.root / file.path
        named = done.index(("named", path))
        for directory in (path.parent, path.parent.parent, archive.root):
            assert ("synced", directory) in done[named:manifest], "and so is its name"
    assert done[-1] == ("synced", archive.directory)


@pytest.mark.parametrize(
    ("limit", "opened"), [(64, [16, 4]), (600 + 18, [18, 2]), (1024, [20]), (resource.RLIM_INFINITY, [20])]
)
def test_more_partitions_than_open_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, opened: list[int]
) -> None:
    """They stopped the archive for good, since its next batch was planned."""
    fill(tmp_path / "s", tags=[f"tag{number}" for number in range(40)])
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    synced: list[int] = []
    monkeypatch.setattr(ArchiveDirectory, "sync", lambda _archive, paths: synced.append(len(paths)))
    part = QueueRange(QUEUE, 0, MESSAGES // 2)
    task = replace(task_of(tmp_path, "tags"), ranges=(part,))
    found = [(file.path, file.rows) for file in write_task(task)]
    assert sorted(found) == sorted(
        (file_path(part, {"tags": f"tag{number}"}).as_posix(), 2 if number < 20 else 1) for number in range(0, 40, 2)
    )
    assert sum(len(pq.ParquetFile(path).read()) for path in (tmp_path / "a").rglob("*.parquet")) == part.size
    assert synced == opened
