"""`write.format("reput")` and `writeStream.format("reput")` over a live broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin
from reput_client.blocking.bulk import StagingProducer
from support.sink_client import published

TOPIC = "orders"


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    found = new_reput_broker(store={"flush": "sync"})
    with Admin(found.address) as admin:
        admin.create_topic(TOPIC, queues=4)
    return found


def write(frame: Any, broker: BackgroundBroker, **more: str) -> None:
    options = {"nameServer": broker.address, "topic": TOPIC, **more}
    frame.write.format("reput").options(**options).mode("append").save()


def numbers(broker: BackgroundBroker, topic: str = TOPIC) -> list[int]:
    return sorted(int(body) for bodies in published(broker.address, topic).values() for body in bodies)


def staged(broker: BackgroundBroker) -> int:
    with StagingProducer(broker.address) as writer:
        return writer.query_staged().stagings


def read(spark: Any, broker: BackgroundBroker, topic: str = TOPIC) -> list[Any]:
    options = {"nameServer": broker.address, "subscribe": topic}
    rows: list[Any] = spark.read.format("reput").options(**options).load().orderBy("body").collect()
    return rows


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
def test_a_frame_is_written_once_with_all_that_it_says(spark: Any, broker: BackgroundBroker, semantics: str) -> None:
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        "printf('%06d', id) AS body",
        "CASE WHEN id % 2 = 0 THEN concat('t', id % 7) END AS tags",
        "concat('k', id, ' all') AS keys",
        "map('n', CAST(id AS STRING), 'nothing', NULL) AS properties",
        "CAST(id AS INT) AS flag",
    )
    write(frame, broker, semantics=semantics)
    rows = read(spark, broker)
    assert [int(bytes(row.body)) for row in rows] == list(range(5000))
    for number in (0, 1, 4999):
        row = rows[number]
        assert row.tags == (f"t{number % 7}" if number % 2 == 0 else None)
        assert (row.keys, row.properties["n"], row.flag) == (f"k{number} all", str(number), number)
        assert "nothing" not in row.properties
        assert len(row.properties["UNIQ_KEY"]) == 32
    assert len({row.properties["UNIQ_KEY"] for row in rows}) == 5000
    assert staged(broker) == 0


def test_topics_and_queues_come_from_columns_and_new_topics_are_made(spark: Any, broker: BackgroundBroker) -> None:
    frame = spark.range(0, 600, 1, 2).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "concat('fresh-', id % 2) AS topic",
        "CASE WHEN id % 3 = 0 THEN 1 END AS partition",
        "CAST('k' AS BINARY) AS key",
        "array(named_struct('key', 'h', 'value', CAST('v' AS BINARY))) AS headers",
    )
    frame.write.format("reput").option("nameServer", broker.address).mode("append").save()
    for parity in (0, 1):
        queues = published(broker.address, f"fresh-{parity}")
        assert sorted(int(body) for bodies in queues.values() for body in bodies) == list(range(parity, 600, 2))
        assert {int(body) for body in queues[1]} >= {number for number in range(parity, 600, 2) if number % 3 == 0}
        assert [int(body) for body in queues[1] if int(body) % 3 == 0 and int(body) < 300] == [
            number for number in range(parity, 300, 2) if number % 3 == 0
        ], "in the order of the rows"
    row = read(spark, broker, "fresh-0")[0]
    assert (row.keys, row.properties["h"]) == ("k", "v")


def test_what_was_read_is_written_as_it_was(spark: Any, broker: BackgroundBroker) -> None:
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS body", "'x' AS tags", "map('a', 'b') AS properties")
    write(frame, broker)
    options = {"nameServer": broker.address, "subscribe": TOPIC}
    write(spark.read.format("reput").options(**options).load(), broker, topic="copies")
    kept = ("body", "tags", "keys", "properties", "flag", "bornTimestamp", "bodyCRC")
    first, second = (
        [[row[name] for name in kept] for row in read(spark, broker, topic)] for topic in (TOPIC, "copies")
    )
    assert first == second


def test_a_key_makes_a_job_that_is_run_again_write_once(spark: Any, broker: BackgroundBroker) -> None:
    for _ in range(2):
        write(spark.range(100).selectExpr("CAST(id AS STRING) AS body"), broker, idempotencyKey="load of 2026-11-21")
    assert numbers(broker) == list(range(100))
    write(spark.range(100).selectExpr("CAST(id AS STRING) AS body"), broker, idempotencyKey="another")
    assert len(numbers(broker)) == 200
    assert staged(broker) == 0


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
def test_the_largest_bodies_and_empty_ones_are_written_whole(
    spark: Any, broker: BackgroundBroker, semantics: str
) -> None:
    frame = spark.range(0, 6, 1, 2).selectExpr("repeat(CAST(id AS STRING), (id % 2) * 4194304) AS body")
    write(frame, broker, semantics=semantics)
    bodies = sorted(bytes(row.body) for row in read(spark, broker))
    assert [len(body) for body in bodies] == [0, 0, 0, 4 << 20, 4 << 20, 4 << 20]
    assert [body[:1] + body[-1:] for body in bodies[3:]] == [b"11", b"33", b"55"]


def test_very_many_queues_are_written_and_read(spark: Any, broker: BackgroundBroker) -> None:
    queues = 1000
    with Admin(broker.address) as admin:
        admin.create_topic("wide", queues=queues)
    columns = ("CAST(id AS STRING) AS body", f"CAST(id % {queues} AS INT) AS queueId")
    write(spark.range(0, 2 * queues, 1, 2).selectExpr(*columns), broker, topic="wide")
    rows = read(spark, broker, "wide")
    assert sorted((int(bytes(row.body)), row.queueId) for row in rows) == [
        (number, number % queues) for number in range(2 * queues)
    ]


WRONG: list[tuple[str, dict[str, str], str, str]] = [
    ("CAST(id AS STRING) AS body", {}, "overwrite", "cannot do; use mode append"),
    ("CAST(id AS STRING) AS body", {"semantic": "x"}, "append", "option semantic: .* did you mean semantics"),
    ("CAST(id AS STRING) AS body", {"semantics": "maybe"}, "append", "one of exactly-once, at-least-once"),
    ("CAST(id AS STRING) AS body", {"topic": "rmq_sys_reput_sink"}, "append", "belongs to the broker"),
    ("CAST(id AS STRING) AS body", {"ack": "flushed"}, "append", "option ack: needs semantics"),
    ("CAST(id AS STRING) AS body", {"idempotencyKey": "x", "semantics": "at-least-once"}, "append", "needs semantics"),
    ("id AS body", {}, "append", "'body' is of type bigint, but the sink takes string or binary; cast it"),
    ("id", {}, "append", "no column 'id'"),
    ("CAST(id AS STRING) AS body, id AS queueId", {}, "append", "'queueId' is of type bigint"),
    ("CAST(id AS STRING) AS body, 'x' AS tag", {}, "append", "no column 'tag'; did you mean 'tags'"),
    ("CAST(id AS STRING) AS body, 'x' AS value", {}, "append", "mean the same"),
    ("'x' AS tags", {}, "append", "no column 'body'"),
    ("IF(id = 7, NULL, 'x') AS body", {}, "append", "row 7 .*, for topic 'orders', has a null 'body'"),
    (
        "IF(id = 7, repeat('x', 4194305), 'x') AS body, concat('k', id) AS keys",
        {},
        "append",
        r"but at most 4194304 .*; the largest message is row 7 of the partition \(keys 'k7'\)",
    ),
    (
        "repeat('x', 4194305) AS body",
        {"semantics": "at-least-once"},
        "append",
        r"the largest message is row 0 of the partition \(without keys\)",
    ),
    ("'x' AS body, now() AS deliverAt", {}, "append", "deliverAt.* needs semantics=at-least-once"),
    (
        "'x' AS body, CAST(99 AS INT) AS queueId",
        {},
        "append",
        r'has no queue 99 .* drop queueId for any queue \(frame.drop\("queueId"\)\)',
    ),
    (
        "'x' AS body, 'k' AS key, array(named_struct('key', 'h', 'value', CAST('1' AS BINARY)), "
        "named_struct('key', 'h', 'value', CAST('2' AS BINARY))) AS headers",
        {},
        "append",
        r"row 0 of the partition \(keys 'k'\) has more than one header 'h'",
    ),
    ("IF(id = 7, NULL, 'x') AS body", {"topic": "fresh"}, "append", "for topic 'fresh', has a null 'body'"),
    ("'x' AS body", {"nameServer": "127.0.0.1:1", "sendTimeoutMs": "300"}, "append", "cannot connect to 127.0.0.1:1"),
]


@pytest.mark.parametrize(("columns", "options", "mode", "text"), WRONG)
def test_what_cannot_be_written_is_refused_by_name_and_leaves_nothing(
    spark: Any, broker: BackgroundBroker, columns: str, options: dict[str, str], mode: str, text: str
) -> None:
    frame = spark.range(0, 10, 1, 1).selectExpr(*_split(columns))
    given = {"nameServer": broker.address, "topic": TOPIC, **options}
    with pytest.raises(Exception, match=text) as refused:
        frame.write.format("reput").options(**given).mode(mode).save()
    assert "Traceback" not in str(refused.value)
    with Admin(broker.address) as admin:
        assert "fresh" not in admin.list_topics(), "a batch that failed creates no topic"
    assert published(broker.address, TOPIC) == {0: [], 1: [], 2: [], 3: []}
    assert staged(broker) == 0


def test_rows_that_cannot_be_messages_go_to_a_topic_of_their_own(spark: Any, broker: BackgroundBroker) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("IF(id % 10 = 7, NULL, CAST(id AS STRING)) AS body")
    write(frame, broker, onBadRow="dead-letter", deadLetterTopic="bad")
    assert numbers(broker) == [number for number in range(100) if number % 10 != 7]
    reasons = [row.properties["BAD_ROW_REASON"] for row in read(spark, broker, "bad")]
    assert len(reasons) == 10
    assert all("has a null 'body'" in reason for reason in reasons)
    assert staged(broker) == 0


def _split(columns: str) -> list[str]:
    """Split at commas that are in no parentheses."""
    found, depth = [""], 0
    for letter in columns:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


class Stream:
    """A stream from a directory of text files into the broker."""

    def __init__(self, spark: Any, broker: BackgroundBroker, directory: Path) -> None:
        self._spark = spark
        self._broker = broker
        self.lines = directory / "lines"
        self.checkpoint = directory / "checkpoint"
        self.lines.mkdir()

    def add(self, first: int, count: int) -> None:
        path = self.lines / f"{first}.txt"
        fresh = self.lines / f".{first}"
        fresh.write_text("".join(f"{number}\n" for number in range(first, first + count)))
        fresh.rename(path)

    def run(self, **more: str) -> None:
        lines = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.lines))
        options = {"nameServer": self._broker.address, "topic": TOPIC, "checkpointLocation": str(self.checkpoint)}
        query = (
            lines.selectExpr("value AS body")
            .writeStream.format("reput")
            .options(**options | more)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    def forget_last_commit(self) -> int:
        """Make the checkpoint what it is if the driver is killed between the sink's commit and Spark's own."""
        commits = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        last = max(commits, key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        return int(last.name)


def test_a_batch_that_spark_runs_again_is_not_published_again(
    spark: Any, broker: BackgroundBroker, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path)
    for part in range(3):
        stream.add(part * 100, 100)
    stream.run()
    assert numbers(broker) == list(range(300))
    assert stream.forget_last_commit() == 2
    stream.add(300, 100)
    stream.run()
    assert numbers(broker) == list(range(400))
    assert staged(broker) == 0
    query_id = json.loads((stream.checkpoint / "metadata").read_text())["id"]
    with StagingProducer(broker.address) as writer:
        assert writer.query_staged(f"query:{query_id}").last_batch_id == 3


def test_a_new_checkpoint_is_another_query(spark: Any, broker: BackgroundBroker, tmp_path: Path) -> None:
    stream = Stream(spark, broker, tmp_path)
    stream.add(0, 50)
    stream.run()
    stream.checkpoint = tmp_path / "other"
    stream.run()
    assert numbers(broker) == sorted([*range(50), *range(50)])


def test_complete_mode_and_a_key_are_refused_in_a_stream(spark: Any, broker: BackgroundBroker, tmp_path: Path) -> None:
    stream = Stream(spark, broker, tmp_path)
    stream.add(0, 5)
    with pytest.raises(Exception, match="a stream is identified by its checkpoint"):
        stream.run(idempotencyKey="x")
    lines = spark.readStream.format("text").load(str(stream.lines)).groupBy("value").count()
    with pytest.raises(Exception, match=r"output mode complete would write .* with foreachBatch"):  # noqa: PT012 - it shows when the first batch is run
        query = (
            lines.selectExpr("value AS body")
            .writeStream.format("reput")
            .options(nameServer=broker.address, topic=TOPIC, checkpointLocation=str(tmp_path / "c"))
            .outputMode("complete")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
    assert numbers(broker) == []


@pytest.mark.parametrize("how", ["make_session", "register"])
def test_a_query_is_started_in_a_thread(spark: Any, broker: BackgroundBroker, tmp_path: Path, how: str) -> None:
    """Spark looks a sink's format up in the session that is active in the thread; in a new one there is none."""
    from reput_pipeline.data_source import register
    from reput_pipeline.jobs.run import JobRun
    from reput_pipeline.spark.session import make_session

    stream = Stream(spark, broker, tmp_path)
    stream.add(0, 5)

    def start() -> None:
        if how == "register":
            register(spark)
        else:
            assert make_session("another") is spark
        stream.run()
        job = JobRun("report")
        assert job.spark is spark
        job.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(start).result()
    assert numbers(broker) == list(range(5))
    assert spark.range(3).count() == 3, "no job has stopped a session that is not its own"
