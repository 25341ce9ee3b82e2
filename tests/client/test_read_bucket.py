"""`read_arrow` of a store directory in a bucket: S3, as moto serves it, and other file systems of pyarrow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from docs.blocks import BLOCKS
from reput_client.arrow import read_arrow, scan_polars, store_files
from reput_client.errors import BucketRefused, BucketUnavailable, DataLost, NotAStore, TopicNotFound
from support.broker_process import free_port
from support.lossy_proxy import LossyProxy
from support.object_store import BUCKET, ObjectStore, object_store
from support.store_samples import MESSAGES, fill, records_of

TOPIC = "T"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "s"
    fill(path)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def url(server: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment(server.port).items():
        monkeypatch.setenv(name, value)
    return server.upload(root, "store")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of several blocks, more than the cache has."""
    monkeypatch.setattr(store_files, "BLOCK_BYTES", 512)
    monkeypatch.setattr(store_files, "BLOCKS_MAX", 4)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that follow one another at once."""
    monkeypatch.setattr(store_files, "_PAUSE_FIRST_S", 0.0)


class Watched:
    """The files of this machine, each read of which is reported first."""

    def __init__(self, on_read: Callable[[Path, int], None]) -> None:
        self._on_read = on_read
        self._files = LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_input_file(self, path: str) -> Any:
        file, on_read = self._files.open_input_file(path), self._on_read

        class Handle:
            def read_at(self, size: int, position: int) -> bytes:
                on_read(Path(path), size)
                data: bytes = file.read_at(size, position)
                return data

        return Handle()


WAYS: list[dict[str, Any]] = [
    {},
    {"columns": ["queueOffset", "queueId"]},
    {"tags": "tag0 || tag2"},
    {"queues": [1], "start": {1: 3}, "end": {1: 9}},
    {"start": datetime(2001, 1, 1, tzinfo=UTC)},
]


def rows_of(source: object, **given: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_arrow(source, TOPIC, **given).read_all().to_pylist()  # type: ignore[arg-type]
    return sorted(rows, key=lambda row: (row["queueId"], row["queueOffset"]))


def test_the_program_of_the_documentation(
    server: ObjectStore, url: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (block.text for block in BLOCKS if block.page == "docs/arrow.md" and "s3://" in block.text)
    exec(program.replace("s3://backup/store", url).replace('"orders"', '"T"'), {})
    assert capsys.readouterr().out.split() == [str(MESSAGES)]


@pytest.mark.parametrize("way", WAYS)
def test_a_bucket_is_read_like_a_directory(url: str, root: Path, way: dict[str, Any]) -> None:
    assert rows_of(url, **way) == rows_of(root, **way)


def test_a_bucket_is_a_source_of_polars(url: str) -> None:
    tags = scan_polars(url, TOPIC).select("tags").unique().collect()
    assert sorted(tags["tags"]) == ["tag0", "tag1", "tag2"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("way", WAYS)
def test_every_file_system_of_pyarrow_is_read_by_blocks(root: Path, way: dict[str, Any]) -> None:
    expected = rows_of(root, **way)
    assert rows_of(root, filesystem=LocalFileSystem(), **way) == expected
    below = SubTreeFileSystem(str(root.parent), LocalFileSystem())
    assert rows_of(root.name, filesystem=below, **way) == expected


@pytest.mark.usefixtures("small_blocks")
def test_blocks_are_requested_once_and_forgotten(root: Path) -> None:
    read: list[int] = []

    def count(path: Path, size: int) -> None:
        if path.parent.name == "commitlog":
            read.append(size)

    rows = rows_of(root, filesystem=Watched(count), columns=["queueId", "queueOffset", "body"])
    assert len(rows) == MESSAGES == len(records_of(root))
    files = list((root / "commitlog").iterdir())
    assert sum(place.size for place in records_of(root)) <= sum(read) <= sum(path.stat().st_size for path in files)


def test_a_directory_that_a_rebuild_was_replacing_has_its_queues(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "s")
    (tmp_path / "s" / "consumequeue").rename(tmp_path / "s" / "consumequeue.replaced")
    assert rows_of(tmp_path / "s", filesystem=LocalFileSystem()) == rows_of(root)


def test_places_that_are_not_there_are_named(url: str, root: Path) -> None:
    with pytest.raises(NotAStore, match=r"s3://bucket/nowhere is not a store.*no files under commitlog/"):
        read_arrow(f"s3://{BUCKET}/nowhere", TOPIC)
    with pytest.raises(TopicNotFound, match="'nobody' does not exist in s3://bucket/store"):
        read_arrow(url, "nobody")
    with pytest.raises(NotAStore, match="pyarrow has no file system for it"):
        read_arrow("ftp://host/store", TOPIC)
    with pytest.raises(NotAStore, match=r"s3://elsewhere/store is not a store.*no files under commitlog/"):
        read_arrow("s3://elsewhere/store", TOPIC)
    with pytest.raises(NotAStore, match="ftp://host/store is"):
        read_arrow("ftp://user:secret@host/store", TOPIC)
    with pytest.raises(DataLost, match=r"end is .*, but its messages are \[0"):
        read_arrow(url, TOPIC, end={0: MESSAGES})


def test_wrong_credentials_are_refused_with_what_to_set(server: ObjectStore, url: str) -> None:
    with server.checked_credentials(), pytest.raises(BucketRefused) as refused:
        read_arrow(url, TOPIC)
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in str(refused.value)
    assert not refused.value.retryable


@pytest.mark.usefixtures("hasty")
def test_a_server_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ObjectStore.environment(free_port()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store_files, "_ATTEMPTS", 1)
    with pytest.raises(BucketUnavailable, match=r"s3://bucket/store\S* cannot be reached: .*try again") as away:
        read_arrow("s3://bucket/store?region=us-east-1", TOPIC)
    assert away.value.retryable


@pytest.mark.usefixtures("hasty", "small_blocks")
def test_connections_that_break_are_made_again(
    server: ObjectStore, url: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = 0

    def loses(_: bytes) -> bool:
        nonlocal answers
        answers += 1
        return answers % 5 == 0

    with LossyProxy(server.port, loses) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        assert rows_of(url) == rows_of(root)
        assert proxy.lost > 3


def test_a_file_that_is_removed_meanwhile_is_lost_data_with_its_offset(
    server: ObjectStore, url: str, root: Path
) -> None:
    reader = read_arrow(url, TOPIC)
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    server.files.delete_file(f"{BUCKET}/store/commitlog/{names[1]}")
    with pytest.raises(DataLost, match="was deleted while the query ran") as lost:
        reader.read_all()
    assert names[1] in str(lost.value) or "offset" in str(lost.value)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_is_removed_while_it_is_open_is_lost_data_with_its_offset(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "s")

    def remove(path: Path, _: int) -> None:
        if path.parent.name == "commitlog":
            path.unlink(missing_ok=True)
            raise OSError("AWS Error INTERNAL_FAILURE during GetObject operation")

    reader = read_arrow(tmp_path / "s", TOPIC, filesystem=Watched(remove))
    with pytest.raises(DataLost, match=r"commitlog/\d+, with message \d+ of T/\d, was deleted"):
        reader.read_all()
