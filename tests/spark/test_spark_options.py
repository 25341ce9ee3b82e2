"""Options that Spark adds to those of a user: of named queries, and of tables in its catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer
from support.sink_client import published

TOPIC = "orders"


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    found = new_reput_broker(store={"flush": "sync"})
    with Admin(found.address) as admin:
        admin.create_topic(TOPIC, queues=1)
        admin.create_topic("copies", queues=1)
    with Producer(found.address, group="p") as producer:
        producer.send_batch([Message(TOPIC, b"%d" % number, tag="x") for number in range(10)])
    return found


@pytest.fixture
def table(spark: Any) -> Iterator[str]:
    yield "table_of_messages"  # another test has a view called messages
    spark.sql("DROP TABLE IF EXISTS table_of_messages")


def bodies(broker: BackgroundBroker, topic: str) -> list[int]:
    return sorted(int(body) for queue in published(broker.address, topic).values() for body in queue)


def test_a_named_query_over_all_topics_reads_no_markers_of_its_own_commits(
    spark: Any, broker: BackgroundBroker, tmp_path: Path
) -> None:
    """Each commit of the sink writes a message to a system topic: a stream that read it would never end."""
    for _ in range(2):
        query = (
            spark.readStream.format("reput")
            .options(nameServer=broker.address, subscribePattern="(?!copies).*", startingOffsets="earliest")
            .load()
            .select("body")
            .writeStream.format("reput")
            .queryName("copies")
            .options(nameServer=broker.address, topic="copies", checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "ignored"))
        )
        query.awaitTermination(120)
    assert bodies(broker, "copies") == list(range(10))


def test_a_table_is_read_and_written(spark: Any, broker: BackgroundBroker, table: str) -> None:
    spark.sql(
        f"CREATE TABLE {table} USING reput OPTIONS (nameServer '{broker.address}', subscribe '{TOPIC}', "
        f"topic '{TOPIC}', select 'topic,body,tags')"
    )
    assert spark.sql(f"SELECT * FROM {table} WITH (minPartitions = 2)").count() == 10
    spark.sql(f"INSERT INTO {table} (body, tags) VALUES (CAST('10' AS BINARY), 'late')")
    rows = spark.sql(f"SELECT CAST(body AS STRING) AS body, tags, topic FROM {table} WHERE tags = 'late'")
    assert [tuple(row) for row in rows.collect()] == [("10", "late", TOPIC)]
    streamed = spark.readStream.option("startingOffsets", "earliest").table(table)
    assert streamed.columns == ["topic", "body", "tags"]
    query = streamed.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert spark.table("streamed").count() == 11


def test_a_table_of_a_directory_is_read(
    spark: Any, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path, table: str
) -> None:
    found = new_reput_broker(data_dir=tmp_path / "d", store={"flush": "sync"})
    with Producer(found.address, group="p") as producer:
        producer.send(Message(TOPIC, b"1"))
    spark.sql(f"CREATE TABLE {table} USING reput OPTIONS (path '{tmp_path / 'd'}', subscribePattern '.*')")
    assert [row.topic for row in spark.sql(f"SELECT topic FROM {table}").collect()] == [TOPIC]


def test_a_table_with_columns_of_its_own_says_what_it_lacks(spark: Any, broker: BackgroundBroker, table: str) -> None:
    place = f"nameServer '{broker.address}', subscribe '{TOPIC}'"
    spark.sql(f"CREATE TABLE {table} (topic STRING, body BINARY) USING reput OPTIONS ({place})")
    with pytest.raises(Exception, match="if CREATE TABLE declares columns: leave them out, or give"):
        spark.sql(f"SELECT * FROM {table}").collect()
    with_options = place.replace(" '", " = '")
    assert spark.sql(f"SELECT * FROM {table} WITH ({with_options})").count() == 10
