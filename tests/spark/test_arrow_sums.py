"""Spark, DuckDB and Polars find the same sums over one topic, live, in its directory, and in one of RocketMQ."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from reput_broker.background import BackgroundBroker
from reput_client import Message
from reput_client.arrow import read_arrow, scan_polars
from reput_client.blocking import Admin, Producer

TOPIC = "orders"
ROCKETMQ = Path(__file__).parents[1] / "golden" / "stores" / "rocketmq-5.3.3-stopped.tar.xz"
SQL = "SELECT tags, count(*), sum(queueOffset), sum(octet_length(body)) FROM orders GROUP BY tags"


def by_spark(spark: Any, source: str) -> set[tuple[Any, ...]]:
    place = "path" if "/" in source else "nameServer"
    spark.read.format("reput").option(place, source).option("subscribe", TOPIC).load().createOrReplaceTempView(TOPIC)
    return {tuple(row) for row in spark.sql(SQL).collect()}


def by_duckdb(source: str) -> set[tuple[Any, ...]]:
    reader = read_arrow(source, TOPIC, columns=["tags", "queueOffset", "body"])
    with duckdb.connect() as connection:
        connection.register(TOPIC, reader)
        return set(connection.sql(SQL).fetchall())


def by_polars(source: str) -> set[tuple[Any, ...]]:
    sums = (pl.len(), pl.col("queueOffset").sum(), pl.col("body").bin.size().sum())
    return set(scan_polars(source, TOPIC).group_by("tags").agg(*sums).collect().rows())


def test_all_find_the_same_sums(spark: Any, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin, Producer(broker.address, group="p") as producer:
        admin.create_topic(TOPIC, queues=2)
        for number in range(300):
            message = Message(TOPIC, b"x" * number, tag=("a", "b", None)[number % 3])
            producer.post(message, queue_id=number % 2)
        producer.flush()
    subprocess.run(["tar", "--extract", "--file", ROCKETMQ, "--directory", tmp_path], check=True)
    found = {}
    for source in (broker.address, str(broker.data_dir), str(tmp_path / "store")):
        found[source] = by_spark(spark, source)
        assert by_duckdb(source) == by_polars(source) == found[source]
    live, directory, rocketmqs = found.values()
    assert live == directory
    assert sum(count for _, count, _, _ in live) == 300
    assert sum(count for _, count, _, _ in rocketmqs) == 90
