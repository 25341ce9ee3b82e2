"""Topics and store directories as Arrow: what pandas, Polars and DuckDB read is what a consumer pulls."""

from __future__ import annotations

import inspect
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Message
from reput_client.arrow import read_arrow, scan_polars
from reput_client.blocking import Admin, Producer, PullConsumer
from reput_client.errors import ConnectFailed, DamagedStore, DataLost, NotAStore, TopicNotFound
from support import numpyless
from support.broker_process import free_port
from support.store_samples import records_of
from support.stores import flip_bit
from support.waiting import wait_until

TOPIC = "orders"
QUEUES = 3
MESSAGES = 200
"""In each queue."""
GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "stores").glob("*.tar.xz"))
FILES = {"commit_log_file_size": 1 << 20, "consume_queue_entries": 64}


class Scene(NamedTuple):
    """A running broker and a copy of its directory, with the same messages."""

    broker: BackgroundBroker
    copy: Path

    @property
    def sources(self) -> list[str | Path]:
        """Every way to name them."""
        directory = self.broker.data_dir
        return [self.broker.address, directory, str(directory), f"file://{self.copy}", self.copy]


def some_messages(chance: random.Random) -> list[Message]:
    return [
        Message(
            TOPIC,
            chance.randbytes(chance.choice((0, 1, 64, 3000))),
            tag=chance.choice((None, "a", "b", "äöü", "AaAa", "BBBB")),
            keys=chance.choice(([], ["k1"], ["k1", "k2"])),
            properties={"name": "x" * chance.randrange(1, 9)} if chance.random() < 0.5 else {},
            flag=chance.randrange(5),
        )
        for _ in range(MESSAGES)
    ]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from reput_broker import BrokerConfig

    root = tmp_path_factory.mktemp("arrow")
    config = BrokerConfig.model_validate(
        {"data_dir": root / "live", "port": 0, "http_port": None, "store": {"flush": "sync", **FILES}}
    )
    with BackgroundBroker(config) as broker:
        chance = random.Random(4)
        with Admin(broker.address) as admin, Producer(broker.address, group="p") as producer:
            for topic in (TOPIC, "empty"):
                admin.create_topic(topic, queues=QUEUES)
            for queue_id in range(QUEUES):
                producer.send_batch(some_messages(chance), queue_id=queue_id)
            producer.send(Message("others", b"of another topic"))
        shutil.copytree(root / "live", root / "copy")
        yield Scene(broker, root / "copy")


@pytest.fixture(scope="module")
def expected(scene: Scene) -> list[dict[str, Any]]:
    """The messages as a consumer pulls them, by queue, as rows with every column but `brokerName`."""
    rows: list[dict[str, Any]] = []
    with PullConsumer(scene.broker.address, group="judge") as consumer:
        for queue_id in range(QUEUES):
            offset = 0
            while offset < MESSAGES:
                result = consumer.pull(TOPIC, queue_id, offset, max_messages=500, wait_s=0.0)
                rows += [
                    {
                        "topic": message.topic,
                        "queueId": message.queue_id,
                        "queueOffset": message.queue_offset,
                        "keys": " ".join(message.keys) or None,
                        "tags": message.tag,
                        "body": message.body,
                        "properties": [*message.properties.items()],
                        "flag": message.flag,
                        "bornTimestamp": moment(message.born_timestamp_ms),
                        "storeTimestamp": moment(message.store_timestamp_ms),
                        "physicalOffset": message.physical_offset,
                        "reconsumeTimes": message.reconsume_times,
                    }
                    for message in result.messages
                ]
                offset = result.next_begin_offset
    assert len(rows) == QUEUES * MESSAGES
    return rows


def moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=timestamp_ms)


def rows_of(source: object, topic: str = TOPIC, **given: Any) -> list[dict[str, Any]]:
    """All rows, by queue; each queue's come in order."""
    rows: list[dict[str, Any]] = []
    last: dict[Any, int] = {}
    for batch in read_arrow(source, topic, **given):  # type: ignore[arg-type]
        batch.validate(full=True)
        rows += batch.to_pylist()
    for row in rows:
        queue = row["brokerName"], row["queueId"]
        assert last.get(queue, -1) < row["queueOffset"]
        last[queue] = row["queueOffset"]
    return sorted(rows, key=lambda row: (row["queueId"], row["queueOffset"]))


def test_every_column_is_what_a_consumer_pulls(scene: Scene, expected: list[dict[str, Any]]) -> None:
    for source in scene.sources:
        rows = rows_of(source)
        broker = "broker-a" if source == scene.broker.address else None
        assert [row.pop("brokerName") for row in rows] == [broker] * len(expected)
        for row in rows:
            del row["bodyCRC"]  # which a pulled message has not
        assert rows == expected


def test_the_columns_of_kafka_have_the_same_values(scene: Scene, expected: list[dict[str, Any]]) -> None:
    columns = ["value", "key", "partition", "offset", "timestamp", "timestampType", "headers", "topic"]
    for source in (scene.broker.address, scene.copy):
        reader = read_arrow(source, TOPIC, columns=columns)
        assert reader.schema.names == columns
        rows = sorted(reader.read_all().to_pylist(), key=lambda row: (row["partition"], row["offset"]))
        assert rows == [
            {
                "value": row["body"],
                "key": None if row["keys"] is None else row["keys"].encode(),
                "partition": row["queueId"],
                "offset": row["queueOffset"],
                "timestamp": row["storeTimestamp"],
                "timestampType": 1,
                "headers": [{"key": name, "value": value.encode()} for name, value in row["properties"]],
                "topic": TOPIC,
            }
            for row in expected
        ]


def test_places_are_words_offsets_and_moments(scene: Scene, expected: list[dict[str, Any]]) -> None:
    times = sorted(row["storeTimestamp"] for row in expected)
    middle = times[len(times) // 2]
    nothing: list[dict[str, Any]] = []
    later = [row for row in expected if row["storeTimestamp"] >= middle]
    queue = [[row for row in expected if row["queueId"] == queue_id] for queue_id in range(QUEUES)]
    cases: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"start": "latest"}, nothing),
        ({"end": "earliest"}, nothing),
        ({"start": {0: 7, 2: MESSAGES}}, queue[0][7:] + queue[1]),
        ({"end": {1: 0, 2: 9}}, queue[0] + queue[2][:9]),
        ({"start": {0: 20}, "end": {0: 10}, "queues": [0]}, nothing),
        ({"start": middle}, later),
        ({"start": middle.astimezone().replace(tzinfo=None)}, later),  # local time
        ({"end": middle}, [row for row in expected if row["storeTimestamp"] < middle]),
        ({"start": times[-1] + timedelta(microseconds=1)}, nothing),
        ({"queues": [1]}, queue[1]),
        ({"queues": []}, nothing),
        ({"queues": (2, 0), "start": {0: 199}}, queue[0][199:] + queue[2]),
        ({"tags": "a || AaAa"}, [row for row in expected if row["tags"] in ("a", "AaAa")]),
        ({"tags": "nobody"}, nothing),
    ]
    for given, wanted in cases:
        for source in (scene.broker.address, scene.copy):
            assert places(rows_of(source, **given)) == places(wanted), given
    named = rows_of(scene.broker.address, start={("broker-a", 0): 190}, queues=[0])
    assert places(named) == places(queue[0][190:])


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["queueId"], row["queueOffset"]) for row in rows]


def test_an_empty_topic_has_the_columns_and_no_rows(scene: Scene) -> None:
    for source in (scene.broker.address, scene.copy):
        for queues in (None, [QUEUES - 1]):  # which a directory has no files for
            table = read_arrow(source, "empty", columns=["body", "queueId"], queues=queues).read_all()
            assert table.schema == pa.schema([("body", pa.binary()), ("queueId", pa.int32())])
            assert table.num_rows == 0
        assert rows_of(source, "empty", start=datetime.now(UTC), end={QUEUES - 1: 0}) == []
        with pytest.raises(ValueError, match="topic 'empty' has no queue 3; it has 0, 1, 2"):
            read_arrow(source, "empty", queues=[QUEUES])


def test_batches_have_at_most_so_many_rows(scene: Scene) -> None:
    for source in (scene.broker.address, scene.copy):
        sizes = [batch.num_rows for batch in read_arrow(source, TOPIC, columns=["queueId"], batch_rows=70)]
        assert sum(sizes) == QUEUES * MESSAGES
        assert max(sizes) == 70


def test_where_a_topic_ends_is_decided_when_it_is_opened(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(store={"flush": "sync", **FILES})
    with Admin(broker.address) as admin, Producer(broker.address, group="p") as producer:
        admin.create_topic(TOPIC, queues=1)
        producer.send(Message(TOPIC, b"before"))
        readers = [read_arrow(source, TOPIC) for source in (broker.address, broker.data_dir)]
        lazy = scan_polars(broker.address, TOPIC)
        producer.send(Message(TOPIC, b"after"))
        assert [reader.read_all()["body"].to_pylist() for reader in readers] == [[b"before"]] * 2
        assert lazy.collect()["body"].to_list() == [b"before", b"after"]


def test_a_reader_that_is_dropped_closes_its_files_and_connections(scene: Scene) -> None:
    for source in (scene.broker.address, scene.copy):
        before = open_descriptors()
        reader = read_arrow(source, TOPIC, batch_rows=10)
        assert reader.read_next_batch().num_rows == 10
        del reader
        wait_until(partial(no_more_descriptors_than, before))  # the broker closes its end a little later


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def no_more_descriptors_than(before: int) -> bool:
    return open_descriptors() <= before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"columns": ["tag"]}, "there is no column 'tag'; did you mean 'tags'.*queueOffset"),
        ({"columns": ["tags", "tags"]}, "names a column twice"),
        ({"queues": [0, 3]}, "topic 'orders' has no queue 3; it has 0, 1, 2"),
        ({"start": {5: 1}}, "start names queue 5, which is not read; the queues of topic 'orders' are orders/"),
        ({"end": {("broker-z", 0): 1}}, "end names queue .'broker-z', 0., which is not read"),
        ({"start": "first"}, "start is 'first'; it is 'earliest', 'latest', a datetime"),
        ({"batch_rows": 0}, "batch_rows is 0"),
    ],
)
def test_what_is_not_there_is_named(scene: Scene, given: dict[str, Any], words: str) -> None:
    for source in (scene.broker.address, scene.copy):
        with pytest.raises(ValueError, match=words):
            read_arrow(source, TOPIC, **given)


def test_offsets_that_are_not_there_are_lost_data(scene: Scene) -> None:
    for source in (scene.broker.address, scene.copy):
        with pytest.raises(DataLost, match=rf"orders/.*0: end is 201, but its messages are \[0, {MESSAGES}\)"):
            read_arrow(source, TOPIC, end={0: MESSAGES + 1})


def test_sources_that_are_not_there_are_named(scene: Scene, tmp_path: Path) -> None:
    for source in (scene.broker.address, scene.copy):
        with pytest.raises(TopicNotFound, match=f"topic 'nobody' does not exist in {source}"):
            read_arrow(source, "nobody")
    with pytest.raises(NotAStore, match="it has no directory commitlog"):
        read_arrow(tmp_path, TOPIC)
    with pytest.raises(NotAStore, match="there is no such directory"):
        read_arrow("./nowhere", TOPIC)
    with pytest.raises(ConnectFailed):
        read_arrow(f"127.0.0.1:{free_port()}", TOPIC, timeout_s=0.5)


def test_a_damaged_body_ends_the_reading_with_its_place(scene: Scene, tmp_path: Path) -> None:
    shutil.copytree(scene.copy, tmp_path / "damaged")
    place = max(records_of(tmp_path / "damaged"), key=lambda place: place.size)
    flip_bit(place.path, place.body)
    with pytest.raises(DamagedStore, match=f"{place.path} at byte {place.position}: .*'reput store verify'"):
        read_arrow(tmp_path / "damaged", TOPIC).read_all()


SUMS = "SELECT count(*), sum(queueOffset), sum(octet_length(body)), count(DISTINCT tags), max(storeTimestamp) FROM "


def sums(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    return (
        len(rows),
        sum(row["queueOffset"] for row in rows),
        sum(len(row["body"]) for row in rows),
        len({row["tags"] for row in rows} - {None}),
        max(row["storeTimestamp"] for row in rows),
    )


def by_duckdb(source: object) -> tuple[Any, ...]:
    columns = ["queueOffset", "body", "tags", "storeTimestamp"]
    reader = read_arrow(source, TOPIC, columns=columns)  # type: ignore[arg-type]
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.register("orders", reader)
        (found,) = connection.sql(SUMS + "orders").fetchall()
    return (*found[:4], found[4].astimezone(UTC))


def by_polars(source: object) -> tuple[Any, ...]:
    return (
        scan_polars(source, TOPIC)  # type: ignore[arg-type]
        .select(
            pl.len(),
            pl.col("queueOffset").sum(),
            pl.col("body").bin.size().sum(),
            pl.col("tags").drop_nulls().n_unique().alias("n"),
            pl.col("storeTimestamp").max(),
        )
        .collect()
        .row(0)
    )


def by_pandas(source: object) -> tuple[Any, ...]:
    frame = read_arrow(source, TOPIC).read_pandas()  # type: ignore[arg-type]
    return (
        len(frame),
        frame["queueOffset"].sum(),
        frame["body"].map(len).sum(),
        frame["tags"].nunique(),
        frame["storeTimestamp"].max(),
    )


def test_duckdb_polars_and_pandas_find_the_same_sums(scene: Scene, expected: list[dict[str, Any]]) -> None:
    for source in (scene.broker.address, scene.copy):
        for of in (by_duckdb, by_polars, by_pandas):
            assert of(source) == sums(expected), of.__name__
    reader = read_arrow(scene.copy, TOPIC)  # noqa: F841 (the query names it)
    named = duckdb.sql("SELECT count(*) FROM reader")
    assert named is not None
    assert named.fetchall() == [(len(expected),)]


@pytest.mark.parametrize("store", GOLDEN, ids=lambda path: path.name.partition(".tar")[0])
def test_directories_of_rocketmq_and_of_earlier_versions(tmp_path: Path, store: Path) -> None:
    subprocess.run(["tar", "--extract", "--file", store, "--directory", tmp_path], check=True)
    root = tmp_path / "store"
    written = json.loads((tmp_path / "expected.json").read_text())
    for name, bodies in written["topics"].items():
        topic, _, queue_id = name.partition("/")
        rows = rows_of(root, topic, queues=[int(queue_id)])
        assert [row["body"].decode() for row in rows] == bodies
    assert by_duckdb(root) == by_polars(root) == by_pandas(root) == sums(rows_of(root))
    tagged = scan_polars(root, TOPIC).filter(pl.col("tags") == "tag1").select("keys", "queueOffset")
    assert sorted(tagged.collect()["keys"].to_list()) == sorted(f"k{number}" for number in range(1, 90, 3))


def test_polars_reads_only_what_a_query_needs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from reput_client.arrow import polars_scan

    asked: list[Any] = []
    rows_read: list[int] = []

    def watched(*given: Any, columns: Any, **more: Any) -> Any:
        asked.append(columns)
        for batch in read_arrow(*given, columns=columns, **{**more, "batch_rows": 50}):
            rows_read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(polars_scan, "read_arrow", watched)
    lazy = scan_polars(scene.copy, TOPIC)
    assert asked == []
    assert lazy.select("flag").head(60).collect().shape == (60, 1)
    assert (asked.pop(), sum(rows_read)) == (["flag"], 100)
    found = lazy.filter((pl.col("tags") == "a") & (pl.col("queueId") == 1)).select("queueOffset").collect()
    assert found["queueOffset"].to_list() == [row["queueOffset"] for row in rows_of(scene.copy, queues=[1], tags="a")]
    assert sorted(asked.pop()) == ["queueId", "queueOffset", "tags"]
    assert lazy.select(pl.len()).collect().item() == QUEUES * MESSAGES
    assert len(asked.pop()) == 1
    numbered = lazy.with_row_index().select("index")
    for engine in ("in-memory", "streaming"):
        assert numbered.collect(engine=engine)["index"].to_list() == [*range(QUEUES * MESSAGES)]
        assert numbered.head(60).collect(engine=engine).shape == (60, 1)
    assert lazy.collect().schema == lazy.collect_schema()
    few = scan_polars(scene.copy, TOPIC, columns=["tags", "queueId"], batch_rows=7)
    assert few.collect_schema().names() == ["tags", "queueId"]
    asked.clear()
    assert few.collect().shape == (QUEUES * MESSAGES, 2)
    assert asked.pop() == ["tags", "queueId"]


def test_arguments_are_the_same_for_polars(tmp_path: Path) -> None:
    arguments = set(inspect.signature(read_arrow).parameters)
    assert set(inspect.signature(scan_polars).parameters) == arguments
    for read in (read_arrow, scan_polars):
        with pytest.raises(ValueError, match="columns names a column twice: tags, tags"):
            read(tmp_path, TOPIC, columns=["tags", "tags"])
        with pytest.raises(ValueError, match="columns is empty"):
            read(tmp_path, TOPIC, columns=[])
        with pytest.raises(ValueError, match="batch_rows is 0"):
            read(tmp_path, TOPIC, batch_rows=0)
        with pytest.raises(ValueError, match="unheard"):
            read(tmp_path, TOPIC, columns=["unheard"])


def test_without_numpy_the_extra_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import reput_client.arrow\nreput_client.arrow.read_arrow\n")
    ran = subprocess.run([sys.executable, numpyless.__file__, program], capture_output=True, text=True)
    assert "read_arrow needs numpy, which is not installed: pip install 'reput-client[arrow]'" in ran.stderr
