"""A streaming query as a separate program: the same on every kind of cluster.

Usage: `python streaming_query.py --master URL --broker ADDRESS --to TOPIC --checkpoint DIR [--count] [--conf
KEY=VALUE]`. It streams the topic `orders` into another one, in several micro-batches, counts tags in a streaming
aggregate if it is to, and prints one JSON object: the counts, the rows of each micro-batch, which executors there are,
and where their packages are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from reput_pipeline.spark.session import make_session

TOPIC = "orders"


def main() -> int:
    """Run both to the end of what is there."""
    parser = argparse.ArgumentParser()
    for name in ("master", "broker", "to", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }
    spark = make_session(
        "query", master=arguments.master, conf=conf | dict(text.split("=", 1) for text in arguments.conf)
    )
    messages = (
        spark.readStream.format("reput")
        .options(nameServer=arguments.broker, subscribe=TOPIC, startingOffsets="earliest", minPartitions="2")
        .option("maxOffsetsPerTrigger", "700")
        .load()
    )
    copied = (
        messages.selectExpr("upper(CAST(body AS STRING)) AS body", "keys", "tags")
        .writeStream.format("reput")
        .options(nameServer=arguments.broker, topic=arguments.to)
        .option("checkpointLocation", f"{arguments.checkpoint}/copies")
        .trigger(availableNow=True)
        .start()
    )
    copied.awaitTermination()
    rows = _counted(spark, messages) if arguments.count else []
    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(_place).distinct().collect()
    executors, kernels = zip(*places, strict=True)
    found = {
        "batches": [progress["numInputRows"] for progress in copied.recentProgress if progress["numInputRows"]],
        "counts": {row.tags: row["count"] for row in rows},
        "executors": sorted(set(executors)),
        "kernels": sorted(set(kernels)),
    }
    spark.stop()
    print(json.dumps(found))
    return 0


def _counted(spark: Any, messages: Any) -> list[Any]:
    query = (
        messages.groupBy("tags")
        .count()
        .writeStream.format("memory")
        .queryName("counts")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows: list[Any] = spark.table("counts").collect()
    return rows


def _place(_: Iterable[Any]) -> Iterator[tuple[str, str]]:
    from reput_protocol import kernel

    time.sleep(0.2)  # so that one executor does not take them all
    executor = os.environ.get("SPARK_EXECUTOR_DIRS", "the driver")  # of each its own
    yield executor, f"{kernel.FORM} {os.path.relpath(kernel.__file__)}"


if __name__ == "__main__":
    sys.exit(main())
