"""Queries between the topic `orders` and a Delta table, as a separate program with a Spark that has Delta.

Usage: `python delta_query.py copy --broker ADDRESS --table DIR --checkpoint DIR [--follow]` streams the topic to the
table, to its end or until it is killed; `python delta_query.py send --broker ADDRESS --table DIR --to TOPIC` writes the
bodies of the table to a topic. Both print one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from typing import Any, Final

import pyspark

from reput_pipeline.spark.session import make_session

TOPIC: Final = "orders"


def main() -> int:
    """Run one of them."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for command, names in (("copy", ("broker", "table", "checkpoint")), ("send", ("broker", "table", "to"))):
        of_command = commands.add_parser(command)
        for name in names:
            of_command.add_argument(f"--{name}", required=True)
    commands.choices["copy"].add_argument("--follow", action="store_true")
    arguments = parser.parse_args()
    spark = _session()
    found = {"copy": _copy, "send": _send}[arguments.command](spark, arguments)
    spark.stop()
    print(json.dumps({"spark": pyspark.__version__, **found}))
    return 0


def _session() -> Any:
    spark_version = ".".join(pyspark.__version__.split(".")[:2])
    jar = f"io.delta:delta-spark_{spark_version}_2.13:{importlib.metadata.version('delta-spark')}"
    conf = {
        "spark.jars.packages": jar,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Of a small table: each commit has so many tasks, 50 by default.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.memory": "512m",
        "spark.log.level": "ERROR",
    }
    return make_session("delta", master="local[2]", conf=conf)


def _copy(spark: Any, arguments: argparse.Namespace) -> dict[str, object]:
    messages = spark.readStream.format("reput").options(
        nameServer=arguments.broker, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="400"
    )
    writer = messages.load().writeStream.format("delta").option("checkpointLocation", arguments.checkpoint)
    follows = {"processingTime": "0 seconds"}
    query = writer.trigger(**(follows if arguments.follow else {"availableNow": True})).start(arguments.table)
    query.awaitTermination()
    return {"batches": [one["batchId"] for one in query.recentProgress if one["numInputRows"]]}


def _send(spark: Any, arguments: argparse.Namespace) -> dict[str, object]:
    rows = spark.read.format("delta").load(arguments.table)
    # Under one key, so that what is sent twice is published once.
    sink = rows.select("body").write.format("reput").mode("append")
    for _ in range(2):
        sink.options(nameServer=arguments.broker, topic=arguments.to, idempotencyKey="table").save()
    return {"rows": rows.count()}


if __name__ == "__main__":
    sys.exit(main())
