"""Streams that go to Delta and Iceberg tables by `foreachBatch`, with the Spark that is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer

for library in ("deltalake", "pyiceberg"):
    pytest.importorskip(library)
lake_tables = import_module("support.lake_tables")

MESSAGES = 60


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        admin.create_topic("orders", queues=2)
    with Producer(broker.address, group="p") as producer:
        for queue_id in range(2):
            numbers = range(queue_id, MESSAGES, 2)
            messages = [Message("orders", b"%d" % number, tag="t", properties={"n": f"{number}"}) for number in numbers]
            producer.send_batch(messages, queue_id=queue_id)
    return broker


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_batch_that_is_run_again_is_in_the_table_once(
    spark: Any, broker: BackgroundBroker, tmp_path: Path, table_format: str
) -> None:
    from reput_pipeline.lake.micro_batches import TableAppender
    from reput_pipeline.lake.table import TableError

    place = tmp_path / "table"
    append = TableAppender(table_format, str(place))
    source = spark.readStream.format("reput").options(
        nameServer=broker.address,
        subscribe="orders",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(MESSAGES // 3),
    )
    rows = source.load().selectExpr("*", "CAST(CAST(body AS STRING) AS INT) AS number")

    def run(function: Callable[[Any, int], None], checkpoint: str) -> None:
        writer = rows.writeStream.foreachBatch(function).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()

    def fail_after_commit(frame: Any, batch_id: int) -> None:
        append(frame, batch_id)
        if batch_id == 1:
            raise OSError("the response was lost")

    def numbers() -> list[int]:
        return sorted(lake_tables.read(table_format, place)["number"].to_pylist())

    with pytest.raises(Exception, match="the response was lost"):
        run(fail_after_commit, "checkpoint")
    assert len(numbers()) == 2 * MESSAGES // 3
    for program in (append, TableAppender(table_format, str(place))):  # the second one finds nothing new
        run(program, "checkpoint")
        assert numbers() == list(range(MESSAGES))
    stored = lake_tables.read(table_format, place).sort_by("number").to_pylist()
    sent = sorted(
        spark.read.format("reput").options(nameServer=broker.address, subscribe="orders").load().collect(),
        key=lambda row: int(bytes(row.body)),
    )
    assert [dict(row["properties"]) for row in stored] == [row.properties for row in sent]
    assert [row["storeTimestamp"].timestamp() for row in stored] == [row.storeTimestamp.timestamp() for row in sent]
    run(append, "another checkpoint")
    assert numbers() == sorted([*range(MESSAGES)] * 2)
    with pytest.raises(TableError, match="not of a stream"):
        append(spark.range(1), 0)


def test_a_format_that_does_not_exist_is_named() -> None:
    from reput_pipeline.lake.micro_batches import TableAppender

    with pytest.raises(ValueError, match="there is no format 'hudi'; there are delta, iceberg"):
        TableAppender("hudi", "place")
