"""Streams from and to topics that are on two brokers, one registered with the other: exactly once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Producer
from support.sink_client import published

MESSAGES = 240


@pytest.fixture
def brokers(new_reput_broker: Callable[..., BackgroundBroker]) -> list[BackgroundBroker]:
    first = new_reput_broker(store={"flush": "sync"})
    second = new_reput_broker(store={"flush": "sync"}, broker_name="broker-b", name_servers=[first.address])
    with Admin(first.address) as admin:
        while len(admin.cluster_info().masters) < 2:
            time.sleep(0.02)  # until it has registered
        for topic in ("orders", "copies"):
            admin.create_topic(topic, queues=2)
            while len(admin.route(topic).queue_datas) < 2:
                time.sleep(0.02)
        assert set(admin.topic_configs("orders")) == {"broker-a", "broker-b"}
    return [first, second]


def copy(spark: Any, broker: BackgroundBroker, checkpoint: Path) -> None:
    """Copy what is there, in several micro-batches."""
    source = {"nameServer": broker.address, "subscribe": "orders", "startingOffsets": "earliest"}
    options = {"nameServer": broker.address, "topic": "copies", "checkpointLocation": str(checkpoint)}
    lines = spark.readStream.format("reput").options(**source, maxOffsetsPerTrigger="80").load()
    query = lines.selectExpr("body").writeStream.format("reput").options(**options).trigger(availableNow=True).start()
    query.awaitTermination(120)


def test_a_stream_over_two_brokers_is_exactly_once(spark: Any, brokers: list[BackgroundBroker], tmp_path: Path) -> None:
    first = brokers[0]

    def copies() -> list[Counter[bytes]]:
        return [
            Counter(body for queue in published(broker.address, "copies").values() for body in queue)
            for broker in brokers
        ]

    with Producer(first.address) as producer:
        producer.send_many("orders", [b"%d" % number for number in range(MESSAGES)], batch=8)
    copy(spark, first, tmp_path / "c")
    assert all(published(broker.address, "orders") for broker in brokers)
    at_first, at_second = copies()
    assert at_first
    assert at_second
    assert at_first + at_second == Counter(b"%d" % number for number in range(MESSAGES))
    # As if the driver had been killed between the sink's commit and Spark's own: the batch is run again.
    commits = tmp_path / "c" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    copy(spark, first, tmp_path / "c")
    assert copies() == [at_first, at_second]
